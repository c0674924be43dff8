"""The client contract: recognise who is calling from its request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tandem.core.plugin.part import Options, Part


@dataclass(frozen=True, slots=True)
class ClientMatch:
    """A recognised client."""

    kind: str
    """The shape's name, used in metrics, logs and by rules."""
    session: str | None = None
    """The client's own id of the conversation, when it sends one."""
    reasoning_format: str | None = None
    """How this client reads reasoning best (`tags`, `reasoning_content`, `both`, `hidden`); None = the server's way."""
    finish_words: frozenset[str] | None = None
    """The finish reasons that the client understands; None = all of the server's."""
    side: str | None = None
    """What kind of side request this is (`title`, `tags`, `follow_ups`, `summary`, `compaction`); None = a turn."""


Recognise = Callable[[Mapping[str, str], Mapping[str, Any]], ClientMatch | None]


@dataclass(frozen=True, kw_only=True)
class Client(Part):
    """A client shape. `build(options)` returns `recognise(headers, body)`, with lower-case header names.

    Shapes are asked in the manifest's order; the first match wins.
    """

    build: Callable[[Options], Recognise]
