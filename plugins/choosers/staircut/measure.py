"""Prices before the first request: passes of every width on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable

from tandem.core.plugin import Block, Model, Sequence

WIDTHS = (1, 32, 8, 4, 2, 16, 24, 12, 6, 3)
"""Rows, the ones first that say most when time is short."""
SWEEPS = 8
CONTEXT = 256
"""Rows committed before: what stands before a short answer."""


def measure(model: Model, seconds: float, clock: Callable[[], float] = time.perf_counter) -> dict[int, float]:
    """Rows -> seconds of a pass as wide as that, its walk (the argmax of each row) and commit included.

    Up to `SWEEPS` sweeps over all widths, in turns, so that a machine that is busy for a while spoils some sweeps and
    not one width; the shortest of them counts, since others only ever make a pass longer. After `seconds` only 1 row
    and the widest are made sure of.
    """
    began = clock()
    room = min(model.caps.max_len, CONTEXT + max(WIDTHS))
    widths = [rows for rows in WIDTHS if rows <= room]
    sequence = model.new_sequence(room)
    taken: dict[int, list[float]] = {}
    try:
        first = _pass(model, sequence, 1, clock)  # slower than all others: it warms up
        if (before := room - max(widths)) > 0 and first * 20 < seconds:
            _fill(model, sequence, before)
        for sweep in range(SWEEPS):
            for place, rows in enumerate(widths):
                if clock() - began > seconds and (sweep or place >= 2):
                    break
                if rows not in taken:
                    _pass(model, sequence, rows, clock)  # a width's first pass may compile or allocate
                taken.setdefault(rows, []).append(_pass(model, sequence, rows, clock))
            if clock() - began > seconds:
                break
    finally:
        sequence.close()
    return {rows: max(min(times), 1e-9) for rows, times in sorted(taken.items())}


def _fill(model: Model, sequence: Sequence, rows: int) -> None:
    model.forward([Block(sequence, [0] * rows, logits=(rows - 1,))])
    sequence.commit(range(rows))


def _pass(model: Model, sequence: Sequence, rows: int, clock: Callable[[], float]) -> float:
    start = clock()
    (logits,) = model.forward([Block(sequence, [0] * rows, logits=range(rows))])
    logits.argmax(dim=-1).tolist()  # waits for the device, as the walk does
    sequence.commit(())
    return clock() - start
