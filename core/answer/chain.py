"""The chain that every answer goes through."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from tandem.core.answer.detokenizer import Detokenizer
from tandem.core.answer.reasoning import ReasoningSplit
from tandem.core.answer.stop import StopStrings
from tandem.core.engine.request import Channel, Piece, TokenLogprob
from tandem.core.plugin import Tokenizer


class Answer:
    """Detokenizer, reasoning split, and for the answer alone the stop strings.

    `text` is the answer as far as the client may read it; the reasoning is not in it.
    """

    def __init__(
        self, tokenizer: Tokenizer, stops: Seq[str] = (), tags: tuple[str, str] | None = None, opened: bool = False
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._reasoning = ReasoningSplit(tags, opened)
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

    @property
    def reasoning(self) -> bool:
        """The model is inside its reasoning."""
        return self._reasoning.inside

    @property
    def answering(self) -> bool:
        """The next token belongs to the answer, the blanks before it included."""
        return self._reasoning.in_answer

    @property
    def reasoning_tokens(self) -> int:
        return self._reasoning.tokens

    def feed(self, token: int, logprob: TokenLogprob | None = None) -> list[Piece]:
        """The pieces that this token made final."""
        piece = Piece(self._detokenizer.feed(token), 1, (logprob,) if logprob else ())
        return self._through(self._reasoning.feed(piece))

    def end(self) -> list[Piece]:
        """The pieces that were held back, at the end of the generation."""
        return self._through(self._reasoning.end()) + self._keep(self._stops.end())

    def add(self, text: str) -> Piece:
        """Text that the model did not write (a rule's sentence), put behind what was sent."""
        return self._keep([Piece(text, tokens=0)])[0]

    def _through(self, pieces: list[Piece]) -> list[Piece]:
        out: list[Piece] = []
        for piece in pieces:
            out += self._keep(self._stops.feed(piece)) if piece.channel is Channel.CONTENT else [piece]
        return out

    def _keep(self, pieces: list[Piece]) -> list[Piece]:
        self._parts.extend(piece.text for piece in pieces if piece.text)
        return pieces
