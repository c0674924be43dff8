"""C3: the call that the turn has just made, with the same arguments and the same result each time, is not made again.

The turn's state is `_streak.run_length`: identical calls with identical results at its end. A call is held only on a
request whose turn already ends in such a run, so every other request streams its calls while they are written.
"""

from __future__ import annotations

from tandem.core.plugin import Action, RequestEvent, Rule, SafePoint, Supervision, Task, ToolCallEvent, hookimpl, option
from tandem.plugins.rules._gate import again, call_key, text_option
from tandem.plugins.rules._streak import run_length

TANDEM_API = ">=0.2,<0.3"

DOC = """Stops a call that was already made several times in a row with the same arguments and the same result.

## Why

A model that decodes greedily can come back to one call after a result that did not help, and then never leaves it: the
prompt ends the same way each time, and so does the answer. The client runs every one of those calls.

## When it acts

On the call that would be number `repeats` in a row: the same tool, the same arguments (the order of keys and blanks do
not count), and the same result each time so far. Only calls behind the last user message count. A call whose result
came after `wait_s` seconds or more was a wait, as for a job that is polled, and ends the run. A test that runs again
after an edit has another call in between and passes.

None of the answer's calls goes out; the model reads `text` and writes them again. Where that is not possible the answer
ends with `give_up`.

## Parameters

See the table.

## Example

`read {"path": "a.py"}` twice, both times with the same content, then a third time: the third is not sent, and the model
is told that it has the result already.
"""

PARAMS = {
    "repeats": option("integer", "The call that would be this many in a row is stopped.", 3, minimum=2),
    "wait_s": option(
        "number",
        "A call whose result took this many seconds or longer was a wait; it ends the run.",
        10,
        exclusiveMinimum=0,
    ),
    "text": text_option(
        "What the model reads instead of the call's result.",
        "This call was not run. {name} with exactly these arguments was already called {count} times in a row, and "
        "every result was the same; another call will return it again. The result is in the conversation above: use "
        "it. If it does not help, change something: other arguments, another tool, or a smaller step. If nothing is "
        "left to try, write your answer now and say what is missing.",
        "name",
        "count",
    ),
    "give_up": text_option(
        "What the client reads when the model can't be asked again.",
        "[Tandem stopped here: {name} was about to be called once more with the same arguments, after {count} "
        "identical results in a row. The call was not run. A hint or a smaller step may help.]",
        "name",
        "count",
    ),
}


def check(event: ToolCallEvent, task: Task, sup: Supervision) -> Action | None:
    """At SP3: the answer's first call is what would continue the run; behind another call nothing is a repeat."""
    count = _run(sup.request, task)
    if not count or event.problem or event.name is None or not event.calls:
        return None
    key, first = call_key(event.name, event.written), event.calls[0]
    if key != sup.request.turn_calls[-1].key or key != call_key(first.name, first.arguments):
        return None
    return again(event, task, f"repeat({count + 1})", count=count)


def holds(request: RequestEvent, task: Task) -> bool:
    return _run(request, task) > 0


def _run(request: RequestEvent, task: Task) -> int:
    """How long the run is that one more call would make a repeat; 0 when none would."""
    count = run_length(request.turn_calls, task.params["wait_s"])
    return count if count >= task.params["repeats"] - 1 else 0


@hookimpl
def tandem_rules() -> list[Rule]:
    return [Rule("same_call", SafePoint.SP3, check, PARAMS, DOC, holds)]
