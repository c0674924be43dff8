"""The rules of sharing one machine, one by one, without a queue or a model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tandem.core.engine.admission import Admission, Job
from tandem.core.engine.placing import (
    JOINT_ROWS,
    Lane,
    continues,
    most_running,
    nodes_each,
    waits_for_conversation,
)
from tandem.core.engine.request import Generate

HEAD, TURN = list(range(1, 101)), list(range(200, 400))
"""What every chat of a client begins with, and what one of them goes on with."""

# ----------------------------------------------------------------------------------------- going on with a conversation


def test_who_shares_more_than_its_own_first_message_goes_on_with_a_conversation() -> None:
    assert continues(shared=121, head=120)
    assert not continues(shared=120, head=120), "the same system prompt, tools and first words are no conversation"
    assert not continues(shared=50, head=120)


def test_who_begins_a_conversation_goes_on_with_none() -> None:
    assert not continues(shared=10_000, head=None)


def test_a_request_waits_while_another_reads_what_both_share() -> None:
    def waits(known: int, waited_s: float = 0.0, head: int | None = 120) -> bool:
        return waits_for_conversation(5000, head, known, waited_s, limit_s=3.0)

    assert waits(known=0)
    assert waits(known=4999)
    assert not waits(known=5000), "all of it can be had now"
    assert not waits(known=0, head=5000), "nothing but the head is shared"
    assert waits(known=0, waited_s=2.9)
    assert not waits(known=0, waited_s=3.0), "it waited long enough"


def test_a_limit_of_nothing_lets_nobody_wait() -> None:
    assert not waits_for_conversation(5000, 120, 0, waited_s=0.0, limit_s=0.0)


# -------------------------------------------------------------------------------------------------------- what one gets


def test_a_place_that_memory_cannot_fill_is_none() -> None:
    assert most_running(places=4, taken=2, held_back=False) == 4
    assert most_running(places=4, taken=2, held_back=True) == 2
    assert most_running(places=4, taken=4, held_back=True) == 4, "it is a guest that was kept out"


def test_one_alone_has_all_rows() -> None:
    assert nodes_each(1) == nodes_each(0) == JOINT_ROWS - 1


@given(st.integers(1, 100))
def test_the_rows_of_those_who_write_fit_into_one_pass(writing: int) -> None:
    rows = writing * (1 + nodes_each(writing))
    assert rows <= max(JOINT_ROWS, writing)
    assert rows > JOINT_ROWS - writing, "no row is left that all of them could have"


# --------------------------------------------------------------------------------------------------------- in the queue


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def job(prompt: list[int], head: int | None = len(HEAD) + 10, **more: Any) -> Job:
    return Job(Generate(prompt, 500, head=head, **more), lambda events: None)


def reading(begun: Job | None, done: int, cached: int = 0, chunk: int = 64) -> Any:
    """The job's generation, which has read so much of its prompt."""
    assert begun is not None
    left = done < len(begun.request.prompt)
    state: Any = SimpleNamespace(
        reading=left, done=done, chunk=chunk, stats=SimpleNamespace(cached_tokens=cached), request=begun.request
    )
    begun.generation = state
    return state


def two(
    first: list[int], second: list[int], clock: Clock, *, limit: float = 3.0, cached: int = 0, **more: Any
) -> tuple[Admission, Any, Job]:
    """A queue in which the first request has just begun to read, and the second is next."""
    queue = Admission(4, 8, Lane("off"), conversation_wait_s=limit, clock=clock)
    queue.add(job(first))
    state = reading(queue.start(), cached, cached)
    behind = job(second, **more)
    queue.add(behind)
    return queue, state, behind


def test_the_second_waits_until_what_both_share_was_read_and_shown() -> None:
    queue, first, second = two([*HEAD, *TURN, 1, 2, 3], [*HEAD, *TURN, 7, 8], Clock())
    assert queue.start() is None
    first.done = 299  # of 300 that are shared; 256 lie on the grid
    assert queue.start() is None
    first.done = 320
    assert queue.start() is second
    assert (queue.counts.conversation_waits, queue.counts.conversation_gave_up) == (1, 0)


def test_the_second_need_not_wait_for_what_was_in_a_cache() -> None:
    queue, _, second = two([*HEAD, *TURN, 1, 2, 3], [*HEAD, *TURN, 7, 8], Clock(), cached=300)
    assert queue.start() is second


def test_the_wait_is_bounded_and_the_second_goes_as_it_is() -> None:
    clock = Clock()
    queue, _, second = two([*HEAD, *TURN], [*HEAD, *TURN, 7], clock)
    assert queue.start() is None
    clock.now += 2.9
    assert queue.start() is None
    clock.now += 0.2
    assert queue.start() is second
    assert queue.counts.conversation_gave_up == 1
    assert queue.counts.conversation_wait_s == pytest.approx(3.1)


def test_a_new_chat_behind_the_same_head_starts_at_once() -> None:
    queue, _, second = two([*HEAD, *TURN], [*HEAD, 7, 8, 9], Clock())
    assert queue.start() is second
    assert queue.counts.conversation_waits == 0


@pytest.mark.parametrize("more", [{"head": None}, {"cache": False}])
def test_who_takes_nothing_from_a_cache_waits_for_nobody(more: dict[str, Any]) -> None:
    queue, _, second = two([*HEAD, *TURN], [*HEAD, *TURN, 7], Clock(), **more)
    assert queue.start() is second


def test_others_pass_one_that_waits_for_its_conversation() -> None:
    queue, _, second = two([*HEAD, *TURN], [*HEAD, *TURN, 7], Clock())
    other = job([5, 6, 7])
    queue.add(other)
    assert [queue.start(), queue.start()] == [other, None]
    assert second.passed == 0


def test_when_the_first_goes_the_second_starts() -> None:
    queue, _, second = two([*HEAD, *TURN], [*HEAD, *TURN, 7], Clock())
    assert queue.start() is None
    queue.leave(queue.running[0])
    assert queue.start() is second


def test_the_time_in_which_memory_keeps_one_back_is_counted_apart() -> None:
    clock, room = Clock(), True
    queue = Admission(4, 8, Lane("off"), allowed=lambda job: room, clock=clock)
    queue.add(job([1]))
    reading(queue.start(), 1)
    room = False
    waiting = job([2])
    queue.add(waiting)
    for _ in range(3):
        assert queue.start() is None
        clock.now += 2.0
    assert queue.most == 1
    room = True
    assert queue.start() is waiting
    assert waiting.wait_mem_ms == pytest.approx(6000.0)
    assert (queue.counts.memory_waits, queue.counts.memory_wait_s) == (1, pytest.approx(6.0))
    assert queue.most == 4


def test_time_behind_full_places_is_none_that_memory_cost() -> None:
    clock, room = Clock(), False
    queue = Admission(2, 8, Lane("off"), allowed=lambda job: room or len(queue.running) != 1, clock=clock)
    queue.add(job([1]))
    reading(queue.start(), 1)
    waiting, other = job([2]), job([3])
    queue.add(waiting)
    assert queue.start() is None
    clock.now += 1.0
    room = True
    waiting.passed, other.passed = 0, 99  # the other one is owed the place now
    queue.add(other)
    assert queue.start() is other
    reading(other, 1)
    clock.now += 50.0
    assert queue.start() is None
    queue.leave(other)
    assert queue.start() is waiting
    assert waiting.wait_mem_ms == pytest.approx(1000.0)
