"""The answer as a response: output items, and the typed events that tell of them."""

from __future__ import annotations

import json
import random
import time
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
)
from tandem.plugins.doors.responses.errors import failure

Sent = dict[str, Any]
CUT = ("length", "timeout")
"""Reasons that end an answer which is not whole."""


@dataclass(slots=True)
class _Item:
    """One output item while it is written."""

    kind: str
    """`reasoning`, `message` or `function_call`."""
    id: str
    index: int
    name: str = ""
    """A call's function."""
    call_id: str = ""
    status: str = "in_progress"
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def part(self) -> dict[str, Any]:
        """The content part of reasoning or a message."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}

    def object(self) -> dict[str, Any]:
        """The item as the API writes it; its content part stands in it once it has begun."""
        content = [self.part] if self.pieces else []
        match self.kind:
            case "reasoning":
                own: dict[str, Any] = {"summary": [], "content": content, "encrypted_content": None}
            case "message":
                own = {"role": "assistant", "content": content}
            case _:
                own = {"call_id": self.call_id, "name": self.name, "arguments": self.text}
        return {"id": self.id, "type": self.kind, "status": self.status, **own}


PREFIXES = {"reasoning": "rs", "message": "msg", "function_call": "fc"}
DELTAS = {
    "reasoning": "response.reasoning_text",
    "message": "response.output_text",
    "function_call": "response.function_call_arguments",
}


class ResponseWriter:
    """Writes one response. `echo` is what it says about its request, `model` the served model's name."""

    def __init__(self, echo: Mapping[str, Any], model: str) -> None:
        self._echo = echo
        self._model = model
        self._id = _new_id("resp")
        self._created = int(time.time())
        self._sequence = 0
        self._items: list[_Item] = []
        self._status = "in_progress"
        self._incomplete: dict[str, Any] | None = None
        self._error: dict[str, Any] | None = None
        self._usage: dict[str, Any] | None = None

    # ------------------------------------------------------------------------------------------------- the answer

    def begin(self) -> list[Sent]:
        return [self._event("response.created", response=self.whole()), self._now()]

    def add(self, event: AnswerEvent) -> list[Sent]:
        match event:
            case ReasoningDelta(text):
                return self._write("reasoning", text)
            case ContentDelta(text):
                return self._write("message", text)
            case CallDelta():
                return self._call(event)
            case AnswerEnd():
                return self._end(event)
            case _:
                return []

    def broke(self, error: RequestError) -> list[Sent]:
        self._status, self._error = "failed", failure(error)
        if self._open is not None:
            self._open.status = "incomplete"
        code = error.code or self._error["code"]
        return [self._event("error", code=code, message=str(error), param=error.param), self._now()]

    def whole(self) -> dict[str, Any]:
        """The response object as it stands."""
        done = self._status in ("completed", "incomplete")
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if done else None,
            "status": self._status,
            "error": self._error,
            "incomplete_details": self._incomplete,
            "model": self._model,
            "output": [item.object() for item in self._items],
            "usage": self._usage,
            **self._echo,
        }

    # -------------------------------------------------------------------------------------------------- the items

    @property
    def _open(self) -> _Item | None:
        """The item that is being written: the last one, until it is closed."""
        return self._items[-1] if self._items and self._items[-1].status == "in_progress" else None

    def _write(self, kind: str, text: str) -> list[Sent]:
        """More text of the reasoning or of a message."""
        item, out = self._open, []
        if item is None or item.kind != kind:
            out = self._close("completed")
            item = self._begin(kind)
            out.append(self._event("response.output_item.added", output_index=item.index, item=item.object()))
            out.append(self._event("response.content_part.added", **self._at(item), content_index=0, part=item.part))
        item.pieces.append(text)
        return [*out, self._delta(item, text)]

    def _call(self, event: CallDelta) -> list[Sent]:
        """More of a call; a piece with a name begins the next one."""
        out: list[Sent] = []
        if event.name is not None:
            out = self._close("completed")
            item = self._begin("function_call", event.name, event.id or _new_id("call"))
            out.append(self._event("response.output_item.added", output_index=item.index, item=item.object()))
        open_item = self._open
        if open_item is None or open_item.kind != "function_call" or not event.arguments:
            return out
        open_item.pieces.append(event.arguments)
        return [*out, self._delta(open_item, event.arguments)]

    def _begin(self, kind: str, name: str = "", call_id: str = "") -> _Item:
        item = _Item(kind, _new_id(PREFIXES[kind]), len(self._items), name, call_id)
        self._items.append(item)
        return item

    def _delta(self, item: _Item, text: str) -> Sent:
        return self._event(f"{DELTAS[item.kind]}.delta", **self._at(item), **_place(item), delta=text)

    def _close(self, status: str) -> list[Sent]:
        """The open item is over. A call is complete when its arguments are, whatever ended the answer."""
        item = self._open
        if item is None:
            return []
        done = f"{DELTAS[item.kind]}.done"
        if item.kind == "function_call":
            item.status = "completed" if _is_object(item.text) else "incomplete"
            out = [self._event(done, **self._at(item), name=item.name, arguments=item.text)]
        else:
            item.status = status
            out = [
                self._event(done, **self._at(item), **_place(item), text=item.text),
                self._event("response.content_part.done", **self._at(item), content_index=0, part=item.part),
            ]
        return [*out, self._event("response.output_item.done", output_index=item.index, item=item.object())]

    def _end(self, event: AnswerEnd) -> list[Sent]:
        cut = event.reason in CUT
        out = self._close("incomplete" if cut else "completed")
        self._status = "incomplete" if cut else "completed"
        if cut:
            # The API has no word for a server's own time limit.
            self._incomplete = {"reason": "max_output_tokens" if event.reason == "length" else None}
        self._usage = _usage(event.usage)
        return [*out, self._now()]

    # ------------------------------------------------------------------------------------------------- the events

    def _event(self, kind: str, **fields: Any) -> Sent:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return event

    def _now(self) -> Sent:
        """The event that tells the response's status."""
        return self._event(f"response.{self._status}", response=self.whole())

    @staticmethod
    def _at(item: _Item) -> dict[str, Any]:
        return {"item_id": item.id, "output_index": item.index}


def _place(item: _Item) -> dict[str, Any]:
    """What the events of a text say besides."""
    match item.kind:
        case "message":
            return {"content_index": 0, "logprobs": []}
        case "reasoning":
            return {"content_index": 0}
        case _:
            return {}


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """The usage of a chat completion in this API's names. Nothing is ever paid for writing to a cache."""
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
            "cache_write_tokens": 0,
        },
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": usage["completion_tokens_details"]["reasoning_tokens"]},
        "total_tokens": usage["total_tokens"],
    }


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _new_id(prefix: str) -> str:
    return f"{prefix}_{random.getrandbits(96):024x}"
