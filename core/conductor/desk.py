"""Where rules are asked: on threads of their own, so that one that raises or hangs holds up nobody else."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

from tandem.core.plugin import AskError

log = logging.getLogger("tandem.conductor")

GRACE = 10
"""A check that passed its time is waited for this many times as long: other threads may be what keeps it."""
LOST = 8
"""So many threads may hang at once; beyond them no rule is asked any more."""

Answerer = Callable[[str, Seq[str]], list[float]]
"""Puts a question to the model; called on the thread that waits for the rules."""


class Line:
    """How a check on its own thread asks something of the thread that waits for it."""

    def __init__(self) -> None:
        self._job: _Job | None = None

    def ask(self, question: str, options: Seq[str]) -> list[float]:
        """The waiting thread's answer. Raises AskError when nobody waits, or nobody can answer."""
        if self._job is None:
            raise AskError("the model can't be asked here")
        return self._job.ask(question, options)


@dataclass(frozen=True, slots=True)
class Check:
    """A function that may be asked again and again, and its line."""

    function: Callable[[Any], Any]
    """What comes of the object that it is asked about."""
    line: Line = field(default_factory=Line)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one check."""

    value: Any = None
    fault: str = ""
    """Why it failed; empty when it did not."""
    seconds: float = 0.0
    """How long it took, the time of its questions not counted; infinite for one that hangs."""


class _Job:
    """A row of checks, done one after the other on a worker."""

    def __init__(self, checks: Seq[Check], about: Any, worker: _Worker) -> None:
        self.checks, self.about = checks, about
        self.messages, self.replies = worker.messages, worker.replies
        self.outcomes: list[Outcome] = []
        self.began = time.perf_counter()
        """When the check that runs now began."""
        self.asking = 0.0
        """Seconds of it that passed with questions."""
        self.left = False
        """Nobody waits any more."""

    def run(self) -> None:
        for check in self.checks:
            if self.left:
                return
            check.line._job = self
            value, fault = None, ""
            self.asking = 0.0
            self.began = time.perf_counter()
            try:
                value = check.function(self.about)
            except BaseException as error:  # a plugin may raise anything, SystemExit too
                fault = traceback.format_exception_only(error)[-1].strip()
            seconds = time.perf_counter() - self.began - self.asking
            check.line._job = None
            self.outcomes.append(Outcome(value, fault, seconds))
        self.messages.put(None)

    def ask(self, question: str, options: Seq[str]) -> list[float]:
        start = time.perf_counter()
        self.messages.put((question, options))
        reply = self.replies.get()
        self.asking += time.perf_counter() - start
        if isinstance(reply, Exception):
            raise reply
        return reply


class _Worker:
    """A thread that does jobs until it is told None."""

    def __init__(self, ended: Callable[[_Worker], None]) -> None:
        """`ended(worker)` is called when its thread is about to end."""
        self._ended = ended
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.messages: queue.SimpleQueue[tuple[str, Seq[str]] | None] = queue.SimpleQueue()
        """Questions to the waiting thread; None = all of a job is done."""
        self.replies: queue.SimpleQueue[list[float] | Exception] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="rules", daemon=True).start()

    def _run(self) -> None:
        while (job := self.jobs.get()) is not None:
            job.run()
        self._ended(self)


class Desk:
    """Asks checks and waits for them. Safe to use from several threads at once."""

    def __init__(self, budget_s: float = 0.02) -> None:
        self.budget_s = budget_s
        self._idle: list[_Worker] = []
        self._lost: set[_Worker] = set()
        self._lock = threading.Lock()

    def ask(self, checks: Seq[Check], about: Any, answer: Answerer | None = None) -> list[Outcome]:
        """What each check says about the object, in order. One that hangs is left alone, its line with it, and the next
        ones are asked elsewhere."""
        outcomes: list[Outcome] = []
        while len(outcomes) < len(checks):
            worker = self._take()
            if worker is None:
                return outcomes + [Outcome() for _ in checks[len(outcomes) :]]
            job = _Job(checks[len(outcomes) :], about, worker)
            worker.jobs.put(job)
            whole = self._wait(job, answer)
            outcomes += job.outcomes
            if whole:
                with self._lock:
                    self._idle.append(worker)
            else:
                self._lose(worker)
                outcomes.append(Outcome(fault=f"it still runs after {self._patience:.1f} s", seconds=float("inf")))
        return outcomes

    def close(self) -> None:
        """Let the idle threads end."""
        with self._lock:
            workers, self._idle = self._idle, []
        for worker in workers:
            worker.jobs.put(None)

    @property
    def _patience(self) -> float:
        return self.budget_s * GRACE

    def _wait(self, job: _Job, answer: Answerer | None) -> bool:
        """Whether all of the job's checks came to an end."""
        while True:
            try:
                message = job.messages.get(timeout=self._patience)
            except queue.Empty:
                if time.perf_counter() - job.began - job.asking < self._patience:
                    continue  # a later check has begun in the meantime
                job.left = True
                with contextlib.suppress(queue.Empty):
                    return job.messages.get_nowait() is None  # it ended just now
                return False
            if message is None:
                return True
            job.replies.put(_answered(answer, *message))

    def _take(self) -> _Worker | None:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            if len(self._lost) < LOST:
                return _Worker(self._back)
        log.warning("%d rules hang; no rule is asked until one of them comes back", LOST)
        return None

    def _lose(self, worker: _Worker) -> None:
        """The worker hangs. Should it ever come back, it ends."""
        with self._lock:
            self._lost.add(worker)
        worker.jobs.put(None)

    def _back(self, worker: _Worker) -> None:
        """A worker ends; one that hung hangs no longer."""
        with self._lock:
            self._lost.discard(worker)


def _answered(answer: Answerer | None, question: str, options: Seq[str]) -> list[float] | Exception:
    if answer is None:
        return AskError("the model can't be asked here")
    try:
        return answer(question, options)
    except AskError as error:
        return error
    except Exception as error:
        return AskError(f"the question failed: {error}")
