"""S4: a session that works on without getting anywhere gets a note; one whose client has gone is told of outside."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from tandem.core.plugin import Action, IdleEvent, RequestEvent, Rule, SafePoint, Supervision, Task, hookimpl, option
from tandem.plugins.rules._gate import fill, text_option
from tandem.plugins.rules._work import gates, in_project, is_work, may_note, new_deeds

TANDEM_API = ">=0.2,<0.3"

DOC = """Notes to the model that nothing was written or passed for a long time, and tells of a client that has gone.

## Why

A session that runs overnight can turn in circles for hours: it reads, thinks, runs the same thing, and nobody looks.
And when its client dies, no request comes any more in which anything could be said.

## When it acts

In a session with tools whose system prompt matches `requires`. Progress is a file that was written (by a tool for it
or by a shell command, when the result says nothing of a failure), or a gate (see `gate_fails`) that passes and did not
pass in its last run. When `minutes` of work went by without any, the request gets one hidden note; the next one needs
progress first. The time in which the session waits for its user does not count.

The watch: when no request came for `minutes` after a turn ended, one event is journaled for that turn's end,
`client_gone(N)` with the minutes. With `notify` it is a message to the address that the policy names.

## Parameters

See the table. `text` may use {minutes}, `gone` {minutes}, {client} and {session}.

## Example

For 30 minutes the model started a test server, read its log and stopped it again. The next prompt ends with a note that
asks for one small step with a result that can be checked.
"""

SAME_END_S = 1.0
"""Ends of a turn that are nearer to each other than this are one."""
KEPT = 64
"""So many gates of a session are known."""

PARAMS = {
    "minutes": option("number", "So long without progress; and so long without a request.", 30, exclusiveMinimum=0),
    "notify": option("boolean", "Whether somebody outside is told that the client has gone.", False),
    "requires": option(
        "string", "A regular expression that the system prompt has to match.", r"PROGRESS\.yaml", format="regex"
    ),
    "text": text_option(
        "The hidden note to the model.",
        "For {minutes} minutes no file was written and no check newly passed. Stop what you are doing and say in one "
        "sentence what keeps you. Then take the smallest step whose result can be checked, or record the problem in "
        "the project's state file and go on with another task.",
        "minutes",
    ),
    "gone": text_option(
        "What is told outside when the client has gone.",
        "[Tandem] No request from {client} for {minutes} minutes; its session {session} had not been closed.",
        "minutes",
        "client",
        "session",
    ),
}


def check(event: RequestEvent | IdleEvent, task: Task, sup: Supervision) -> Action | None:
    return watch(event, task, sup) if isinstance(event, IdleEvent) else before_the_answer(event, task, sup)


# --------------------------------------------------------------------------------------------------- in the session


def before_the_answer(event: RequestEvent, task: Task, sup: Supervision) -> Action | None:
    if not is_work(event) or not in_project(event, task.params["requires"]):
        return None
    data, now = sup.session.data, sup.now
    seen = data.get("seen", now)
    data["seen"] = now
    data.setdefault("since", now)
    if event.messages and event.messages[-1].get("role") == "user":
        data["since"] += now - seen  # the user's time
    if _progress(event, data):
        data["since"], data["noted"] = now, False
    minutes = (now - data["since"]) / 60
    if minutes < task.params["minutes"] or data.get("noted") or not may_note(task, sup):
        return None
    data["noted"] = True
    text = fill(task.params["text"], minutes=f"{minutes:.0f}")
    return Action.tail_note(text, f"no_progress({minutes:.0f} min)", minutes=round(minutes, 1))


def _progress(event: RequestEvent, data: MutableMapping[str, Any]) -> bool:
    """Whether the new calls got anywhere."""
    passing: dict[str, bool] = data.setdefault("gates", {})
    tools = {tool.name: tool for tool in event.tools}
    found = False
    for call, did in new_deeds(event):
        found |= did.writes
        for gate in gates(call, tools.get(call.name), did.runs):
            found |= gate.passed and not passing.pop(gate.key, False)
            passing[gate.key] = gate.passed
            while len(passing) > KEPT:
                del passing[next(iter(passing))]
    return found


# --------------------------------------------------------------------------------------------------- from outside


def watch(event: IdleEvent, task: Task, sup: Supervision) -> Action | None:
    """One event for each end of a turn after which no request came."""
    data, ended = sup.session.data, sup.now - event.idle_s
    if "since" not in data or event.running or event.idle_s < 60 * task.params["minutes"]:
        return None
    if abs(data.get("gone", float("-inf")) - ended) < SAME_END_S:
        return None
    data["gone"] = ended
    minutes = int(event.idle_s // 60)
    reason = f"client_gone({minutes} min)"
    if not task.params["notify"]:
        return Action.passed(reason, minutes=minutes)
    text = fill(task.params["gone"], minutes=minutes, client=sup.request.client, session=event.session)
    return Action.notify(reason, text, minutes=minutes)


@hookimpl
def tandem_rules() -> list[Rule]:
    return [Rule("progress", (SafePoint.SP4, SafePoint.WATCH), check, PARAMS, DOC)]
