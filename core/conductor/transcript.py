"""A session's journal as a page to read: what the model read that the client did not, where, when and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence as Seq
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

POINTS = {
    "sp4": "before the prompt was read",
    "sp1": "while it was written",
    "sp2": "at its end",
    "sp3": "at its calls",
    "watch": "from outside",
    "label": "at its results",
}
"""A safe point in words, seen from the answer."""


def page(session: str, entries: Seq[Mapping[str, Any]]) -> str:
    """Markdown. `entries` are all of one session's, oldest first."""
    hidden = [entry for entry in entries if entry["hidden"] and entry["done"]]
    tokens = sum(entry["hidden_tokens"] for entry in entries)
    acts = sum(1 for entry in entries if entry["done"])
    lines = [
        f"# Session {session}",
        "",
        f"{_count(len(entries), 'decision')}, {acts} of them done. The model read {_count(len(hidden), 'text')} "
        f"({_count(tokens, 'token')}) that the client did not see.",
    ]
    for (_, _), group in groupby(entries, key=lambda entry: (entry["answer"], entry["request"])):
        lines += ["", *_request(list(group))]
    return "\n".join(lines) + "\n"


def _request(entries: Seq[Mapping[str, Any]]) -> Iterable[str]:
    first = entries[0]
    yield f"## {first['answer'] or 'Request ' + str(first['request'])}, {_time(first['time'])}"
    yield ""
    if first["finish_reason"]:
        ended = f"It ended with `{first['finish_reason']}` after {_count(first['completion_tokens'] or 0, 'token')}"
        yield ended + (f"; the next check said {first['next_checker']}." if first["next_checker"] else ".")
    else:
        yield "It had not ended when this was written."
    for entry in entries:
        yield from _decision(entry)


def _decision(entry: Mapping[str, Any]) -> Iterable[str]:
    what = "done" if entry["done"] else "not done" if entry["mode"] == "act" else entry["mode"] or "not done"
    place = POINTS.get(entry["point"], entry["point"])
    if entry["position"]:
        place += f", {_count(entry['position'], 'token')} in"
    yield ""
    yield f"- {_clock(entry['time'])} `{entry['task'] or entry['rule']}` {place}: **{entry['action']}**, {what}"
    if entry["reason"]:
        yield f"  - why: {entry['reason']}"
    if entry["reasoning_tokens"]:
        yield f"  - after {_count(entry['reasoning_tokens'], 'token')} of reasoning"
    if entry["hidden"]:
        if entry["done"]:
            yield f"  - hidden from the client ({_count(entry['hidden_tokens'], 'token')}):"
        else:
            yield "  - the model would have read, hidden from the client:"
        yield ""
        fence = "`" * max(3, _longest_fence(entry["hidden"]) + 1)
        yield f"    {fence}text"
        yield from (f"    {line}" for line in entry["hidden"].strip("\n").split("\n"))
        yield f"    {fence}"


def _longest_fence(text: str) -> int:
    """The longest row of backticks."""
    return max((len(list(run)) for character, run in groupby(text) if character == "`"), default=0)


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S")
