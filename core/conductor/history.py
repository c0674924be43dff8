"""The tool calls of a conversation, as its messages tell them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence as Seq
from dataclasses import replace
from typing import Any

from tandem.core.plugin.rule import UNREADABLE, PastCall, canonical, text_of


def past_calls(messages: Seq[Mapping[str, Any]]) -> list[PastCall]:
    """Every call of the assistant's messages, oldest first, each with the result that a later tool message brings.

    A result belongs to the call of its id; one without an id, or with an unknown one, to the oldest call that waits.
    """
    found: list[PastCall] = []
    for message in messages:
        if message.get("role") == "assistant":
            calls = enumerate(message.get("tool_calls") or (), len(found))
            found += [_call(call, f"#{place}") for place, call in calls]
        elif message.get("role") == "tool":
            waiting = [place for place, call in enumerate(found) if call.result is None]
            named = [place for place in waiting if found[place].id == message.get("tool_call_id")]
            for place in (named or waiting)[:1]:
                found[place] = replace(found[place], result=text_of(message))
    return found


def calls_of_turn(messages: Seq[Mapping[str, Any]], calls: Seq[PastCall]) -> tuple[PastCall, ...]:
    """Those of `calls`, which are all of the conversation's, that were made after the last user message."""
    count = 0
    for message in reversed(messages):
        if message.get("role") == "user":
            break
        if message.get("role") == "assistant":
            count += len(message.get("tool_calls") or ())
    return tuple(calls[len(calls) - count :])


def _call(call: Mapping[str, Any], place: str) -> PastCall:
    function = call.get("function") or {}
    arguments, written = _arguments(function.get("arguments"))
    return PastCall(str(call.get("id") or place), str(function.get("name") or ""), arguments, written, None)


def _arguments(sent: Any) -> tuple[Mapping[str, Any] | None, str]:
    if isinstance(sent, str):
        try:
            value = json.loads(sent or "{}")
        except (ValueError, RecursionError):
            return None, sent
    else:
        value = {} if sent is None else sent
    if not isinstance(value, Mapping):
        return None, str(sent)
    if list(value) == [UNREADABLE]:
        return None, str(value[UNREADABLE])
    return value, canonical(value)
