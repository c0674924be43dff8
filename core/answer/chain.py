"""The chain that every answer goes through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass
from typing import Any

from tandem.core.answer.calls import CallFilter
from tandem.core.answer.detokenizer import Detokenizer
from tandem.core.answer.gate import CallGate, HeldBlock, HeldCall
from tandem.core.answer.mask import SecretMask
from tandem.core.answer.reasoning import ReasoningSplit
from tandem.core.answer.stop import StopStrings
from tandem.core.answer.stray import StrayClose
from tandem.core.engine.request import CallPiece, Calls, Channel, Piece, Thinking, TokenLogprob
from tandem.core.plugin import Tokenizer
from tandem.core.plugin.rule import WrittenCall

Out = list[Piece | CallPiece]


class Text:
    """Text that grows. Put together when it is asked for, so that adding to it costs the same at any length."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def add(self, text: str) -> None:
        if text:
            self._parts.append(text)

    def __str__(self) -> str:
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""


@dataclass(slots=True)
class _Sent:
    """A call of which something went out."""

    name: str
    arguments: Text
    done: bool = False


class Answer:
    """Detokenizer, reasoning split, and for the answer alone: stop strings, tool calls, the gate, stray close
    tags; then the secret masks, one for the reasoning and one for the answer.

    With `hold` the calls wait at the gate until `release` or `again`. An answer that has ended may go on (`again`): its
    text stays as it is, and what comes then is read afresh.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Seq[str] = (),
        thinking: Thinking | None = None,
        calls: Calls | None = None,
        *,
        hold: bool | None = None,
        masks: Mapping[str, str] | None = None,
    ) -> None:
        """`hold` None: nobody looks at the calls, so there is no gate. False: somebody does, after they went out.
        `masks` are the words that the client is not to read, and what it reads instead."""
        self._tokenizer = tokenizer
        self._stop_strings = stops
        self._how = calls
        self._tags = thinking.tags if thinking else None
        self._reasoning = ReasoningSplit(thinking.tags, thinking.opened) if thinking else ReasoningSplit(None)
        self._gate = CallGate(calls.opener, hold) if calls and hold is not None else None
        self._text, self._thoughts = Text(), Text()
        self._mask = SecretMask(masks) if masks else None
        self._thoughts_mask = SecretMask(masks) if masks else None
        self._sent: list[_Sent] = []
        self._calls: CallFilter | None = None
        self._begin()

    def _begin(self) -> None:
        calls, first = self._how, self.calls
        self._detokenizer = Detokenizer(self._tokenizer)
        self._stops = StopStrings(self._stop_strings)
        if calls is not None:
            limit = None if calls.limit is None else max(0, calls.limit - first)
            self._calls = CallFilter(calls.parser(), wanted=calls.wanted, limit=limit, first=first)
        self._stray = StrayClose(self._tags) if self._tags else None

    # --------------------------------------------------------------------------------------------- where it stands

    @property
    def text(self) -> str:
        """The answer as far as the client may read it; the reasoning and the calls are not in it."""
        return str(self._text)

    @property
    def thoughts(self) -> str:
        """The reasoning so far."""
        return str(self._thoughts)

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
        return sum(call.done for call in self._sent)

    @property
    def written(self) -> tuple[WrittenCall, ...]:
        """The calls of the answer, those that wait at the gate included."""
        held = [item.call for item in self.at_gate if isinstance(item, HeldCall)] if self.holds else []
        return (*(WrittenCall(call.name, str(call.arguments), call.done) for call in self._sent), *held)

    @property
    def holds(self) -> bool:
        """Calls wait at the gate."""
        return self._gate is not None and self._gate.holds

    @property
    def at_gate(self) -> list[HeldCall | HeldBlock]:
        """What waits at the gate, or went through one that does not hold."""
        return self._gate.items() if self._gate is not None else []

    @property
    def waiting_tokens(self) -> int:
        """How many of the last tokens wait at the gate: nothing of them went out. Exact once the answer has ended."""
        return self._gate.tokens if self._gate is not None else 0

    @property
    def open_call(self) -> OpenView | None:
        """The call that is being written."""
        if self._calls is None or self._calls.writing is None:
            return None
        return OpenView(self._calls, self._calls.open and not self.holds)

    # ------------------------------------------------------------------------------------------------- what comes

    def feed(self, token: int, logprob: TokenLogprob | None = None) -> Out:
        """The pieces that this token made final."""
        piece = Piece(self._detokenizer.feed(token), 1, (logprob,) if logprob else ())
        return self._from_split(self._reasoning.feed(piece))

    def end(self, cut: bool = False) -> Out:
        """The pieces that were held back, at the end of the generation; `cut` when a limit ended it. What waits at the
        gate goes on waiting."""
        out = self._from_split(self._reasoning.end())
        out += self._from_stops(self._stops.end())
        if self._calls is not None:
            out += self._from_calls(self._calls.end(cut))
        if self._gate is not None and not self._gate.holding:
            out += self._keep(self._gate.settle())
        if self._stray is not None:
            out += self._keep(self._stray.end())
        return out + self._flushed()

    def close_reasoning(self) -> Out:
        """The reasoning ends here, by words that the client does not see."""
        return self._from_split(self._reasoning.close())

    def again(self) -> None:
        """The answer goes on after its end. What waits at the gate is dropped."""
        if self._gate is not None:
            self._gate.drop()
        self._begin()

    def release(self, repairs: Mapping[int, Mapping[str, Any]]) -> Out:
        """Let everything out that waits at the gate; a call named by its index has other arguments."""
        return self._from_gate(self._gate.release(repairs)) if self._gate is not None else []

    def add(self, text: str) -> Piece:
        """Text that the model did not write (a rule's sentence), put behind what was sent."""
        self._text.add(text)
        return Piece(text, tokens=0)

    # -------------------------------------------------------------------------------------------------- the links

    def _from_split(self, pieces: Seq[Piece]) -> Out:
        out: Out = []
        for piece in pieces:
            if piece.channel is Channel.CONTENT:
                out += self._from_stops(self._stops.feed(piece))
            elif piece.channel is Channel.REASONING:
                self._thoughts.add(piece.text)
                out += [piece] if self._thoughts_mask is None else self._thoughts_mask.feed(piece)
            else:
                out += [] if self._thoughts_mask is None else self._thoughts_mask.end()
                out.append(piece)
        return out

    def _from_stops(self, pieces: list[Piece]) -> Out:
        if self._calls is None:
            return self._from_calls(pieces)
        return [event for piece in pieces for event in self._from_calls(self._calls.feed(piece))]

    def _from_calls(self, events: Seq[Piece | CallPiece]) -> Out:
        return self._from_gate(events if self._gate is None else self._gate.feed(events))

    def _from_gate(self, events: Seq[Piece | CallPiece]) -> Out:
        out: Out = []
        for event in events:
            if isinstance(event, CallPiece):
                self._note(event)
                out += [*self._flushed(), event]
            else:
                out += self._keep([event] if self._stray is None else self._stray.feed(event))
        return out

    def _note(self, piece: CallPiece) -> None:
        """A piece of a call goes out."""
        if piece.name is not None:
            self._sent.append(_Sent(piece.name, Text()))
        if self._sent:
            self._sent[-1].arguments.add(piece.arguments)
            self._sent[-1].done |= piece.done

    def _keep(self, pieces: Seq[Piece]) -> Out:
        if self._mask is not None:
            pieces = [piece for given in pieces for piece in self._mask.feed(given)]
        return self._added(pieces)

    def _flushed(self) -> Out:
        """What the masks still held."""
        thoughts = [] if self._thoughts_mask is None else self._thoughts_mask.end()
        return [*thoughts, *self._added([] if self._mask is None else self._mask.end())]

    def _added(self, pieces: Seq[Piece]) -> Out:
        for piece in pieces:
            self._text.add(piece.text)
        return list(pieces)


class OpenView:
    """The call that is being written, as rules see it (`OpenCall`)."""

    def __init__(self, calls: CallFilter, streamed: bool) -> None:
        self._calls = calls
        self.name = calls.writing or ""
        self.tokens = calls.tokens
        self.streamed = streamed

    def tail(self, characters: int) -> str:
        return self._calls.tail(characters)
