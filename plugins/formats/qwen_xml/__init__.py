"""The format of Qwen's coder models and their successors: a call is a function with its parameters, one tag each.

    <tool_call>
    <function=read>
    <parameter=path>
    notes.md
    </parameter>
    </function>
    </tool_call>

Values are plain text, typed by the tool's schema. A JSON object between the tags is read as well. It fits a template
that mentions `<tool_call>` and `<function=`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence as Seq
from typing import Any

from tandem.core.plugin import AnswerFormat, AnswerParser, CallPart, Format, Options, Tool, hookimpl, json_text, option
from tandem.plugins.formats.qwen_xml.grammar import calls_grammar
from tandem.plugins.formats.qwen_xml.reader import XmlReader

TANDEM_API = ">=0.2,<0.3"

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class QwenXml:
    """Tags of functions and parameters."""

    opener: str | None = OPEN

    def __init__(self, thinking: bool) -> None:
        self.thinking: tuple[str, str] | None = ("<think>", "</think>") if thinking else None

    def parser(self, tools: Seq[Tool]) -> AnswerParser:
        return XmlReader(tools)

    def grammar(self, tools: Seq[Tool], parallel: bool) -> str | None:
        return calls_grammar(tools, parallel) if tools else None

    def render(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Values as text in tags, other than strings as JSON; the JSON form when a text would not come back as it
        is. The schema gives the values their types back."""
        texts = {key: value if isinstance(value, str) else json_text(value) for key, value in arguments.items()}
        fields = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts.items())
        call = f"{OPEN}\n<function={name}>\n{fields}</function>\n{CLOSE}"
        if self._read(call) == (name, texts):
            return call
        return f"{OPEN}\n{json_text({'name': name, 'arguments': dict(arguments)})}\n{CLOSE}"

    def _read(self, call: str) -> tuple[str | None, Any]:
        """Name and arguments of a text's only call, every value a text."""
        reader = XmlReader(())
        parts = reader.feed(call) + reader.end(False)
        calls = [part for part in parts if isinstance(part, CallPart) and part.index == 0]
        if len(calls) == 0 or any(part not in calls for part in parts):
            return None, None
        return calls[0].name, json.loads("".join(part.arguments for part in calls))


def _build(options: Options) -> AnswerFormat:
    return QwenXml(options["thinking"])


@hookimpl
def tandem_formats() -> list[Format]:
    return [
        Format(
            name="qwen_xml",
            doc=__doc__,
            build=_build,
            fits=lambda template: OPEN in template and "<function=" in template,
            options={
                "thinking": option("boolean", "Whether the model reasons between `<think>` and `</think>`.", True)
            },
        )
    ]
