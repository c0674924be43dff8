"""Several clients on one machine: total speed, fairness, the side lane, and writing beside a long prompt.

    python benchmarks/parallel.py [--tokens 96] [--rounds 3] [--threads 2] [--json FILE]

The server runs the default manifest (SmolLM2 on this CPU) in a process of its own; the clients are threads of this
one. With its defaults it takes two minutes or so on two cores.

* `clients`: that many equal requests at once, each with a place (`parallel` as many as the largest count): tokens/s of
  all together, the fastest client's rate over the slowest one's, and how many times the speed of one that is. The
  counts take turns, and the numbers are medians over the rounds; the last one is the median of each round's own ratio,
  so a machine that is slower for a while does not change it.
* `lane`: a short question asked again and again while one long turn holds the only place, with the side lane on and
  off: milliseconds to its whole answer, and how long the turn took. `alone`: neither beside the other.
* `reading`: one client writes while another one's prompt is read: the writer's longest silence and its rate in that
  time, and how long the prompt took; with the turns as they are, and with whole chunks one after the other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2

from tandem.testing import sse
from tandem.testing.server import ServerProcess

TOPICS = ["the sea", "a mountain", "an old house", "winter", "a train", "bread", "the city", "a garden"]
QUESTION = "What is the capital of France? Answer in one word."
COUNTS = (1, 2, 4, 8)


@contextmanager
def server(threads: int, **options: Any) -> Iterator[str]:
    """The default manifest with these options of its `server` section; yields its URL, warmed up."""
    settings = {"torch_threads": threads, "ledger": "null", **options}
    arguments = [word for name, value in settings.items() for word in ("--set", f"server.{name}={value}")]
    with ServerProcess("default", *arguments) as process:
        ask(process.url, "Hello", 4)
        yield process.url


def ask(url: str, said: str, tokens: int, first: threading.Event | None = None) -> dict[str, Any]:
    """One streamed answer: when it began and ended, its pieces' times, its tokens. `first` is told of the first."""
    body = {
        "messages": [{"role": "user", "content": said}], "max_tokens": tokens, "temperature": 0, "stream": True,
        "cache_prompt": False, "stream_options": {"include_usage": True},
    }  # fmt: skip
    began, pieces, usage = time.perf_counter(), [], {}
    with (
        httpx2.Client(timeout=600, trust_env=False) as client,
        client.stream("POST", f"{url}/v1/chat/completions", json=body) as response,
    ):
        for event in sse.read(response.iter_bytes()):
            if not isinstance(event, sse.Event) or event.data == "[DONE]":
                continue
            chunk = json.loads(event.data)
            usage = chunk.get("usage") or usage
            if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                pieces.append(time.perf_counter())
                if first is not None:
                    first.set()
    return {"began": began, "pieces": pieces, "ended": time.perf_counter(), "tokens": usage["completion_tokens"]}


def essay(topic: str, place: int = 0) -> str:
    return f"Write a long story about {topic}, in many paragraphs. It is story number {place}."


def took(answer: dict[str, Any]) -> float:
    return float(answer["ended"] - answer["began"])


# ---------------------------------------------------------------------------------------------------- what is measured


def clients(tokens: int, threads: int, rounds: int) -> list[dict[str, Any]]:
    speeds: dict[int, list[float]] = {count: [] for count in COUNTS}
    unequal: dict[int, list[float]] = {count: [] for count in COUNTS}
    with server(threads, parallel=max(COUNTS)) as url, ThreadPoolExecutor(max(COUNTS)) as pool:
        for _ in range(rounds):
            for count in COUNTS:
                start = time.perf_counter()
                answers = list(pool.map(lambda place: ask(url, essay(TOPICS[place], place), tokens), range(count)))
                seconds = time.perf_counter() - start
                rates = [answer["tokens"] / took(answer) for answer in answers]
                speeds[count].append(sum(answer["tokens"] for answer in answers) / seconds)
                unequal[count].append(max(rates) / min(rates))
    ones = speeds[COUNTS[0]]
    return [
        {
            "clients": count,
            "tokens/s": round(statistics.median(speeds[count]), 1),
            "max/min": round(statistics.median(unequal[count]), 2),
            "times one": round(statistics.median(a / b for a, b in zip(speeds[count], ones, strict=True)), 2),
        }
        for count in COUNTS
    ]


def lane(tokens: int, threads: int) -> list[dict[str, Any]]:
    rows = []
    for mode in ("alone", "on", "off"):
        with server(threads, parallel=1, side_lane="off" if mode == "off" else "on") as url:
            shorts: list[float] = []
            writing, turn = threading.Event(), {}
            holder = threading.Thread(target=lambda: turn.update(ask(url, essay("the sea"), 4 * tokens, writing)))  # noqa: B023
            holder.start()
            if mode == "alone":
                holder.join()
            writing.wait()
            while len(shorts) < 3 or (holder.is_alive() and len(shorts) < 10):
                shorts.append(took(ask(url, QUESTION, 8)) * 1e3)
            holder.join()
        rows.append(
            {
                "lane": mode,
                "first ms": round(shorts[0]),
                "median ms": round(statistics.median(shorts)),
                "questions": len(shorts),
                "turn s": round(took(turn), 1),
            }
        )
    return rows


def reading(tokens: int, threads: int, prompt: int) -> list[dict[str, Any]]:
    rows = []
    long = " ".join(f"The {TOPICS[place % 8]} is number {place}." for place in range(prompt // 9))
    turns: dict[str, dict[str, Any]] = {"on": {}, "off": {"turn_quantum_ms": 1e6, "decode_share": 0}}
    for name, options in turns.items():
        with server(threads, parallel=2, **options) as url:
            writing, writer = threading.Event(), {}
            thread = threading.Thread(target=lambda: writer.update(ask(url, essay("winter"), 16 * tokens, writing)))  # noqa: B023
            thread.start()
            writing.wait()
            read = ask(url, f"{long}\nWhat was this about?", 2)
            thread.join()
        first = read["pieces"][0]
        times = [at for at in writer["pieces"] if read["began"] <= at <= first]
        marks = [read["began"], *times, min(first, writer["ended"])]
        rows.append(
            {
                "turns": name,
                "longest silence ms": round(max(b - a for a, b in pairwise(marks)) * 1e3),
                "pieces/s": round(len(times) / (marks[-1] - marks[0]), 1),
                "prompt read s": round(first - read["began"], 1),
            }
        )
    return rows


def show(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}")
    widths = {name: max(len(name), *(len(str(row[name])) for row in rows)) for name in rows[0]}
    for row in [dict.fromkeys(rows[0]) | {name: name for name in rows[0]}, *rows]:
        print("  ".join(f"{row[name]!s:>{width}}" for name, width in widths.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--tokens", type=int, default=96, help="of each answer")
    parser.add_argument("--rounds", type=int, default=3, help="of `clients`")
    parser.add_argument("--prompt", type=int, default=3000, help="tokens of the long prompt, about")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there as well")
    args = parser.parse_args()
    tables = {"clients": clients(args.tokens, args.threads, args.rounds)}
    show("equal clients at once", tables["clients"])
    tables["lane"] = lane(args.tokens, args.threads)
    show("a short question beside a long turn", tables["lane"])
    tables["reading"] = reading(args.tokens, args.threads, args.prompt)
    show("writing beside a long prompt", tables["reading"])
    if args.json:
        args.json.write_text(json.dumps(tables, indent=1) + "\n")


if __name__ == "__main__":
    main()
