"""Tools as a request offers them, and the rules that turn what a model wrote into arguments of the right types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TYPES = ("string", "integer", "number", "boolean", "object", "array", "null")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the client offers."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """The JSON Schema of its arguments object; empty when the client sent none."""

    def parameter(self, name: str) -> Any:
        """The schema of one parameter with its `$ref` resolved; None when the schema says nothing about it."""
        properties = resolve(self.parameters, self.parameters).get("properties")
        if not isinstance(properties, Mapping) or name not in properties:
            return None
        return resolve(properties[name], self.parameters)

    def parameter_named(self, written: str) -> str:
        """The parameter that a model meant: the exact name, else the only one that is equal without case and
        with `-` and `_` alike, else what was written."""
        properties = resolve(self.parameters, self.parameters).get("properties")
        names = list(properties) if isinstance(properties, Mapping) else []
        if written in names:
            return written
        alike = [name for name in names if _loose(name) == _loose(written)]
        return alike[0] if len(alike) == 1 else written


def resolve(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """`schema` with a local `$ref` (`#/$defs/x`) followed, at most 32 times; an empty mapping for what is no schema."""
    for _ in range(32):
        if not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            return schema
        node: Any = root
        for word in reference[1:].strip("/").split("/") if reference != "#" else []:
            word = word.replace("~1", "/").replace("~0", "~")
            node = node.get(word) if isinstance(node, Mapping) else None
        schema = node
    return {}


def allowed_types(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that a schema lets a value have.

    `type` (a word or a list), `enum` and `const` (the types of their values), `anyOf` and `oneOf` (any branch's),
    `allOf` (what all branches allow). A schema that says nothing allows every type.
    """
    return _types(schema, root, 0)


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> frozenset[str]:
    every = frozenset(TYPES)
    schema = resolve(schema, root)
    if not schema or depth > 16:
        return every
    allowed = every
    kind = schema.get("type")
    if isinstance(kind, str):
        allowed &= {kind}
    elif isinstance(kind, list):
        allowed &= {word for word in kind if isinstance(word, str)}
    if "const" in schema:
        allowed &= _of_values([schema["const"]])
    if isinstance(schema.get("enum"), list):
        allowed &= _of_values(schema["enum"])
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list) and schema[word]:
            allowed &= frozenset().union(*(_types(part, root, depth + 1) for part in schema[word]))
    for part in schema.get("allOf") or []:
        allowed &= _types(part, root, depth + 1)
    return allowed


def _of_values(values: list[Any]) -> frozenset[str]:
    found = frozenset(json_type(value) for value in values)
    return found | {"number"} if "integer" in found else found


def json_type(value: Any) -> str:
    """The JSON Schema word for a value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def is_text(schema: Any, root: Mapping[str, Any]) -> bool:
    """Whether a value written as plain text is a string for sure, so that it can be sent while it is written.

    True when strings are the only type allowed, or when the schema says nothing about the parameter.
    """
    return schema is None or allowed_types(schema, root) in (frozenset({"string"}), frozenset(TYPES))


def typed(text: str, schema: Any, root: Mapping[str, Any]) -> Any:
    """The value of a parameter that the model wrote as plain text.

    The rule: where a string is the only type allowed, or nothing is said, the text is the value. Otherwise the text is
    read as JSON, and the result counts when its type is allowed; `True`, `False` and `None` count as their JSON words.
    In a union with string, text that reads as one of the other types becomes that type, all else stays text. Text that
    fits no allowed type stays a string, so the client sees what the model wrote.
    """
    if is_text(schema, root):
        return text
    allowed = allowed_types(schema, root)
    words = {"True": "true", "False": "false", "None": "null"}
    stripped = text.strip()
    try:
        value = json.loads(words.get(stripped, stripped))
    except (ValueError, RecursionError):
        return text
    kind = json_type(value)
    if kind in allowed or (kind == "integer" and "number" in allowed):
        if kind == "integer" and "integer" in allowed and isinstance(value, float):
            return int(value)
        return value
    return text


def _loose(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()
