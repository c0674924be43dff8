"""One machine, several clients: the side lane, ranks, and clients that leave in every way at every stage."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tandem.api.host import CLIENT, ServedHost
from tandem.api.work import rank_of
from tandem.core.engine.request import Generate, Rank
from tandem.core.plugin import ClientMatch
from tandem.testing.box import Box
from tandem.testing.server import raw_request, until

SOON_S = 3.0
ENDLESS = json.dumps({"script": [{"sleep_ms": 2}, "word "], "end": False})
SLOW = json.dumps({"script": [{"sleep_ms": 20}, "a"], "end": False})
LONG = "x" * 20_000


@pytest.fixture(scope="module")
def narrow() -> Iterator[Box]:
    """One place, and a lane beside it."""
    model = {"plugin": "scripted", "prefill_per_s": 5000}
    server = {"parallel": 1, "prefill_chunk": 250, "side_lane_prompt_max": 300}
    with Box(model=model, clients=["opencode"], server=server) as box:
        yield box
        until(lambda: box.engine.idle, SOON_S)


@contextmanager
def asking(box: Box, said: str, max_tokens: int = 100_000, stream: bool = True) -> Iterator[socket.socket]:
    """A connection that has sent a chat request. Closed at the end, if it is not before."""
    body = {"messages": [{"role": "user", "content": said}], "stream": stream, "max_tokens": max_tokens}
    host, _, port = box.url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)), timeout=20)
    connection.sendall(raw_request("/v1/chat/completions", json.dumps(body).encode()))
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def held(box: Box) -> Iterator[None]:
    """The place is taken."""
    with asking(box, ENDLESS):
        until(lambda: bool(decoding(box)))
        yield
    until(lambda: box.engine.idle, SOON_S)


def decoding(box: Box) -> list[Any]:
    """The generations in places that write."""
    jobs = list(box.engine._admission.running)
    return [job for job in jobs if job.lane is None and job.generation is not None and job.generation.output]


def abandoned(box: Box) -> float:
    return float(box.engine.snapshot()["totals"].get("requests_abandoned", 0))


def close(connection: socket.socket) -> None:
    connection.close()


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def half_close(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_WR)


# --------------------------------------------------------------------------------------------------------- leaving


@pytest.mark.parametrize("leave", [close, reset, half_close])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("stage", ["prefill", "decode"])
def test_who_leaves_frees_the_place_at_once(narrow: Box, stage: str, stream: bool, leave: Any) -> None:
    before = abandoned(narrow)
    with asking(narrow, ENDLESS if stage == "decode" else LONG, stream=stream) as connection:
        running = narrow.engine._admission.running
        if stage == "decode":
            until(lambda: bool(decoding(narrow)))
        else:
            until(lambda: any(job.generation and job.generation.done for job in narrow.engine._admission.running))
            assert not decoding(narrow), running
        leave(connection)
        until(lambda: narrow.engine.idle, SOON_S)
    assert abandoned(narrow) == before + 1


@pytest.mark.parametrize("leave", [close, reset, half_close])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("stage", ["queue", "lane"])
def test_who_leaves_beside_a_holder_is_dropped_and_the_holder_stays(
    narrow: Box, stage: str, stream: bool, leave: Any
) -> None:
    with held(narrow):
        before = abandoned(narrow)
        with asking(narrow, SLOW, 64 if stage == "lane" else 1000, stream) as connection:
            if stage == "lane":
                until(lambda: narrow.engine.snapshot()["lane"]["running"] == 1)
            else:
                until(lambda: narrow.engine.snapshot()["waiting"] == 1)
            leave(connection)
            until(lambda: abandoned(narrow) == before + 1, SOON_S)
        state = narrow.engine.snapshot()
        assert (state["running"], state["waiting"], state["lane"]["running"]) == (1, 0, 0)


def test_what_was_left_in_the_queue_is_never_read(narrow: Box) -> None:
    asked: list[Generate] = []
    opened = narrow.engine._open
    narrow.engine._open = lambda job: (asked.append(job.request), opened(job))[1]  # type: ignore[method-assign]
    try:
        with held(narrow), asking(narrow, SLOW, 1000):
            until(lambda: narrow.engine.snapshot()["waiting"] == 1)
        until(lambda: narrow.engine.idle, SOON_S)
    finally:
        narrow.engine._open = opened  # type: ignore[method-assign]
    assert len(asked) == 1


# --------------------------------------------------------------------------------------------------- side requests


def test_a_short_question_is_answered_beside_an_endless_answer(narrow: Box) -> None:
    with held(narrow):
        answer = narrow.chat(script=["four"], max_tokens=10)
        assert (answer.status, answer.text) == (200, "four")
        streamed = narrow.stream(script=["f", "i", "v", "e"], max_tokens=10)
        assert streamed.text == "five"
        assert narrow.engine.snapshot()["running"] == 1


def test_health_tells_of_the_lane(narrow: Box) -> None:
    with held(narrow), asking(narrow, SLOW, 64):
        until(lambda: narrow.engine.snapshot()["lane"]["running"] == 1)
        queue = narrow.get("/health").json()["queue"]
    assert queue == {
        "running": 1,
        "waiting": 0,
        "max_running": 1,
        "max_queue": 8,
        "lane": {"mode": "on", "running": 1},
    }


# ----------------------------------------------------------------------------------------------------------- ranks


def test_the_rank_is_read_off_the_client() -> None:
    assert rank_of(ClientMatch("opencode")) is Rank.TURN
    assert rank_of(ClientMatch("opencode", side="title")) is Rank.SIDE
    assert rank_of(ClientMatch("open_webui", side="compaction")) is Rank.SIDE
    assert rank_of(CLIENT) is Rank.BACKGROUND


TITLE = {"role": "system", "content": "You are a title generator. You output ONLY a thread title. Be brief."}
HI = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("path", "said", "rank"),
    [
        ("/v1/chat/completions", {"messages": [HI]}, Rank.TURN),
        ("/v1/chat/completions", {"messages": [TITLE, HI]}, Rank.SIDE),
        ("/v1/completions", {"prompt": "Hi"}, Rank.TURN),
    ],
)
def test_a_request_reaches_the_engine_with_its_rank(narrow: Box, path: str, said: Any, rank: Rank) -> None:
    asked: list[Generate] = []
    submit = narrow.engine.submit
    narrow.engine.submit = lambda ask, sink: (asked.append(ask), submit(ask, sink))[1]  # type: ignore[method-assign]
    try:
        assert narrow.post(path, {**said, "max_tokens": 3}).status_code == 200
    finally:
        narrow.engine.submit = submit  # type: ignore[method-assign]
    assert [ask.rank for ask in asked] == [rank]


def test_the_servers_own_work_gives_its_place_to_a_client_and_ends_after_it(narrow: Box) -> None:
    host = ServedHost(narrow.app.state.service)
    told = json.dumps({"script": [{"sleep_ms": 2}, "own "] * 300})
    written: list[str] = []

    def own() -> None:
        messages = [{"role": "user", "content": told}]
        written.append(asyncio.run(host.generate(messages, max_tokens=5000)))

    working = threading.Thread(target=own)
    working.start()
    until(lambda: bool(decoding(narrow)))
    answer = narrow.chat(script=["at once ", "and whole"], max_tokens=5000)
    assert answer.text == "at once and whole"
    assert not written, "the server's own work went first"
    assert working.is_alive()
    working.join(20)
    assert written == ["own " * 300]
