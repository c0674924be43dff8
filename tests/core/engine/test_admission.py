"""Who is next, without a model."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tandem.core.engine import placing
from tandem.core.engine.admission import Admission, Job
from tandem.core.engine.placing import PATIENCE, Lane
from tandem.core.engine.request import Calls, Generate, PlacedPicture, Rank, SharedPrompt, Thinking

OFF = Lane("off")
NOBODY: Any = None


def job(rank: Rank = Rank.TURN, prompt: int = 3, max_tokens: int = 500, **more: Any) -> Job:
    return Job(Generate([1] * prompt, max_tokens, rank=rank, **more), lambda events: None)


def start(queue: Admission, reading: bool = False) -> Job | None:
    """The next one, with a generation, as the engine gives it."""
    begun = queue.start()
    if begun is not None and begun.generation is None:
        begun.generation = SimpleNamespace(reading=reading)  # type: ignore[assignment]
    return begun


def queued(queue: Admission, *jobs: Job) -> list[Job]:
    for one in jobs:
        queue.add(one)
    return list(jobs)


# ------------------------------------------------------------------------------------------------------- the order


def test_a_turn_goes_before_a_side_request_and_that_before_the_servers_own_work() -> None:
    queue = Admission(1, 8, OFF)
    ranks = [Rank.BACKGROUND, Rank.SIDE, Rank.TURN, Rank.SIDE, Rank.TURN]
    waiting = queued(queue, *map(job, ranks))
    served = []
    while (one := start(queue)) is not None:
        served.append(waiting.index(one))
        queue.leave(one)
    assert served == [2, 4, 1, 3, 0]


def test_who_was_passed_often_enough_goes_before_every_turn() -> None:
    queue = Admission(1, 50, OFF)
    (side,) = queued(queue, job(Rank.SIDE))
    turns = 0
    while True:
        queue.add(job())
        queue.add(job())
        one = start(queue)
        assert one is not None
        queue.leave(one)
        if one is side:
            break
        turns += 1
    assert turns == PATIENCE


@given(st.lists(st.tuples(st.sampled_from(list(Rank)), st.booleans(), st.booleans()), max_size=60), st.data())
def test_nobody_is_passed_more_often_than_the_stated_bound(asked: list[Any], data: st.DataObject) -> None:
    queue = Admission(data.draw(st.integers(1, 3)), 1000)
    jobs: list[Job] = []
    overtaken: dict[Job, int] = {}

    def step() -> None:
        while (one := start(queue)) is not None:
            for other in queue.waiting:
                same = one.lane is None or placing.fits_lane(other, queue.lane)
                if other.arrival < one.arrival and same:
                    overtaken[other] = overtaken.get(other, 0) + 1
        assert queue.taken <= queue.places
        assert sum(one.lane is not None for one in queue.running) <= 1
        assert len(queue.running) + len(queue.waiting) == len({*queue.running, *queue.waiting})

    for rank, short, leaves in asked:
        jobs += queued(queue, job(rank, max_tokens=10 if short else 500))
        step()
        if leaves and queue.running:
            queue.leave(data.draw(st.sampled_from(queue.running)))
            step()
    for _ in range(2 * len(jobs)):  # nobody waits for ever
        if queue.running:
            queue.leave(queue.running[0])
        step()
    assert not queue.waiting
    assert max(overtaken.values(), default=0) <= PATIENCE


def test_a_choice_waits_for_the_one_that_reads_its_prompt_and_others_pass() -> None:
    queue = Admission(3, 8, OFF)
    shared = SharedPrompt()
    first, second, other = queued(queue, job(shared=shared), job(shared=shared), job())
    assert [start(queue), start(queue), start(queue)] == [first, other, None]
    shared.state = "read"
    assert start(queue) is second


# ------------------------------------------------------------------------------------------------------- giving way


def test_own_work_gives_its_place_to_a_turn_and_goes_on_after_it() -> None:
    queue = Admission(1, 8, OFF)
    (own,) = queued(queue, job(Rank.BACKGROUND))
    assert start(queue) is own
    kept = own.generation
    (turn,) = queued(queue, job())
    assert start(queue) is turn
    assert (queue.running, queue.waiting) == ([turn], [own])
    assert turn.wait_own_ms >= 0.0
    assert turn.wait_own_ms <= turn.queue_ms
    queue.leave(turn)
    assert start(queue) is own
    assert own.generation is kept, "it goes on with what it has"


def test_own_work_keeps_its_place_while_another_is_free_and_against_its_like() -> None:
    queue = Admission(2, 8, OFF)
    own, turn, like = queued(queue, job(Rank.BACKGROUND), job(), job(Rank.BACKGROUND))
    assert {start(queue), start(queue)} == {own, turn}
    assert start(queue) is None
    assert queue.waiting == [like]


def test_own_work_that_gave_way_often_enough_keeps_its_place() -> None:
    queue = Admission(1, 8, OFF)
    (own,) = queued(queue, job(Rank.BACKGROUND))
    for _ in range(PATIENCE):
        assert start(queue) is own
        (turn,) = queued(queue, job())
        assert start(queue) is turn
        queue.leave(turn)
    assert start(queue) is own
    queue.add(job())
    assert start(queue) is None


def test_a_choice_of_own_work_that_gave_way_while_it_read_goes_on_reading() -> None:
    queue = Admission(1, 8, OFF)
    (own,) = queued(queue, job(Rank.BACKGROUND, shared=SharedPrompt()))
    assert start(queue, reading=True) is own
    (turn,) = queued(queue, job())
    assert start(queue) is turn
    queue.leave(turn)
    assert start(queue) is own


# ---------------------------------------------------------------------------------------------------- how many wait


def test_the_queue_holds_what_it_says_and_what_has_begun_does_not_count() -> None:
    queue = Admission(1, 1, OFF)
    assert not queue.is_full(job())
    (own,) = queued(queue, job(Rank.BACKGROUND))
    assert start(queue) is own
    queue.add(job(Rank.BACKGROUND))
    assert queue.is_full(job(Rank.BACKGROUND))
    assert not queue.is_full(job()), "own work would give its place up for it"
    (turn,) = queued(queue, job())
    assert start(queue) is turn
    assert own in queue.waiting
    assert queue.is_full(job()), "one waits that never ran, and the one that gave way was taken in before"


def test_a_guest_is_taken_in_where_nobody_may_wait() -> None:
    queue = Admission(1, 0)
    queue.add(job())
    start(queue)
    assert queue.is_full(job())
    assert not queue.is_full(job(max_tokens=10))
    queue.add(job(max_tokens=10))
    assert queue.is_full(job(max_tokens=10)), "the lane takes one"


# ------------------------------------------------------------------------------------------------------- the lane

SHORT: dict[str, Any] = {"prompt": 2048, "max_tokens": 64}
PICTURE = PlacedPicture(0, NOBODY)
HEAVY = [
    {"prompt": 2049},
    {"max_tokens": 65},
    {"images": (PICTURE,)},
    {"shared": SharedPrompt()},
    {"thinking": Thinking(("<a>", "</a>"), True)},
    {"calls": Calls(NOBODY, wanted=True)},
]
LIGHT = [
    {},
    {"thinking": Thinking(("<a>", "</a>"), False)},
    {"calls": Calls(NOBODY, wanted=False)},
    {"constraint": lambda: NOBODY},
    {"rank": Rank.SIDE},
    {"rank": Rank.BACKGROUND},
]


def busy(lane: Lane | None = None, reading: bool = False, places: int = 1) -> Admission:
    queue = Admission(places, 8, lane)
    for _ in range(places):
        queue.add(job())
        start(queue, reading)
    return queue


@pytest.mark.parametrize("more", LIGHT)
def test_a_short_request_beside_full_places_is_a_guest(more: dict[str, Any]) -> None:
    queue = busy()
    (guest,) = queued(queue, job(**{**SHORT, **more}))
    assert start(queue) is guest
    assert (guest.lane, queue.guest, queue.taken) == ("decode", guest, 1)


@pytest.mark.parametrize("more", HEAVY)
def test_what_is_not_short_work_waits_for_a_place(more: dict[str, Any]) -> None:
    queue = busy()
    queue.add(job(**{**SHORT, **more}))
    assert start(queue) is None


def test_a_short_request_takes_a_free_place_first() -> None:
    queue = busy(places=2)
    queue.leave(queue.running[0])
    (short,) = queued(queue, job(**SHORT))
    assert start(queue) is short
    assert short.lane is None


def test_the_lane_takes_one_guest_at_a_time_the_best_ranked_first() -> None:
    queue = busy()
    title, turn = queued(queue, job(Rank.SIDE, **SHORT), job(**SHORT))
    assert [start(queue), start(queue)] == [turn, None]
    queue.leave(turn)
    assert start(queue) is title


def test_a_guest_passes_nobody_who_needs_a_place() -> None:
    queue = busy()
    (heavy,) = queued(queue, job())
    for _ in range(PATIENCE + 2):
        (guest,) = queued(queue, job(**SHORT))
        assert start(queue) is guest
        queue.leave(guest)
    assert heavy.passed == 0


@pytest.mark.parametrize(("mode", "reading", "beside"), [
    ("on", True, "prefill"), ("on", False, "decode"), ("decode", True, None), ("decode", False, "decode"),
    ("off", True, None), ("off", False, None),
])  # fmt: skip
def test_the_mode_says_beside_what_a_guest_is_served(mode: str, reading: bool, beside: str | None) -> None:
    queue = busy(Lane(mode), reading)
    (guest,) = queued(queue, job(**SHORT))
    start(queue)
    assert guest.lane == beside
    assert (guest in queue.running) is (beside is not None)


def test_the_lane_takes_what_it_is_sized_for() -> None:
    queue = busy(Lane("on", prompt_max=10, new_max=4))
    long, much, fits = queued(queue, job(prompt=11, max_tokens=4), job(prompt=10, max_tokens=5), job(Rank.SIDE, 10, 4))
    assert start(queue) is fits
    assert queue.waiting == [long, much]


# --------------------------------------------------------------------------------------------------- who is allowed


def test_who_is_not_allowed_waits_and_so_does_who_needs_a_place_behind_it() -> None:
    allowed = math.inf
    queue = Admission(2, 8, allowed=lambda job: len(job.request.prompt) <= allowed)
    queue.add(job())
    start(queue)
    allowed = 5
    large, small = queued(queue, job(prompt=6), job())
    assert start(queue) is None
    assert queue.held_back
    assert (large.lane, small.lane) == (None, None)
    allowed = 6
    assert [start(queue), queue.held_back] == [large, False]


def test_memory_may_keep_a_guest_out_and_let_a_smaller_one_in() -> None:
    queue = busy()
    queue.allowed = lambda job: job.lane is None or len(job.request.prompt) < 100
    large, small = queued(queue, job(prompt=100, max_tokens=10), job(prompt=99, max_tokens=10))
    assert start(queue) is small
    assert large.lane is None
    assert queue.waiting == [large]
