"""The gate: an answer's calls wait here until the answer has ended and somebody has looked at them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any

from tandem.core.engine.request import CallPiece, Piece
from tandem.core.plugin import json_text
from tandem.core.plugin.rule import WrittenCall

Events = list[Piece | CallPiece]


@dataclass(frozen=True, slots=True)
class HeldCall:
    """A call that waits."""

    index: int
    call: WrittenCall


@dataclass(frozen=True, slots=True)
class HeldBlock:
    """Text that begins like a call and could not be read as one."""

    text: str


class CallGate:
    """Lets text through until a call begins, and holds everything from there on. One that does not `hold` lets all of
    it through, and remembers it.

    A block that could not be read as a call comes as text that begins with the family's `opener`; it is held too.
    Tokens without text are the parser's, which waits for what they become; they stay with the text or the call that
    follows them. Holds back nothing else: the parser before it has done so already.
    """

    def __init__(self, opener: str | None, hold: bool = True) -> None:
        self.holds = hold
        self._opener = opener
        self._held: Events = []
        self._undecided: list[Piece] = []
        """Tokens without text, in front of what nobody knows yet."""
        self.holding = False

    @property
    def tokens(self) -> int:
        """How many tokens wait here."""
        return sum(event.tokens for event in self._held if isinstance(event, Piece)) if self.holds else 0

    def feed(self, events: Seq[Piece | CallPiece]) -> Events:
        """What may go out at once."""
        if not self.holds:
            self._held += [event for event in events if self._remembers(event)]
            return list(events)
        out: Events = []
        for event in events:
            if not self.holding and isinstance(event, Piece) and not event.text:
                self._undecided.append(event)
                continue
            if not self.holding and not self._begins(event):
                out += [*self.settle(), event]
                continue
            self._held += self.settle()
            if not self.holding and isinstance(event, Piece) and self._opener:
                before, _, _ = event.text.partition(self._opener)
                if before:
                    out.append(replace(event, text=before, tokens=0, logprobs=()))
                event = replace(event, text=event.text[len(before) :])
            self.holding = True
            self._held.append(event)
        return out

    def settle(self) -> list[Piece]:
        """The tokens without text that came last; nothing follows that they could belong to."""
        undecided, self._undecided = self._undecided, []
        return undecided

    def items(self) -> list[HeldCall | HeldBlock]:
        """What waits, in order: calls, and blocks that could not be read."""
        calls: dict[int, list[CallPiece]] = {}
        items: list[HeldCall | HeldBlock | list[CallPiece]] = []
        for event in self._held:
            if isinstance(event, CallPiece):
                if event.index not in calls:
                    items.append(calls.setdefault(event.index, []))
                calls[event.index].append(event)
            elif self._opener and self._opener in event.text:
                items.append(HeldBlock(event.text))
            elif event.text and items and isinstance(items[-1], HeldBlock):
                items[-1] = HeldBlock(items[-1].text + event.text)
        return [_call(item) if isinstance(item, list) else item for item in items]

    def release(self, repairs: Mapping[int, Mapping[str, Any]]) -> Events:
        """All that was held, each call whole; a call named in `repairs` by its index has those arguments."""
        if not self.holds:
            self.drop()
            return []
        calls = {item.index: item.call for item in self.items() if isinstance(item, HeldCall)}
        out: Events = []
        for event in self.drop():
            if not isinstance(event, CallPiece):
                out.append(event)
            elif event.index in calls:
                call = calls.pop(event.index)
                given = json_text(repairs[event.index]) if event.index in repairs else call.arguments
                out.append(CallPiece(event.index, call.name, given, call.done))
        return out

    def drop(self) -> Events:
        """Nothing waits any more; what did is returned."""
        held, self._held, self.holding = [*self._held, *self.settle()], [], False
        return held

    def _remembers(self, event: Piece | CallPiece) -> bool:
        """Whether an event belongs to the calls and blocks of which one has begun."""
        self.holding = self.holding or self._begins(event)
        return self.holding

    def _begins(self, event: Piece | CallPiece) -> bool:
        return isinstance(event, CallPiece) or bool(self._opener and self._opener in event.text)


def _call(pieces: Seq[CallPiece]) -> HeldCall:
    name = next((piece.name for piece in pieces if piece.name is not None), "")
    arguments = "".join(piece.arguments for piece in pieces)
    return HeldCall(pieces[0].index, WrittenCall(name, arguments, any(piece.done for piece in pieces)))
