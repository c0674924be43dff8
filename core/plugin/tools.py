"""Tools as a request offers them, and the rules that turn what a model wrote into arguments of the right types."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterable, Mapping, Sequence as Seq
from dataclasses import dataclass, field
from typing import Any, NoReturn
from urllib.parse import unquote

TYPES = ("string", "integer", "number", "boolean", "object", "array", "null")
EVERY = frozenset(TYPES)
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
"""Words of Python that models write for JSON's."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the client offers."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """The JSON Schema of its arguments object; empty when the client sent none."""
    annotations: Mapping[str, Any] = field(default_factory=dict)
    """What the client says about its effects, in the words of the Model Context Protocol: `readOnlyHint`,
    `destructiveHint`, ..."""

    @property
    def properties(self) -> Mapping[str, Any]:
        """The declared parameters: name -> schema, in the client's order."""
        found = resolve(self.parameters, self.parameters).get("properties")
        return found if isinstance(found, Mapping) else {}

    @property
    def required(self) -> frozenset[str]:
        """The declared parameters that must be there."""
        found = resolve(self.parameters, self.parameters).get("required")
        return frozenset(found if isinstance(found, list) else ()) & self.properties.keys()

    def parameter(self, name: str) -> Any:
        """The schema of one parameter with its `$ref` resolved; `additionalProperties` describes an undeclared one.
        None when nothing is said about it."""
        schema = self.properties.get(name)
        if schema is None:
            schema = resolve(self.parameters, self.parameters).get("additionalProperties")
        return resolve(schema, self.parameters) if isinstance(schema, Mapping) else None

    def parameter_named(self, written: str) -> str:
        """The parameter that a model meant: the exact name, else the only one that is equal without case, `-` and
        `_`, else what was written."""
        return _meant(written, self.properties)


def tool_named(tools: Seq[Tool], written: str) -> Tool:
    """The function that a model meant, by the same rule; one that isn't offered is a tool without parameters."""
    offered = {tool.name: tool for tool in tools}
    name = _meant(written, offered)
    return offered.get(name) or Tool(name)


def _meant(written: str, names: Iterable[str]) -> str:
    known = list(names)
    if written in known:
        return written
    alike = [name for name in known if _loose(name) == _loose(written)]
    return alike[0] if len(alike) == 1 else written


def _loose(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()


# ------------------------------------------------------------------------------------------------------- schemas


def resolve(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """`schema` with a local `$ref` (`#/$defs/x`) followed, at most 32 times; an empty mapping for what is no schema."""
    for _ in range(32):
        if not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            return schema
        schema = _at(reference, root)
    return {}


def _at(reference: str, root: Mapping[str, Any]) -> Any:
    """What a JSON pointer (RFC 6901) in a fragment leads to; None where it leads nowhere."""
    node: Any = root
    for word in reference[1:].strip("/").split("/") if reference.strip("#/") else []:
        word = unquote(word).replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping):
            node = node.get(word)
        else:
            node = node[int(word)] if isinstance(node, list) and word.isdigit() and int(word) < len(node) else None
    return node


def moved(schema: Any, place: str) -> Any:
    """`schema` for a document that has its root at `place` (`#/$defs/root`): every local `$ref` leads there."""
    if isinstance(schema, list):
        return [moved(part, place) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    there = {key: moved(part, place) for key, part in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        there["$ref"] = place + reference[1:].rstrip("/")
    return there


def allowed_types(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that a schema lets a value have; `number` comes with `integer`.

    `type` (a word or a list), `enum` and `const` (the types of their values), `anyOf` and `oneOf` (any branch's),
    `allOf` (what all branches allow), `nullable` (null besides). A schema that says nothing allows every type, and so
    does a word that is no JSON type.
    """
    return _types(schema, root, {})


def _types(schema: Any, root: Mapping[str, Any], seen: dict[int, frozenset[str]]) -> frozenset[str]:
    schema = resolve(schema, root)
    if id(schema) in seen:  # a circle, or a part that several branches refer to
        return seen[id(schema)]
    seen[id(schema)] = EVERY
    allowed = EVERY
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
    if kinds and all(kind in TYPES for kind in kinds):
        allowed &= frozenset(kinds) | ({"integer"} if "number" in kinds else set())
    if "const" in schema:
        allowed &= {json_type(schema["const"])}
    if isinstance(schema.get("enum"), list):
        allowed &= {json_type(value) for value in schema["enum"]}
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list) and schema[word]:
            allowed &= frozenset().union(*(_types(part, root, seen) for part in schema[word]))
    for part in schema["allOf"] if isinstance(schema.get("allOf"), list) else []:
        allowed &= _types(part, root, seen)
    if schema.get("nullable") is True:
        allowed |= {"null"}
    seen[id(schema)] = allowed
    return allowed


def json_type(value: Any) -> str:
    """The JSON Schema word for a value's type; a float without a fraction is an `integer`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def is_text(schema: Any, root: Mapping[str, Any]) -> bool:
    """Whether a value written as plain text is a string for sure, so that it can be sent while it is written.

    True when strings are the only type allowed, or when the schema says nothing about the parameter.
    """
    return schema is None or allowed_types(schema, root) in (frozenset({"string"}), EVERY)


# -------------------------------------------------------------------------------------------------------- values


def typed(text: str, schema: Any, root: Mapping[str, Any]) -> Any:
    """The value of a parameter that the model wrote as plain text.

    The rule: where a string is the only type allowed, or nothing is said, the text is the value. Otherwise the text is
    read as JSON, and the result counts when it is no string and its type is allowed; `True`, `False` and `None` count
    as their JSON words, and where no string is allowed, a list or a dict in Python's notation counts too. In a union
    with string, text that reads as one of the other types becomes that type, all else stays text, quotes included.
    Text that fits no allowed type stays a string, so the client sees what the model wrote.
    """
    if is_text(schema, root):
        return text
    allowed = allowed_types(schema, root)
    stripped = text.strip()
    try:
        value = read_json(PYTHON_WORDS.get(stripped, stripped))
    except ValueError:
        value = text if "string" in allowed else _python_literal(stripped)
    kind = json_type(value)
    if kind == "string" or kind not in allowed:
        return text
    return int(value) if isinstance(value, float) and "number" not in allowed else value


def fitted(value: Any, schema: Any, root: Mapping[str, Any]) -> Any:
    """The value of a parameter that the model wrote as JSON: a string where the schema allows none is read as
    `typed` reads plain text. Everything else stays as it is."""
    if isinstance(value, str) and schema is not None and "string" not in allowed_types(schema, root):
        return typed(value, schema, root)
    return value


def read_json(text: str) -> Any:
    """The value of a JSON text. Raises ValueError also for what Python's reader lets pass (NaN, infinite numbers)
    or can't hold (nesting without end)."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _python_literal(text: str) -> Any:
    """A list or a dict as Python writes it, in JSON's types; the text itself when it is none."""
    if not text.startswith(("[", "{")):
        return text
    try:
        return read_json(json.dumps(ast.literal_eval(text), allow_nan=False))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text


def json_text(value: Any) -> str:
    """A value as JSON text, characters as they are; half a surrogate pair, which no UTF-8 can hold, is escaped."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text if text.isascii() or not _has_surrogates(text) else json.dumps(value, allow_nan=False)


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)
