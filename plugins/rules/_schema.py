"""Whether a call's arguments fit the tool's JSON Schema, and which misfits have one certain cure."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence as Seq
from functools import cache
from typing import Any

from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator, extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from tandem.core.plugin import Tool
from tandem.core.plugin.tools import allowed_types, fitted, json_type

UNCERTAIN = ("pattern", "patternProperties", "format", "contentEncoding", "contentMediaType", "contentSchema")
"""Keywords that two validators may read differently: a client's regular expressions are JavaScript's."""
MOST_CURES = 12
"""A call with more misfits than this is written again."""
EMPTY: tuple[Any, ...] = (None, "", [], {})


def misfits(tool: Tool, arguments: Mapping[str, Any]) -> list[ValidationError]:
    """What is certainly wrong with the arguments, in the order of the schema. Nothing for a schema that is broken
    itself, or that refers to another document: then nobody can tell."""
    schema = dict(tool.parameters)
    if not schema:
        return []
    kind = _checker(validator_for(schema, default=Draft202012Validator))
    try:
        kind.check_schema(schema)
        return list(kind(schema, registry=Registry()).iter_errors(dict(arguments)))
    except (SchemaError, Unresolvable, re.error, RecursionError):
        return []


@cache
def _checker(kind: type[Validator]) -> type[Validator]:
    return extend(kind, dict.fromkeys(UNCERTAIN))  # a keyword without a function is passed over


# -------------------------------------------------------------------------------------------------------- repair


def repaired(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments with every misfit cured; None unless each has a certain cure and all is well then.

    Certain are: a null for a parameter that may be left out (it is left out), or the word `null` where no text is
    allowed, as notations without types write it; a text that reads as a value of the one
    right type, a whole number where only text is allowed; a word of an `enum` in another case; an undeclared parameter
    that says nothing (null, or an empty text, list or object). An undeclared parameter with a value is not: without
    it the call would do something else than the model meant.
    """
    cured: Any = copy.deepcopy(dict(arguments))
    for _ in range(MOST_CURES):
        found = misfits(tool, cured)
        if not found:
            return cured if cured != arguments else None
        if not _cure(found[0], cured, tool.parameters):  # the next round sees what it left: one value can misfit twice
            return None
    return None


def _cure(misfit: ValidationError, document: Any, root: Mapping[str, Any]) -> bool:
    parent, key = _parent(document, list(misfit.absolute_path))
    if misfit.validator == "additionalProperties":
        return _drop_empty(misfit, document)
    if parent is None or misfit.validator not in ("type", "enum", "anyOf", "oneOf"):
        return False
    value = parent[key]
    absent = value is None or (value == "null" and "string" not in allowed_types(misfit.schema, root))
    if absent and isinstance(parent, dict) and not _is_required(misfit, root):
        del parent[key]
        return True
    better = _better(value, misfit.schema, root)
    parent[key] = better
    return json_type(better) != json_type(value) or better != value


def _better(value: Any, schema: Any, root: Mapping[str, Any]) -> Any:
    choices = schema.get("enum") if isinstance(schema, Mapping) else None
    if isinstance(choices, list):
        alike = [choice for choice in choices if _folded(choice) == _folded(value)]
        return alike[0] if len(alike) == 1 else value
    whole = isinstance(value, int) and not isinstance(value, bool)
    if whole and allowed_types(schema, root) == frozenset({"string"}):
        return str(value)
    return fitted(value, schema, root)


def _folded(value: Any) -> str:
    return str(value).strip().casefold()


def _drop_empty(misfit: ValidationError, document: Any) -> bool:
    place = _at(document, list(misfit.absolute_path))
    extra = undeclared(misfit)
    if not isinstance(place, dict) or not extra or any(place.get(name) not in EMPTY for name in extra):
        return False
    for name in extra:
        place.pop(name, None)
    return True


def undeclared(misfit: ValidationError) -> list[str]:
    """The properties that an `additionalProperties: false` refuses."""
    schema, value = misfit.schema, misfit.instance
    if not isinstance(schema, Mapping) or not isinstance(value, Mapping):
        return []
    patterns = [str(pattern) for pattern in schema.get("patternProperties") or {}]
    return [
        name
        for name in value
        if name not in (schema.get("properties") or {}) and not any(re.search(p, name) for p in patterns)
    ]


def _is_required(misfit: ValidationError, root: Mapping[str, Any]) -> bool:
    """Whether the misfit's place must be there. Told for a parameter of the call itself; deeper, it counts as so."""
    path = list(misfit.absolute_path)
    required = root.get("required")
    return len(path) != 1 or (isinstance(required, list) and path[0] in required)


def _parent(document: Any, path: list[str | int]) -> tuple[Any, Any]:
    return (_at(document, path[:-1]), path[-1]) if path else (None, None)


def _at(document: Any, path: Seq[str | int]) -> Any:
    for step in path:
        document = document[step]
    return document


# ------------------------------------------------------------------------------------------------------ sentences


def sentences(tool: Tool, found: Seq[ValidationError], most: int = 6) -> str:
    """What is wrong, one clause for each misfit, so that it can be put right. The values themselves are not named."""
    said = list(dict.fromkeys(clause for misfit in found for clause in _clauses(tool, misfit)))
    more = f"; and {len(said) - most} more" if len(said) > most else ""
    return "; ".join(said[:most]) + more


def _clauses(tool: Tool, misfit: ValidationError) -> Iterator[str]:
    place = _name(misfit)
    value: Any = misfit.validator_value
    rule = misfit.validator
    here = f"`{place}`" if place else "the arguments object"
    if rule == "required" and isinstance(misfit.instance, Mapping):
        for name in value:
            if name not in misfit.instance:
                yield f"`{f'{place}.' if place else ''}{name}` is missing and must be given{_kind(misfit, name)}"
    elif rule == "additionalProperties" and value is False:
        known = ", ".join(f"`{name}`" for name in (misfit.schema.get("properties") or {}))  # type: ignore[union-attr]
        names = ", ".join(f"`{name}`" for name in undeclared(misfit))
        yield f"{names} is no parameter of {here if place else f'`{tool.name}`'}, which has {known or 'none'}"
    elif rule == "enum":
        yield f"{here} must be one of {', '.join(map(_shown, value))}"
    elif rule == "const":
        yield f"{here} must be {_shown(value)}"
    elif rule in ("type", "anyOf", "oneOf"):
        kinds = sorted(allowed_types(misfit.schema, tool.parameters) - {"null"})
        kinds = [kind for kind in kinds if not (kind == "integer" and "number" in kinds)]
        given = json_type(misfit.instance)
        wanted = " or ".join(kinds)
        yield (
            f"{here} must be of type {wanted}, not {given}" if given not in kinds else f"{here} fits none of its forms"
        )
    else:
        yield f"{here} breaks `{rule}: {_shown(value)}`"


def _kind(misfit: ValidationError, name: str) -> str:
    properties = misfit.schema.get("properties") if isinstance(misfit.schema, Mapping) else None
    schema = properties.get(name) if isinstance(properties, Mapping) else None
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    return f" (type {kind})" if isinstance(kind, str) else ""


def _name(misfit: ValidationError) -> str:
    text = ""
    for step in misfit.absolute_path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def _shown(value: Any) -> str:
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
