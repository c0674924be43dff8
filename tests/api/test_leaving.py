"""A client that leaves frees the engine at once, wherever its request stands."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tandem.core.engine.request import Finished, Piece, PrefillProgress, Stats
from tandem.testing.box import Box
from tandem.testing.server import raw_request, until

CHAT = "/v1/chat/completions"
Hand = Callable[..., Any]
ABANDONED = 'tandem_requests_total{client="plain",finish_reason="abandoned"}'


@contextmanager
def connected(url: str, body: dict[str, Any]) -> Iterator[socket.socket]:
    host, _, port = url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)), timeout=20)
    connection.sendall(raw_request(CHAT, json.dumps(body).encode()))
    try:
        yield connection
    finally:
        connection.close()


def hello(streamed: bool, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hello"}], "stream": streamed, **fields}


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("stage", ["queue", "prefill", "decode"])
def test_the_job_is_cancelled_and_its_counts_are_kept(
    hand: Hand, streamed: bool, stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = hand()
    with caplog.at_level(logging.INFO, "tandem.api"), connected(server.url, hello(streamed)) as connection:
        job = server.engine.job()
        if stage != "queue":
            job.send(PrefillProgress(1, 2))
        if stage == "decode":
            job.send(Piece("a"))
            if streamed:
                assert b"text/event-stream" in connection.recv(4096)
        assert not job.cancelled
        connection.close()
        until(lambda: job.cancelled)
        job.send(Finished("abandoned", Stats(prompt_tokens=5, completion_tokens=1)))
        until(lambda: server.metric(ABANDONED) == 1)
    assert server.metric("tandem_generation_tokens_total") == 1
    [line] = [record for record in caplog.records if " abandoned " in record.getMessage()]
    assert line.levelname == "INFO"


def test_leaving_one_of_n_drops_what_runs_and_begins_nothing_new(hand: Hand) -> None:
    server = hand()
    with connected(server.url, hello(False, n=5)):
        jobs = [server.engine.job(0), server.engine.job(1)]
    until(lambda: all(job.cancelled for job in jobs))
    for job in jobs:
        job.send(Finished("abandoned", Stats()))
    until(lambda: server.metric(ABANDONED) == 1)
    assert len(server.engine.jobs) == 2


@pytest.mark.parametrize("streamed", [True, False])
def test_an_endless_answer_ends_with_its_reader(streamed: bool) -> None:
    script = json.dumps({"script": [{"sleep_ms": 1}, "word "], "end": False})
    body = hello(streamed, max_tokens=200_000) | {"messages": [{"role": "user", "content": script}]}
    with Box(model={"plugin": "scripted", "tokens_per_s": 1000}, server={"parallel": 1}) as box:
        with connected(box.url, body) as connection:
            until(lambda: box.engine.snapshot()["running"] == 1)
            if streamed:
                assert connection.recv(4096)
            # Another one waits behind it, and leaves the queue without a trace.
            with connected(box.url, body):
                until(lambda: box.engine.snapshot()["waiting"] == 1)
            until(lambda: box.engine.snapshot()["waiting"] == 0, 5)
        until(lambda: box.engine.idle, 5)
        assert box.engine.snapshot()["totals"]["requests_abandoned"] == 2


def test_a_long_prefill_ends_with_its_reader() -> None:
    body = hello(True) | {"messages": [{"role": "user", "content": "x" * 50_000}]}
    model = {"plugin": "scripted", "prefill_per_s": 5000}
    with Box(model=model, server={"prefill_chunk": 500}) as box:
        with connected(box.url, body):
            until(lambda: box.engine.snapshot()["running"] == 1)
        until(lambda: box.engine.idle, 5)
        assert box.engine.snapshot()["totals"]["requests_abandoned"] == 1
