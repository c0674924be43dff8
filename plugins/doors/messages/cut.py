"""The arguments of a call that was cut off: what of them is whole."""

from __future__ import annotations

import json
from typing import Any

CLOSERS = {"{": "}", "[": "]"}


def whole_part(text: str) -> dict[str, Any]:
    """The object that `text` writes, or, of a text that ends too early, the object without its torn last value.

    A number or a word at the very end may be torn, so it counts as torn. Anything that is no object is an empty one.
    """
    closed = text if (cut := _last_whole(text)) is None else text[: cut[0]] + cut[1]
    try:
        value = json.loads(closed)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _last_whole(text: str) -> tuple[int, str] | None:
    """Where the last whole value of a torn text ends, and the brackets that close it there; None for a whole text."""
    open_brackets: list[str] = []
    whole = 0, ""
    in_string = escaped = False
    value_next = True  # in an object: behind a colon
    for at, char in enumerate(text):
        if in_string:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                in_string = False
                if value_next:
                    whole = at + 1, "".join(reversed(open_brackets))
        elif char == '"':
            in_string = True
        elif char in CLOSERS:
            open_brackets.append(CLOSERS[char])
            whole = at + 1, "".join(reversed(open_brackets))
            value_next = char == "["
        elif char in "}]":
            if not open_brackets:
                return None
            open_brackets.pop()
            whole = at + 1, "".join(reversed(open_brackets))
        elif char == ",":
            whole = at, "".join(reversed(open_brackets))
            value_next = open_brackets[-1:] == ["]"]
        elif char == ":":
            value_next = True
    return whole if open_brackets else None
