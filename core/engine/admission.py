"""Who is next. The whole rule stands in this file, and none of it needs a model.

1. `is_ready`: a choice whose prompt another choice is reading waits for it.
2. `precedence`: a turn goes before a side request, that before the server's own work; among equals, who came first.
3. `is_owed`: whom `PATIENCE` later arrivals have passed goes before all of them, whatever its rank.
4. `yields`: where no place is free, the server's own work gives its place up, and goes on when one is.
5. `fits_lane`, `lane_is_open`: where none is given up, a short request may be served in the side lane.

The bound that follows from 3: nobody sees more than `PATIENCE` later arrivals get what it waits for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem.core.engine.request import Generate, Rank, Sink

if TYPE_CHECKING:
    from tandem.core.engine.generation import Generation

PATIENCE = 8
"""How many later arrivals may go before a request, because their rank is better."""


class Job:
    """A submitted request: queued, then running, then over. The sink gets its last event exactly once."""

    def __init__(self, request: Generate, sink: Sink, wake: Callable[[], None] = lambda: None) -> None:
        self.request = request
        self.sink = sink
        self.submitted = time.perf_counter()
        self.started: float | None = None
        """When it first left the queue (`perf_counter` seconds), None while it waits."""
        self.cancelled = False
        self.generation: Generation | None = None
        self.retold: Seq[int] = ()
        """The answer's tokens, when they were known and nothing was generated."""
        self.arrival = 0
        """Its number in the queue."""
        self.passed = 0
        """How many later arrivals were served before it."""
        self.lane: str | None = None
        """What it runs beside in the side lane, `decode` or `prefill`; None = it has, or waits for, a place."""
        self.wait_own_ms = 0.0
        """How long it waited behind the server's own work, which then gave way."""
        self._wake = wake

    def cancel(self) -> None:
        """The client is gone: the engine drops the job at the next chunk or block. Safe from any thread."""
        self.cancelled = True
        self._wake()

    def end_thinking(self) -> bool:
        """Close the reasoning at the next block; False when the job does not run. Safe from any thread."""
        generation = self.generation
        if generation is None or self.cancelled:
            return False
        generation.end_thinking()
        return True

    @property
    def queue_ms(self) -> float:
        return ((self.started or time.perf_counter()) - self.submitted) * 1e3


@dataclass(frozen=True, slots=True)
class Lane:
    """Which requests the side lane takes."""

    mode: str = "on"
    """`on`, `decode` (not while a prompt is read) or `off`."""
    prompt_max: int = 2048
    new_max: int = 64


# ------------------------------------------------------------------------------------------------------- the rules


def is_ready(job: Job) -> bool:
    """No other choice reads its prompt at the moment."""
    shared = job.request.shared
    return job.generation is not None or shared is None or shared.state is not None or not shared.reading


def is_owed(job: Job) -> bool:
    """It was passed often enough."""
    return job.passed >= PATIENCE


def precedence(job: Job) -> int:
    """The smallest goes first; equals in the order of their arrival."""
    return -1 if is_owed(job) else job.request.rank


def yields(holder: Job, to: Job) -> bool:
    """The holder gives its place to one that waits."""
    own = holder.request.rank is Rank.BACKGROUND and holder.lane is None
    return own and not is_owed(holder) and (to.request.rank is not Rank.BACKGROUND or is_owed(to))


def fits_lane(job: Job, lane: Lane) -> bool:
    """It is short work: a question, not a turn of an agent or of somebody who thinks.

    A constraint is no obstacle: it was compiled before the request queued, and masks `new_max` tokens at most.
    """
    ask = job.request
    return (
        len(ask.prompt) <= lane.prompt_max
        and ask.max_tokens <= lane.new_max
        and not ask.images
        and ask.shared is None
        and not (ask.thinking is not None and ask.thinking.opened)
        and not (ask.calls is not None and ask.calls.wanted)
        and job.generation is None  # else it has begun in a place, with all that comes with one
    )


def lane_is_open(lane: Lane, running: Seq[Job]) -> bool:
    """One guest at a time, and none beside a prefill where the lane serves at decode steps only."""
    if lane.mode == "off" or any(job.lane is not None for job in running):
        return False
    return lane.mode == "on" or not any(is_reading(job) for job in running)


def is_reading(job: Job) -> bool:
    """Its prompt is not read yet."""
    return job.generation is not None and job.generation.reading


# ------------------------------------------------------------------------------------------------------- the queue


class Admission:
    """The queue, the places and the lane. Not thread-safe: the engine calls it under its own lock.

    `allowed(job)` is asked last, when a job would start otherwise; `job.lane` says where. Who is not allowed goes on
    waiting, and so does everybody behind it who needs a place.
    """

    def __init__(
        self,
        places: int,
        max_queue: int,
        lane: Lane | None = None,
        allowed: Callable[[Job], bool] = lambda job: True,
    ) -> None:
        self.places = places
        self.max_queue = max_queue
        self.lane = lane or Lane()
        self.allowed = allowed
        self.waiting: list[Job] = []
        """In the order of arrival. One that gave its place up stands where it came in."""
        self.running: list[Job] = []
        """Those in places, and the guest in the lane."""
        self.held_back = False
        """Somebody was not allowed to start when `start` was last called."""
        self._arrivals = 0

    @property
    def guest(self) -> Job | None:
        """Who is in the lane."""
        return next((job for job in self.running if job.lane is not None), None)

    @property
    def taken(self) -> int:
        """Places that are taken."""
        return sum(job.lane is None for job in self.running)

    def holders(self, job: Job) -> list[Job]:
        """Those who keep their place although this one waits."""
        return [other for other in self.running if other.lane is None and not yields(other, job)]

    def order(self) -> list[Job]:
        """Those who wait, the next one first."""
        return sorted(self.waiting, key=precedence)

    def is_full(self, job: Job) -> bool:
        """The job would be one too many. What gave its place up was taken in long ago, and does not count."""
        new = sum(other.started is None for other in self.waiting)
        free = self.places - len(self.holders(job))
        return new >= self.max_queue + free + self._has_lane(job)

    def add(self, job: Job) -> None:
        """The job waits from now on."""
        self._arrivals += 1
        job.arrival = self._arrivals
        self.waiting.append(job)

    def start(self) -> Job | None:
        """The next job that may run, which holds a place or the lane from now on; None when nobody may."""
        self.held_back = False
        ready = [job for job in self.order() if is_ready(job)]
        for job in ready:
            if job is ready[0] and self._has_place(job) and self._may(job, None):
                return self._begin(job, [*ready, *self._make_place(job)])
            beside = "prefill" if any(map(is_reading, self.running)) else "decode"
            if self._has_lane(job) and self._may(job, beside):
                return self._begin(job, [other for other in ready if fits_lane(other, self.lane)])
        return None

    def leave(self, job: Job) -> None:
        """The job is over, or gone."""
        self.waiting = [other for other in self.waiting if other is not job]
        self.running = [other for other in self.running if other is not job]

    def _has_place(self, job: Job) -> bool:
        return len(self.holders(job)) < self.places

    def _has_lane(self, job: Job) -> bool:
        return self.taken >= self.places and lane_is_open(self.lane, self.running) and fits_lane(job, self.lane)

    def _may(self, job: Job, lane: str | None) -> bool:
        job.lane = lane
        if self.allowed(job):
            return True
        job.lane, self.held_back = None, True
        return False

    def _make_place(self, job: Job) -> list[Job]:
        """Who went back to the queue for the job: nobody where a place is free, else the last of those who yield."""
        if self.taken < self.places:
            return []
        holder = max((one for one in self.running if yields(one, job)), key=lambda one: one.arrival)
        self.running.remove(holder)
        self.waiting = sorted([*self.waiting, holder], key=lambda one: one.arrival)
        job.wait_own_ms = (time.perf_counter() - max(job.submitted, holder.started or 0.0)) * 1e3
        return [holder]

    def _begin(self, job: Job, rivals: Seq[Job]) -> Job:
        """The job leaves the queue; those of its rivals who came before it were passed."""
        for other in rivals:
            other.passed += other.arrival < job.arrival
        self.waiting.remove(job)
        self.running.append(job)
        if job.started is None:
            job.started = time.perf_counter()
            if (shared := job.request.shared) is not None:
                shared.reading = shared.state is None
        return job
