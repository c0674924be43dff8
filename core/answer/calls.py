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

    def __init__(self, parser: AnswerParser, *, wanted: bool = True, limit: int | None = None) -> None:
        self._parser = parser
        self._room = (1 << 30 if limit is None else limit) if wanted else 0
        self.complete = 0
        """Calls that went out whole."""
        self.open = False
        """A call has begun and not ended."""

    def feed(self, piece: Piece) -> list[Piece | CallPiece]:
        parts = self._parser.feed(piece.text)
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
                out.append(CallPiece(part.index, part.name, part.arguments, part.done))
        return out
