"""The constraint that makes an answer fit what the client wants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from typing import Any

from tandem.api.documents import Document
from tandem.api.errors import ApiError
from tandem.api.tools import ToolChoice
from tandem.core.engine.constraint import (
    ConstraintError,
    Recipe,
    choice_grammar,
    json_object_grammar,
    json_schema_grammar,
    regex_grammar,
)
from tandem.core.engine.notation import Notation
from tandem.core.plugin import Tool


def constraint_for(
    notation: Notation, document: Document | None, tools: Seq[Tool], choice: ToolChoice, parallel: bool | None
) -> Recipe | None:
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
        return _compiled(Recipe(calls, lambda: notation.grammars.single(calls)), "tools")
    assert document is not None
    if calls is None or choice.mode == "none":
        return _compiled(Recipe(grammar, lambda: notation.grammars.single(grammar)), document.param)
    return _compiled(Recipe(f"{calls}\0{grammar}", lambda: notation.either(calls, grammar)), document.param)


def _calls(notation: Notation, tools: Seq[Tool], parallel: bool) -> str | None:
    try:
        return notation.call_constraint(tools, parallel)
    except ConstraintError as error:
        raise ApiError(400, f"tools can't be turned into a grammar: {error}", param="tools") from None


def _grammar(document: Document) -> str:
    try:
        match document.kind:
            case "json_object":
                return json_object_grammar()
            case "json":
                return json_schema_grammar(document.spec)
            case "regex":
                return regex_grammar(document.spec)
            case _:
                return choice_grammar(document.spec)
    except ConstraintError as error:
        raise _bad(document.param, error) from None


def _compiled(recipe: Recipe, param: str) -> Recipe:
    try:
        recipe()
    except ConstraintError as error:
        raise _bad(param, error) from None
    return recipe


def _bad(param: str, error: ConstraintError) -> ApiError:
    where = f"{param}.{error.place}" if error.place and not error.place.startswith("#") else param
    return ApiError(400, f"{where} can't be used: {error}", param=param)


def offered_tools(tools: Seq[Mapping[str, Any]]) -> tuple[Tool, ...]:
    """The client's tools as formats read them."""
    return tuple(
        Tool(
            tool["function"]["name"],
            tool["function"].get("description") or "",
            tool["function"].get("parameters") or {},
            _annotations(tool),
        )
        for tool in tools
    )


def _annotations(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool's annotations: beside its `function`, or in it. No field of the API, so anything else is left alone."""
    found = tool.get("annotations") or tool["function"].get("annotations")
    return found if isinstance(found, Mapping) else {}
