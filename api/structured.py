"""Structured output: what the client wants the answer to fit, and the constraint that makes it fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import dataclass
from typing import Any

from tandem.api.errors import ApiError
from tandem.api.readers import Place, Schema, mapping, shown, takes, text
from tandem.api.tools import ToolChoice
from tandem.core.engine.constraint import (
    Constraint,
    ConstraintError,
    choice_grammar,
    json_object_grammar,
    json_schema_grammar,
    regex_grammar,
)
from tandem.core.engine.notation import Notation
from tandem.core.plugin import Tool

FORMS = ("regex", "choice", "json")


@dataclass(frozen=True, slots=True)
class Document:
    """A text that the answer has to be. `param` is the field that holds `spec`."""

    kind: str
    """`json_object`, `json`, `regex` or `choice`."""
    spec: Any
    param: str

    @property
    def is_json(self) -> bool:
        """The client parses the whole answer as JSON."""
        return self.kind in ("json_object", "json")

    def grammar(self) -> str:
        """Raises ConstraintError."""
        match self.kind:
            case "json_object":
                return json_object_grammar()
            case "json":
                return json_schema_grammar(self.spec)
            case "regex":
                return regex_grammar(self.spec)
            case _:
                return choice_grammar(self.spec)


RESPONSE_FORMAT: Schema = {
    "type": "object",
    "required": ["type"],
    "anyOf": [
        {"properties": {"type": {"enum": ["text", "json_object"]}}},
        {
            "properties": {
                "type": {"const": "json_schema"},
                "json_schema": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": {"type": "string", "minLength": 1}, "schema": {"type": "object"}},
                },
            },
            "required": ["json_schema"],
        },
    ],
}


@takes(RESPONSE_FORMAT)
def response_format(value: Any, place: Place) -> Document | None:
    """OpenAI's field; None for `text`."""
    wanted = mapping(value, place)
    kind = wanted.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return Document("json_object", None, place.path)
    if kind != "json_schema":
        raise place.key("type").error(f"must be text, json_object or json_schema, not {shown(kind)}")
    at = place.key("json_schema")
    named = mapping(wanted.get("json_schema"), at)
    text(empty=False)(named.get("name"), at.key("name"))
    schema = named.get("schema", {})
    if not isinstance(schema, dict):
        raise at.key("schema").wrong("an object", schema)
    return Document("json", schema, at.key("schema").path)


STRUCTURED_OUTPUTS: Schema = {
    "type": "object",
    "properties": {
        "regex": {"type": ["string", "null"], "minLength": 1},
        "choice": {"type": ["array", "null"], "items": {"type": "string", "minLength": 1}, "minItems": 1},
        "json": {"type": ["object", "null"]},
    },
}
"""Exactly one of the three."""


@takes(STRUCTURED_OUTPUTS)
def structured_outputs(value: Any, place: Place) -> Document:
    """The extension of other servers: exactly one of `regex`, `choice` and `json`."""
    wanted = mapping(value, place)
    given = [form for form in FORMS if wanted.get(form) is not None]
    if len(given) != 1:
        raise place.error(f"takes exactly one of {', '.join(FORMS)}")
    form = given[0]
    at, spec = place.key(form), wanted[form]
    if form == "regex":
        text(empty=False)(spec, at)
    elif form == "choice":
        if not isinstance(spec, list) or not spec:
            raise at.wrong("a list of texts", spec)
        spec = [text(empty=False)(item, at.item(index)) for index, item in enumerate(spec)]
    elif not isinstance(spec, dict):
        raise at.wrong("a JSON Schema object", spec)
    return Document(form, spec, at.path)


def constraint_for(
    notation: Notation, document: Document | None, tools: Seq[Tool], choice: ToolChoice, parallel: bool | None
) -> Callable[[], Constraint] | None:
    """What makes the answer's constraint, compiled once here so that a bad one is a 400 and not a broken answer.

    `required` and a named function are calls alone. With tools and `auto` a document is the calls or the document, as
    the model begins. A forced answer is one call unless `parallel` is true.
    """
    forced = choice.mode in ("required", "function")
    if not forced and document is None:
        return None
    offered = [tool for tool in tools if choice.name in (None, tool.name)]
    calls = _calls(notation, offered, parallel is True if forced else parallel is not False) if offered else None
    if forced and calls is None:
        raise ApiError(
            400, "the served model has no notation for tool calls, so none can be forced", param="tool_choice"
        )
    grammar = _grammar(document) if document is not None else None
    if forced or grammar is None:
        assert calls is not None
        return _compiled(lambda: notation.grammars.single(calls), "tools")
    assert document is not None
    if calls is None or choice.mode == "none":
        return _compiled(lambda: notation.grammars.single(grammar), document.param)
    return _compiled(lambda: notation.either(calls, grammar), document.param)


def _calls(notation: Notation, tools: Seq[Tool], parallel: bool) -> str | None:
    try:
        return notation.call_constraint(tools, parallel)
    except ConstraintError as error:
        raise ApiError(400, f"tools can't be turned into a grammar: {error}", param="tools") from None


def _grammar(document: Document) -> str:
    try:
        return document.grammar()
    except ConstraintError as error:
        raise _bad(document.param, error) from None


def _compiled(make: Callable[[], Constraint], param: str) -> Callable[[], Constraint]:
    try:
        make()
    except ConstraintError as error:
        raise _bad(param, error) from None
    return make


def _bad(param: str, error: ConstraintError) -> ApiError:
    where = f"{param}.{error.place}" if error.place and not error.place.startswith("#") else param
    return ApiError(400, f"{where} can't be used: {error}", param=param)


def offered_tools(tools: Seq[Mapping[str, Any]]) -> tuple[Tool, ...]:
    """The client's tools as formats read them."""
    functions = [tool["function"] for tool in tools]
    return tuple(
        Tool(function["name"], function.get("description") or "", function.get("parameters") or {})
        for function in functions
    )
