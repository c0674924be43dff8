"""The format of Hermes and the models that follow it: a call is a JSON object between `<tool_call>` tags.

    <tool_call>
    {"name": "read", "arguments": {"path": "notes.md"}}
    </tool_call>

It fits a template that mentions `<tool_call>` and not `<function=`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from typing import Any

from tandem.core.plugin import (
    LEADING,
    AnswerFormat,
    AnswerParser,
    AnswerReader,
    Format,
    JsonCall,
    Options,
    Steps,
    Tool,
    hookimpl,
    json_call,
    json_text,
    lark_json,
    lark_text,
    moved,
    option,
    resolve,
)

TANDEM_API = ">=0.2,<0.3"

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesReader(AnswerReader):
    """Holds back an ending that may become the opening tag; in a call, a scalar, an escape, a key, and a string
    that may have to change its type."""

    def read(self) -> Steps[None]:
        while (yield from self._text()):
            call = yield from self._call()
            if call is JsonCall.WHOLE:
                yield from self._close()
            elif call is JsonCall.OPEN:
                yield from self._skip()
            else:
                self.say(self.take(len(OPEN)))

    def _text(self) -> Steps[bool]:
        """Text up to an opening tag; False at the end of the answer."""
        while True:
            found = self.text.find(OPEN, self.at)
            if found >= 0:
                self.say(self.take(found - self.at))
                return True
            self.say(self.take(len(self.text) - self.at - _beginning(self.text[self.at :], OPEN)))
            if not (yield from self.more()):
                if not self.cut:
                    self.say(self.take(len(self.text)))
                return False

    def _call(self) -> Steps[JsonCall]:
        """The call behind the opening tag at the cursor; the cursor stays when there is none."""
        start = yield from self.blanks(len(OPEN))
        first = yield from self.char(start)
        if self.cut and not first:
            self.take(len(self.text))
            return JsonCall.OPEN
        if first != "{":
            return JsonCall.NONE
        return (yield from json_call(self, start))

    def _close(self) -> Steps[None]:
        """Over the closing tag, if there is one, and a brace too many before it."""
        offset = yield from self.blanks()
        if (yield from self.char(offset)) == "}":
            offset = yield from self.blanks(offset + 1)
        if (yield from self.ahead(CLOSE, offset)):
            self.take(offset + len(CLOSE))
        elif self.cut and CLOSE.startswith(self.text[self.at + offset :]):
            self.take(len(self.text))

    def _skip(self) -> Steps[None]:
        """Over what is left of a broken call: to behind its closing tag, or to the next call."""
        while (yield from self.char()):
            if (yield from self.ahead(CLOSE)):
                self.take(len(CLOSE))
                return
            if (yield from self.ahead(OPEN)):
                return
            self.take(1)


def _beginning(text: str, word: str) -> int:
    """Length of the longest ending of `text` that `word` begins with, `word` itself aside."""
    return next((n for n in range(min(len(word) - 1, len(text)), 0, -1) if word.startswith(text[-n:])), 0)


class HermesJson:
    """JSON between tags."""

    opener: str | None = OPEN

    def __init__(self, thinking: bool) -> None:
        self.thinking: tuple[str, str] | None = ("<think>", "</think>") if thinking else None

    def parser(self, tools: Seq[Tool]) -> AnswerParser:
        return HermesReader(tools)

    def grammar(self, tools: Seq[Tool], parallel: bool) -> str | None:
        if not tools:
            return None
        schema = {
            "anyOf": [_call_schema(tool, f"#/$defs/{number}") for number, tool in enumerate(tools)],
            "$defs": {str(number): moved(tool.parameters, f"#/$defs/{number}") for number, tool in enumerate(tools)},
        }
        newline = lark_text("\n")
        return (
            f"start: {LEADING} call {f'({newline} call)*' if parallel else ''}\n"
            f"call: {lark_text(OPEN)} {newline} object {newline} {lark_text(CLOSE)}\n"
            f"object: {lark_json(schema)}\n"
        )

    def render(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"{OPEN}\n{json_text({'name': name, 'arguments': dict(arguments)})}\n{CLOSE}"


def _call_schema(tool: Tool, place: str) -> dict[str, Any]:
    """The objects that call this tool, whose parameters' schema is at `place`.

    Undeclared parameters only where the schema speaks of them; a tool that declares none is called with `{}`.
    """
    arguments = {"type": "object", **moved(resolve(tool.parameters, tool.parameters), place)}
    if not arguments.keys() & {"additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf"}:
        arguments["additionalProperties"] = False
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _build(options: Options) -> AnswerFormat:
    return HermesJson(options["thinking"])


@hookimpl
def tandem_formats() -> list[Format]:
    return [
        Format(
            name="hermes_json",
            doc=__doc__,
            build=_build,
            fits=lambda template: OPEN in template and "<function=" not in template,
            options={
                "thinking": option("boolean", "Whether the model reasons between `<think>` and `</think>`.", True)
            },
        )
    ]
