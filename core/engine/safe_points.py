"""What rules see of a running generation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence as Seq
from typing import Any

from tandem.core.answer import Answer
from tandem.core.answer.gate import HeldBlock, HeldCall
from tandem.core.engine.request import Calls, Channel, Event, Piece
from tandem.core.plugin import (
    BlockEvent,
    CallPart,
    FinishEvent,
    OpenCall,
    TextPart,
    Tool,
    ToolCallEvent,
    WrittenCall,
)


class LiveBlock(BlockEvent):
    """A block of a running generation: nothing that is long is put together before somebody asks for it."""

    def __init__(self, answer: Answer, output: Seq[int], count: int, written: int, events: Seq[Event]) -> None:
        """`count` tokens at the end of `output` are the block; `events` are what came of it."""
        self._live = answer
        self._events = tuple(events)
        self._count = count
        self.ids = output
        self.tokens = written
        self.reasoning_tokens = answer.reasoning_tokens
        self.inside = answer.reasoning

    @property
    def new_ids(self) -> Seq[int]:  # type: ignore[override]
        return self.ids[-self._count :]

    @property
    def call(self) -> OpenCall | None:  # type: ignore[override]
        return self._live.open_call

    @property
    def answer(self) -> str:
        return self._live.text

    @property
    def reasoning(self) -> str:
        return self._live.thoughts

    @property
    def new(self) -> str:  # type: ignore[override]
        return self._of(Channel.CONTENT)

    @property
    def new_reasoning(self) -> str:  # type: ignore[override]
        return self._of(Channel.REASONING)

    def _of(self, channel: Channel) -> str:
        return "".join(event.text for event in self._events if isinstance(event, Piece) and event.channel is channel)


def finish_event(answer: Answer, written: int, reason: str, detail: str) -> FinishEvent:
    """The end of an answer of `written` tokens; `reason` and `detail` as `Finished` has them."""
    calls = answer.written
    return FinishEvent(
        answer=answer.text,
        tokens=written,
        reason="tool_calls" if reason == "stop" and calls else reason,
        ended=detail == "eos",
        inside=answer.reasoning,
        reasoning=answer.thoughts,
        reasoning_tokens=answer.reasoning_tokens,
        calls=calls,
    )


def call_reader(calls: Calls) -> Callable[[str], tuple[list[WrittenCall], str]]:
    """Reads the calls out of a text, with the parser of the request."""

    def read(text: str) -> tuple[list[WrittenCall], str]:
        parser = calls.parser()
        names: dict[int, str] = {}
        arguments: dict[int, str] = {}
        done: set[int] = set()
        rest: list[str] = []
        for part in (*parser.feed(text), *parser.end(False)):
            if isinstance(part, TextPart):
                rest.append(part.text)
            elif isinstance(part, CallPart):
                names.setdefault(part.index, part.name or "")
                arguments[part.index] = arguments.get(part.index, "") + part.arguments
                if part.done:
                    done.add(part.index)
        return [WrittenCall(names[i], arguments[i], i in done) for i in sorted(names)], "".join(rest)

    return read


def call_events(
    items: Seq[HeldCall | HeldBlock], tools: Seq[Tool], *, final: bool, problem: str
) -> list[ToolCallEvent]:
    """One event for each held call and block; `problem` says why a block, or a call that is not whole, is as it is."""
    written = tuple(item.call for item in items if isinstance(item, HeldCall))
    offered = {tool.name: tool for tool in tools}
    events = []
    for index, item in enumerate(items):
        if isinstance(item, HeldBlock):
            events.append(ToolCallEvent(None, None, item.text, index, written, None, final, problem))
            continue
        call = item.call
        why = "" if call.done else problem
        events.append(
            ToolCallEvent(
                call.name, _object(call.arguments), call.arguments, index, written, offered.get(call.name), final, why
            )
        )
    return events


def _object(text: str) -> Mapping[str, Any] | None:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, Mapping) else None
