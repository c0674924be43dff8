"""The tools that a client offers, and which of them it wants called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tandem.api.readers import Place, Schema, mapping, shown, takes, text

Tools = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`mode` is `auto`, `none`, `required` or `function`; the last carries the function's name."""

    mode: str
    name: str | None = None


NAME: Schema = {"type": "string", "minLength": 1}
TOOLS: Schema = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["function"],
        "properties": {
            "type": {"const": "function"},
            "function": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": NAME, "parameters": {"type": ["object", "null"]}},
            },
        },
    },
}
MODES = ("auto", "none", "required")
NAMED: Schema = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "required": ["name"], "properties": {"name": NAME}},
    },
}


@takes(TOOLS)
def tools(value: Any, place: Place) -> Tools:
    """The offered functions, as the client wrote them."""
    if not isinstance(value, list):
        raise place.wrong("a list of tools", value)
    for index, item in enumerate(value):
        _tool(item, place.item(index))
    return tuple(value)


def _tool(value: Any, place: Place) -> None:
    tool = mapping(value, place)
    if tool.get("type", "function") != "function":
        raise place.key("type").error(f"must be function, not {shown(tool['type'])}")
    function = mapping(tool.get("function"), place.key("function"))
    text(empty=False)(function.get("name"), place.key("function").key("name"))
    parameters = function.get("parameters")
    if parameters is not None:
        mapping(parameters, place.key("function").key("parameters"))


@takes({"anyOf": [{"enum": list(MODES)}, NAMED]})
def tool_choice(value: Any, place: Place) -> ToolChoice:
    if isinstance(value, dict):
        if value.get("type") != "function":
            raise place.key("type").error(f"must be function, not {shown(value.get('type'))}")
        function = mapping(value.get("function"), place.key("function"))
        return ToolChoice("function", text(empty=False)(function.get("name"), place.key("function").key("name")))
    if value not in MODES:
        raise place.wrong("auto, none, required or a function to call", value)
    return ToolChoice(value)


def function_names(offered: Tools) -> set[str]:
    return {tool["function"]["name"] for tool in offered}
