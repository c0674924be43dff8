"""What a model may write when it has to call."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence as Seq
from typing import Any

from tandem.core.plugin import LEADING, Tool, allowed_types, json_text, lark_json, lark_text, moved, resolve

CLOSE = "\n</parameter>\n"
TEXT = r"""
text[lazy]: PIECES "\n</parameter>\n"
PIECES: /(?s:.*)/ & ~/(?s:.*)(<parameter[ \t=]|<function[ \t=]|<tool_call>[ \t\r\n]*\{)(?s:.*)/
"""
"""A string: any text without the tags that open a function or a parameter, to the first line that closes it."""


def calls_grammar(tools: Seq[Tool], parallel: bool) -> str:
    """One call of any of `tools`, or one and more. A call is written as the template writes it, its parameters in
    declared order; required ones must be there."""
    functions = " | ".join(f"f{number}" for number in range(len(tools)))
    more = f"({lark_text(chr(10))} call)*" if parallel else ""
    rules = [
        f"start: {LEADING} call {more}",
        f"call: {lark_text('<tool_call>' + chr(10))} ({functions}) {lark_text('</tool_call>')}",
    ]
    for number, tool in enumerate(tools):
        rules += _function(f"f{number}", tool)
    return "\n".join(rules) + TEXT


def _function(rule: str, tool: Tool) -> list[str]:
    """`RULEpI` is everything from the parameter I on, `RULEvI` its value with the line that closes it."""
    rules = [f"{rule}: {lark_text(f'<function={tool.name}>' + chr(10))} {rule}p0"]
    for place, (name, schema) in enumerate(tool.properties.items()):
        rest = f"{rule}p{place + 1}"
        skip = "" if name in tool.required else f" | {rest}"
        rules.append(f"{rule}p{place}: {lark_text(f'<parameter={name}>' + chr(10))} {rule}v{place} {rest}{skip}")
        rules.append(f"{rule}v{place}: {_value(schema, tool.parameters)}")
    return [*rules, f"{rule}p{len(tool.properties)}: {lark_text('</function>' + chr(10))}"]


def _value(schema: Any, root: Mapping[str, Any]) -> str:
    choices = _listed(schema, root)
    if choices is not None:
        texts = [choice if isinstance(choice, str) else json_text(choice) for choice in choices]
        return " | ".join(lark_text(text + CLOSE) for text in texts)
    if "string" in allowed_types(schema, root):
        return "text"
    alone = moved(dict(resolve(schema, root)), "#/$defs/root")
    if "$ref" in json.dumps(alone):
        alone["$defs"] = {"root": moved(root, "#/$defs/root")}
    return f"{lark_json(alone)} {lark_text(CLOSE)}"


def _listed(schema: Any, root: Mapping[str, Any]) -> list[Any] | None:
    """The values that a schema lists one by one; None when there are others."""
    schema = resolve(schema, root)
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) and schema["enum"] else None
