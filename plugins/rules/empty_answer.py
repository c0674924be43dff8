"""Sees to it that a turn ends with an answer: lets the model go on where it stopped before it said anything."""

from __future__ import annotations

import json
import re

from tandem.core.plugin import (
    Action,
    FinishEvent,
    Rule,
    SafePoint,
    Supervision,
    Task,
    Tool,
    WrittenCall,
    hookimpl,
    option,
)

TANDEM_API = ">=0.2,<0.3"

PLACES = 8
"""So many places where the last calls might begin are tried, the last first."""
OPENER = re.compile(r"<\w[^>\s]*>?|\[[A-Z_]+\]")
"""What a block of calls begins with, in the notations that have such a mark."""

DOC = """\
Sees to it that a turn ends with an answer: lets the model go on where it stopped before it said anything.

## Why

A model that thinks sometimes ends its turn too soon: inside its reasoning, or right behind it, or with its tool call
written as the last thought. The client gets an empty message. A person asks again; an agent takes it for the end of the
work and stops.

## When it acts

At the end of a turn that has neither text nor calls, when the model ended it itself:

* The reasoning was never closed: it is closed with `close_text`, hidden, and the model answers.
* The reasoning ends in complete calls, nothing but blanks behind them, and each names a tool that the request offers:
  the reasoning is closed and the calls are the answer, as the model wrote them. Nothing is generated in between. A call
  that can't be read or names another tool is none: then it is one of the other two.
* Else the model reads `nudge`, hidden, as a user's message, and answers. The second time it reads `second_nudge`.

After `tries` of these in one request the client reads `give_up_text`. A turn that a limit or a stop string ended can't
go on; that is journaled only. An empty answer that a grammar allows, and one of a plain completion, is an answer.

The reasons in the journal: `calls(N)` with the number of calls; `inside(N)`, `empty(N)`, `empty_again(N)` and
`gave_up(N)`, N being the try; `cut(length)` where nothing could be done.

## Parameters

See the table.

## Example

    rules:
      empty_answer: {mode: act, tries: 1}
"""


def check(event: FinishEvent, task: Task, sup: Supervision) -> Action | None:
    if event.calls or event.answer.strip():
        return None
    if not event.inside and (sup.request.constrained or not sup.request.messages):
        return None
    if not event.ended:
        return Action.passed(f"cut({event.reason})", inside=event.inside)
    tries = sup.memo.get("tries", 0)
    if tries >= task.params["tries"]:
        return Action.give_up(task.params["give_up_text"], f"gave_up({tries})", inside=event.inside)
    sup.memo["tries"] = tries + 1
    detail = {"try": tries + 1, "reasoning_tokens": event.reasoning_tokens}
    calls, written = last_calls(event.reasoning, sup) if sup.request.tools and not sup.request.constrained else ([], "")
    if calls and all(offered(call, sup.request.tools) for call in calls):
        return Action.go_on("", f"calls({len(calls)})", then=written, case="C", **detail)
    if event.inside:
        return Action.go_on(task.params["close_text"], f"inside({tries + 1})", case="A", **detail)
    nudges = sup.memo.get("nudges", 0)
    sup.memo["nudges"] = nudges + 1
    text = task.params["second_nudge" if nudges else "nudge"]
    word = "empty_again" if nudges else "empty"  # another word: the same action twice in a row is not done
    return Action.go_on(text, f"{word}({tries + 1})", case="B", **detail)


def last_calls(reasoning: str, sup: Supervision) -> tuple[list[WrittenCall], str]:
    """The calls that a reasoning ends in, and their text as it was written.

    Empty when something else stands behind them, or when a block that looks like a call and is none stands anywhere.
    The notation is the format's business: what `read_calls` leaves over ends where the last calls begin.
    """
    found, left = sup.read_calls(reasoning)
    left = left.rstrip()
    if not found:  # a notation that has calls only at an answer's very beginning: they may begin with any line
        starts = [line.start() for line in re.finditer(r"^", reasoning, re.MULTILINE)][: -PLACES - 1 : -1]
    elif reasoning.startswith(left):
        starts = [len(left)]
    else:  # there are calls in the middle too: the last ones begin behind the last word that is left over
        word = re.escape(left.split()[-1])
        starts = [place.end() for place in re.finditer(word, reasoning)][: -PLACES - 1 : -1]
    for start in starts:
        written = reasoning[start:].strip()
        calls, behind = sup.read_calls(written)
        if calls and not behind.strip():
            opener = OPENER.match(written)
            unread = left if found else reasoning[:start]
            return ([], "") if opener and opener[0] in unread else (calls, written)
    return [], ""


def offered(call: WrittenCall, tools: tuple[Tool, ...]) -> bool:
    """Whether the call is whole, has an object of arguments, and names a tool of the request."""
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return False
    return call.done and isinstance(arguments, dict) and call.name in {tool.name for tool in tools}


@hookimpl
def tandem_rules() -> list[Rule]:
    return [
        Rule(
            "empty_answer",
            at=SafePoint.SP2,
            check=check,
            doc=DOC,
            params={
                "tries": option("integer", "How often a request is made to go on.", 2, minimum=0),
                "close_text": option(
                    "string",
                    "The last thought that closes an open reasoning; the model reads it as its own.",
                    "I have thought about this enough. Now I will write the answer.",
                ),
                "nudge": option(
                    "string",
                    "What the model reads behind an empty answer.",
                    "Your last message was empty. Please write your answer now, or call the tool that you need next.",
                ),
                "second_nudge": option(
                    "string",
                    "What it reads the second time.",
                    "Your message was empty again. Please say in a few sentences what you found, what is done, and "
                    "what is still open.",
                ),
                "give_up_text": option(
                    "string",
                    "What the client reads when nothing helped.",
                    "[Tandem: the model ended its turn without an answer, and asking it again did not help. Please "
                    "repeat or rephrase the last message.]",
                ),
            },
        )
    ]
