"""The queue, the places and the lane. Who gets which, and when, the rules in `placing` say. Neither needs a model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass

from tandem.core.engine.generation import Generation, prompt_keys
from tandem.core.engine.placing import (
    Lane,
    fits_lane,
    is_reading,
    is_ready,
    lane_is_open,
    most_running,
    precedence,
    waits_for_conversation,
    yields,
)
from tandem.core.engine.request import Generate, Sink
from tandem.core.plugin import common_prefix


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
        self.wait_mem_ms = 0.0
        """How long memory kept it back before; `memory_ms` has all of it."""
        self.for_memory: float | None = None
        """Since when memory keeps it back, None while it does not; `Admission`'s clock, as below."""
        self.for_conversation: float | None = None
        """Since when it waits, or waited, for another one to read what both share."""
        self.shares: dict[int, int] = {}
        """Arrival of another request -> how many prompt tokens this one shares with it."""
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
    def memory_ms(self) -> float:
        """How long memory kept it back."""
        since = self.for_memory
        return self.wait_mem_ms + (0.0 if since is None else (time.perf_counter() - since) * 1e3)

    @property
    def queue_ms(self) -> float:
        return ((self.started or time.perf_counter()) - self.submitted) * 1e3


@dataclass(slots=True)
class Counts:
    """Since the start."""

    conversation_waits: int = 0
    """Requests that waited for another one to read what both share."""
    conversation_gave_up: int = 0
    """Those of them that took a place before it had."""
    conversation_wait_s: float = 0.0
    memory_waits: int = 0
    """Requests that memory kept back."""
    memory_wait_s: float = 0.0


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
        conversation_wait_s: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.places = places
        self.max_queue = max_queue
        self.lane = lane or Lane()
        self.allowed = allowed
        self.conversation_wait_s = conversation_wait_s
        """How long a request waits for another one to read what both share; 0 where nothing read is kept."""
        self.counts = Counts()
        self._clock = clock
        self.waiting: list[Job] = []
        """In the order of arrival. One that gave its place up stands where it came in."""
        self.running: list[Job] = []
        """Those in places, and the guest in the lane."""
        self._held_back: list[Job] = []
        """Who was not allowed to start when `start` was last called."""
        self._arrivals = 0

    @property
    def guest(self) -> Job | None:
        """Who is in the lane."""
        return next((job for job in self.running if job.lane is not None), None)

    @property
    def taken(self) -> int:
        """Places that are taken."""
        return sum(job.lane is None for job in self.running)

    @property
    def held_back(self) -> bool:
        """Somebody was not allowed to start when `start` was last called."""
        return bool(self._held_back)

    @property
    def most(self) -> int:
        """How many may run at once now."""
        return most_running(self.places, self.taken, self.held_back)

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
        self._held_back = []
        begun = self._next()
        for job in self.waiting:
            if job not in self._held_back:
                self._waits_no_more(job)  # something else keeps it back now
        return begun

    def _next(self) -> Job | None:
        ready = [job for job in self.order() if is_ready(job) and not self._waits_for_conversation(job)]
        for job in ready:
            if job is ready[0] and self._has_place(job) and self._may(job, None):
                return self._begin(job, [*ready, *self._make_place(job)])
            beside = "prefill" if any(map(is_reading, self.running)) else "decode"
            if self._has_lane(job) and self._may(job, beside):
                return self._begin(job, [other for other in ready if fits_lane(other, self.lane)])
        return None

    def leave(self, job: Job) -> None:
        """The job is over, or gone."""
        self._waits_no_more(job)
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
        job.lane = None
        self._held_back.append(job)
        if job.for_memory is None:
            self.counts.memory_waits += not job.wait_mem_ms  # one that waits a second time is counted already
            job.for_memory = self._clock()
        return False

    def _waits_no_more(self, job: Job) -> None:
        """Memory keeps the job back no longer."""
        if job.for_memory is not None:
            waited, job.for_memory = self._clock() - job.for_memory, None
            job.wait_mem_ms += waited * 1e3
            self.counts.memory_wait_s += waited

    def _waits_for_conversation(self, job: Job) -> bool:
        """Whether one that could have a place waits for another to read what both share."""
        limit = self.conversation_wait_s
        if limit <= 0.0 or job.generation is not None or not job.request.cache or not self._has_place(job):
            return False
        head, now = job.request.head, self._clock()
        waited = 0.0 if job.for_conversation is None else now - job.for_conversation
        reading = [(shared, read_by(other)) for other in self.running if (shared := shared_with(job, other))]
        waits = any(waits_for_conversation(shared, head, known, waited, limit) for shared, known in reading)
        if waits and job.for_conversation is None:
            job.for_conversation = now
            self.counts.conversation_waits += 1
        return waits

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
        self._waits_no_more(job)
        if job.started is None:
            job.started = time.perf_counter()
            self._count_conversation(job)
            if (shared := job.request.shared) is not None:
                shared.reading = shared.state is None
        return job

    def _count_conversation(self, job: Job) -> None:
        if job.for_conversation is not None:
            waited = self._clock() - job.for_conversation
            self.counts.conversation_wait_s += waited
            self.counts.conversation_gave_up += waited >= self.conversation_wait_s


def shared_with(job: Job, other: Job) -> int:
    """How many prompt tokens the job shares with another one that keeps what it reads; 0 where that can't matter."""
    if other.lane is not None or other.generation is None or not other.request.cache or job.request.head is None:
        return 0
    if other.arrival not in job.shares:
        job.shares[other.arrival] = common_prefix(prompt_keys(job.request), prompt_keys(other.request))
    return job.shares[other.arrival]


def read_by(job: Job) -> int:
    """How many of its prompt tokens a running one has read and shown to the cache tiers."""
    generation = job.generation
    if generation is None or not generation.reading:
        return len(job.request.prompt)
    return max(generation.stats.cached_tokens, generation.done - generation.done % generation.chunk)
