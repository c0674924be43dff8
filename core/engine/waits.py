"""How long a request in the queue will wait: read off the work that the running ones still have to do.

A place becomes free when a running request has read the rest of its prompt and written the rest of its answer. The
first is known, and for the second there are the earlier requests of the same kind: of those that wrote more than this
one has so far, the 75th percentile of what they went on to write. What can't be read that way is told by how long
earlier requests held their place. Each waiter ahead adds a typical time. A place that the server's own work holds is
given up at once; how long that takes is told by how long it took before.
"""

from __future__ import annotations

import heapq
import statistics
from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass

MEMORY = 512
"""Finished requests that are remembered."""
LEAST_KNOWN = 5
"""With fewer finished requests there is no estimate."""
LEAST_LONGER = 3
"""Fewer that went on longer than a running one say nothing about it."""
QUANTILE = 0.75
"""Of what the others still wrote: an answer that takes longer than was said annoys more than one that is early."""
QUANTILE_BEHIND = 0.6
"""The same where others wait before: their times are added, and so would be the caution in each."""


@dataclass(frozen=True, slots=True)
class Running:
    """What is known about a request that holds a place."""

    held_s: float
    """How long it has held it."""
    kind: str
    """Requests of one kind write answers of like lengths: `thinking` or `plain`."""
    prefill_left: int
    """Prompt tokens still to be read."""
    written: int
    max_tokens: int
    prefill_per_s: float | None = None
    """Its own rates, None while it has none."""
    decode_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Ended:
    kind: str
    written: int
    held_s: float
    decode_per_s: float | None
    prefill_per_s: float | None


class Waits:
    """What ended requests teach about those that run. Not thread-safe: the engine calls it under its own lock."""

    def __init__(self) -> None:
        self._ended: deque[_Ended] = deque(maxlen=MEMORY)
        self._gave_way: deque[float] = deque(maxlen=MEMORY)

    def ended(self, kind: str, held_s: float, read: int, prefill_s: float, written: int, decode_s: float) -> None:
        """A request gave its place back. `read` prompt tokens were read, `written` tokens written, in these seconds."""
        self._ended.append(
            _Ended(
                kind,
                written,
                held_s,
                written / decode_s if written > 1 and decode_s > 0 else None,
                read / prefill_s if read > 1 and prefill_s > 0 else None,
            )
        )

    def gave_way(self, seconds: float) -> None:
        """A request waited so long for the server's own work to give its place up."""
        self._gave_way.append(seconds)

    def estimate(self, running: Seq[Running], ahead: int, own: int = 0, waited_s: float = 0.0) -> float | None:
        """Seconds until a waiter with `ahead` others before it gets a place, or None when nothing is known.

        `running` keep their places till they end, and the server's own work holds `own` others; the waiter has waited
        `waited_s` so far. Places are given out in order: the first waiter takes the place that is free first, and holds
        it for a typical time.
        """
        if ahead < own:
            return self._behind_own(waited_s)
        if len(self._ended) < LEAST_KNOWN or not running:
            return None
        soonest = self._free(running, own, QUANTILE)
        if not ahead or soonest is None:
            return min(soonest) if soonest is not None else None
        free = self._free(running, own, QUANTILE_BEHIND)
        assert free is not None  # what is known does not depend on the quantile
        typical = statistics.median(one.held_s for one in self._ended)
        heapq.heapify(free)
        for _ in range(ahead):
            heapq.heapreplace(free, free[0] + typical)
        return max(free[0], min(soonest))  # never less than the first of those who wait is told

    def _free(self, running: Seq[Running], own: int, quantile: float) -> list[float] | None:
        """In how many seconds each place becomes free; None when one can't be told."""
        left = [self.left(one, quantile) for one in running]
        known = [seconds for seconds in left if seconds is not None]
        return known + [0.0] * own if len(known) == len(left) else None

    def left(self, one: Running, quantile: float = QUANTILE) -> float | None:
        """Seconds that a running request will still hold its place."""
        by_work = self._by_work(one, quantile)
        return by_work if by_work is not None else self._by_time(one.held_s)

    def _behind_own(self, waited_s: float) -> float | None:
        """What is left of the waits behind own work that took longer than this one has so far, at the median."""
        longer = [seconds - waited_s for seconds in self._gave_way if seconds > waited_s]
        return statistics.median(longer) if len(self._gave_way) >= LEAST_KNOWN and longer else None

    def _by_work(self, one: Running, quantile: float) -> float | None:
        decode = one.decode_per_s or self._median("decode_per_s")
        prefill = one.prefill_per_s or self._median("prefill_per_s")
        longer = [known.written for known in self._ended if known.kind == one.kind and known.written > one.written]
        if decode is None or (one.prefill_left and prefill is None):
            return None
        if len(longer) < LEAST_LONGER:
            return None
        still = min(_quantile(longer, quantile), one.max_tokens) - one.written
        reading = one.prefill_left / prefill if one.prefill_left and prefill else 0.0
        return reading + max(0.0, still) / decode

    def _by_time(self, held_s: float) -> float | None:
        """How much longer requests that ran this long went on, at the median."""
        longer = [known.held_s - held_s for known in self._ended if known.held_s > held_s]
        return statistics.median(longer) if len(longer) >= LEAST_LONGER else None

    def _median(self, rate: str) -> float | None:
        known = [value for one in self._ended if (value := getattr(one, rate)) is not None]
        return statistics.median(known) if known else None


def _quantile(values: Seq[int], share: float) -> float:
    """Linear between the two nearest ranks."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def in_words(seconds: float) -> str:
    """An estimate as people say it: seconds below ten, tens of seconds below two minutes, then minutes."""
    if seconds < 10:
        return f"{max(1, round(seconds))} s"
    if seconds < 115:
        return f"{round(seconds / 10) * 10} s"
    return f"{round(seconds / 60)} min"
