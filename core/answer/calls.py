"""Tool calls: the format's parser in the chain of filters."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

from tandem.core.engine.request import CallPiece, Piece
from tandem.core.plugin import AnswerParser, CallPart, TextPart


class CallFilter:
    """Reads calls out of the answer. Holds back what the format's parser holds back.

    `wanted` False reads calls and drops them: a request that offered no tools gets none. `limit` is the most calls
    that go out; later ones are dropped.
    """

    def __init__(self, parser: AnswerParser, *, wanted: bool = True, limit: int | None = None, first: int = 0) -> None:
        """`first` is the first call's index."""
        self._parser = parser
        self._room = (1 << 30 if limit is None else limit) if wanted else 0
        self._first = first
        self.complete = 0
        """Calls that went out whole."""
        self.open = False
        """A call has begun and not ended, and part of it went out."""
        self.writing: str | None = None
        """The function whose call is being written, held back or not."""
        self._written: list[str] = []
        self.tokens = 0
        """Tokens of the call that is being written."""

    def tail(self, characters: int) -> str:
        """The end of what the model wrote of that call."""
        taken: list[str] = []
        for text in reversed(self._written):
            taken.append(text)
            characters -= len(text)
            if characters <= 0:
                break
        whole = "".join(reversed(taken))
        return whole[max(0, -characters) :]

    def feed(self, piece: Piece) -> list[Piece | CallPiece]:
        parts = self._parser.feed(piece.text)
        self._follow(piece, parts)
        if len(parts) == 1 and isinstance(parts[0], TextPart) and parts[0].text == piece.text:
            return [piece]
        out = self._events(parts)
        # The token belongs to the first text that came of it, or stands alone.
        for place, event in enumerate(out):
            if isinstance(event, Piece):
                out[place] = replace(event, tokens=piece.tokens, logprobs=piece.logprobs)
                return out
        return [replace(piece, text=""), *out]

    def end(self, cut: bool) -> list[Piece | CallPiece]:
        """No more text comes; `cut` by the token limit."""
        return self._events(self._parser.end(cut))

    def _follow(self, piece: Piece, parts: Seq[TextPart | CallPart]) -> None:
        """Keep what is written of the call that is open."""
        name: str | None = getattr(self._parser, "writing", None)
        if not hasattr(self._parser, "writing"):  # a parser that does not tell: what went out does
            calls = [part for part in parts if isinstance(part, CallPart)]
            name = self.writing if not calls else None if calls[-1].done else calls[-1].name or self.writing
        ended = any(isinstance(part, CallPart) and part.done for part in parts)
        if name is None or ended or self.writing is None:
            self._written, self.tokens = [], 0
        self.writing = name
        if name is not None:
            self._written.append(piece.text)
            self.tokens += piece.tokens

    def _events(self, parts: Seq[TextPart | CallPart]) -> list[Piece | CallPiece]:
        out: list[Piece | CallPiece] = []
        for part in parts:
            if isinstance(part, TextPart):
                if part.text:
                    out.append(Piece(part.text, tokens=0))
                continue
            self.open = not part.done
            if part.index < self._room:
                self.complete += part.done
                out.append(CallPiece(self._first + part.index, part.name, part.arguments, part.done))
        return out
