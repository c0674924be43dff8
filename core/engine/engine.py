"""The engine's thread: takes requests from a bounded queue, runs rounds, hands out events."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence as Seq
from concurrent.futures import Future
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeVar

import torch

from tandem.core.conductor import Conductor, Plan
from tandem.core.engine.admission import Admission, Job
from tandem.core.engine.answers import Known, KnownAnswers
from tandem.core.engine.caches import CacheStack
from tandem.core.engine.care import IdleCare
from tandem.core.engine.drafting import FixedCutting, GuardedChoosing
from tandem.core.engine.drafts import Drafts, Opener
from tandem.core.engine.generation import Generation
from tandem.core.engine.memory import MemoryGate
from tandem.core.engine.placing import Lane
from tandem.core.engine.request import Event, Failed, Finished, Generate, NoMemory, Refused, Sink, Stats
from tandem.core.engine.round import run_round
from tandem.core.engine.selfcheck import check_drafters
from tandem.core.engine.thread import ModelThread
from tandem.core.engine.turns import Turns
from tandem.core.engine.waits import Waits
from tandem.core.kernel import Platform
from tandem.core.plugin import Choosing, RequestEvent, SafePoint

log = logging.getLogger("tandem.engine")
T = TypeVar("T")

IMAGE_ROWS = "image_rows"
"""The name, among the caches, of what the model's vision tower keeps."""
PAUSE_S = 0.05
"""How long the thread sleeps while nobody runs and nobody is allowed to start."""


class Engine:
    """Owns the model. One thread runs it; `submit`, `cancel`, `drain` and `snapshot` may be called from any other."""

    def __init__(
        self, platform: Platform, thread: ModelThread | None = None, conductor: Conductor | None = None
    ) -> None:
        """`thread` is where the model was loaded; a model that computes in parallel should run on the same one."""
        options = platform.manifest.section("server")
        self.model = platform.model
        self.conductor = conductor or Conductor(platform)
        self.journal = self.conductor.journal
        self._platform = platform
        self._options = options
        lane = Lane(options["side_lane"], options["side_lane_prompt_max"], options["side_lane_new_max"])
        self._admission = Admission(options["parallel"], options["max_queue"], lane)
        self._turns = Turns(options["turn_quantum_ms"] / 1e3, options["decode_share"])
        self._errands: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._known: deque[tuple[Job, Known]] = deque()
        """Requests whose answers are known; they wait for nobody."""
        self._answers: KnownAnswers | None = None
        self._changed = threading.Condition()
        self._draining = False
        self._stopping = False
        self._thread = thread
        self._totals: dict[str, float] = {}
        self._waits = Waits()
        self._passes: Counter[int] = Counter()
        """Passes by the number of requests in them."""
        self.caches = CacheStack([], self._fail_cache)
        self._care = IdleCare(self.caches)
        self.gate: MemoryGate | None = None
        """Asked before a request is opened; None until the engine has started, and without a model."""
        self._openers: list[Opener] = []
        self._choosing: Choosing = FixedCutting()

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
        self.conductor.start()
        self._thread.post(self._run)

    def _prepare(self) -> None:
        if self._options["torch_threads"]:
            torch.set_num_threads(self._options["torch_threads"])
        if self.model is None:
            return
        with torch.inference_mode():
            # The limits are made of what is held before any cache holds something.
            self.gate = MemoryGate.for_model(self.model, self._options, self.caches, self.max_len)
            vision = self.model.vision
            rows = [(IMAGE_ROWS, vision.store)] if vision is not None and vision.store is not None else []
            self.caches.add(self._platform.build("caches", self.model), rows)
            self._answers = KnownAnswers(self.caches, self.model.tokenizer)
            self._admission.allowed = self._has_memory
            if self.caches:
                self._admission.conversation_wait_s = self._options["conversation_wait_s"]
            self._openers = self._platform.build("drafters", self.model)
            if not self._openers:
                return
            if self._options["drafter_check"]:
                for name, reason in check_drafters(self.model, self._openers):
                    log.warning("drafter %s is switched off: %s", name, reason)
                    self._fail_drafter(name, reason)
            # Building the next kind also stops the start when a drafter that just failed is required.
            if choosers := self._platform.build("choosers", self.model):
                name, choosing = choosers[0]
                fail = partial(self._platform.fail, "choosers", name)
                self._choosing = GuardedChoosing(choosing, fail)

    def submit(self, request: Generate, sink: Sink) -> Job:
        """Queue a request; one whose answer is known is not queued but answered. Raises Refused when there is no room,
        no model, or the engine is draining."""
        job = Job(request, sink, self._notify)
        known = self._answers.find(request) if self._answers is not None else None
        with self._changed:
            if self.model is None:
                raise Refused("no_model", "no model is loaded: the manifest has no model section", 60)
            if self._draining or self._stopping:
                raise Refused("draining", "the server is shutting down", 30)
            if known is not None:
                self._known.append((job, known))
            elif not request.follows and self._admission.is_full(job):
                waiting = len(self._admission.waiting)
                raise Refused("queue_full", f"all places are busy and {waiting} requests wait", 5)
            else:
                self._admission.add(job)
            self._changed.notify_all()
        return job

    def outlook(self, job: Job) -> tuple[int, float | None] | None:
        """A waiting job's position (1 = the next) and its expected wait in seconds; None when it does not wait."""
        with self._changed:
            order = self._admission.order()
            if job not in order:
                return None
            ahead = order.index(job)
            holders = self._admission.holders(job)
            running = [other.generation.live() for other in holders if other.generation]
            own = self._admission.taken - len(holders)
            return ahead + 1, self._waits.estimate(running, ahead, own, job.queue_ms / 1e3)

    def errand(self, work: Callable[[], T]) -> Future[T]:
        """Do `work` on the engine's thread between two rounds. Safe from any thread."""
        result: Future[T] = Future()
        with self._changed:
            if self._stopping:
                result.cancel()
            else:
                self._errands.append((result, work))
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
            return not self._admission.waiting and not self._admission.running and not self._known

    def stop(self) -> None:
        """End the thread; running jobs end as `abandoned`."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.post(self.caches.close)
            self._thread.post(self._choosing.close)
            self._thread.close()
        self.conductor.close()
        self._openers = []  # a drafter that keeps a store lets go of it with its opener

    def snapshot(self) -> dict[str, Any]:
        """Counters and sizes for `/health` and `/metrics`."""
        with self._changed:
            admission, totals = self._admission, dict(self._totals)
            sharing = {
                "running": admission.taken,
                "waiting": len(admission.waiting),
                "max_running": admission.places,
                "max_queue": admission.max_queue,
                "lane": {"mode": admission.lane.mode, "running": int(admission.guest is not None)},
                "parallel": self._parallel(),
            }
        return {
            **sharing,
            "draining": self._draining,
            "totals": totals,
            "caches": {name: dict(stats) for name, stats in self.caches.stats().items()},
            "cache_events": self.caches.events(),
            "speculation": dict(self._choosing.report()),
            "memory": self.gate.report() if self.gate is not None else {},
        }

    def _parallel(self) -> dict[str, Any]:
        """How requests run beside each other, for `/health`."""
        admission = self._admission
        most = admission.most if self.model is not None else 0
        reason = f"server.parallel is {admission.places}"
        if self.model is None:
            reason = "no model is loaded"
        elif most < admission.places and self.gate is not None:
            reason = self.gate.why_waits
        counts = asdict(admission.counts)
        return {
            "max_running": most,
            "max_running_reason": reason,
            "running": admission.taken,
            "passes": {str(size): count for size, count in sorted(self._passes.items())},
            **{name: round(value, 3) for name, value in counts.items()},
        }

    # ------------------------------------------------------------------------------------------- on the thread

    def _run(self) -> None:
        while self._wait_for_work():
            self._run_errands()
            self._tell_known()
            self._drop_those_gone()
            self._admit()
            self._step()
            self._care.worked()
        for result, _ in self._errands:
            result.cancel()
        for job in [*self._admission.running, *self._admission.waiting, *(job for job, _ in self._known)]:
            self._end(job, "abandoned")

    def _wait_for_work(self) -> bool:
        """False when the engine stops. Until there is work, the caches are looked after."""
        while True:
            with self._changed:
                while not self._is_called() and (due := self._care.due_in()) != 0:
                    self._changed.wait(due)
                if self._is_called():
                    return not self._stopping
            self._care.run(self._is_called)

    def _is_called(self) -> bool:
        admission = self._admission
        work = admission.waiting or admission.running or self._errands or self._known
        return bool(work or self._stopping)

    def _run_errands(self) -> None:
        while self._errands:
            result, work = self._errands.popleft()
            if not result.set_running_or_notify_cancel():
                continue  # nobody waits for it any more
            try:
                result.set_result(work())
            except Exception as error:
                result.set_exception(error)

    def _tell_known(self) -> None:
        """Answer those whose answers are known. One that can't be told is queued like any other."""
        while self._known:
            job, known = self._known[0]  # it counts as waiting until it is answered
            if job.cancelled:
                self._end(job, "abandoned")
            else:
                self._tell(job, known)
            self._known.popleft()

    def _tell(self, job: Job, known: Known) -> None:
        assert self._answers is not None
        try:
            told = self._answers.retell(known, job.request)
        except Exception:
            log.exception("a known answer could not be told; the model answers")
            told = None
        if told is None:
            with self._changed:
                self._admission.add(job)
            return
        job.started = time.perf_counter()
        job.retold = told.tokens
        self._deliver(job, told.events)

    def _drop_those_gone(self) -> None:
        limit = self._options["request_timeout_s"]
        now = time.perf_counter()
        with self._changed:
            jobs = [*self._admission.running, *self._admission.waiting]
        for job in jobs:
            if job.cancelled:
                self._end(job, "abandoned")
            elif job.started is not None and now - job.started > limit:
                self._end(job, "timeout")

    def _admit(self) -> None:
        """Start those whose turn it is."""
        while True:
            with self._changed:
                job = self._admission.start()
                if job is not None and job.wait_own_ms and job.generation is None:
                    self._waits.gave_way(job.wait_own_ms / 1e3)
            if job is None:
                return
            if job.generation is not None:
                continue  # it gave its place up for a while, and goes on
            try:
                job.generation = self._open(job)
            except Exception as error:
                log.exception("a request could not be started")
                self._deliver(job, [Failed(f"the request could not be started: {error}", Stats())])
            else:
                self._hand_out(job)

    def _has_memory(self, job: Job) -> bool:
        """Whether a job that would start otherwise may. When not, it goes on waiting, or was refused just now."""
        assert self.gate is not None
        running = [other.generation for other in self._admission.running if other.generation is not None]
        verdict = self.gate.admit(job.request, running, begun=job.generation, cached=job.lane is None)
        if verdict.refusal is not None:
            self._deliver(job, [NoMemory(verdict.refusal, Stats(len(job.request.prompt)))])
        return verdict.opens

    def _open(self, job: Job) -> Generation:
        """A guest has a small sequence of its own, without drafters and caches: it takes nothing from anybody."""
        assert self.model is not None
        request = job.request
        if request.watch is None:
            request = self._watched(request)
        guest = job.lane is not None
        with torch.inference_mode():
            return Generation(
                request,
                self.model,
                prefill_chunk=self._options["prefill_chunk"],
                max_len=len(request.prompt) + request.max_tokens if guest else self.max_len,
                caches=None if guest else self.caches,
                drafts=None if guest else Drafts(self._openers, self._fail_drafter),
                chooser=None if guest else self._choosing.open(),
                own_draft=not guest,
                watch=request.watch,
            )

    def _watched(self, request: Generate) -> Generate:
        """A request that came without supervision. Of its plan nothing but giving up can still be done."""
        watch = self.conductor.begin(
            RequestEvent(request.messages, len(request.prompt), request.max_tokens, request.client)
        )
        plan = watch.plan() if watch.wants(SafePoint.SP4) else Plan()
        return replace(request, watch=watch, sentence=(plan.by, plan.give_up) if plan.give_up is not None else None)

    def _step(self) -> None:
        """One pass of those whose turn it is."""
        jobs = list(self._admission.running)
        if not jobs:
            self._pause()
            return
        assert self.model is not None
        in_places = [job.generation for job in jobs if job.generation is not None and job.lane is None]
        guest = next((job.generation for job in jobs if job.lane is not None), None)
        turn = self._turns.next(in_places, guest)
        start = time.perf_counter()
        try:
            run_round(self.model, turn.generations, turn.chunk, partial(self._hand_out_settled, jobs))
        except Exception as error:
            log.exception("a forward pass failed; the requests in it end with an error")
            for generation in turn.generations:
                generation.fail(f"the model failed: {error}")
        self._turns.took(turn, time.perf_counter() - start)
        with self._changed:
            self._passes[len(turn.generations)] += 1
        for job in jobs:
            self._hand_out(job)

    def _pause(self) -> None:
        """Nothing runs. Who was not allowed to start is asked about again in a while."""
        with self._changed:
            if self._admission.held_back and not (self._errands or self._stopping):
                self._changed.wait(PAUSE_S)

    def _hand_out(self, job: Job) -> None:
        """Send what the job's generation has written."""
        if job.generation is not None and job.generation.events:
            self._deliver(job, job.generation.collect())

    def _hand_out_settled(self, jobs: Seq[Job]) -> None:
        """Send, before the pass, what no walk through it adds to."""
        for job in jobs:
            if job.generation is not None and job.generation.settled:
                self._hand_out(job)

    def _end(self, job: Job, reason: str) -> None:
        if job.generation is None:
            self._deliver(job, [Finished(reason, Stats(len(job.request.prompt)), reason)])
        else:
            job.generation.end(reason)
            self._hand_out(job)

    def _deliver(self, job: Job, events: list[Event]) -> None:
        last = events[-1]
        if isinstance(last, Finished | Failed):
            stats = replace(last.stats, queue_ms=job.queue_ms, wait_own_ms=job.wait_own_ms)
            stats = replace(stats, wait_mem_ms=job.memory_ms, lane=job.lane)
            events[-1] = last = replace(last, stats=stats)
            self._count(last)
            self._remember(job, last)
            if self._answers is not None and job.generation is not None:
                self._answers.keep(job.generation, last)
            if job.request.shared is not None and job.started is not None:
                job.request.shared.reading = False
            with self._changed:
                self._admission.leave(job)
        try:
            job.sink(events)
        except Exception:
            log.exception("a sink failed; its request is dropped")
            job.cancelled = True

    def _remember(self, job: Job, last: Finished | Failed) -> None:
        """What this request teaches about how long others will hold their places."""
        if job.started is None or job.generation is None or job.lane is not None or isinstance(last, Failed):
            return
        stats, held = last.stats, time.perf_counter() - job.started
        with self._changed:
            self._waits.ended(
                job.generation.kind,
                held,
                stats.prompt_tokens - stats.cached_tokens,
                stats.prefill_ms / 1e3,
                stats.completion_tokens,
                stats.decode_ms / 1e3,
            )

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
                ("lane_requests", stats.lane is not None),
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
