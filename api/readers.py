"""Readers of single values: each checks one and returns it as the request holds it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Schema = Mapping[str, Any]

MAX_STOPS = 16


class FieldError(Exception):
    """A field with a wrong value. `param` is its path inside the body; the message is fit for a 400."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the body a value stands, and what it is checked against."""

    path: str
    vocab_size: int

    def key(self, name: str) -> Place:
        return Place(f"{self.path}.{name}", self.vocab_size)

    def item(self, index: int) -> Place:
        return Place(f"{self.path}[{index}]", self.vocab_size)

    def error(self, sentence: str) -> FieldError:
        """`sentence` goes on after the field's path: `temperature` + ` must be ...`."""
        return FieldError(self.path, f"{self.path} {sentence}")

    def wrong(self, expected: str, value: Any) -> FieldError:
        return self.error(f"must be {expected}, not {shown(value)}")


@dataclass(frozen=True, slots=True)
class Reader(Generic[T]):
    """Checks a value and returns it as the request holds it.

    `schema` is the JSON Schema of what it takes. It may allow more than the reader does (a token id beyond the model's
    vocabulary), never less.
    """

    read: Callable[[Any, Place], T]
    schema: Schema

    def __call__(self, value: Any, place: Place) -> T:
        """Raises FieldError for a wrong value."""
        return self.read(value, place)


def takes(schema: Schema) -> Callable[[Callable[[Any, Place], T]], Reader[T]]:
    """Makes a reader out of a function that takes such values."""

    def made(read: Callable[[Any, Place], T]) -> Reader[T]:
        return Reader(read, schema)

    return made


def shown(value: Any) -> str:
    """A value as an error message shows it: JSON, cut short."""
    written = json.dumps(value, ensure_ascii=False, default=str)
    return written if len(written) <= 40 else f"{written[:37]}..."


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def later(schema: Schema) -> Reader[Any]:
    """For a field that is checked together with others."""
    return Reader(lambda value, place: value, schema)


@takes({"type": "boolean"})
def boolean(value: Any, place: Place) -> bool:
    if not isinstance(value, bool):
        raise place.wrong("true or false", value)
    return value


def integer(lowest: int, highest: int | None = None) -> Reader[int]:
    schema: dict[str, Any] = {"type": "integer", "minimum": lowest}
    if highest is not None:
        schema["maximum"] = highest
    expected = f"an integer from {lowest} to {highest}" if highest is not None else f"an integer of at least {lowest}"

    @takes(schema)
    def read(value: Any, place: Place) -> int:
        if not _is_integer(value) or value < lowest or (highest is not None and value > highest):
            raise place.wrong(expected, value)
        return int(value)

    return read


def number(lowest: float, highest: float, *, above: bool = False) -> Reader[float]:
    """A number in the closed range; with `above` the lowest itself is left out."""
    schema = {"type": "number", "exclusiveMinimum" if above else "minimum": lowest, "maximum": highest}
    expected = f"a number above {lowest:g}, up to {highest:g}" if above else f"a number from {lowest:g} to {highest:g}"

    @takes(schema)
    def read(value: Any, place: Place) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value <= highest:
            raise place.wrong(expected, value)
        if above and value == lowest:
            raise place.wrong(expected, value)
        return float(value)

    return read


def text(*, empty: bool = True) -> Reader[str]:
    @takes({"type": "string"} if empty else {"type": "string", "minLength": 1})
    def read(value: Any, place: Place) -> str:
        if not isinstance(value, str):
            raise place.wrong("a string", value)
        if not value and not empty:
            raise place.error("is empty")
        return value

    return read


def one_of(*words: str) -> Reader[str]:
    @takes({"type": "string", "enum": list(words)})
    def read(value: Any, place: Place) -> str:
        if value not in words:
            raise place.wrong("one of " + ", ".join(words), value)
        return str(value)

    return read


def only(served: Any) -> Reader[Any]:
    """The one value of a field that this server can honour."""

    @takes({"const": served})
    def read(value: Any, place: Place) -> Any:
        if value != served or isinstance(value, bool) != isinstance(served, bool):
            raise place.error(f"is supported as {shown(served)} only, not {shown(value)}")
        return value

    return read


@takes({"type": "object"})
def mapping(value: Any, place: Place) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise place.wrong("an object", value)
    return value


STOP_STRING = text(empty=False)


@takes({"anyOf": [STOP_STRING.schema, {"type": "array", "items": STOP_STRING.schema, "maxItems": MAX_STOPS}]})
def stop_strings(value: Any, place: Place) -> tuple[str, ...]:
    """One string or a list of them."""
    if isinstance(value, str):
        return (STOP_STRING(value, place),)
    if not isinstance(value, list):
        raise place.wrong("a string or a list of strings", value)
    if len(value) > MAX_STOPS:
        raise place.error(f"takes at most {MAX_STOPS} strings, not {len(value)}")
    return tuple(STOP_STRING(item, place.item(index)) for index, item in enumerate(value))


@takes({"type": "object", "properties": {"include_usage": {"type": ["boolean", "null"]}}})
def stream_options(value: Any, place: Place) -> bool | None:
    """Whether usage gets a chunk of its own; None = the client did not say."""
    include = mapping(value, place).get("include_usage")
    return None if include is None else boolean(include, place.key("include_usage"))


BIAS = number(-100, 100)


@takes({"type": "object", "propertyNames": {"pattern": "^[0-9]{1,11}$"}, "additionalProperties": BIAS.schema})
def logit_bias(value: Any, place: Place) -> Mapping[int, float]:
    """Token id -> what is added to its logit. Zeros are dropped."""
    bias: dict[int, float] = {}
    for key, amount in mapping(value, place).items():
        at = place.key(key)
        # `isdecimal` alone takes digits of every script; a token id is written in ASCII.
        token = int(key) if key.isascii() and key.isdecimal() and len(key) < 12 else -1
        if not 0 <= token < place.vocab_size:
            raise at.error(f"is not a token id; ids of this model go from 0 to {place.vocab_size - 1}")
        if added := BIAS(amount, at):
            bias[token] = added
    return bias
