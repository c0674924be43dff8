"""A client's wish about thinking, in whatever shape it was sent, read into one budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tandem.api.readers import FieldError

CAPS: Mapping[str, int | None] = {
    "minimal": 1024,
    "low": 1024,
    "medium": 8192,
    "high": 16384,
    "xhigh": None,
    "max": None,
}
"""The most reasoning tokens for each effort word; None = no cap."""
OFF = ("none", "off")
TEMPLATE_WORDS: Mapping[str, str] = {
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "xhigh": "xhigh",
    "max": "xhigh",
}
"""How an effort word reads in a chat template that takes one; `high` is the cap alone."""
RESERVE_MOST = 2048
"""Tokens that the automatic reserve leaves for the answer, at most; otherwise a quarter of the limit."""

NUMBERS: tuple[str, ...] = (
    "max_reasoning_tokens",
    "reasoning.max_tokens",
    "thinking.budget_tokens",
    "thinking_budget",
    "thinking_token_budget",
    "reasoning_budget",
    "reasoning_budget_tokens",
    "thinking_budget_tokens",
    "chat_template_kwargs.thinking_budget",
)
"""The fields that hold a number of tokens; the first one that is set counts. 0 is no cap."""
UNLIMITED = ("reasoning_budget", "reasoning_budget_tokens", "thinking_budget_tokens", "thinking_token_budget")
"""Where -1 is no cap as well, because the clients of those servers send it."""
WORDS: tuple[str, ...] = ("chat_template_kwargs.reasoning_effort", "reasoning_effort", "reasoning.effort")
"""The fields that hold an effort word; the first one that is set counts."""
SWITCHES: tuple[str, ...] = ("chat_template_kwargs.enable_thinking", "enable_thinking", "reasoning.enabled")
TYPES = ("enabled", "disabled", "adaptive")
"""What `thinking.type` may be."""
OBJECTS = ("reasoning", "thinking", "chat_template_kwargs")


@dataclass(frozen=True, slots=True)
class Wish:
    """What the client asked for."""

    on: bool | None = None
    """Whether the model should think; None = the client did not say."""
    cap: int | None = None
    """The most reasoning tokens; None = none asked, or no cap."""
    word: str | None = None
    """The effort word, as the template takes it; None = the template's own."""
    asked: str | None = None
    """The field that a budget came from; None when the client asked for none."""


def read_wish(body: Mapping[str, Any]) -> Wish:
    """All shapes merged. Raises FieldError for a wrong type, an unknown word or a negative number.

    On or off is decided first: `chat_template_kwargs.enable_thinking`, else `enable_thinking`, else any form that says
    off. The cap is the first number, else the first word's; a number beats a word.
    """
    for name in OBJECTS:
        if body.get(name) is not None and not isinstance(body[name], Mapping):
            raise FieldError(name, f"{name} must be an object")
    switches = {name: value for name in SWITCHES if (value := _get(body, name)) is not None}
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise FieldError(name, f"{name} must be true or false")
    kind = _get(body, "thinking.type")
    if kind is not None and kind not in TYPES:
        raise FieldError("thinking.type", f"thinking.type must be one of {', '.join(TYPES)}, not {kind!r}")
    numbers = _first(body, NUMBERS, _number)
    words = _first(body, WORDS, _word)
    on = switches.get("chat_template_kwargs.enable_thinking", switches.get("enable_thinking"))
    if on is None and (
        kind == "disabled" or switches.get("reasoning.enabled") is False or (words is not None and words[1] in OFF)
    ):
        on = False
    elif on is None and (kind == "enabled" or switches.get("reasoning.enabled")):
        on = True
    word = words[1] if words is not None and words[1] not in OFF else None
    if numbers is not None:
        cap, asked = numbers[1] or None, numbers[0]
    elif word is not None:
        assert words is not None
        cap, asked = CAPS[word], words[0]
    else:
        cap, asked = None, None
    return Wish(on, cap, TEMPLATE_WORDS.get(word) if word else None, asked)


def budget(wish: Wish, limit: int, reserve: int | None, closing: int, *, wants_reserve: bool = False) -> int | None:
    """The reasoning tokens that a generation may spend, or None for no limit.

    `limit` is the output limit and `closing` the length of the closing phrase. When the client asked for a budget in
    any shape, or `wants_reserve` (a JSON answer), the reasoning ends early enough to leave `reserve` tokens for the
    answer behind the phrase; None is the automatic reserve, 0 turns it off.
    """
    cap = wish.cap
    if wish.asked is None and not wants_reserve:
        return cap
    kept = min(RESERVE_MOST, limit // 4) if reserve is None else reserve
    if kept == 0:
        return cap
    room = max(0, limit - kept - closing)
    return room if cap is None else min(cap, room)


def _get(body: Mapping[str, Any], path: str) -> Any:
    node: Any = body
    for word in path.split("."):
        node = node.get(word) if isinstance(node, Mapping) else None
    return node


def _first(body: Mapping[str, Any], paths: Iterable[str], read: Callable[[str, Any], Any]) -> tuple[str, Any] | None:
    """The first field that is set. Later ones are checked all the same: a wrong value is never passed over."""
    found = [(path, read(path, value)) for path in paths if (value := _get(body, path)) is not None]
    return found[0] if found else None


def _number(path: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise FieldError(path, f"{path} must be a whole number of tokens")
    if value == -1 and path in UNLIMITED:
        return 0
    if value < 0:
        raise FieldError(path, f"{path} must not be negative")
    return value


def _word(path: str, value: Any) -> str:
    if not isinstance(value, str) or (value not in CAPS and value not in OFF):
        raise FieldError(path, f"{path} must be one of {', '.join((*OFF, *CAPS))}, not {value!r}")
    return value
