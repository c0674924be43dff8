"""A closing tag that the model writes again in its answer."""

from __future__ import annotations

from tandem.core.answer.held import Held
from tandem.core.engine.request import Piece

BLANKS = " \t\r"


class StrayClose:
    """Leaves out a reasoning close tag that stands alone on a line of the answer.

    Some chat pages close their reasoning view at the first such tag and show a second one as text. The tag stays inside
    a sentence, inside a fenced code block, and where it closes a block that a lone opening tag in the answer
    began. Holds back: the beginning of a line that may still become the lone tag.
    """

    def __init__(self, tags: tuple[str, str]) -> None:
        self._open, self._close = tags
        self._held = Held()
        self._line = ""  # the current line so far, no more of it than the checks need
        self._longest = max(len(self._open), len(self._close)) + 16
        self._fenced = False
        self._opened = 0
        self.removed = 0
        """Tags left out so far."""

    def feed(self, piece: Piece) -> list[Piece]:
        # Only the beginning of one line is ever held, so the held text starts with the current line.
        fresh = len(self._held.text)
        self._held.push(piece)
        out: list[Piece] = []
        while (end := self._held.text.find("\n", fresh)) >= 0:
            self._extend(self._held.text[fresh:end])
            line = self._held.take(end + 1)
            if self._is_stray():
                self.removed += 1
            else:
                self._close_line()
                out += line
            self._line, fresh = "", 0
        self._extend(self._held.text[fresh:])
        if not self._may_become_stray():
            out += self._held.take_all()
        return out

    def end(self) -> list[Piece]:
        if self._is_stray():
            self.removed += 1
            self._held.take_all()
        return self._held.take_all()

    def _extend(self, text: str) -> None:
        if len(self._line) < self._longest:
            self._line += text[: self._longest]

    def _is_stray(self) -> bool:
        return self._line.strip(BLANKS) == self._close and not self._fenced and not self._opened

    def _may_become_stray(self) -> bool:
        if self._fenced or self._opened or len(self._line) >= self._longest:
            return False
        line = self._line.lstrip(BLANKS)
        return self._close.startswith(line) or line.rstrip(BLANKS) == self._close

    def _close_line(self) -> None:
        """A line that stays has ended: what does it open or close?"""
        line = self._line.strip(BLANKS)
        if line.startswith(("```", "~~~")):
            self._fenced = not self._fenced
        elif not self._fenced and line == self._open:
            self._opened += 1
        elif not self._fenced and line == self._close and self._opened:
            self._opened -= 1
