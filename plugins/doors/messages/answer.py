"""The answer as a message: content blocks, and the typed events that tell of them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tandem.core.plugin import (
    AnswerEnd,
    AnswerEvent,
    CallDelta,
    ContentDelta,
    ReasoningDelta,
    RequestError,
    Waiting,
)
from tandem.plugins.doors.messages.cut import whole_part
from tandem.plugins.doors.messages.errors import error_body

Sent = dict[str, Any]

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "timeout": "max_tokens"}
"""Why an answer ended -> the API's word. It has none for a server's own time limit; like the length it means that the
answer is not whole."""


@dataclass(slots=True)
class _Block:
    """One content block while it is written."""

    kind: str
    """`thinking`, `text` or `tool_use`."""
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)

    @property
    def written(self) -> str:
        return "".join(self.pieces)

    def object(self) -> dict[str, Any]:
        match self.kind:
            case "thinking":
                return {"type": "thinking", "thinking": self.written, "signature": ""}
            case "text":
                return {"type": "text", "text": self.written}
            case _:
                return {"type": "tool_use", "id": self.id, "name": self.name, "input": whole_part(self.written)}

    def delta(self, piece: str) -> dict[str, Any]:
        match self.kind:
            case "thinking":
                return {"type": "thinking_delta", "thinking": piece}
            case "text":
                return {"type": "text_delta", "text": piece}
            case _:
                return {"type": "input_json_delta", "partial_json": piece}


class MessageWriter:
    """Writes one message.

    `thinking` says what becomes of the reasoning: `shown`, `omitted` (its block comes without the text) or `hidden`.
    """

    def __init__(self, model: str, *, thinking: str) -> None:
        self._model = model
        self._thinking = thinking
        self._id = f"msg_{random.getrandbits(96):024x}"
        self._blocks: list[_Block] = []
        self._open = False
        self._stop_reason: str | None = None
        self._stop_sequence: str | None = None
        self._usage: dict[str, Any] = _usage({})

    def begin(self) -> list[Sent]:
        return [{"type": "message_start", "message": self.whole()}]

    def add(self, event: AnswerEvent) -> list[Sent]:
        match event:
            case ReasoningDelta(text):
                return [] if self._thinking == "hidden" else self._write("thinking", text)
            case ContentDelta(text):
                return self._write("text", text)
            case CallDelta():
                return self._call(event)
            case AnswerEnd():
                return self._end(event)
            case Waiting():
                return [{"type": "ping"}]

    def broke(self, error: RequestError) -> list[Sent]:
        return [error_body(error)]

    def whole(self) -> dict[str, Any]:
        """The message object as it stands."""
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [block.object() for block in self._blocks],
            "stop_reason": self._stop_reason,
            "stop_sequence": self._stop_sequence,
            "usage": self._usage,
        }

    def _write(self, kind: str, text: str) -> list[Sent]:
        """More of the thinking or of the text."""
        out: list[Sent] = []
        if not self._open or self._blocks[-1].kind != kind:
            out = [*self._close(), self._begin(_Block(kind))]
        return out if kind == "thinking" and self._thinking == "omitted" else [*out, self._delta(text)]

    def _call(self, event: CallDelta) -> list[Sent]:
        """More of a call; a piece with a name begins the next one."""
        out: list[Sent] = []
        if event.name is not None:
            out = [*self._close(), self._begin(_Block("tool_use", event.id or "", event.name))]
        if not event.arguments or not self._open or self._blocks[-1].kind != "tool_use":
            return out
        return [*out, self._delta(event.arguments)]

    def _begin(self, block: _Block) -> Sent:
        self._blocks.append(block)
        self._open = True
        return {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": block.object()}

    def _delta(self, piece: str) -> Sent:
        block = self._blocks[-1]
        block.pieces.append(piece)
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": block.delta(piece)}

    def _close(self) -> list[Sent]:
        if not self._open:
            return []
        self._open = False
        index = len(self._blocks) - 1
        stop = {"type": "content_block_stop", "index": index}
        if self._blocks[-1].kind != "thinking":
            return [stop]
        signature = {"type": "signature_delta", "signature": ""}
        return [{"type": "content_block_delta", "index": index, "delta": signature}, stop]

    def _end(self, event: AnswerEnd) -> list[Sent]:
        out = self._close()
        self._stop_reason = STOP_REASONS.get(event.reason, "end_turn")
        if event.reason == "stop" and event.detail == "stop_string":
            self._stop_reason = "stop_sequence"
            self._stop_sequence = event.stop
        self._usage = _usage(event.usage)
        delta = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_sequence}
        return [*out, {"type": "message_delta", "delta": delta, "usage": self._usage}, {"type": "message_stop"}]


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """The usage of a chat completion in this API's names, where the input tokens are those that no cache had."""
    cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    reasoning = usage.get("completion_tokens_details", {}).get("reasoning_tokens", 0)
    return {
        "input_tokens": usage.get("prompt_tokens", 0) - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.get("completion_tokens", 0),
        "output_tokens_details": {"thinking_tokens": reasoning},
    }
