"""A format: a tool call is `<call>{"name": ..., "arguments": {...}}</call>`."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tandem.core.plugin import AnswerParser, CallPart, Format, Options, TextPart, Tool, hookimpl

TANDEM_API = ">=0.2,<0.3"

OPENER, CLOSER = "<call>", "</call>"
MARKS = re.compile(r'\\.|[{}"]', re.DOTALL)
"""What decides where a JSON object ends; an escaped character never does."""


class Parser:
    """Takes one answer apart. Holds back what may still become the opener, and a call until it is whole.

    A call ends where its JSON ends, so a closing tag inside a string is text. What turns out to be no call is text.
    """

    def __init__(self) -> None:
        self.held = ""
        self.calls = 0
        self.begin()

    def begin(self) -> None:
        """Forget the call that was being read; the next one starts anew."""
        self.open = False  # `held` starts with an opener that may begin a call
        self.scanned = len(OPENER)
        self.depth = 0
        self.quoted = False

    def feed(self, text: str) -> list[TextPart | CallPart]:
        self.held += text
        parts: list[TextPart | CallPart] = []
        while True:
            if not self.open:
                start = self.held.find(OPENER)
                parts += self.text(start if start >= 0 else len(self.held) - unsure(self.held))
                self.open = start >= 0
            if not self.open or (end := self.call_end()) is None:
                return parts
            call = read_call(self.held[len(OPENER) : end]) if self.held.startswith(CLOSER, end) else None
            if call is None:
                parts += self.no_call()
                continue
            parts.append(CallPart(self.calls, json.dumps(call[1], ensure_ascii=False), call[0], done=True))
            self.calls += 1
            self.held = self.held[end + len(CLOSER) :]
            self.begin()

    def end(self, cut: bool) -> list[TextPart | CallPart]:
        parts: list[TextPart | CallPart] = []
        while self.open and not cut:
            parts += self.no_call() + self.feed("")
        # The beginning of a call that the token limit cut off is not text for the reader.
        return parts + self.text(0 if self.open else len(self.held))

    def call_end(self) -> int | None:
        """Where the closer of the open call must stand; None while that can't be told."""
        body = self.held[len(OPENER) :].lstrip()
        if body and not body.startswith("{"):
            return len(OPENER)
        if not body or not self.object_ends():
            return None
        end = self.scanned + len(self.held[self.scanned :]) - len(self.held[self.scanned :].lstrip())
        return None if CLOSER.startswith(self.held[end:]) and self.held[end:] != CLOSER else end

    def object_ends(self) -> bool:
        """Whether the call's object is complete; `scanned` is then just behind it."""
        if self.depth == 0 and self.scanned > len(OPENER):
            return True
        for mark in MARKS.finditer(self.held, self.scanned):
            self.scanned = mark.end()
            if mark.group() == '"':
                self.quoted = not self.quoted
            elif not self.quoted and mark.group() in "{}":
                self.depth += 1 if mark.group() == "{" else -1
                if self.depth == 0:
                    return True
        return False

    def no_call(self) -> list[TextPart | CallPart]:
        self.begin()
        return self.text(len(OPENER))

    def text(self, length: int) -> list[TextPart | CallPart]:
        text, self.held = self.held[:length], self.held[length:]
        return [TextPart(text)] if text else []


def unsure(text: str) -> int:
    """How many characters at the end of `text` may begin an opener."""
    return next((n for n in range(min(len(OPENER) - 1, len(text)), 0, -1) if OPENER.startswith(text[-n:])), 0)


def read_call(text: str) -> tuple[str, Mapping[str, Any]] | None:
    """Name and arguments of the call with this JSON; None when it is no call."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    name, arguments = value.get("name"), value.get("arguments", {})
    return (name, arguments) if isinstance(name, str) and isinstance(arguments, dict) else None


class TaggedJson:
    """The notation."""

    thinking: tuple[str, str] | None = ("<think>", "</think>")
    opener: str | None = OPENER

    def parser(self, tools: Sequence[Tool]) -> AnswerParser:
        return Parser()

    def grammar(self, tools: Sequence[Tool], parallel: bool) -> str | None:
        rules = [f"start: call{'+' if parallel else ''}", f"call: {' | '.join(f'call_{i}' for i in range(len(tools)))}"]
        for i, tool in enumerate(tools):
            head = f'{OPENER}{{"name": {json.dumps(tool.name)}, "arguments": '
            rules.append(f"call_{i}: {json.dumps(head)} arguments_{i} {json.dumps('}' + CLOSER)}")
            rules.append(f"arguments_{i}: %json {json.dumps(dict(tool.parameters) or {'type': 'object'})}")
        return "\n".join(rules) + "\n"

    def render(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"{OPENER}{json.dumps({'name': name, 'arguments': dict(arguments)}, ensure_ascii=False)}{CLOSER}"


def build(options: Options) -> TaggedJson:
    return TaggedJson()


@hookimpl
def tandem_formats() -> list[Format]:
    return [
        Format(
            name="angle_json",
            doc="Tool calls as a JSON object between two tags.",
            build=build,
            fits=lambda template: OPENER in template and CLOSER in template,
        )
    ]
