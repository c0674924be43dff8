"""Whose pass is next: how those who read a prompt, those who write, and the guest in the side lane share the time."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from tandem.core.engine.generation import Generation

LEAST_ROWS = 16
"""A chunk is not cut below this: shorter ones cost nearly the same."""
FIRST_ROWS = 64
"""The first chunk beside others, as long as no pass was measured."""
ABOUT = 1.1
"""A pass may take so much of a quantum."""
RETRY = 16
"""After so many passes a length that took too long is tried again: the machine may have been busy otherwise."""


class Cut:
    """How long one reader's chunks beside others are.

    Doubled while a pass takes no more than a quantum, halved when it takes longer; so a pass of a length that is tried
    takes two quanta at most. No model of the cost: a few rows more may take another kernel, and cost many times as
    much or nothing.
    """

    def __init__(self, rows: int, whole: int) -> None:
        self.rows = whole
        while self.rows > rows and self.rows >= 2 * LEAST_ROWS:
            self.rows //= 2
        self._whole = whole
        self._too_long = 2 * whole
        self._retry = RETRY

    def took(self, rows: int, long: bool) -> None:
        """A pass read so many rows, and took too long or not."""
        if rows < self.rows or (rows > self.rows and long):
            return  # the prompt's last rows, or a whole chunk while nobody waited
        if long:
            self._too_long, self._retry = rows, RETRY
            self.rows = rows // 2 if rows >= 2 * LEAST_ROWS else rows
            return
        self._retry -= 1
        if self._retry <= 0:
            self._too_long = 2 * self._whole
        self.rows = min(2 * rows, self._whole) if 2 * rows < self._too_long else rows


@dataclass(slots=True)
class Turn:
    """One pass."""

    generations: Seq[Generation]
    chunk: int | None = None
    """How many prompt tokens one may read; None = a whole chunk."""
    mixed: bool = False
    """One of them reads while the others write."""
    guest: bool = False
    """It is the guest's."""
    done: Seq[int] = field(init=False)
    """How far each had read its prompt before."""

    def __post_init__(self) -> None:
        self.done = [one.done for one in self.generations]


class Turns:
    """Shares the time by what passes took. Is told the seconds and keeps no clock.

    * One request, or several that do the same, run as if nobody shared anything: all in one pass, chunks whole.
    * Where some read and others write, one of those who read joins a pass, its chunk cut so that the pass takes about
      a quantum (`Cut`); then those who write have passes of their own until they have had their share of the time,
      however long the prompt is.
    * The guest has passes of its own too, so that it changes no row of anybody else's: as much time as all others
      together, and at once. Its chunks are cut like those above.
    """

    def __init__(self, quantum_s: float, share: float) -> None:
        """`share`: the least part of the time that writing keeps, below 1."""
        self._quantum = quantum_s
        self._writing_for_reading = share / (1.0 - share)
        self._owed_writing = 0.0
        """Seconds that those who write have before the next chunk."""
        self._owed_guest = 0.0
        """Seconds that the guest is behind the others."""
        self._chunks = 0
        self._cuts: WeakKeyDictionary[Generation, Cut] = WeakKeyDictionary()
        self._rows = FIRST_ROWS

    def next(self, generations: Seq[Generation], guest: Generation | None = None) -> Turn:
        """The next pass of these generations and the guest; one of them there is."""
        if guest is None or not generations:
            self._owed_guest = 0.0
        if guest is not None and self._owed_guest >= 0.0:
            return Turn([guest], self._cut(guest).rows if generations else None, guest=True)
        reading = [one for one in generations if one.reading]
        writing = [one for one in generations if not one.reading]
        if not reading or not writing:
            self._owed_writing = 0.0
            return Turn(generations)
        if self._owed_writing > 0.0:
            return Turn(writing)
        self._chunks += 1
        reader = reading[self._chunks % len(reading)]
        return Turn([*writing, reader], self._cut(reader).rows, mixed=True)

    def took(self, turn: Turn, seconds: float) -> None:
        """The turn's pass took so long."""
        self._owed_guest += -seconds if turn.guest else seconds
        if turn.mixed:
            self._owed_writing = seconds * self._writing_for_reading
        elif not turn.guest:
            self._owed_writing -= seconds
        before = zip(turn.generations, turn.done, strict=True)
        read = [(one, one.done - done) for one, done in before if one.done > done]
        if len(read) == 1:
            [(reader, rows)] = read
            cut = self._cut(reader)
            cut.took(rows, seconds > ABOUT * self._quantum)
            self._rows = cut.rows

    def _cut(self, reader: Generation) -> Cut:
        """What is known of the reader; at first, what was known of the last one."""
        return self._cuts.setdefault(reader, Cut(self._rows, reader.chunk))
