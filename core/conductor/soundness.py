"""Whether what a rule wants is well formed: nonsense is the rule's fault, and nobody's answer breaks on it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tandem.core.plugin import Action, ActionKind, json_text

SAMPLING: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, math.inf),
    "top_p": (0.0, 1.0),
    "top_k": (0, math.inf),
    "min_p": (0.0, 1.0),
}
"""What a rule may set, with the least and the greatest value."""


def actions_of(value: Any) -> list[Action] | str:
    """A check's result that is not None as a list, or what is wrong with it."""
    given = [value] if isinstance(value, Action) else value
    if not isinstance(given, list | tuple) or not all(isinstance(action, Action) for action in given):
        return f"returned {type(value).__name__}, not an Action or None"
    for action in given:
        if wrong := fault_of(action):
            return f"returned {getattr(action.kind, 'value', action.kind)} with {wrong}"
    return list(given)


def fault_of(action: Action) -> str:
    """What is wrong with an action, in a few words; empty when it is well formed."""
    for name, kind in (("kind", ActionKind), ("text", str), ("reason", str), ("detail", Mapping)):
        if not isinstance(value := getattr(action, name), kind):
            return f"{_named(value)} as its {name}"
    if action.score is not None and not _is_number(action.score):
        return f"{_named(action.score)} as its score"
    return _fault_of_detail(action.kind, action.detail) if _is_text(action.text) else "a text that UTF-8 can't hold"


def _fault_of_detail(kind: ActionKind, detail: Mapping[str, Any]) -> str:
    if kind is ActionKind.REPAIR_CALL:
        return _fault_of_arguments(detail.get("arguments"))
    if kind is ActionKind.SET_THINK_BUDGET:
        tokens = detail.get("tokens")
        return "" if isinstance(tokens, int) and tokens >= 0 else "tokens that are no whole number from 0 on"
    if kind is ActionKind.SET_CONSTRAINT:
        return "" if isinstance(detail.get("document"), Mapping) else "a document that is no mapping"
    if kind is ActionKind.MASK:
        words = detail.get("words")
        sound = isinstance(words, Mapping) and all(
            isinstance(word, str) and word and _is_text(shown) for word, shown in words.items()
        )
        return "" if sound else "words that are no texts"
    if kind is ActionKind.SET_SAMPLING:
        return next((wrong for name, value in detail.items() if (wrong := _fault_of_setting(name, value))), "")
    texts = [name for name in ("then", "give_up", "fallback") if not _is_text(detail.get(name, ""))]
    return f"a {texts[0]} that is no text" if texts else ""


def _fault_of_arguments(arguments: Any) -> str:
    if not isinstance(arguments, Mapping):
        return "arguments that are no mapping"
    try:
        json_text(arguments)
    except (TypeError, ValueError, RecursionError):
        return "arguments that JSON can't say"
    return ""


def _fault_of_setting(name: Any, value: Any) -> str:
    if name == "mode":
        return ""
    if name not in SAMPLING:
        return f"the setting {name!r}, which is none of {', '.join(SAMPLING)}"
    least, most = SAMPLING[name]
    return "" if _is_number(value) and least <= value <= most else f"a {name} that is out of range"


def fault_of_messages(messages: Any) -> str:
    """What is wrong with the messages that a rule rewrote; empty when they are well formed."""
    if not isinstance(messages, list | tuple) or not messages:
        return f"rewrote the messages into {_named(messages)}"
    sound = all(isinstance(message, Mapping) and isinstance(message.get("role"), str) for message in messages)
    return "" if sound else "rewrote a message into something that has no role"


def _is_text(value: Any) -> bool:
    """A text that can be sent: half a surrogate pair can't."""
    try:
        return isinstance(value, str) and (value.isascii() or bool(value.encode()))
    except UnicodeEncodeError:
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _named(value: Any) -> str:
    return (
        "None" if value is None else f"an empty {type(value).__name__}" if value in ([], ()) else type(value).__name__
    )
