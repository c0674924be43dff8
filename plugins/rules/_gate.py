"""What the rules of the tool gate share: how a finding is answered, and what a user's message asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence as Seq
from typing import Any

from tandem.core.plugin import Action, RequestEvent, Task, ToolCallEvent, option
from tandem.core.plugin.rule import MODE, canonical, text_of
from tandem.core.plugin.tools import read_json

SHADOW: Mapping[str, Any] = {**MODE, "default": "shadow"}
"""The `mode` of a rule that only journals until it is told to act."""

PLACEHOLDER = re.compile(r"\{(\w+)\}")
NEGATIONS = re.compile(
    r"\b(?:no|not|never|without|avoid|instead of|rather than|stop|nicht|nie|niemals|kein\w*|ohne|statt)\b|n['’]t\b",
    re.IGNORECASE,
)
SENTENCE_END = re.compile(r"[.!?;]\s|\n")


def text_option(sentence: str, default: str, *placeholders: str) -> dict[str, Any]:
    """A text as a parameter. `{name}` in it is filled in where it is one of the placeholders."""
    filled = ", ".join(f"`{{{name}}}`" for name in placeholders)
    return option("string", f"{sentence} {filled} are filled in." if placeholders else sentence, default, minLength=1)


def fill(text: str, **values: object) -> str:
    """`text` with its known placeholders filled in; every other brace stays as it is."""
    return PLACEHOLDER.sub(lambda found: str(values[found[1]]) if found[1] in values else found[0], text)


def again(
    event: ToolCallEvent, task: Task, reason: str, fallback: str = "give_up", text: str = "text", **values: object
) -> Action:
    """Let the calls be written again with the task's `text`. Where nothing can be written again the answer ends with
    its `give_up`, which goes along as `give_up` in the detail for a supervisor that has to fall back."""
    parting = fill(task.params["give_up"], name=event.name or "tool", **values)
    if event.final and fallback == "give_up":
        return Action.give_up(parting, reason)
    reminder = fill(task.params[text], name=event.name or "tool", **values)
    return Action.regenerate_call(reminder, reason, fallback, give_up=parting)


def call_key(name: str | None, written: str) -> tuple[str, str]:
    """What `PastCall.key` is, for a call that was just written."""
    try:
        value = read_json(written or "{}")
    except ValueError:
        return name or "", written
    return name or "", canonical(value) if isinstance(value, dict) else written


def place_of(event: ToolCallEvent) -> int:
    """The place of the event's call among the answer's readable calls; 0 when it is not there. `index` counts the
    blocks that could not be read too, so it is only the place where there are none."""
    key, keys = call_key(event.name, event.written), [call_key(call.name, call.arguments) for call in event.calls]
    if event.index < len(keys) and keys[event.index] == key:
        return event.index
    return keys.index(key) if key in keys else 0


# ------------------------------------------------------------------------------------------------ what is asked for


def asked(request: RequestEvent) -> str:
    """The text of the user's messages that this turn answers, each run of whitespace one blank."""
    texts: list[str] = []
    for message in reversed(request.messages):
        if message.get("role") == "user":
            texts.append(text_of(message))
        elif texts:
            break
    return "\n".join(" ".join(text.split()) for text in reversed(texts))


def asks_for(text: str, words: Seq[str]) -> bool:
    """Whether one of `words`, commands or paths, stands literally in a user's text: as a whole, in a sentence without a
    negation. One plain word (`reboot`) asks only as the whole message or in quotes: it may be any word of a sentence.
    """
    return any(not NEGATIONS.search(before) for word in words for before in _before(text, " ".join(word.split())))


def _before(text: str, word: str) -> Iterator[str]:
    """What stands in front of each place of `word`, back to the beginning of the sentence."""
    if not word:
        return
    for found in re.finditer(rf"(?<![\w/~.\-]){re.escape(word)}(?=$|[\s`'\"),;:!?]|\.(?:\s|$))", text, re.IGNORECASE):
        around = text[: found.start()][-1:] + text[found.end() :][:1]
        if not word.isalpha() or around in ("", "``", "''", '""'):
            yield SENTENCE_END.split(text[: found.start()])[-1]
