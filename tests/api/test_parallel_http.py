"""Requests beside each other over HTTP: one conversation asked on twice at once, and what /health tells of it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tandem.core.engine.ledger import read
from tandem.testing.box import Box
from tandem.testing.server import until

CHAT = "/v1/chat/completions"
SYSTEM = {"role": "system", "content": "You help people who ask. " * 40}
LONG = "A long message that has to be read. " * 60
"""Some 2,100 tokens, one a byte."""

Start = Callable[..., Box]


@pytest.fixture
def start() -> Iterator[Start]:
    """A host whose model reads 8,000 tokens a second: the long message takes a quarter of a second."""
    boxes: list[Box] = []

    def started(prefill_per_s: float = 8000, **server: Any) -> Box:
        model = {"plugin": "scripted", "prefill_per_s": prefill_per_s}
        boxes.append(Box(model=model, caches={"resident": {}}, server={"parallel": 2, "side_lane": "off", **server}))
        return boxes[-1]

    yield started
    for box in boxes:
        box.close()


def ask(box: Box, *messages: dict[str, str], **fields: Any) -> dict[str, Any]:
    answer = box.post(CHAT, {"messages": [SYSTEM, *messages], "max_tokens": 5000, **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def said(answer: dict[str, Any]) -> dict[str, str]:
    return {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}


def slowly(words: str, steps: int = 60) -> dict[str, str]:
    return user(json.dumps({"script": [{"sleep_ms": 10}, words, *([{"sleep_ms": 10}, "."] * steps)]}))


def forwarded(answer: dict[str, Any]) -> int:
    count: int = answer["timings"]["prompt_n"]
    return count


def both(box: Box, first: list[dict[str, str]], second: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Both asked at once, the first one a moment earlier."""
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(ask, box, *first)
        until(lambda: box.engine.snapshot()["running"] >= 1)
        other = pool.submit(ask, box, *second)
        return [asked.result(), other.result()]


def test_two_that_go_on_with_one_conversation_at_once_read_it_once(start: Start) -> None:
    box = start()
    common = [
        user("hello"),
        {"role": "assistant", "content": "Hello."},
        user(LONG),
        {"role": "assistant", "content": "Yes."},
    ]
    first, second = both(box, [*common, user("one")], [*common, user("two")])
    assert forwarded(first) > len(LONG)
    assert forwarded(second) < 200, "it has read again what the first one read"
    told = box.get("/health").json()["parallel"]
    assert (told["conversation_waits"], told["conversation_gave_up"]) == (1, 0)
    assert 0.05 < told["conversation_wait_s"] < 3


def test_who_goes_on_with_a_conversation_that_is_being_answered_starts_at_once(start: Start) -> None:
    box = start()
    history = [user(LONG), said(ask(box, user(LONG)))]
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(ask, box, *history, slowly("one"))
        until(lambda: any(g.output for g in generations(box)))
        second = ask(box, *history, user("two"))
        assert not writing.done(), "the second one waited for the first"
        assert writing.result()["choices"][0]["message"]["content"].startswith("one")
    assert forwarded(second) < 100
    assert second["timings"]["cache_source"] == "resident"
    assert said(second) == said(ask(box, *history, user("two"), cache_prompt=False))


def test_a_new_chat_behind_the_same_head_does_not_wait(start: Start) -> None:
    box = start(prefill_per_s=3000)
    first, second = both(box, [user(LONG)], [user("A short question")])
    assert box.get("/health").json()["parallel"]["conversation_waits"] == 0
    assert second["timings"]["queue_ms"] < first["timings"]["prompt_ms"] / 2


def test_the_wait_for_a_conversation_ends_after_its_limit(start: Start) -> None:
    box = start(prefill_per_s=2000, conversation_wait_s=0.1)
    history = [user("hello"), {"role": "assistant", "content": "Hello."}]
    common = [*history, user(LONG), {"role": "assistant", "content": "I have read it."}]
    _, second = both(box, [*common, user("one")], [*common, user("two")])
    assert 100 <= second["timings"]["queue_ms"] < 800
    assert box.get("/health").json()["parallel"]["conversation_gave_up"] == 1


def test_health_tells_how_many_may_run_and_why(start: Start, tmp_path: Any) -> None:
    ledger = tmp_path / "ledger.sqlite"
    box = start(parallel_floor_gib=100_000, ledger=str(ledger))
    told = box.get("/health").json()["parallel"]
    assert (told["max_running"], told["max_running_reason"]) == (2, "server.parallel is 2")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, box, slowly("one"))
        until(lambda: any(g.output for g in generations(box)))
        second = pool.submit(ask, box, user("two"))
        until(lambda: box.get("/health").json()["parallel"]["max_running"] == 1)
        reason = box.get("/health").json()["parallel"]["max_running_reason"]
        assert "100000.0 GiB stay free (server.parallel_floor_gib)" in reason
        first.result()
        waited = second.result()["timings"]
    assert 0 < waited["wait_mem_ms"] <= waited["queue_ms"]
    assert waited["wait_own_ms"] == 0
    told = box.get("/health").json()["parallel"]
    assert (told["max_running"], told["memory_waits"]) == (2, 1)
    until(lambda: ledger.exists() and len(read(ledger)) == 2)
    assert sorted(row["wait_mem_ms"] > 0 for row in read(ledger)) == [False, True]


def test_passes_are_counted_by_the_number_of_requests_in_them(start: Start) -> None:
    box = start()
    ask(box, user("alone"))
    assert set(box.get("/health").json()["parallel"]["passes"]) == {"1"}
    threads = [threading.Thread(target=ask, args=(box, slowly(word))) for word in ("one", "two")]
    for thread in threads:
        thread.start()
        time.sleep(0.02)
    for thread in threads:
        thread.join(20)
    assert box.get("/health").json()["parallel"]["passes"]["2"] > 10


def generations(box: Box) -> list[Any]:
    return [job.generation for job in list(box.engine._admission.running) if job.generation is not None]
