"""The engine's thread: takes requests from a bounded queue, runs rounds, hands out events."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

import torch

from tandem.core.conductor import Journal, Supervisor
from tandem.core.engine.caches import CacheStack
from tandem.core.engine.drafting import FixedCutting
from tandem.core.engine.drafts import Drafts, Opener
from tandem.core.engine.generation import Generation, Phase
from tandem.core.engine.request import Event, Failed, Finished, Generate, Refused, Sink, Stats
from tandem.core.engine.round import run_round
from tandem.core.engine.thread import ModelThread
from tandem.core.kernel import Platform
from tandem.core.plugin import Choosing, RequestEvent

log = logging.getLogger("tandem.engine")
T = TypeVar("T")


class Job:
    """A submitted request: queued, then running, then over. The sink gets its last event exactly once."""

    def __init__(self, request: Generate, sink: Sink) -> None:
        self.request = request
        self.sink = sink
        self.submitted = time.perf_counter()
        self.started: float | None = None
        """When it left the queue (`perf_counter` seconds), None while it waits."""
        self.cancelled = False
        self.generation: Generation | None = None
        self._wake: Callable[[], None] = lambda: None

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


class Engine:
    """Owns the model. One thread runs it; `submit`, `cancel`, `drain` and `snapshot` may be called from any other."""

    def __init__(self, platform: Platform, thread: ModelThread | None = None) -> None:
        """`thread` is where the model was loaded; a model that computes in parallel should run on the same one."""
        options = platform.manifest.section("server")
        self.model = platform.model
        self.parallel: int = options["parallel"]
        self.max_queue: int = options["max_queue"]
        self.journal = Journal()
        self._platform = platform
        self._options = options
        self._queue: deque[Job] = deque()
        self._errands: deque[Callable[[], None]] = deque()
        self._running: list[Job] = []
        self._changed = threading.Condition()
        self._draining = False
        self._stopping = False
        self._thread = thread
        self._totals: dict[str, float] = {}
        self.caches = CacheStack([], self._fail_cache)
        self._openers: list[Opener] = []
        self._choosing: Choosing = FixedCutting()
        self._supervisor = Supervisor(
            [(active.part, active.options) for active in platform.active("rules")],
            self.journal,
            lambda name, reason: platform.fail("rules", name, reason),
        )

    @property
    def max_len(self) -> int:
        """The longest prompt and answer together, in tokens; 0 without a model."""
        if self.model is None:
            return 0
        return min(self._options["max_len"] or self.model.caps.max_len, self.model.caps.max_len)

    # ------------------------------------------------------------------------------------------- from outside

    def start(self) -> None:
        """Build the parts that work with the model, and begin to serve. Raises StartError when a required one fails."""
        self._thread = self._thread or ModelThread()
        self._thread.run(self._prepare)
        self._thread.post(self._run)

    def _prepare(self) -> None:
        if self._options["torch_threads"]:
            torch.set_num_threads(self._options["torch_threads"])
        if self.model is None:
            return
        with torch.inference_mode():
            self.caches = CacheStack(self._platform.build("caches", self.model), self._fail_cache)
            self._openers = self._platform.build("drafters", self.model)
            if self._openers and (choosers := self._platform.build("choosers", self.model)):
                self._choosing = choosers[0][1]

    def submit(self, request: Generate, sink: Sink) -> Job:
        """Queue a request. Raises Refused when there is no room, no model, or the engine is draining."""
        job = Job(request, sink)
        job._wake = self._notify
        with self._changed:
            if self.model is None:
                raise Refused("no_model", "no model is loaded: the manifest has no model section", 60)
            if self._draining or self._stopping:
                raise Refused("draining", "the server is shutting down", 30)
            free = self.parallel - len(self._running)
            if len(self._queue) >= self.max_queue + free:
                raise Refused("queue_full", f"all places are busy and {len(self._queue)} requests wait", 5)
            self._queue.append(job)
            self._changed.notify_all()
        return job

    def errand(self, work: Callable[[], T]) -> Future[T]:
        """Do `work` on the engine's thread between two rounds. Safe from any thread."""
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(work())
            except Exception as error:
                result.set_exception(error)

        with self._changed:
            if self._stopping:
                result.cancel()
            else:
                self._errands.append(run)
                self._changed.notify_all()
        return result

    def drain(self) -> None:
        """Refuse new work; what is queued or running goes on."""
        with self._changed:
            self._draining = True

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def idle(self) -> bool:
        """Nothing is queued or running."""
        with self._changed:
            return not self._queue and not self._running

    def stop(self) -> None:
        """End the thread; running jobs end as `abandoned`."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.post(self._choosing.close)
            self._thread.close()

    def snapshot(self) -> dict[str, Any]:
        """Counters and sizes for `/health` and `/metrics`."""
        with self._changed:
            running, waiting = len(self._running), len(self._queue)
            totals = dict(self._totals)
        return {
            "running": running,
            "waiting": waiting,
            "max_running": self.parallel,
            "max_queue": self.max_queue,
            "draining": self._draining,
            "totals": totals,
            "caches": {name: dict(stats) for name, stats in self.caches.stats().items()},
            "speculation": dict(self._choosing.report()),
        }

    # ------------------------------------------------------------------------------------------- on the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._queue or self._running or self._errands or self._stopping):
                    self._changed.wait()
                errands = list(self._errands)
                self._errands.clear()
                if self._stopping:
                    break
            for errand in errands:
                errand()
            self._drop_cancelled()
            self._admit()
            self._step()
        for job in [*self._running, *self._queue]:
            self._end(job, "abandoned")
        with self._changed:
            self._running.clear()
            self._queue.clear()

    def _drop_cancelled(self) -> None:
        limit = self._options["request_timeout_s"]
        now = time.perf_counter()
        with self._changed:
            gone = [job for job in self._queue if job.cancelled]
            self._queue = deque(job for job in self._queue if not job.cancelled)
        for job in gone:
            self._end(job, "abandoned")
        for job in list(self._running):
            if job.cancelled:
                self._end(job, "abandoned")
            elif job.started is not None and now - job.started > limit:
                self._end(job, "timeout")

    def _admit(self) -> None:
        while True:
            with self._changed:
                job = self._first_ready() if len(self._running) < self.parallel else None
                if job is None:
                    return
                self._queue.remove(job)
                job.started = time.perf_counter()
                self._running.append(job)
            try:
                job.generation = self._open(job.request)
            except Exception as error:
                log.exception("a request could not be started")
                self._deliver(job, [Failed(f"the request could not be started: {error}", Stats())])

    def _first_ready(self) -> Job | None:
        """The first in the queue that may start. A choice whose prompt is being read by another waits for it."""
        for job in self._queue:
            shared = job.request.shared
            if shared is None or shared.state is not None:
                return job
            if not shared.reading:
                shared.reading = True
                return job
        return None

    def _open(self, request: Generate) -> Generation:
        assert self.model is not None
        event = RequestEvent(request.messages, len(request.prompt), request.max_tokens, request.client)
        with torch.inference_mode():
            return Generation(
                request,
                self.model,
                prefill_chunk=self._options["prefill_chunk"],
                max_len=self.max_len,
                caches=self.caches,
                drafts=Drafts(self._openers, self._fail_drafter),
                chooser=self._choosing.open(),
                watch=self._supervisor.begin(event),
            )

    def _step(self) -> None:
        jobs = [job for job in self._running if job.generation is not None]
        generations = [job.generation for job in jobs if job.generation is not None]
        if not generations:
            return
        assert self.model is not None
        try:
            run_round(self.model, [g for g in generations if g.phase is not Phase.DONE])
        except Exception as error:
            log.exception("a forward pass failed; the requests in it end with an error")
            for generation in generations:
                generation.fail(f"the model failed: {error}")
        for job, generation in zip(jobs, generations, strict=True):
            if generation.events:
                self._deliver(job, generation.collect())

    def _end(self, job: Job, reason: str) -> None:
        if job.generation is None:
            self._deliver(job, [Finished(reason, Stats(len(job.request.prompt)), reason)])
        else:
            job.generation.end(reason)
            self._deliver(job, job.generation.collect())

    def _deliver(self, job: Job, events: list[Event]) -> None:
        last = events[-1]
        if isinstance(last, Finished | Failed):
            events[-1] = last = replace(last, stats=replace(last.stats, queue_ms=job.queue_ms))
            self._count(last)
            if job.request.shared is not None and job.started is not None:
                job.request.shared.reading = False
            with self._changed:
                if job in self._running:
                    self._running.remove(job)
        try:
            job.sink(events)
        except Exception:
            log.exception("a sink failed; its request is dropped")
            job.cancelled = True

    def _count(self, last: Finished | Failed) -> None:
        stats = last.stats
        reason = last.reason if isinstance(last, Finished) else "error"
        with self._changed:
            for name, value in (
                (f"requests_{reason}", 1),
                ("prompt_tokens", stats.prompt_tokens),
                ("cached_tokens", stats.cached_tokens),
                ("completion_tokens", stats.completion_tokens),
                ("rounds", stats.rounds),
                ("draft_tokens", stats.draft_tokens),
                ("draft_accepted", stats.draft_accepted),
            ):
                self._totals[name] = self._totals.get(name, 0) + value

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _fail_drafter(self, name: str, reason: str) -> None:
        self._openers = [(known, opener) for known, opener in self._openers if known != name]
        self._platform.fail("drafters", name, reason)

    def _fail_cache(self, name: str, reason: str) -> None:
        self._platform.fail("caches", name, reason)
