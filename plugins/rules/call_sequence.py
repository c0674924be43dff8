"""C5: an answer with several calls that change something is asked back for their order.

What changes something is read off the tools' declarations (`_effects.effect`), never off a message.
"""

from __future__ import annotations

from tandem.core.plugin import Action, RequestEvent, Rule, SafePoint, Supervision, Task, ToolCallEvent, hookimpl
from tandem.plugins.rules._effects import Effect, effect
from tandem.plugins.rules._gate import fill, place_of, text_option

TANDEM_API = ">=0.2,<0.3"

DOC = """Asks back once when an answer has several calls that change something, so that they come in their order.

## Why

The calls of one answer are written before any of them has run. Two that change something (send a message and write the
event that it tells of; delete a file and create its successor) may depend on each other, and on what was not read yet.

## When it acts

Once for an answer, at its second call that changes something. That is read off the tool's declaration: the annotations
`readOnlyHint` and `destructiveHint`, else a recipient with a message, a time with a subject, a path with a body, or the
verb that its name or its description opens with (create, update, delete, ...). A name that opens with a reading verb
reads, whatever its parameters are. A shell counts as neither. Two reads, and a read beside one change, pass.

None of the calls goes out; the model reads `text` and writes them again. Calls in a doubtful order still can run, so
where the model can't be asked back, or has been already, they go out as they are.

## Parameters

See the table.

## Example

`delete_event` and `create_event` in one answer: the model is asked to write first what has to come first, and sends the
second when it has seen the first one's result.
"""

PARAMS = {
    "text": text_option(
        "What the model reads instead of the calls' results.",
        "None of these calls has run yet. {count} of them change something ({names}), and none of them could see what "
        "another one returns. Write your calls again: if one depends on another's result, or on something you have "
        "not looked up yet, write only what has to come first now, and the rest after its result. If they do not "
        "depend on each other, write them exactly as they were.",
        "count",
        "names",
    ),
}


def check(event: ToolCallEvent, task: Task, sup: Supervision) -> Action | None:
    """At SP3: decides at the second call that changes something, so once for an answer."""
    if event.problem or event.tool is None:
        return None
    effects = _effects(sup.request, sup)
    changing = [call for call in event.calls if effects.get(call.name) is not None]
    if len(changing) < 2 or effects.get(event.tool.name) is None:
        return None
    before = event.calls[: place_of(event)]
    if sum(effects.get(call.name) is not None for call in before) != 1:
        return None
    if event.final:
        return Action.passed(f"ended(mutations={len(changing)})")
    names = ", ".join(dict.fromkeys(call.name for call in changing))
    kinds = sorted({found.value for call in changing if (found := effects[call.name])})
    text = fill(task.params["text"], count=len(changing), names=names)
    return Action.regenerate_call(text, f"mutations({len(changing)})", "release", kinds=kinds)


def holds(request: RequestEvent, task: Task) -> bool:
    return any(effect(tool) is not None for tool in request.tools)


def _effects(request: RequestEvent, sup: Supervision) -> dict[str, Effect | None]:
    """What each offered tool changes, worked out once a request."""
    if "effects" not in sup.memo:
        sup.memo["effects"] = {tool.name: effect(tool) for tool in request.tools}
    found: dict[str, Effect | None] = sup.memo["effects"]
    return found


@hookimpl
def tandem_rules() -> list[Rule]:
    return [Rule("call_sequence", SafePoint.SP3, check, PARAMS, DOC, holds)]
