"""The format of Llama and others that call in Python's notation: an answer that is a list of calls.

    [weather(city="Oslo", days=3), time()]

Only literals count, JSON's `true`, `false` and `null` among them; nothing is ever run. It fits a template that shows
such a list and no `<tool_call>`.
"""

from __future__ import annotations

import ast
import keyword
import math
import re
from collections.abc import Mapping, Sequence as Seq
from typing import Any

from tandem.core.plugin import (
    AnswerFormat,
    AnswerParser,
    AnswerReader,
    Format,
    Options,
    Steps,
    Tool,
    fitted,
    hookimpl,
    json_text,
    tool_named,
)

TANDEM_API = ">=0.2,<0.3"

LONGEST_NAME = 200
QUIET = re.compile(r"""[^\[\](){}"'\\#]+""")
IN_STRING = re.compile(r"""[^"'\\\n]+""")
PAIRS = {"[": "]", "(": ")", "{": "}"}
STRING = r"""(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
RESERVED = re.compile(rf"({STRING})|\b({'|'.join(word for word in keyword.kwlist if word.islower())})(?=\s*=[^=])")
EXAMPLE = re.compile(r"\[\s*\w+\(\s*\w+\s*=[^\[\]{}\n]*\)\s*,\s*\w+\([^\[\]{}\n]*\)[^\[\]{}\n]*\]")
JINJA = re.compile(r"\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}", re.DOTALL)

JSON_WORDS = {"true": True, "false": False, "null": None}


class PythonicReader(AnswerReader):
    """Holds back an answer that begins like a list of calls of offered functions, until the list is whole."""

    def read(self) -> Steps[None]:
        while (yield from self.char()).isspace():
            self.say(self.take(1))
        self.mark()
        calls = yield from self._list()
        for name, arguments in calls or ():
            self.begin(name)
            self.write(arguments)
            self.done()
        if calls == [] or not (calls or self.cut):
            self.rewind()
        self.unmark()
        while True:
            self.say(self.take(len(self.text)))
            if not (yield from self.more()):
                return

    def _list(self) -> Steps[list[tuple[str, str]] | None]:
        """The calls of the list at the cursor; empty when it is something else, None when the answer ended in it."""
        if not (yield from self.ahead("[")):
            return []
        self.take((yield from self.blanks(1)))
        end = 0
        while (char := (yield from self.char(end))) and (char.isalnum() or char in "_.") and end < LONGEST_NAME:
            end += 1
        name = self.take(end)
        if not char:
            return None
        if char != "(" or tool_named(self.tools, name) not in self.tools:
            return []
        if not (yield from self._brackets()):
            return None if self.over else []
        return parsed(self.marked(), self.tools)

    def _brackets(self) -> Steps[bool]:
        """Over everything up to the bracket that closes the list; False when brackets or strings don't fit."""
        closers = ["]"]
        while closers:
            char = yield from self.char()
            if quiet := QUIET.match(self.text, self.at):
                self.take(quiet.end() - quiet.start())
            elif char and char in "\"'":
                if not (yield from self._string()):
                    return False
            elif char in PAIRS:
                closers.append(PAIRS[char])
                self.take(1)
            elif char == closers[-1]:
                closers.pop()
                self.take(1)
            else:
                return False
        return True

    def _string(self) -> Steps[bool]:
        quote = self.take(1)
        if (yield from self.ahead(quote * 2)):
            quote += self.take(2)
        while char := (yield from self.char()):
            if (yield from self.ahead(quote)):
                self.take(len(quote))
                return True
            if char == "\n" and len(quote) == 1:
                return False
            if char == "\\":
                yield from self.char(1)
                self.take(2)
            elif inside := IN_STRING.match(self.text, self.at):
                self.take(inside.end() - inside.start())
            else:
                self.take(1)
        return False


def parsed(source: str, tools: Seq[Tool]) -> list[tuple[str, str]]:
    """Name and arguments (JSON text) of each call in a list; no calls when anything in it is something else."""
    source = RESERVED.sub(lambda found: found[1] or f"{found[2]}_", source)
    try:
        tree = ast.parse(source, mode="eval").body
        return [_call(node, tools) for node in tree.elts] if isinstance(tree, ast.List) else []
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return []


def _call(node: ast.expr, tools: Seq[Tool]) -> tuple[str, str]:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call by names")
    tool = tool_named(tools, ast.unparse(node.func))
    if tool not in tools:
        raise ValueError("not an offered function")
    written: dict[str, Any] = {}
    for argument in node.keywords:
        more = {argument.arg: _literal(argument.value)} if argument.arg else _mapping(argument.value)
        if written.keys() & more.keys():
            raise ValueError("a parameter twice")
        written |= more
    named = {_parameter(tool, name): value for name, value in written.items()}
    root = tool.parameters
    return tool.name, json_text({name: fitted(value, tool.parameter(name), root) for name, value in named.items()})


def _parameter(tool: Tool, written: str) -> str:
    """A parameter's name; one that is a word of Python was read with a `_` behind it."""
    name = tool.parameter_named(written)
    return name if name in tool.properties or not keyword.iskeyword(name[:-1]) else name[:-1]


def _literal(node: ast.expr) -> Any:
    """The JSON value of a literal. Raises ValueError for everything else."""
    if isinstance(node, ast.Name) and node.id in JSON_WORDS:
        return JSON_WORDS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(part) for part in node.elts]
    if isinstance(node, ast.Dict):
        return _mapping(node)
    value = ast.literal_eval(node)
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(f"{value!r} has no JSON")


def _mapping(node: ast.expr) -> dict[str, Any]:
    if not isinstance(node, ast.Dict):
        raise ValueError("not a dict")
    keys = [_literal(key) if key is not None else None for key in node.keys]
    if not all(isinstance(key, str) for key in keys):
        raise ValueError("a key that is no text")
    return {str(key): _literal(value) for key, value in zip(keys, node.values, strict=True)}


class Pythonic:
    """Lists of calls. The notation has no grammar: Python's strings are not JSON's."""

    thinking: tuple[str, str] | None = None
    opener: str | None = "["

    def parser(self, tools: Seq[Tool]) -> AnswerParser:
        return PythonicReader(tools)

    def grammar(self, tools: Seq[Tool], parallel: bool) -> str | None:
        return None

    def render(self, name: str, arguments: Mapping[str, Any]) -> str:
        """A name with `-` is written with `_`, and found again by the tool that is offered. Raises ValueError for a
        name that Python can't write."""
        function = name.replace("-", "_")
        if not all(word.isidentifier() for word in function.split(".")):
            raise ValueError(f"`{name}` can't be called in Python's notation")
        plain = {key: value for key, value in arguments.items() if key.isidentifier() and not keyword.iskeyword(key)}
        others = {key: value for key, value in arguments.items() if key not in plain}
        written = [f"{key}={value!r}" for key, value in plain.items()] + ([f"**{others!r}"] if others else [])
        return f"[{function}({', '.join(written)})]"


def _fits(template: str) -> bool:
    return "<tool_call>" not in template and EXAMPLE.search(JINJA.sub("", template)) is not None


def _build(options: Options) -> AnswerFormat:
    return Pythonic()


@hookimpl
def tandem_formats() -> list[Format]:
    return [Format(name="pythonic", doc=__doc__, build=_build, fits=_fits)]
