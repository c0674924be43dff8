"""The chain that every answer goes through."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from tandem.core.answer.detokenizer import Detokenizer
from tandem.core.answer.stop import StopStrings
from tandem.core.engine.request import Piece, TokenLogprob
from tandem.core.plugin import Tokenizer


class Answer:
    """Detokenizer, then stop strings. `text` is everything that the model wrote and the client may read."""

    def __init__(self, tokenizer: Tokenizer, stops: Seq[str]) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(stops)
        self._parts: list[str] = []

    @property
    def text(self) -> str:
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text, or None while it goes on."""
        return self._stops.matched

    def feed(self, token: int, logprob: TokenLogprob | None = None) -> list[Piece]:
        """The pieces that this token made final."""
        piece = Piece(self._detokenizer.feed(token), 1, (logprob,) if logprob else ())
        return self._keep(self._stops.feed(piece))

    def end(self) -> list[Piece]:
        """The pieces that were held back, at the end of the generation."""
        return self._keep(self._stops.end())

    def add(self, text: str) -> Piece:
        """Text that the model did not write (a rule's sentence), put behind what was sent."""
        return self._keep([Piece(text, tokens=0)])[0]

    def _keep(self, pieces: list[Piece]) -> list[Piece]:
        self._parts.extend(piece.text for piece in pieces if piece.text)
        return pieces
