"""Who asks through a plugin and goes away leaves nothing running, and is counted as everybody else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandem.api.host import ServedHost
from tandem.api.listener import Listener
from tandem.core.engine.ledger import read
from tandem.core.plugin import ContentDelta, RequestError
from tandem.testing.box import Box
from tandem.testing.server import until

BODY = {"messages": [{"role": "user", "content": "Talk."}], "max_tokens": 100_000}


@pytest.fixture
def talking(tmp_path: Path) -> Iterator[Box]:
    """One place, no queue, answers that take minutes, and a ledger."""
    model = {"plugin": "scripted", "reply": "word " * 4000, "tokens_per_s": 200}
    server = {"parallel": 1, "max_queue": 0, "side_lane": "off", "ledger": str(tmp_path / "l.sqlite")}
    with Box(model=model, server=server) as running:
        yield running


def rows(box: Box, count: int) -> list[dict[str, Any]]:
    """The ledger's rows, as soon as there are so many."""
    path = box.app.state.service.ledger.path
    until(lambda: len(read(path)) == count, 5)
    return read(path)


def test_one_that_is_cancelled_at_the_moment_when_text_comes_is_gone(
    talking: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader's future is done and its task is cancelled before the task runs again."""
    reading: list[asyncio.Task[Any]] = []
    hear = Listener._hear

    def hear_and_leave(listener: Listener, events: Any) -> None:
        hear(listener, events)
        for task in reading:
            task.cancel()
        reading.clear()

    monkeypatch.setattr(Listener, "_hear", hear_and_leave)

    async def ask() -> None:
        async for event in ServedHost(talking.app.state.service).chat(BODY, {}):
            if isinstance(event, ContentDelta):
                reading[:] = [task for task in [asyncio.current_task()] if task is not None]

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(asyncio.wait_for(ask(), 10))
    until(lambda: talking.engine.idle, 5)
    (row,) = rows(talking, 1)
    assert (row["reason"], row["route"]) == ("abandoned", "host")
    assert row["prompt_tokens"] > 0, "the engine's counts came with its last word"
    assert row["completion_tokens"] > 0


def test_one_that_stops_reading_is_counted_with_what_was_written(talking: Box) -> None:
    async def ask() -> None:
        events = ServedHost(talking.app.state.service).chat(BODY, {})
        async for event in events:
            if isinstance(event, ContentDelta):
                break
        await events.aclose()

    asyncio.run(ask())
    (row,) = rows(talking, 1)
    assert row["reason"] == "abandoned"
    assert row["completion_tokens"] > 0


def test_a_refusal_is_a_row_and_a_count(talking: Box) -> None:
    host = ServedHost(talking.app.state.service)

    async def both() -> None:
        holder = host.chat(BODY, {})
        await anext(holder)
        with pytest.raises(RequestError, match="busy"):
            await anext(host.chat(BODY, {}))
        with pytest.raises(RuntimeError, match="busy"):
            await host.generate([{"role": "user", "content": "x"}])
        await holder.aclose()

    asyncio.run(both())
    assert [(row["reason"], row["detail"]) for row in rows(talking, 3)][:2] == [("refused", "queue_full")] * 2
    assert 'tandem_requests_refused_total{reason="queue_full"} 2.0' in talking.get("/metrics").text


def test_a_plugins_own_question_that_is_dropped_is_abandoned(talking: Box) -> None:
    async def ask() -> None:
        await ServedHost(talking.app.state.service).generate([{"role": "user", "content": "x"}], max_tokens=90_000)

    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(ask(), 0.3))
    until(lambda: talking.engine.idle, 5)
    assert rows(talking, 1)[0]["reason"] == "abandoned"
