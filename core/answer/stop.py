"""Stop strings."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import replace

from tandem.core.engine.request import Piece


class StopStrings:
    """Ends the text before the first stop string that is completed.

    Of two stop strings the one completed first counts, the longer one if both are completed by the same character, so
    the outcome does not depend on how the text was split into pieces. Holds back: the longest end of the text
    that could still grow into a stop string.
    """

    def __init__(self, stops: Seq[str]) -> None:
        self._stops = tuple(stops)
        self._held: deque[Piece] = deque()
        self._text = ""  # of the held pieces
        self.matched: str | None = None
        """The stop string that ended the text."""

    def feed(self, piece: Piece) -> list[Piece]:
        """The pieces that are final now. After a match everything further is dropped."""
        if self.matched is not None:
            return []
        if not self._stops:
            return [piece]
        self._held.append(piece)
        self._text += piece.text
        found = self._first_match()
        if found is not None:
            start, self.matched = found
            released = self._release(start)
            self._held.clear()
            return released
        return self._release(len(self._text) - self._open_end())

    def end(self) -> list[Piece]:
        """What was held, now that no more text comes."""
        return [] if self.matched is not None else self._release(len(self._text), everything=True)

    def _first_match(self) -> tuple[int, str] | None:
        ends = [(at + len(stop), at, stop) for stop in self._stops if (at := self._text.find(stop)) >= 0]
        if not ends:
            return None
        _, start, stop = min(ends)
        return start, stop

    def _open_end(self) -> int:
        """Length of the longest proper beginning of a stop string that the text ends with."""
        return max(
            (
                n
                for stop in self._stops
                for n in range(min(len(stop) - 1, len(self._text)), 0, -1)
                if self._text.endswith(stop[:n])
            ),
            default=0,
        )

    def _release(self, length: int, everything: bool = False) -> list[Piece]:
        """Hand out the first `length` held characters; a piece that straddles the line is split, its token counted
        with the part that goes out last. A piece without text goes with the text before it."""
        out: list[Piece] = []
        while self._held:
            piece = self._held[0]
            size = len(piece.text)
            if size > length or (size and length == 0):
                break
            if size == 0 and length == 0 and self._text and not everything:
                break
            out.append(self._held.popleft())
            length -= size
            self._text = self._text[size:]
        if length > 0 and self._held:
            piece = self._held[0]
            out.append(Piece(piece.text[:length], tokens=0))
            self._held[0] = replace(piece, text=piece.text[length:])
            self._text = self._text[length:]
        return out
