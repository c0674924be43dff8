"""What rules did, as numbers: for the metrics. Everything that a rule was asked is in them, what it passed included."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

from tandem.core.plugin import ActionKind

FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Decided:
    """One decision, as far as it is counted."""

    task: str
    action: str
    mode: str
    done: bool


@dataclass
class Counts:
    """Counters that only grow. Keys are names of tasks, unless said otherwise."""

    decisions: Counter[Decided] = field(default_factory=Counter)
    """By task, action, mode and whether it was done; a check that found nothing is a `pass`."""
    hidden_tokens: Counter[str] = field(default_factory=Counter)
    acts: Counter[str] = field(default_factory=Counter)
    """Decisions that were done and changed the answer."""
    faults: Counter[str] = field(default_factory=Counter)
    """By rule."""
    asked: Counter[str] = field(default_factory=Counter)
    """Questions that were put to the model."""
    asked_failed: Counter[str] = field(default_factory=Counter)
    """Those of them that it could not be asked."""
    closes: Counter[str] = field(default_factory=Counter)
    """Reasonings that were closed."""
    closed_tokens: Counter[str] = field(default_factory=Counter)
    """How many reasoning tokens there were by then."""


class Tally:
    """The counts of one journal. Thread-safe."""

    def __init__(self) -> None:
        self._counts = Counts()
        self._lock = threading.Lock()

    def passed(self, task: str, mode: str) -> None:
        """A check found nothing."""
        with self._lock:
            self._counts.decisions[Decided(task, ActionKind.PASS.value, mode, False)] += 1

    def decided(
        self, rule: str, decided: Decided, *, hidden_tokens: int, reasoning_tokens: int, free: bool = False
    ) -> None:
        """A decision was journaled; `free` = it changes no answer."""
        counts, task = self._counts, decided.task
        with self._lock:
            counts.decisions[decided] += 1
            if decided.action == FAULT:
                counts.faults[rule] += 1
            if not decided.done:
                return
            counts.hidden_tokens[task] += hidden_tokens
            if not free:
                counts.acts[task] += 1
            if decided.action == ActionKind.CLOSE_REASONING.value:
                counts.closes[task] += 1
                counts.closed_tokens[task] += reasoning_tokens

    def asked(self, task: str, *, failed: bool) -> None:
        """A question was put to the model, or would have been."""
        with self._lock:
            self._counts.asked[task] += 1
            if failed:
                self._counts.asked_failed[task] += 1

    def now(self) -> Counts:
        """A copy."""
        with self._lock:
            return Counts(*(Counter(getattr(self._counts, name)) for name in Counts.__dataclass_fields__))
