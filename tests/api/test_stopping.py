"""`tandem serve` as a process: how it starts, drains and stops."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

import tandem.api.serve
from tandem.api.listening import bind
from tandem.core.engine.options import SECTIONS
from tandem.core.kernel import StartError, load_manifest
from tandem.testing import sse
from tandem.testing.server import ServerProcess, until

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")

CHAT = "/v1/chat/completions"


def slow(words: int, pause_ms: int) -> dict[str, Any]:
    """A streamed request whose answer takes `words` times the pause."""
    script = [item for number in range(words) for item in ({"sleep_ms": pause_ms}, f"{number} ")]
    return {"messages": [{"role": "user", "content": json.dumps({"script": script})}], "stream": True}


@pytest.fixture
def client() -> Iterator[httpx2.Client]:
    with httpx2.Client(timeout=20, trust_env=False) as opened:
        yield opened


def text_of(events: list[sse.Event]) -> str:
    chunks = [event.json() for event in events if not event.done]
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_mid_stream_lets_the_answer_end_and_turns_others_away(
    client: httpx2.Client, number: signal.Signals
) -> None:
    with ServerProcess("scripted") as server:
        with client.stream("POST", server.url + CHAT, json=slow(12, 100)) as response:
            reader = sse.read(response.iter_raw())
            begun = [next(reader) for _ in range(3)]
            server.signal(number)
            until(lambda: httpx2.get(f"{server.url}/health", trust_env=False).json()["status"] == "draining")
            # A new connection, while the old answer still runs.
            refused = httpx2.post(server.url + CHAT, json=slow(1, 0), trust_env=False)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "30")
            assert refused.json()["error"]["code"] == "draining"
            assert httpx2.get(f"{server.url}/health", trust_env=False).status_code == 503
            events = [item for item in [*begun, *reader] if isinstance(item, sse.Event)]
        assert text_of(events) == "".join(f"{number} " for number in range(12))
        assert events[-2].json()["choices"][0]["finish_reason"] == "stop"
        assert events[-1].done
        code, errors = server.wait()
        assert (code, "Traceback" in errors) == (0, False)


def test_a_plain_answer_is_whole_after_a_signal_and_what_waits_is_served(client: httpx2.Client) -> None:
    with ServerProcess("scripted", "--set", "server.parallel=1") as server:
        with ThreadPoolExecutor() as pool:
            asked = [pool.submit(client.post, server.url + CHAT, json={**slow(4, 100), "stream": False}) for _ in "ab"]
            until(lambda: httpx2.get(f"{server.url}/health", trust_env=False).json()["queue"]["waiting"] == 1)
            server.signal()
            texts = [job.result().json()["choices"][0]["message"]["content"] for job in asked]
        assert texts == ["0 1 2 3 "] * 2
        assert server.wait()[0] == 0


def test_an_idle_server_stops_at_once_even_with_an_open_connection(client: httpx2.Client) -> None:
    with ServerProcess("scripted") as server:
        client.get(f"{server.url}/health")
        began = time.monotonic()
        server.signal()
        assert server.wait()[0] == 0
        assert time.monotonic() - began < 3


def test_the_drain_has_a_limit_and_the_stream_says_that_it_was_cut(client: httpx2.Client) -> None:
    with ServerProcess("scripted", "--set", "server.drain_timeout_s=0.3") as server:
        with client.stream("POST", server.url + CHAT, json=slow(1000, 50)) as response:
            reader = sse.read(response.iter_raw())
            next(reader)
            server.signal()
            *_, last, done = [item for item in reader if isinstance(item, sse.Event)]
        assert last.json()["choices"][0]["finish_reason"] == "error"
        assert last.json()["error"]["code"] == "draining"
        assert done.done
        code, errors = server.wait()
        assert (code, "Traceback" in errors) == (0, False)


def test_a_second_signal_stops_at_once(client: httpx2.Client) -> None:
    with ServerProcess("scripted") as server:
        with client.stream("POST", server.url + CHAT, json=slow(1000, 50)) as response:
            next(response.iter_raw())
            server.signal()
            until(lambda: httpx2.get(f"{server.url}/health", trust_env=False).status_code == 503)
            began = time.monotonic()
            server.signal()
            code, errors = server.wait()
        assert time.monotonic() - began < 3
        assert code == 1
        assert "Traceback" not in errors


def test_the_greeting_is_one_line_that_can_be_pasted_into_a_shell() -> None:
    with ServerProcess("scripted", "--set", "model.served_name=mine") as server:
        assert server.greeting.count("\n") == 1
        assert "mine" in server.greeting
        command = server.greeting.partition("try: ")[2]
        assert command.startswith(f"curl {server.url}{CHAT} ")
        body = json.loads(command.split(" -d ")[1].strip().strip("'"))
        assert httpx2.post(server.url + CHAT, json=body, trust_env=False).status_code == 200


def test_a_port_in_use_is_one_line_and_exit_code_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-c", "from tandem.api.command import main; main()"]
        run = subprocess.run(
            [*command, "serve", "scripted", "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert run.returncode == 1
    assert run.stdout == ""
    [line] = run.stderr.splitlines()
    assert f"127.0.0.1:{port} is in use" in line


def test_an_address_of_another_machine_is_refused_in_one_sentence() -> None:
    with pytest.raises(StartError, match=r"can't listen on 192\.0\.2\.1:0"):
        bind("192.0.2.1", 0)
    with pytest.raises(StartError, match=r"can't listen on no\.such\.host\.invalid:80"):
        bind("no.such.host.invalid", 80)


def test_port_0_takes_one_free_port_on_every_address_of_the_host() -> None:
    sockets = bind("localhost", 0)
    assert len({bound.getsockname()[1] for bound in sockets}) == 1
    assert sockets[0].getsockname()[1] > 0
    for bound in sockets:
        bound.close()


def test_a_server_hands_the_interpreter_on_quickly() -> None:
    usual = sys.getswitchinterval()
    try:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            manifest = load_manifest(
                {"tandem": 1, "model": {"plugin": "scripted"}, "server": {"port": taken.getsockname()[1]}},
                sections=SECTIONS,
            )
            with pytest.raises(StartError, match="in use"):
                tandem.api.serve.run(manifest)
        assert sys.getswitchinterval() == pytest.approx(tandem.api.serve.SWITCH_S)
    finally:
        sys.setswitchinterval(usual)
