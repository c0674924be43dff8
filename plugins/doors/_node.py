"""A value of a request's body, together with where it stands: what a wrong one is called in the error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tandem.core.plugin import RequestError


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its path inside the body (`input[2].content`); the body itself has the empty path.

    The readers return the value when it has the kind they ask for, and raise RequestError otherwise.
    """

    value: Any
    path: str = ""

    def key(self, name: str) -> Node:
        """What stands under `name`; the value None when nothing does, or when this is no object."""
        inner = self.value.get(name) if isinstance(self.value, Mapping) else None
        return Node(inner, f"{self.path}.{name}" if self.path else name)

    def each(self) -> list[Node]:
        """The items of a list."""
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        return [Node(item, f"{self.path}[{index}]") for index, item in enumerate(self.value)]

    @property
    def given(self) -> bool:
        """Whether there is a value; null is none."""
        return self.value is not None

    def object(self) -> Mapping[str, Any]:
        if not isinstance(self.value, Mapping):
            raise self.wrong("an object")
        return self.value

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.wrong("a string")
        return self.value

    def flag(self, default: bool = False) -> bool:
        """True or false; `default` when it is missing."""
        if self.value is None:
            return default
        if not isinstance(self.value, bool):
            raise self.wrong("true or false")
        return self.value

    def one_of(self, *words: str) -> str:
        if self.value not in words:
            raise self.wrong("one of " + ", ".join(words))
        return str(self.value)

    def wrong(self, expected: str) -> RequestError:
        """The error of a value that isn't `expected`, or isn't there."""
        if not self.given:
            return self.error(f"is missing; it must be {expected}")
        return self.error(f"must be {expected}, not {shown(self.value)}")

    def error(self, sentence: str) -> RequestError:
        """`sentence` goes on after the path: `temperature` + ` must be ...`."""
        return RequestError(400, f"{self.path} {sentence}", self.path)


def shown(value: Any) -> str:
    """A value as an error message shows it: JSON, cut short."""
    written = json.dumps(value, ensure_ascii=False, default=str)
    return written if len(written) <= 40 else f"{written[:37]}..."


def refuse(body: Node, refused: Mapping[str, str]) -> None:
    """Raises RequestError for the first of the `refused` fields that asks for something. `refused` says what to do
    instead; null, false and empty values ask for nothing."""
    for name, instead in refused.items():
        field = body.key(name)
        if field.value not in (None, False, "", [], {}):
            raise field.error(f"is not supported{f'; {instead}' if instead else ''}")
