"""The format contract (preview): how a model family writes thinking and tool calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import dataclass
from typing import Any, Protocol

from tandem.core.plugin.part import Options, Part


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model wrote: the function's name and its arguments as an object."""

    name: str
    arguments: Mapping[str, Any]


class AnswerFormat(Protocol):
    """Reads and writes one family's notation."""

    thinking: tuple[str, str] | None
    """The opening and the closing tag of the reasoning; None for a family that has none."""

    def parse(self, answer: str, tools: Seq[Mapping[str, Any]]) -> tuple[str, list[ToolCall]]:
        """Split a whole answer into the text for the reader and the calls."""
        ...

    def render(self, call: ToolCall) -> str:
        """A call as the family writes it, so that `parse(render(call))` gives the call back."""
        ...


@dataclass(frozen=True, kw_only=True)
class Format(Part):
    """A family's notation: `build(options)` returns the `AnswerFormat`."""

    build: Callable[[Options], AnswerFormat]
