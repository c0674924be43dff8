"""The format contract: how a model family writes its reasoning and its tool calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import dataclass
from typing import Any, Protocol

from tandem.core.plugin.part import Options, Part
from tandem.core.plugin.tools import Tool


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPart:
    """A piece of a tool call.

    The first part of a call has its `name`. The `arguments` of all its parts, joined, are the JSON text of an object.
    The last part has `done`; a call without one was cut off.
    """

    index: int
    """0 for the answer's first call, counting up."""
    arguments: str = ""
    name: str | None = None
    done: bool = False


class AnswerParser(Protocol):
    """Takes one answer apart while it is written. How the text is split between the calls of `feed` changes nothing
    in the joined result."""

    def feed(self, text: str) -> list[TextPart | CallPart]:
        """The parts that are final now. Holds back the least that can still change."""
        ...

    def end(self, cut: bool) -> list[TextPart | CallPart]:
        """No more text comes. `cut`: the token limit ended it, so an open call stays open, and what is held back of a
        call's beginning or its rest is dropped; otherwise text that turned out to be no call is given back as text."""
        ...


class AnswerFormat(Protocol):
    """One family's notation."""

    @property
    def thinking(self) -> tuple[str, str] | None:
        """The opening and the closing tag of the reasoning; None for a family that has none."""
        ...

    @property
    def opener(self) -> str | None:
        """How a call begins (`<tool_call>`); None for a family without calls."""
        ...

    def parser(self, tools: Seq[Tool]) -> AnswerParser:
        """A fresh parser of one answer. `tools` are those that the request offers; their schemas type the values."""
        ...

    def grammar(self, tools: Seq[Tool], parallel: bool) -> str | None:
        """A Lark grammar (llguidance's dialect) whose `start` is one call of any of `tools`, or one and more with
        `parallel`. None when the notation has no grammar."""
        ...

    def render(self, name: str, arguments: Mapping[str, Any]) -> str:
        """A call as the family writes it: parsing it gives the name and the arguments back."""
        ...


@dataclass(frozen=True, kw_only=True)
class Format(Part):
    """A family's notation: `build(options)` returns the `AnswerFormat`.

    `fits(template)` says whether a chat template (its Jinja source; empty without one) belongs to this family; the
    first format in the manifest that fits is used, unless the manifest names one for the model.
    """

    build: Callable[[Options], AnswerFormat]
    fits: Callable[[str], bool] = lambda template: False
