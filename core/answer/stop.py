"""Stop strings."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from tandem.core.answer.held import Held, open_end
from tandem.core.engine.request import Piece


class StopStrings:
    """Ends the text before the first stop string that is completed.

    Of two stop strings the one completed first counts, the longer one if both are completed by the same character, so
    the outcome does not depend on how the text was split into pieces. Holds back: the longest end of the text
    that could still grow into a stop string.
    """

    def __init__(self, stops: Seq[str]) -> None:
        self._stops = tuple(stops)
        self._held = Held()
        self.matched: str | None = None
        """The stop string that ended the text."""

    def feed(self, piece: Piece) -> list[Piece]:
        """The pieces that are final now. After a match everything further is dropped."""
        if self.matched is not None:
            return []
        if not self._stops:
            return [piece]
        self._held.push(piece)
        found = self._first_match()
        if found is None:
            return self._held.take(len(self._held.text) - open_end(self._held.text, self._stops))
        start, self.matched = found
        released = self._held.take(start) if start else []
        self._held.take_all()
        return released

    def end(self) -> list[Piece]:
        """What was held, now that no more text comes."""
        return self._held.take_all()

    def _first_match(self) -> tuple[int, str] | None:
        text = self._held.text
        ends = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if not ends:
            return None
        _, start, stop = min(ends)
        return start, stop
