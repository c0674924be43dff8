"""Taking whole texts apart, in one piece, character by character or as a test says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import pytest

from tandem.core.plugin import AnswerFormat, CallPart, TextPart, Tool


@dataclass
class Call:
    """A call, put together from its parts."""

    name: str
    json: str = ""
    done: bool = False
    pieces: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> Any:
        return json.loads(self.json)


@dataclass
class Read:
    """An answer taken apart."""

    items: list[str | Call] = field(default_factory=list)

    @property
    def calls(self) -> list[Call]:
        return [item for item in self.items if isinstance(item, Call)]

    @property
    def text(self) -> str:
        return "".join(item for item in self.items if isinstance(item, str))

    @property
    def outcome(self) -> list[Any]:
        """Everything that may not depend on how the text was split."""
        return [item if isinstance(item, str) else (item.name, item.json, item.done) for item in self.items]

    @property
    def done(self) -> list[tuple[str, Any]]:
        """Name and arguments of the whole calls."""
        return [(call.name, call.arguments) for call in self.calls if call.done]


def put_together(parts: Sequence[TextPart | CallPart]) -> Read:
    """The joined parts, with the contract's promises checked on the way."""
    read = Read()
    for part in parts:
        last = read.items[-1] if read.items else None
        if isinstance(part, TextPart):
            assert part.text, "an empty text went out"
            if isinstance(last, str):
                read.items[-1] = last + part.text
            else:
                read.items.append(part.text)
            continue
        if part.name is not None:
            assert part.index == len(read.calls)
            last = Call(part.name)
            read.items.append(last)
        assert isinstance(last, Call), "a part of a call that has not begun"
        assert part.index == len(read.calls) - 1
        assert not last.done, "a part of a call that is over"
        last.json += part.arguments
        last.done = part.done
        if part.arguments:
            last.pieces.append(part.arguments)
    for call in read.calls:
        if call.done:
            assert isinstance(call.arguments, dict)
    return read


def pieces(text: str, sizes: int | Sequence[int] | None) -> Iterator[str]:
    """`text` in one piece, or in pieces of these sizes over and over."""
    at = 0
    for size in cycle([len(text) or 1] if sizes is None else [sizes] if isinstance(sizes, int) else sizes):
        if at >= len(text):
            return
        yield text[at : at + size]
        at += size


TakeApart = Callable[..., Read]


@pytest.fixture(scope="session")
def take_apart() -> TakeApart:
    """`take_apart(format, text, tools=(), sizes=None, cut=False)`; the text may also be a list of pieces."""

    def take(
        form: AnswerFormat,
        text: str | Sequence[str],
        tools: Sequence[Tool] = (),
        sizes: int | Sequence[int] | None = None,
        cut: bool = False,
    ) -> Read:
        parser = form.parser(tools)
        parts: list[TextPart | CallPart] = []
        for piece in pieces(text, sizes) if isinstance(text, str) else text:
            parts += parser.feed(piece)
        return put_together(parts + parser.end(cut))

    return take


WRITE_FILE = Tool(
    "write_file",
    "Writes a file.",
    {
        "type": "object",
        "required": ["path", "content"],
        "properties": {"path": {"type": "string"}, "content": {"type": "string"}, "mode": {"type": "integer"}},
    },
)

ODD_SCHEMAS = Tool(
    "odd.name-with_all",
    "",
    {
        "$defs": {
            "point": {
                "type": "object",
                "required": ["x"],
                "properties": {"x": {"type": "integer"}, "next": {"$ref": "#/$defs/point"}},
                "additionalProperties": False,
            },
            "count": {"type": "integer"},
        },
        "type": "object",
        "properties": {
            "at": {"$ref": "#/$defs/point"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "level": {"enum": [1, 2, 3]},
            "colour": {"enum": ["red", "dark red"]},
            "few.words-here": {"type": "array", "items": {"type": "string"}},
            "n": {"anyOf": [{"$ref": "#/$defs/count"}, {"type": "null"}]},
            "ratio": {"type": ["number", "null"]},
            "yes": {"type": "boolean"},
            "free": {},
        },
        "required": ["level"],
        "additionalProperties": False,
    },
)

BARE = [Tool("now"), Tool("stop", "", {"type": "object"}), Tool("stay", "", {"type": "object", "properties": {}})]


@pytest.fixture(scope="session")
def write_file() -> Tool:
    return WRITE_FILE


@pytest.fixture(scope="session")
def odd_schemas() -> Tool:
    return ODD_SCHEMAS


@pytest.fixture(scope="session")
def bare_tools() -> list[Tool]:
    """Tools that declare no parameters, in the three ways clients do."""
    return BARE
