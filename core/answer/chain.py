"""The chain that every answer goes through."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from tandem.core.answer.calls import CallFilter
from tandem.core.answer.detokenizer import Detokenizer
from tandem.core.answer.reasoning import ReasoningSplit
from tandem.core.answer.stop import StopStrings
from tandem.core.answer.stray import StrayClose
from tandem.core.engine.request import CallPiece, Calls, Channel, Piece, Thinking, TokenLogprob
from tandem.core.plugin import Tokenizer

Out = list[Piece | CallPiece]


class Answer:
    """Detokenizer, reasoning split, and for the answer alone: stop strings, tool calls, stray close tags.

    `text` is the answer as far as the client may read it; the reasoning and the calls are not in it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Seq[str] = (),
        thinking: Thinking | None = None,
        calls: Calls | None = None,
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._reasoning = ReasoningSplit(thinking.tags, thinking.opened) if thinking else ReasoningSplit(None)
        self._stops = StopStrings(stops)
        self._calls = CallFilter(calls.parser(), wanted=calls.wanted, limit=calls.limit) if calls else None
        self._stray = StrayClose(thinking.tags) if thinking else None
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

    @property
    def calls(self) -> int:
        """Whole calls that went out."""
        return self._calls.complete if self._calls else 0

    def feed(self, token: int, logprob: TokenLogprob | None = None) -> Out:
        """The pieces that this token made final."""
        piece = Piece(self._detokenizer.feed(token), 1, (logprob,) if logprob else ())
        out: Out = []
        for split in self._reasoning.feed(piece):
            if split.channel is Channel.CONTENT:
                out += self._from_stops(self._stops.feed(split))
            else:
                out.append(split)
        return out

    def end(self, cut: bool = False) -> Out:
        """The pieces that were held back, at the end of the generation; `cut` when a limit ended it."""
        out: Out = []
        for split in self._reasoning.end():
            out += self._from_stops(self._stops.feed(split)) if split.channel is Channel.CONTENT else [split]
        out += self._from_stops(self._stops.end())
        if self._calls is not None:
            out += self._from_calls(self._calls.end(cut))
        if self._stray is not None:
            out += self._keep(self._stray.end())
        return out

    def add(self, text: str) -> Piece:
        """Text that the model did not write (a rule's sentence), put behind what was sent."""
        piece = Piece(text, tokens=0)
        self._parts.append(text)
        return piece

    def _from_stops(self, pieces: list[Piece]) -> Out:
        if self._calls is None:
            return self._from_calls(pieces)
        return [event for piece in pieces for event in self._from_calls(self._calls.feed(piece))]

    def _from_calls(self, events: Seq[Piece | CallPiece]) -> Out:
        out: Out = []
        for event in events:
            if isinstance(event, CallPiece):
                out.append(event)
            else:
                out += self._keep([event] if self._stray is None else self._stray.feed(event))
        return out

    def _keep(self, pieces: Seq[Piece]) -> Out:
        self._parts.extend(piece.text for piece in pieces if piece.text)
        return list(pieces)
