"""Stops a tool call whose arguments run in a loop, and the client's retries of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping, Sequence as Seq
from typing import Any

from tandem.core.plugin import (
    Action,
    BlockEvent,
    OpenCall,
    RequestEvent,
    Rule,
    SafePoint,
    Supervision,
    Task,
    hookimpl,
    option,
)
from tandem.plugins.rules.argloop.guard import Loop, longest_message, oversized, periodic
from tandem.plugins.rules.argloop.sent_back import STAND_IN, Stop, shortened, stops_of_turn, streak

TANDEM_API = ">=0.2,<0.3"

DOC = """\
Stops a tool call whose arguments run in a loop, and the retries that run into the same loop again.

## Why

A model that writes a file with many equal rows, a tile map or a sprite, may never stop writing that row. The call does
not close, nothing is written, and the cut text goes back into the next prompt, where it invites the model to do the
same again. Rules that watch the reasoning or the answer do not see it: the loop is inside a call.

## When it acts

* While a call is written, every `every` tokens: its end is one piece of at most `longest_unit` characters, `copies`
  times over at least `tokens` tokens; or a piece of `long_unit` characters or more, `long_copies` times over
  `long_tokens` tokens. Copies count when they are equal to the last character. A call longer than `size_tokens` and
  `size_ratio` times the longest message of the request (at 3.5 characters a token) is also stopped when its last 16 KB
  compress `size_squeeze` times. The answer ends with one sentence; a call that was being streamed stays unclosed, so it
  can't run.
* The session's next request with tools gets a hidden note that says what was stopped and how to go on.
* A stopped call that the client sends back is cut to its first `keep` characters and one marker before anything reads
  the conversation; the markers behind the last user message are the retries. After `same_stops` stops in a row of one
  tool with one piece, or `stops` of one tool, the next answer is not generated: the client reads one sentence without
  a call, and its tool loop ends.

## Parameters

See the table. Texts may use {tool}, {tokens}, {unit}, {copies}, {times} and {what} (what the arguments did).

## Example

A model opens a write call, writes 3 KB of a game and then one 97-character row over and over. The call is stopped
about 1,050 tokens after the loop began, and the client reads
`[Tandem broke off a call of write that had run to 2,176 tokens, because the same 97 characters came 211 times running.
All of it was thrown away.]`

How the numbers were chosen: [the guard measured](rules/argloop.md).
"""

NAME = 64
"""Characters of a tool's name that a text shows."""

PARAMS = {
    "every": option("integer", "A call is looked at every so many tokens.", 64, minimum=1),
    "longest_unit": option("integer", "The longest piece that is recognised, in characters.", 4096, minimum=1),
    "copies": option("integer", "So many copies of a piece make a loop ...", 6, minimum=2),
    "tokens": option("integer", "... when they are at least so many tokens together.", 1024, minimum=256),
    "long_unit": option("integer", "A piece of so many characters is a long one.", 256, minimum=1),
    "long_copies": option("integer", "So many copies of a long piece make a loop ...", 3, minimum=2),
    "long_tokens": option("integer", "... when they are at least so many tokens together.", 384, minimum=256),
    "size_tokens": option("integer", "The size rule looks at calls of more tokens than this.", 32_768, minimum=1),
    "size_ratio": option("number", "And longer than so many times the request's longest message.", 3.0, minimum=0),
    "size_squeeze": option("number", "How many times smaller zlib makes the end of such a call.", 16.0, minimum=1),
    "keep": option("integer", "Characters that are kept of a stopped call in the history.", 1500, minimum=0),
    "same_stops": option("integer", "So many equal stops in a row end the retries.", 2, minimum=1),
    "stops": option("integer", "So many stops of one tool end the retries, equal or not.", 3, minimum=1),
    "text": option(
        "string",
        "What the client reads instead of a call of which nothing was sent.",
        "[Tandem broke off a call of {tool} that had run to {tokens} tokens, because {what}. All of it was thrown "
        "away.]",
    ),
    "text_streamed": option(
        "string",
        "What the client reads behind a call that was being sent.",
        "[Tandem broke off a call of {tool} that had run to {tokens} tokens, because {what}. Unfinished as it is, it "
        "can't run.]",
    ),
    "note": option(
        "string",
        "The hidden note to the model in the next request.",
        "Your last {tool} call was stopped while you wrote it, and it did not run: {what}. Do it again without writing "
        "the repetition out. Let code produce repeated rows or values (a loop, a repeat function), and write a large "
        "file in several smaller calls.",
    ),
    "note_again": option(
        "string",
        "The hidden note after the same loop came again.",
        "Your {tool} call ran into the same loop as before and was stopped again; none of these calls ran: {what}. The "
        "same attempt will end the same way, so change the approach. Do not write the repeated part at all: write a "
        "short program or loop that produces it, or begin with a small part of the file and add to it step by step.",
    ),
    "retry_text": option(
        "string",
        "What the client reads when the retries end.",
        "[Tandem does not go on with the {tool} call: {times} attempts ran into a loop ({what}) and were stopped "
        "before anything ran. Ask again with a smaller step: have the file written in parts, or the repeated rows "
        "produced by code{thinking}.]",
    ),
    "thinking_hint": option(
        "string",
        "What {thinking} in `retry_text` becomes when the client has turned reasoning off; otherwise it is nothing.",
        ", or turn reasoning on, which is off in this chat",
    ),
}


def check(event: BlockEvent | RequestEvent, task: Task, sup: Supervision) -> Action | None:
    if isinstance(event, RequestEvent):
        return before_the_answer(event, task, sup)
    if event.call is None:
        sup.memo.clear()
        return None
    return while_written(event.call, task, sup)


# ------------------------------------------------------------------------------------------------ SP1: while written


def while_written(call: OpenCall, task: Task, sup: Supervision) -> Action | None:
    """Looks at the open call when it is due; a call that was found once is left alone."""
    memo, params = sup.memo, task.params
    if call.tokens < memo.get("tokens", 0):  # another call
        memo.clear()
    memo["tokens"] = call.tokens
    if call.tokens < memo.get("due", params["long_tokens"]):
        return None
    memo["due"] = call.tokens + params["every"]
    loop = periodic(call, params, sup.tokens) or _oversized(call, task, sup)
    if loop is None:
        return None
    memo["due"] = float("inf")
    tool = _shown(call.name)
    if task.mode == "act":
        _remember(sup.session.data, Stop(tool, loop.unit, loop.copies))
    text = params["text_streamed" if call.streamed else "text"]
    counts = {"tokens": loop.tokens, "unit": loop.unit, "copies": loop.copies}
    reason = f"tool_arg_loop({loop.unit}x{loop.copies})" if loop.unit else f"tool_arg_size({loop.tokens})"
    return Action.give_up(_filled(text, tool=tool, what=_what(loop), **counts), reason, tool=tool, **counts)


def _oversized(call: OpenCall, task: Task, sup: Supervision) -> Loop | None:
    if call.tokens <= task.params["size_tokens"]:
        return None
    if "longest" not in sup.memo:
        sup.memo["longest"] = longest_message(sup.request.messages)
    return oversized(call, task.params, sup.memo["longest"])


def _remember(data: MutableMapping[str, Any], stop: Stop) -> None:
    """For the session's next request: what was stopped, and how often in a row."""
    last = _last(data)
    again = data.get("again", 0) + 1 if last is not None and last.same(stop) else 0
    data.update(tool=stop.tool, unit=stop.unit, copies=stop.copies, again=again, owed=True)


def _last(data: Mapping[str, Any]) -> Stop | None:
    return Stop(data["tool"], data["unit"], data["copies"]) if "tool" in data else None


# ------------------------------------------------------------------------------------------- SP4: before the answer


def before_the_answer(event: RequestEvent, task: Task, sup: Supervision) -> Action | None:
    """The note after a stop, or the end of the retries."""
    if not event.tools or event.side is not None:
        return None
    data, params = sup.session.data, task.params
    owed, last, again = data.pop("owed", False), _last(data), data.get("again", 0)
    if any(call.arguments is not None and call.name != STAND_IN for call in event.new_calls):
        # A call ran: what is stopped later is stopped for the first time.
        data.clear()
    stops = stops_of_turn(event.messages)
    if stops:
        last, again = stops[0], max(streak(stops) - 1, again)
        if _over(stops, params):
            return _end_of_retries(event, task, stops)
    elif not owed:
        return None
    assert last is not None
    text = params["note_again" if again else "note"]
    what = _what(Loop(0, last.unit, last.copies))
    counts = {"unit": last.unit, "copies": last.copies}
    reason = f"tool_arg_loop_note({again + 1})"
    return Action.tail_note(_filled(text, tool=last.tool, what=what, **counts), reason, tool=last.tool, **counts)


def _over(stops: Seq[Stop], params: Mapping[str, Any]) -> bool:
    of_tool = sum(stop.tool == stops[0].tool for stop in stops)
    return streak(stops) >= params["same_stops"] or of_tool >= params["stops"]


def _end_of_retries(event: RequestEvent, task: Task, stops: Seq[Stop]) -> Action:
    last, times = stops[0], sum(stop.tool == stops[0].tool for stop in stops)
    hint = task.params["thinking_hint"] if event.thinking_asked is False else ""
    text = _filled(
        task.params["retry_text"],
        tool=last.tool,
        what=_what(Loop(0, last.unit, last.copies)),
        times=times,
        unit=last.unit,
        copies=last.copies,
        thinking=hint,
    )
    return Action.give_up(text, f"tool_arg_loop_retries({times})", tool=last.tool, unit=last.unit, times=times)


# ------------------------------------------------------------------------------------------------------------- texts


def _what(loop: Loop) -> str:
    if not loop.unit:
        return "it had grown far beyond the request and went on with nearly the same"
    return f"the same {loop.unit:,} characters came {loop.copies:,} times running"


def _filled(text: str, **values: str | int) -> str:
    """The text with each known `{word}` replaced; any other brace stays."""
    shown = {name: f"{value:,}" if isinstance(value, int) else value for name, value in values.items()}
    return re.sub(r"\{(\w+)\}", lambda found: shown.get(found[1], found[0]), text)


def _shown(name: str) -> str:
    return " ".join(name.split())[:NAME] or "tool"


def rewrite(messages: Seq[Mapping[str, Any]], task: Task) -> Seq[Mapping[str, Any]] | None:
    """Stopped calls of the history, cut."""
    return shortened(messages, task.params["keep"])


@hookimpl
def tandem_rules() -> list[Rule]:
    return [
        Rule(
            "argloop",
            at=(SafePoint.SP1, SafePoint.SP4),
            check=check,
            params=PARAMS,
            doc=DOC,
            rewrite=rewrite,
        )
    ]
