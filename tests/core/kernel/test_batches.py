from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings, strategies as st

from tandem.core.kernel.batches import Batches


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(), max_size=40), st.integers(1, 7))
def test_everything_is_written_once_and_in_order_in_batches_of_a_size(items: list[int], most: int) -> None:
    batches: list[list[int]] = []
    writer: Batches[int] = Batches(batches.append, "w", room=100, most=most)
    for item in items:
        assert writer.put(item)
    writer.close(10)
    assert [item for batch in batches for item in batch] == items
    assert all(0 < len(batch) <= most for batch in batches)


def test_what_finds_no_room_is_refused_and_nobody_waits() -> None:
    held, begun = threading.Event(), threading.Event()
    writer: Batches[int] = Batches(lambda items: (begun.set(), held.wait(10)), "w", room=2, most=1)  # type: ignore[arg-type, return-value]
    assert writer.put(0)
    assert begun.wait(10)
    assert [writer.put(item) for item in range(4)] == [True, True, False, False]
    assert not writer.flush(0.01)
    held.set()
    assert writer.flush(10)


def test_a_write_that_raises_costs_its_batch_alone(caplog: pytest.LogCaptureFixture) -> None:
    written: list[int] = []

    def write(items: list[int]) -> None:
        if 1 in items:
            raise ValueError("no")
        written.extend(items)

    writer = Batches(write, "w", room=10, most=1)
    for item in range(3):
        writer.put(item)
    assert writer.flush(10)
    assert written == [0, 2]
    assert "1 items are lost" in caplog.text


def test_no_thread_is_started_before_there_is_something_to_write() -> None:
    before = threading.active_count()
    writer: Batches[int] = Batches(lambda items: None, "w", room=1, most=1)
    assert writer.flush(1)
    writer.close(1)
    assert threading.active_count() == before
    assert not writer.put(1)


def test_the_last_act_is_done_on_the_thread_and_closing_twice_is_safe() -> None:
    names: list[str] = []
    writer: Batches[int] = Batches(
        lambda items: None, "w", room=1, most=1, last=lambda: names.append(threading.current_thread().name)
    )
    writer.put(1)
    writer.close(10)
    writer.close(10)
    assert names == ["w"]
