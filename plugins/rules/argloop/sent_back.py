"""Stopped calls that a client sends back in the history: cut short, and counted."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from tandem.core.plugin.rule import UNREADABLE
from tandem.plugins.rules.argloop.repeats import Repeat, repeats_at_end

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LONGEST_UNIT = 8192
"""Longer than what the guard looks for: as JSON text a piece has its escapes besides."""
COPIES, CHARACTERS = 2.5, 512
"""From so many copies over so many characters on the end of a call is cut away."""
SHOWN = 40
"""Characters of the piece that the marker shows."""
TAIL = 300
"""At most so many characters of a client's own remark behind the arguments are kept."""
STAND_IN, REMARK = "invalid", "\nError message:"
"""opencode sends a call that it could not read as one of the tool `invalid`; the argument `error` has the call's text,
and behind it this."""

MARKER = re.compile(
    r"\[Tandem shortened this call of (?P<tool>.{1,64}?): the same (?P<unit>[\d,]+) characters came "
    r"(?P<copies>[\d,]+) times running, [^\n]*It did not run\.\](?:" + REMARK + r"[\s\S]*)?\Z"
)
"""What `_cut` writes at a call's end."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A stopped call."""

    tool: str
    unit: int
    copies: int

    def same(self, other: Stop) -> bool:
        return (self.tool, self.unit) == (other.tool, other.unit)


# ---------------------------------------------------------------------------------------------------------- cutting


def shortened(messages: Seq[Mapping[str, Any]], keep: int) -> list[Mapping[str, Any]] | None:
    """The messages with every stopped call cut to its first `keep` characters and one marker; None when there is none.

    A call counts when its arguments do not parse and end in a repeat. The result that such a call got is cut in the
    same way where it quotes the call.
    """
    told: list[Mapping[str, Any]] = []
    cut: set[Any] = set()
    for message in messages:
        if message.get("role") == "assistant" and message.get("tool_calls"):
            before = message["tool_calls"]
            after = [_cut_call(call, keep) for call in before]
            if any(new is not old for new, old in zip(after, before, strict=True)):
                cut |= {old.get("id") for new, old in zip(after, before, strict=True) if new is not old}
                message = {**message, "tool_calls": after}
        elif message.get("role") == "tool" and message.get("tool_call_id") in cut:
            message = _cut_result(message, keep)
        told.append(message)
    return told if cut else None


def _cut_call(call: Mapping[str, Any], keep: int) -> Mapping[str, Any]:
    """The call itself when there is nothing to cut."""
    function = call.get("function") or {}
    name, sent = str(function.get("name") or "tool"), function.get("arguments")
    arguments: Any = sent
    if isinstance(sent, Mapping):
        arguments = _cut_object(name, sent, keep)
    elif isinstance(sent, str):
        arguments = _cut_text(name, sent, keep)
    return call if arguments is sent else {**call, "function": {**function, "arguments": arguments}}


def _cut_object(name: str, arguments: Mapping[str, Any], keep: int) -> Mapping[str, Any]:
    if name == STAND_IN and isinstance(arguments.get("error"), str):
        tool, key = str(arguments.get("tool") or "tool"), "error"
    elif list(arguments) == [UNREADABLE] and isinstance(arguments[UNREADABLE], str):
        tool, key = name, UNREADABLE
    else:
        return arguments
    value = _cut(arguments[key], keep, tool)
    return arguments if value is None else {**arguments, key: value}


def _cut_text(name: str, arguments: str, keep: int) -> str:
    """Arguments as a client sends them: JSON text, whole or not."""
    if name != STAND_IN and _end(arguments) is None:
        return arguments  # most of them, without being parsed
    value = _read(arguments)
    if value is None:
        return _cut(arguments, keep, name) or arguments
    if name != STAND_IN or not isinstance(value, Mapping):
        return arguments
    cut = _cut_object(name, value, keep)
    return arguments if cut is value else json.dumps(cut, ensure_ascii=False)


def _read(arguments: str) -> Any:
    """The value of a JSON text; None when it is none."""
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return None


def _cut_result(message: Mapping[str, Any], keep: int) -> Mapping[str, Any]:
    if not isinstance(message.get("content"), str):
        return message
    content = _cut(message["content"], keep)
    return message if content is None else {**message, "content": content}


def _cut(text: str, keep: int, tool: str | None = None) -> str | None:
    """The text's first `keep` characters and a marker, a client's remark behind it; None when it does not end in a
    repeat. Without a tool the text is a result and not counted as a stop."""
    at = text.rfind(REMARK)
    # The remark begins behind the full stop that ends the quoted call.
    body, remark = (text, "") if at < 0 else (text[:at].removesuffix("."), text[at : at + TAIL])
    found = _end(body)
    if found is None:
        return None
    left = f"{max(len(body) - keep, 0):,} characters of it are left out here"
    if tool is None:
        return f"{body[:keep]}\n[Tandem: the rest of the quoted call repeats itself; {left}.]{remark}"
    name = " ".join(tool.split())[:64] or "tool"
    begins = json.dumps(body[-found.length :][: min(SHOWN, found.unit)], ensure_ascii=False)
    return (
        f"{body[:keep]}\n[Tandem shortened this call of {name}: the same {found.unit:,} characters came "
        f"{found.copies:,} times running, beginning {begins}; {left}. It did not run.]{remark}"
    )


def _end(text: str) -> Repeat | None:
    """The repeat that a text ends in."""
    return next(repeats_at_end(text, _needed()), None) if len(text) >= CHARACTERS else None


def _needed() -> NDArray[np.int64]:
    import numpy as np

    units = np.arange(1, LONGEST_UNIT + 1)
    needed: NDArray[np.int64] = np.maximum(np.ceil(COPIES * units), np.maximum(CHARACTERS, units + 1)).astype(np.int64)
    return needed


# --------------------------------------------------------------------------------------------------------- counting


def stops_of_turn(messages: Seq[Mapping[str, Any]]) -> list[Stop]:
    """The stops after the last user message, the newest first, back to the newest call that was not stopped."""
    stops: list[Stop] = []
    for message in takewhile(lambda message: message.get("role") != "user", reversed(messages)):
        for call in reversed(message.get("tool_calls") or ()):
            stop = _stop(call)
            if stop is None:
                return stops
            stops.append(stop)
    return stops


def streak(stops: Seq[Stop]) -> int:
    """How many of the newest stops are the same."""
    return sum(1 for _ in takewhile(lambda stop: stop.same(stops[0]), stops))


def _stop(call: Mapping[str, Any]) -> Stop | None:
    function = call.get("function") or {}
    sent = function.get("arguments")
    if isinstance(sent, str) and function.get("name") == STAND_IN:
        sent = _read(sent)
    if isinstance(sent, Mapping):
        sent = sent.get("error" if function.get("name") == STAND_IN else UNREADABLE)
    found = MARKER.search(sent) if isinstance(sent, str) else None
    return found and Stop(found["tool"], _number(found["unit"]), _number(found["copies"]))


def _number(text: str) -> int:
    return int(text.replace(",", ""))
