"""A reader of server-sent events that keeps what other readers throw away: the comments and their order."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

_LINE_END = re.compile(rb"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Comment:
    """A line that starts with a colon."""

    text: str


@dataclass(frozen=True, slots=True)
class Event:
    """One dispatched event."""

    data: str
    name: str = "message"
    id: str | None = None

    @property
    def done(self) -> bool:
        """OpenAI's end of stream."""
        return self.data == "[DONE]"

    def json(self) -> Any:
        return json.loads(self.data)


def read(chunks: Iterable[bytes]) -> Iterator[Event | Comment]:
    """Events and comments as they become whole, however the bytes are cut.

    Lines end with CR LF, LF or CR, as the specification of server-sent events says, and with nothing else. What
    stands behind the last blank line is no event.
    """
    data: list[str] = []
    name, identity = "message", None
    for line in _lines(chunks):
        if line == "":
            if data:
                yield Event("\n".join(data), name, identity)
            data, name = [], "message"
        elif line.startswith(":"):
            yield Comment(line[1:].removeprefix(" "))
        else:
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "data":
                data.append(value)
            elif field == "event":
                name = value
            elif field == "id":
                identity = value


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    rest = b""
    for chunk in chunks:
        rest += chunk
        # A CR at the very end may be half of a CR LF.
        cut = len(rest) - 1 if rest.endswith(b"\r") else len(rest)
        *lines, last = _LINE_END.split(rest[:cut])
        rest = last + rest[cut:]
        for line in lines:
            yield line.decode()
    if rest.endswith(b"\r"):
        yield rest[:-1].decode()


def events(chunks: Iterable[bytes]) -> list[Event]:
    """The events alone."""
    return [item for item in read(chunks) if isinstance(item, Event)]


def comments(chunks: Iterable[bytes]) -> list[str]:
    """The comments' texts alone."""
    return [item.text for item in read(chunks) if isinstance(item, Comment)]
