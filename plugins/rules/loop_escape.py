"""SP4: a turn that repeats a call is decoded by drawing instead of greedily, with a note, until it has left the loop.

The state is the one that `same_call` reads, or the weaker one of nearly identical calls (`_streak.near_run`). It is
read off each request anew; the session only remembers that the last one was in it.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from tandem.core.plugin import Action, RequestEvent, Rule, SafePoint, Supervision, Task, hookimpl, option
from tandem.plugins.rules._gate import fill
from tandem.plugins.rules._streak import near_run, run_length

TANDEM_API = ">=0.2,<0.3"

DOC = """Draws the next step with the checkpoint's recommended sampling, and says so, while a turn repeats a call.

## Why

Greedy decoding gives the same text for the same situation. A turn that ends in the same call with the same result for
the second time is the same situation, and only something else than the likeliest token leads out of it.

## When it acts

Before the prefill of a request that offers tools, when its turn ends in a repeat: `repeats` - 1 identical calls with
identical results, or `near` calls of one tool with identical results, each earlier one's arguments at least `alike`
similar to the newest's (twice the longest common subsequence of the two JSON texts, divided by their lengths). Waits
and user messages end the run as they do for `same_call`; calls with different arguments that bring different results
are progress, and no result is read.

The request is drawn with the sampling that the checkpoint recommends and a fresh seed, and reads one of `notes` at the
end of its prompt: the first on the first such request in a row, and so on; behind the last, none. A client that names a
sampling of its own keeps it and is left alone, and so are side requests. The first request of the session that is
looked at and no longer ends in a repeat is journaled as `back`; the default holds again.

## Parameters

See the table.

## Example

Two identical `grep` calls without a match: the third step is drawn at the temperature that the checkpoint recommends,
and the model has read that the call will bring nothing new.
"""

PARAMS = {
    "repeats": option("integer", "One call fewer than this many in a row, with one result, is a repeat.", 3, minimum=2),
    "near": option("integer", "This many nearly identical calls with one result are a repeat too.", 3, minimum=2),
    "alike": option(
        "number", "How similar nearly identical arguments are at least.", 0.8, exclusiveMinimum=0, maximum=1
    ),
    "wait_s": option(
        "number",
        "A call whose result took this many seconds or longer was a wait; it ends the run.",
        10,
        exclusiveMinimum=0,
    ),
    "notes": option(
        "array",
        "What the model reads at the end of the prompt: on the first request in a row the first of these, then the "
        "next. `{name}`, `{count}` are filled in.",
        [
            "Note: the last {count} calls of {name} were the same and brought the same result. Calling it like that "
            "again will change nothing. Say in one sentence what the result tells you, then take another way: other "
            "arguments, another tool, or the answer.",
            "Note: {name} was called in the same way again and still brings the same result. Leave this approach: "
            "list what you have not looked at yet, and do that next. If nothing is left, answer with what you know.",
        ],
        items={"type": "string", "minLength": 1},
    ),
}


def check(event: RequestEvent, task: Task, sup: Supervision) -> Action | Seq[Action] | None:
    if event.sampling_asked or event.regenerated or event.side is not None or not event.tools:
        return None
    remembered = sup.session.data
    why = _why(event, task)
    if why is None:
        requests = remembered.pop("requests", 0)
        return Action.passed("back", requests=requests) if requests else None
    reason, count = why
    place = remembered.get("requests", 0)
    remembered["requests"] = place + 1
    actions = [Action.sample(reason)]
    if place < len(task.params["notes"]):
        text = fill(task.params["notes"][place], name=event.turn_calls[-1].name, count=count)
        actions.append(Action.tail_note(text, reason, place=place))
    return actions


def _why(event: RequestEvent, task: Task) -> tuple[str, int] | None:
    """The reason and how many calls are alike; None when the turn does not end in a repeat."""
    params = task.params
    count = run_length(event.turn_calls, params["wait_s"])
    if count >= params["repeats"] - 1:
        return f"repeat({count})", count
    if near_run(event.turn_calls, params["wait_s"], params["near"], params["alike"]):
        return f"near({params['near']})", params["near"]
    return None


@hookimpl
def tandem_rules() -> list[Rule]:
    return [Rule("loop_escape", SafePoint.SP4, check, PARAMS, DOC)]
