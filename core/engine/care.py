"""What the engine does for its caches while nobody asks it for anything."""

from __future__ import annotations

import time
from collections.abc import Callable

from tandem.core.engine.caches import CacheStack

IDLE_S = 5.0
"""How long nothing must have run."""
EVERY_S = 60.0
"""Seconds from one check of a tier to the next, at least."""


class IdleCare:
    """Checks the tiers, one at a time, each once after work has changed it.

    All calls come from the engine's thread. A check is never cut short, so work that arrives waits for one tier at
    most; the others are checked in the next idle time.
    """

    def __init__(self, caches: CacheStack, clock: Callable[[], float] = time.monotonic) -> None:
        self._caches = caches
        self._clock = clock
        self._worked_at = clock()
        self._works = 0
        self._checked: dict[str, tuple[int, float]] = {}
        """Tier -> what `_works` was when it was last checked, and when that was."""

    def worked(self) -> None:
        """Something ran, and may have changed every tier."""
        self._works += 1
        self._worked_at = self._clock()

    def due_in(self) -> float | None:
        """Seconds until a tier is to be checked, 0 = now; None = nothing has changed since the last check."""
        times = [at for name in self._caches.names() if (at := self._due_at(name)) is not None]
        return max(0.0, min(times) - self._clock()) if times else None

    def run(self, busy: Callable[[], bool]) -> None:
        """Check the tiers that are due, until `busy()`."""
        for name in self._caches.names():
            due = self._due_at(name)
            if due is None or due > self._clock():
                continue
            if busy():
                return
            self._checked[name] = self._works, self._clock()
            self._caches.care(name)

    def _due_at(self, name: str) -> float | None:
        known = self._checked.get(name)
        if known is None:
            return self._worked_at + IDLE_S if self._works else None
        works, at = known
        return max(self._worked_at + IDLE_S, at + EVERY_S) if works != self._works else None
