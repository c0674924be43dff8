"""What the HTTP server adds to the engine: latency of a token on its way to the socket, and throughput.

    python benchmarks/server.py [--seconds 5] [--json FILE]

The engine and the server run in this process, over the `scripted` model; the clients are raw sockets in a process of
their own, so that neither waits for the other's interpreter. Both read CLOCK_MONOTONIC, so their times compare.

* Latency: a token's time from the engine's sink to the client's `recv`, while the model writes at `--rate` tokens/s
  for each stream.
* Throughput: every client asks again as soon as its answer has ended, and the model writes as fast as it can. The
  scripted model is Python, so the engine has a limit of its own: the column `engine alone` is the same load without
  HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform as machine
import selectors
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PIECE = b'"delta":{"content":'
"""In every chunk with text, and in no other: the first delta starts with its role."""
END = b"data: [DONE]"


def request(stream: int, tokens: int) -> dict[str, Any]:
    """A chat request for `tokens` tokens, one a block. The seed tells the engine's side which stream it is."""
    script = json.dumps({"script": ["x"] * tokens})
    return {"messages": [{"role": "user", "content": script}], "stream": True, "seed": stream}


# ------------------------------------------------------------------------------------------------ the clients' process


class Client:
    """One connection that asks, reads to the end, and asks again until the time is over."""

    def __init__(self, address: tuple[str, int], stream: int, tokens: int) -> None:
        body = json.dumps(request(stream, tokens)).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}"
        self._request = head.encode() + b"\r\n\r\n" + body
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.arrivals: list[list[int]] = []
        """For each request the time of each piece, in nanoseconds."""
        self.asked: list[int] = []
        self.ended: list[int] = []
        self._rest = b""

    def ask(self) -> None:
        self.arrivals.append([])
        self.asked.append(time.monotonic_ns())
        self.socket.sendall(self._request)

    def read(self) -> bool:
        """Take what has arrived; True when the answer has ended."""
        received = self.socket.recv(1 << 18)
        now = time.monotonic_ns()
        if not received:
            raise ConnectionError("the server closed the connection")
        text = self._rest + received
        cut = max(0, text.rfind(b"\n\n"))
        whole, self._rest = text[:cut], text[cut:]
        self.arrivals[-1] += [now] * whole.count(PIECE)
        if END in whole or END in self._rest:
            self._rest = b""
            self.ended.append(now)
            return True
        return False


def run_clients(host: str, port: int, count: int, tokens: int, seconds: float) -> dict[str, Any]:
    """Load from `count` connections. With `seconds` 0 each asks once."""
    clients = [Client((host, port), stream, tokens) for stream in range(count)]
    selector = selectors.DefaultSelector()
    began = time.monotonic_ns()
    for client in clients:
        selector.register(client.socket, selectors.EVENT_READ, client)
        client.ask()
    busy = count
    while busy:
        for key, _ in selector.select():
            client = key.data
            if client.read():
                if time.monotonic_ns() - began < seconds * 1e9:
                    client.ask()
                else:
                    busy -= 1
    return {
        "began": began,
        "ended": max(client.ended[-1] for client in clients),
        "arrivals": {client: c.arrivals for client, c in enumerate(clients)},
        "asked": {client: c.asked for client, c in enumerate(clients)},
    }


# ------------------------------------------------------------------------------------------------ the server's process


class Served:
    """The running server, and when each piece left the engine."""

    def __init__(self, url: tuple[str, int], engine: Any, sent: dict[int, list[list[int]]]) -> None:
        self.address = url
        self.engine = engine
        self.sent = sent


@contextmanager
def served(*overrides: str) -> Iterator[Served]:
    """The server as `tandem serve` runs it, with a clock in front of every sink."""
    from tandem.api.app import build_app
    from tandem.api.listening import DrainingServer, bind, serve_until_stopped
    from tandem.core.engine.engine import Engine
    from tandem.core.engine.options import SECTIONS
    from tandem.core.engine.request import Event, Generate, Piece, Sink
    from tandem.core.kernel import assemble, load_manifest

    manifest = load_manifest("scripted", overrides=overrides, sections=SECTIONS)
    platform = assemble(manifest)
    engine = Engine(platform)
    sent: dict[int, list[list[int]]] = defaultdict(list)
    submit: Callable[[Generate, Sink], Any] = engine.submit

    def clocked(ask: Generate, sink: Sink) -> Any:
        times: list[int] = []
        sent[ask.sampling.seed or 0].append(times)

        def stamped(events: list[Event]) -> None:
            now = time.monotonic_ns()
            times.extend(now for event in events if isinstance(event, Piece) and event.text)
            sink(events)

        return submit(ask, stamped)

    engine.submit = clocked  # type: ignore[method-assign,assignment]
    ready = threading.Event()
    server = DrainingServer(build_app(platform, engine), engine, drain_timeout_s=5, ready=ready.set)
    sockets = bind("127.0.0.1", 0)
    engine.start()
    loops: list[asyncio.AbstractEventLoop] = []

    def run() -> None:
        factory = server.config.get_loop_factory()

        def remembered() -> asyncio.AbstractEventLoop:
            loops.append(factory() if factory else asyncio.new_event_loop())
            return loops[0]

        server.config.get_loop_factory = lambda: remembered  # type: ignore[method-assign]
        serve_until_stopped(server, sockets)

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait(30)
    try:
        yield Served(sockets[0].getsockname(), engine, sent)
    finally:
        loops[0].call_soon_threadsafe(server.stop)
        thread.join()
        engine.stop()
        platform.close()


def clients(address: tuple[str, int], count: int, tokens: int, seconds: float) -> dict[str, Any]:
    """`run_clients` in a process of its own."""
    arguments = [json.dumps([*address, count, tokens, seconds])]
    done = subprocess.run([sys.executable, __file__, "--clients", *arguments], stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def latency(count: int, rate: float, tokens: int) -> dict[str, Any]:
    """Microseconds from sink to `recv` over every token of `count` streams."""
    with served(f"server.parallel={count}", f"model.tokens_per_s={rate}") as server:
        clients(server.address, 1, 50, 0)  # warm
        server.sent.clear()
        result = clients(server.address, count, tokens, 0)
        waits = [
            (arrival - sent) / 1e3
            for stream, requests in result["arrivals"].items()
            for arrivals, times in zip(requests, server.sent[int(stream)], strict=True)
            for arrival, sent in zip(arrivals, times, strict=True)
        ]
    waits.sort()
    return {
        "clients": count,
        "tokens": len(waits),
        "median_us": round(statistics.median(waits), 1),
        "p90_us": round(waits[int(len(waits) * 0.9)], 1),
        "p99_us": round(waits[int(len(waits) * 0.99)], 1),
        "max_us": round(waits[-1], 1),
    }


def throughput(count: int, tokens: int, seconds: float) -> dict[str, Any]:
    with served(f"server.parallel={count}", f"server.max_queue={count}") as server:
        clients(server.address, count, tokens, 0)  # warm
        result = clients(server.address, count, tokens, seconds)
        took = (result["ended"] - result["began"]) / 1e9
        requests = sum(len(asked) for asked in result["asked"].values())
        pieces = sum(len(arrivals) for client in result["arrivals"].values() for arrivals in client)
        first = [
            (arrivals[0] - asked) / 1e6
            for client in result["arrivals"]
            for arrivals, asked in zip(result["arrivals"][client], result["asked"][client], strict=True)
        ]
        alone = engine_alone(server.engine, count, tokens, seconds)
    return {
        "clients": count,
        "requests": requests,
        "requests_per_s": round(requests / took, 1),
        "tokens_per_s": round(pieces / took),
        "first_token_median_ms": round(statistics.median(first), 2),
        "engine_alone_tokens_per_s": alone,
    }


def engine_alone(engine: Any, count: int, tokens: int, seconds: float) -> int:
    """Tokens per second of the same load, submitted by the sinks themselves."""
    from tandem.core.engine.prompt import Prompt
    from tandem.core.engine.request import Failed, Finished, Generate, Piece

    prompt = Prompt(engine.model).chat(request(0, tokens)["messages"])
    over = threading.Event()
    seen, running = [0], [count]
    until = time.monotonic() + seconds

    def sink(events: Any) -> None:
        for event in events:
            if isinstance(event, Piece):
                seen[0] += 1
            elif isinstance(event, Finished | Failed):
                if time.monotonic() < until:
                    engine.submit(Generate(prompt, tokens + 1), sink)
                else:
                    running[0] -= 1
                    if not running[0]:
                        over.set()

    began = time.monotonic()
    for _ in range(count):
        engine.submit(Generate(prompt, tokens + 1), sink)
    over.wait()
    return round(seen[0] / (time.monotonic() - began))


def show(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}")
    widths = {name: max(len(name), *(len(str(row[name])) for row in rows)) for name in rows[0]}
    print("  ".join(f"{name:>{width}}" for name, width in widths.items()))
    for row in rows:
        print("  ".join(f"{row[name]:>{width}}" for name, width in widths.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5, help="how long each throughput load runs")
    parser.add_argument("--tokens", type=int, default=100, help="the length of each answer")
    parser.add_argument("--rate", type=float, default=100, help="tokens/s of each stream in the latency part")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 8, 64], help="how many clients at once")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there as well")
    parser.add_argument("--clients", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.clients:
        json.dump(run_clients(*json.loads(given.clients)), sys.stdout)
        return
    print(f"{machine.processor() or machine.machine()}, Python {machine.python_version()}, {machine.system()}")
    delays = [latency(count, given.rate, 3 * given.tokens) for count in given.streams]
    show(f"From the engine's sink to the client's socket, at {given.rate:g} tokens/s a stream", delays)
    loads = [throughput(count, given.tokens, given.seconds) for count in given.streams]
    show(f"Answers of {given.tokens} tokens, one token a block, as fast as it goes", loads)
    if given.json:
        given.json.write_text(json.dumps({"latency": delays, "throughput": loads}, indent=2) + "\n")


if __name__ == "__main__":
    main()
