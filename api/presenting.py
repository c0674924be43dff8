"""The engine's pieces as the parts of an OpenAI message: content, reasoning, tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tandem.api.ids import Ids
from tandem.core.engine.request import CallPiece, Channel, Piece

SHOWN_IN_CONTENT: Mapping[str, frozenset[Channel]] = {
    "tags": frozenset(Channel),
    "both": frozenset(Channel),
    "reasoning_content": frozenset({Channel.CONTENT}),
    "hidden": frozenset({Channel.CONTENT}),
}
"""Reasoning format -> what stands in the message's content."""
SHOWN_APART = frozenset({"reasoning_content", "both"})
"""The formats that send the reasoning in a field of its own."""


@dataclass(slots=True)
class Presenter:
    """Turns one choice's pieces into deltas; `call_ids` makes an id for each call."""

    reasoning_format: str
    call_ids: Ids
    finish_words: frozenset[str] | None = None
    """The finish reasons that the client understands; None = all."""
    made: list[str] = field(default_factory=list)
    """The ids that were made."""
    _shown: frozenset[Channel] = field(init=False)
    _apart: bool = field(init=False)

    def __post_init__(self) -> None:
        self._shown = SHOWN_IN_CONTENT[self.reasoning_format]
        self._apart = self.reasoning_format in SHOWN_APART

    def finish(self, reason: str) -> str:
        """The finish reason in the client's words: an answer that was ended early is a cut one to a client that
        knows no better. (Some send the request again at once, and without end, after a word that they don't know.)"""
        return reason if self.finish_words is None or reason in self.finish_words else "length"

    @property
    def knows_error(self) -> bool:
        """Whether the finish reason `error` may stand beside an error object."""
        return self.finish_words is None or "error" in self.finish_words

    def content(self, piece: Piece) -> str:
        """What of the piece stands in the content."""
        return piece.text if piece.channel in self._shown else ""

    def reasoning(self, piece: Piece) -> str:
        """What of the piece stands in `reasoning_content`."""
        return piece.text if self._apart and piece.channel is Channel.REASONING else ""

    def call(self, piece: CallPiece) -> dict[str, Any]:
        """The piece of a call as an item of a delta's `tool_calls`: id and name come first."""
        if piece.name is None:
            return {"index": piece.index, "function": {"arguments": piece.arguments}}
        function = {"name": piece.name, "arguments": piece.arguments}
        return {"index": piece.index, "id": self.call_id(), "type": "function", "function": function}

    def call_id(self) -> str:
        self.made.append(self.call_ids.new("call_"))
        return self.made[-1]


@dataclass(slots=True)
class Message:
    """A whole answer, gathered from its pieces."""

    presenter: Presenter
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    arguments: list[list[str]] = field(default_factory=list)
    """The pieces of each call's arguments."""
    thoughts: list[str] = field(default_factory=list)
    """The reasoning, shown or not."""
    channels: set[Channel] = field(default_factory=set)
    """The parts of a generation that were seen."""

    def add(self, piece: Piece | CallPiece) -> dict[str, Any]:
        """One more piece; a call's as an item of a delta's `tool_calls`, a text's as an empty object."""
        if isinstance(piece, Piece):
            self.content.append(self.presenter.content(piece))
            self.reasoning.append(self.presenter.reasoning(piece))
            self.channels.add(piece.channel)
            if piece.channel is Channel.REASONING:
                self.thoughts.append(piece.text)
            return {}
        delta = self.presenter.call(piece)
        if piece.name is not None:
            self.calls.append(delta)
            self.arguments.append([piece.arguments])
        elif self.calls:
            self.arguments[-1].append(piece.arguments)
        return delta

    @property
    def text(self) -> str:
        return "".join(self.content)

    def object(self) -> dict[str, Any]:
        """OpenAI's message object. The content of an answer that is calls alone is null."""
        text, reasoning = self.text, "".join(self.reasoning)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text if text or not self.calls else None,
            "refusal": None,
        }
        if reasoning:
            message["reasoning_content"] = reasoning
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["function"]["name"], "arguments": "".join(arguments)},
                }
                for call, arguments in zip(self.calls, self.arguments, strict=True)
            ]
        return message
