"""S5: a session that works long gets a note: write something, come to an end, or leave the point it is stuck at."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence as Seq
from typing import Any

from tandem.core.plugin import Action, RequestEvent, Rule, SafePoint, Supervision, Task, hookimpl, option
from tandem.core.plugin.rule import canonical, text_of
from tandem.plugins.rules._gate import fill, text_option
from tandem.plugins.rules._work import can_write, digest, is_work, may_note, new_deeds, was_compacted

TANDEM_API = ">=0.2,<0.3"

DOC = """Notes to the model, in a long stretch of work, to write a first version, come to an end, or stop repeating.

## Why

An agent may plan and explore for ten minutes before it writes a line; or have a working result and go on with its own
test rig, without a word to the user; or write the same finding again and again between its calls. The user sees a
session that works and gets nothing.

## When it acts

In a session with tools that can write a file, with or without a state file. A stretch of work begins with the user's
message and ends with the next one; what a client puts between the calls by itself (a tool's picture, the message after
a compaction) ends none. Three notes, each at most once a stretch and one in a request:

* **first write**: nothing was written in the session, and the stretch has `first_write_min` minutes or
  `first_write_calls` calls.
* **wrap up**: `wrap_up_min` minutes after the stretch's first written file the user still has no answer.
* **repeat**: the first clause of the assistant's newest message is the first clause of `repeat` of its messages in the
  stretch. Clauses are compared as hashes, without case and blanks; those with fewer than `lead_words` words, and those
  that only announce (`announcing`), do not count.

## Parameters

See the table. `wrap_up` may use {minutes}, `first_write` {minutes} and {calls}, `again` {times}.

## Example

A game works after a few minutes. The model then tunes its own playtest bot and begins seven messages with the same
finding. It reads the wrap-up note after 12 minutes more, and at the third such message the repeat note.
"""

LONGEST_LEAD = 200
KEPT = 32
"""So many repeated leads of a stretch are known."""

PARAMS = {
    "first_write_min": option("number", "Minutes without anything written.", 3, exclusiveMinimum=0),
    "first_write_calls": option("integer", "Calls without anything written.", 30, minimum=1),
    "wrap_up_min": option("number", "Minutes after the first written file without an answer.", 12, exclusiveMinimum=0),
    "repeat": option("integer", "So many messages with the same first clause.", 3, minimum=2),
    "lead_words": option("integer", "A first clause needs so many words to count.", 4, minimum=1),
    "announcing": option(
        "string",
        "A regular expression: a first clause that begins with it only announces a step. Empty: none does.",
        r"(?:(?:ok(?:ay)?|good|great|perfect|now|next|then|first|so|and|alright)\W+)*"
        r"(?:let me|let['’]?s|let us|i['’]ll|i will|i['’]m going|i am going|i need to|i should|i can|i have to|time to"
        r"|(?:now|next|then|first)\b)",
        format="regex",
    ),
    "first_write": text_option(
        "The hidden note when nothing was written yet.",
        "You have worked for {minutes} minutes and {calls} calls and have not written anything. If the task asks for a "
        "file or a change, write a first simple version of it now and improve it afterwards. If it asks for an answer "
        "only, answer with what you know.",
        "minutes",
        "calls",
    ),
    "wrap_up": text_option(
        "The hidden note when the user has waited long for an answer.",
        "The first result has existed for {minutes} minutes and the user has not heard from you. If it does what was "
        "asked, stop here and answer: what you made, how to use it, what is not done or not tested. Otherwise finish "
        "the one thing that is missing, and then answer. Leave side tools and fine tuning alone.",
        "minutes",
    ),
    "again": text_option(
        "The hidden note when the messages begin alike.",
        "{times} of your messages since the user's request begin with the same finding. What you try does not move it. "
        "Test the assumption behind it in another way, or leave it: tell the user how far you came and what is open.",
        "times",
    ),
}


def check(event: RequestEvent, task: Task, sup: Supervision) -> Action | None:
    data = sup.session.data
    shortened = was_compacted(event, data)
    if not is_work(event) or not can_write(event):
        return None
    _follow(event, data, sup.now, shortened)
    note = next(_notes(event, task, data, sup.now), None) if may_note(task, sup) else None
    if note is not None:
        _mark(data, note)
    return note


# ---------------------------------------------------------------------------------------------------- the stretch


def _follow(event: RequestEvent, data: MutableMapping[str, Any], now: float, shortened: bool) -> None:
    """Bring the stretch up to date: when it began, its calls, its first written file. The message behind a compaction
    is the client's own."""
    opening = _opening(event.messages)
    if opening is not None and opening != data.get("opening"):
        data["opening"] = opening
        if not shortened:
            data.update(began=now, calls=0, written=None, noted=[], leads=[])
    data.setdefault("began", now)
    for _, did in new_deeds(event):
        data["calls"] = data.get("calls", 0) + 1
        if did.writes:
            data["wrote"] = True
            if data.get("written") is None:
                data["written"] = now


def _opening(messages: Seq[Mapping[str, Any]]) -> str | None:
    """A hash that is a user's new message's own; None when the request ends in something else."""
    if not messages or messages[-1].get("role") != "user" or _by_client(messages, len(messages) - 1):
        return None
    count = sum(message.get("role") == "user" for message in messages)
    return digest(canonical([count, text_of(messages[-1])]))


def _by_client(messages: Seq[Mapping[str, Any]], place: int) -> bool:
    """A user's message that only brings the picture of the tool result before it."""
    content = messages[place].get("content")
    if place == 0 or messages[place - 1].get("role") != "tool" or not isinstance(content, list):
        return False
    return any(isinstance(part, Mapping) and part.get("type") != "text" for part in content)


def stretch(messages: Seq[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages after the user's last one."""
    ends = (place for place in reversed(range(len(messages))) if messages[place].get("role") == "user")
    last = next((place for place in ends if not _by_client(messages, place)), -1)
    return list(messages[last + 1 :])


# ------------------------------------------------------------------------------------------------------ the notes


def _notes(event: RequestEvent, task: Task, data: Mapping[str, Any], now: float) -> Iterator[Action]:
    """The notes that are due, the most telling first."""
    params, noted = task.params, data.get("noted", [])
    minutes, calls, written = (now - data["began"]) / 60, data.get("calls", 0), data.get("written")
    lead, times = repeated(event.messages, params)
    if times >= params["repeat"] and lead not in data.get("leads", []):
        yield Action.tail_note(fill(params["again"], times=times), f"repeat({times})", lead=lead)
    if written is not None and "wrap_up" not in noted and (now - written) / 60 >= params["wrap_up_min"]:
        since = (now - written) / 60
        text = fill(params["wrap_up"], minutes=f"{since:.0f}")
        yield Action.tail_note(text, f"wrap_up({since:.1f} min)", minutes=round(minutes, 1))
    long = calls > 0 and (minutes >= params["first_write_min"] or calls >= params["first_write_calls"])
    if long and not data.get("wrote") and "first_write" not in noted:
        text = fill(params["first_write"], minutes=f"{minutes:.0f}", calls=calls)
        yield Action.tail_note(text, f"first_write({minutes:.1f} min)", minutes=round(minutes, 1), calls=calls)


def _mark(data: MutableMapping[str, Any], note: Action) -> None:
    """Remember that a note was given."""
    if "lead" in note.detail:
        data["leads"] = [*data.get("leads", []), note.detail["lead"]][-KEPT:]
    else:
        data["noted"] = [*data.get("noted", []), note.reason.partition("(")[0]]


def repeated(messages: Seq[Mapping[str, Any]], params: Mapping[str, Any]) -> tuple[str, int]:
    """The lead of the assistant's newest message as a hash, and how many of the stretch's messages have it."""
    said = [message for message in stretch(messages) if message.get("role") == "assistant"]
    told = [text for text in map(text_of, said) if text.strip()]
    newest = lead_of(told[-1], params) if told and text_of(said[-1]).strip() else ""
    if not newest:
        return "", 0
    return digest(newest), sum(lead_of(text, params) == newest for text in told)


CLAUSE_END = re.compile(r"[.!?;:,](?=\s|$)|\n|\s[-–—]\s")


def lead_of(text: str, params: Mapping[str, Any]) -> str:
    """A message's first clause, without case, blanks and marks around it; empty when it does not count."""
    start = text.lstrip(" \t\r\n*_#>`-")[:LONGEST_LEAD]
    found = CLAUSE_END.search(start)
    lead = " ".join(start[: found.start() if found else None].casefold().split()).strip("*_`\"' ")
    announces = params["announcing"] and re.match(params["announcing"], lead)
    return "" if announces or len(lead.split()) < params["lead_words"] else lead


@hookimpl
def tandem_rules() -> list[Rule]:
    return [Rule("deliver", SafePoint.SP4, check, PARAMS, DOC)]
