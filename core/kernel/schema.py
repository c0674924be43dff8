"""Options against their JSON Schema (draft 2020-12), with the place of everything that is wrong."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jsonschema
import referencing

from tandem.core.kernel.problems import Problem, nearest
from tandem.core.kernel.yaml12 import Keys, Tree, scalar
from tandem.core.plugin.part import options_schema, with_defaults

Schemas = Mapping[str, Mapping[str, Any]]
"""Option name -> its JSON Schema."""

_base = jsonschema.Draft202012Validator
_types = _base.TYPE_CHECKER.redefine(
    "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
).redefine(
    "number", lambda _, value: isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
)
_Validator: Any = jsonschema.validators.extend(_base, type_checker=_types)
"""Stricter than the draft in two points: 1.0 is no integer, and infinity and NaN are no numbers."""


def check_schemas(options: Schemas) -> None:
    """Raises ValueError unless `options` are valid schemas whose defaults satisfy them."""
    try:
        _Validator.check_schema(options_schema(options), format_checker=_base.FORMAT_CHECKER)
    except jsonschema.SchemaError as error:
        raise ValueError(f"option schema {'.'.join(map(str, error.path))}: {error.message}") from None
    for name, schema in options.items():
        if "default" in schema:
            try:
                _validator(schema).validate(schema["default"])
            except jsonschema.ValidationError as error:
                raise ValueError(f"default of option {name}: {error.message}") from None


class OptionCheck:
    """Checks sections of one tree and collects what is wrong with them."""

    def __init__(self, tree: Tree, origins: Mapping[Keys, str]) -> None:
        self.tree = tree
        self.origins = origins
        """Values that came from a reference; they are never shown."""
        self.problems: list[Problem] = []

    def report(self, keys: Keys, message: str, hint: str | None = None) -> None:
        mark = self.tree.mark(keys)
        self.problems.append(Problem(mark.file, mark.line, ".".join(keys), message, hint))

    def unknown(self, keys: Keys, what: str, known: Iterable[str], word: str | None = None) -> None:
        """Report that `word` (or else the last of `keys`) is not one of `known`."""
        words = list(known)
        hint = nearest(word or keys[-1], words)
        listed = f"; there are: {', '.join(words)}" if words and hint is None else ""
        self.report(keys, f"{what}{listed}", hint)

    def options(self, keys: Keys, given: Any, schemas: Schemas) -> dict[str, Any]:
        """`given` (at `keys`) with defaults filled in; whatever is wrong is reported."""
        if not isinstance(given, dict):
            self.report(keys, f"must be a mapping of options, not {self.shown(keys, given)}")
            return with_defaults(schemas, {})
        given = {name: self._from_text((*keys, name), value, schemas.get(name)) for name, value in given.items()}
        try:
            for error in _validator(options_schema(schemas)).iter_errors(given):
                self._report_error(keys, error)
        except referencing.exceptions.Unresolvable as error:
            self.report(keys, f"can't be checked: the schema of its options refers to `{error.ref}`, which isn't there")
        return with_defaults(schemas, given)

    def against(self, keys: Keys, given: Any, schema: Mapping[str, Any]) -> None:
        """Report whatever of `given` (at `keys`) a schema does not allow."""
        for error in _validator(schema).iter_errors(given):
            self._report_error(keys, error)

    def shown(self, keys: Keys, value: Any) -> str:
        """`value` for a message; a value that came from a reference stays hidden, and so does what contains one."""
        for place, origin in self.origins.items():
            if place[: len(keys)] == keys or keys[: len(place)] == place:
                return f"the value of {origin}"
        text = json.dumps(value, ensure_ascii=False, default=str)
        return text if len(text) <= 80 else f"{text[:77]}..."

    def _from_text(self, keys: Keys, value: Any, schema: Mapping[str, Any] | None) -> Any:
        """An environment variable is text; where the option takes none, read it as a manifest's word."""
        if schema is None or keys not in self.origins or not isinstance(value, str):
            return value
        types = schema.get("type", "string")
        return value if "string" in ([types] if isinstance(types, str) else types) else scalar(value)

    def _report_error(self, keys: Keys, error: jsonschema.ValidationError) -> None:
        at = (*keys, *map(str, error.absolute_path))
        shown = self.shown(at, error.instance)
        keyword, wanted = error.validator, error.validator_value
        if keyword == "additionalProperties" and wanted is False:
            for name in _extra(error):
                self.unknown((*at, name), "unknown option", error.schema.get("properties", {}))  # type: ignore[union-attr]
        elif keyword == "required":
            for name in [name for name in wanted if name not in error.instance]:  # type: ignore[union-attr, operator]
                properties = error.schema.get("properties", {})  # type: ignore[union-attr]
                sentence = properties.get(name, {}).get("description", "")
                self.report(at, f"`{name}` is missing{': ' + sentence if sentence else ''}")
        elif keyword == "type":
            words = [wanted] if isinstance(wanted, str) else list(wanted)  # type: ignore[arg-type]
            self.report(at, f"must be {' or '.join(map(_with_article, words))}, not {shown}")
        elif keyword == "enum":
            words = [word for word in wanted if isinstance(word, str)]  # type: ignore[union-attr]
            hint = nearest(error.instance, words) if isinstance(error.instance, str) else None
            listed = ", ".join(json.dumps(word, ensure_ascii=False) for word in wanted)  # type: ignore[union-attr]
            self.report(at, f"must be one of {listed}, not {shown}", hint)
        elif keyword in _BOUNDS:
            self.report(at, f"must be {_BOUNDS[keyword]} {wanted}, not {shown}")
        else:
            self.report(at, f"{shown} does not satisfy `{keyword}: {json.dumps(wanted, default=str)}`")


_BOUNDS = {
    "minimum": "at least",
    "maximum": "at most",
    "exclusiveMinimum": "more than",
    "exclusiveMaximum": "less than",
    "multipleOf": "a multiple of",
}


def _validator(schema: Mapping[str, Any]) -> Any:
    """A validator that never fetches a schema from elsewhere."""
    return _Validator(schema, registry=referencing.Registry())


def _extra(error: Any) -> Iterator[str]:
    known, patterns = error.schema.get("properties", {}), error.schema.get("patternProperties", {})
    for name in error.instance:
        if name not in known and not any(re.search(pattern, name) for pattern in patterns):
            yield name


def _with_article(kind: str) -> str:
    words = {"object": "a mapping", "array": "a list", "null": "null", "boolean": "true or false", "string": "text"}
    return words.get(kind) or f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
