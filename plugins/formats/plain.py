"""The format of models without a notation for calls or reasoning: everything they write is text.

It fits every template, so it belongs at the end of the manifest's list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from typing import Any

from tandem.core.plugin import AnswerFormat, AnswerParser, CallPart, Format, Options, TextPart, Tool, hookimpl

TANDEM_API = ">=0.2,<0.3"


class PlainParser:
    """Every text is text. Holds back nothing."""

    def feed(self, text: str) -> list[TextPart | CallPart]:
        return [TextPart(text)] if text else []

    def end(self, cut: bool) -> list[TextPart | CallPart]:
        return []


class Plain:
    """No reasoning, no calls."""

    thinking: tuple[str, str] | None = None
    opener: str | None = None

    def parser(self, tools: Seq[Tool]) -> AnswerParser:
        return PlainParser()

    def grammar(self, tools: Seq[Tool], parallel: bool) -> str | None:
        return None

    def render(self, name: str, arguments: Mapping[str, Any]) -> str:
        raise ValueError("the format `plain` has no notation for calls")


def _build(options: Options) -> AnswerFormat:
    return Plain()


@hookimpl
def tandem_formats() -> list[Format]:
    return [Format(name="plain", doc=__doc__, build=_build, fits=lambda template: True)]
