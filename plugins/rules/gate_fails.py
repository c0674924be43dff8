"""S1: a gate of the project that fails again and again gets one note to the model."""

from __future__ import annotations

from typing import Any

from tandem.core.plugin import Action, RequestEvent, Rule, SafePoint, Supervision, Task, hookimpl, option
from tandem.plugins.rules._gate import fill, text_option
from tandem.plugins.rules._work import gates, in_project, is_work, may_note, new_deeds

TANDEM_API = ">=0.2,<0.3"

DOC = """Notes to the model that the same gate of the project has failed several runs in a row.

## Why

A check that fails three times in a row after three repairs is seldom one more small repair away. The model, deep in its
loop, does not count; the next attempt often repeats an earlier one.

## When it acts

In a session with tools whose system prompt matches `requires` (a project that keeps its state in a file). A gate is the
NAME of a line `RESULT: PASS <- NAME` or `RESULT: FAIL <- NAME` in a tool's result; or, without such lines, a shell
command that runs something, when the result tells its exit code (a JSON field such as `exit_code`, or a line such as
`Exit code: 1`). The same command is the same gate, blanks aside. Commands that only look or move files (`grep`, `ls`,
`git`, ...) or ask for something (`curl`) are none. Each call counts once, however often the conversation is sent. After
`fails` failures in a row the request gets one hidden note; a pass ends the row, and with it the silence.

## Parameters

See the table. `text` may use {times} and {gate}.

## Example

`make check` fails for the third time. The next prompt ends with a note that asks for the failure to be read and
explained before anything is changed again."""

KEPT = 64
"""So many gates of a session are known."""

PARAMS = {
    "fails": option("integer", "So many failures in a row get the note.", 3, minimum=1),
    "requires": option(
        "string", "A regular expression that the system prompt has to match.", r"PROGRESS\.yaml", format="regex"
    ),
    "text": text_option(
        "The hidden note to the model.",
        "{gate} has now failed {times} times in a row. Before you change anything else: read its last output in full, "
        "say in one sentence what fails and why, and check that cause directly. If your last changes did not move it, "
        "undo them and take another approach, or write down what blocks you and go on with another part.",
        "times",
        "gate",
    ),
}


def check(event: RequestEvent, task: Task, sup: Supervision) -> Action | None:
    if not is_work(event) or not in_project(event, task.params["requires"]):
        return None
    rows: dict[str, list[Any]] = sup.session.data.setdefault("gates", {})
    tools = {tool.name: tool for tool in event.tools}
    names: dict[str, str] = {}
    for call, did in new_deeds(event):
        for gate in gates(call, tools.get(call.name), did.runs):
            fails, noted = rows.pop(gate.key, (0, False))
            rows[gate.key] = [0, False] if gate.passed else [fails + 1, noted]
            names[gate.key] = gate.name
            while len(rows) > KEPT:
                del rows[next(iter(rows))]
    for key, name in names.items():
        fails, noted = rows.get(key, (0, True))
        if fails >= task.params["fails"] and not noted and may_note(task, sup):
            rows[key][1] = True
            shown = f"The gate {name[:80]}" if name else "The same check command"
            text = fill(task.params["text"], times=fails, gate=shown)
            return Action.tail_note(text, f"gate_fails({fails})", gate=key, fails=fails)
    return None


@hookimpl
def tandem_rules() -> list[Rule]:
    return [Rule("gate_fails", SafePoint.SP4, check, PARAMS, DOC)]
