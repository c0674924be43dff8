"""C4: a call that cannot run as it is written is repaired where that is certain, else written again.

The tools' schemas are read by `_schema`; the parsers have by then given every value the type that its parameter has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from tandem.core.plugin import Action, Rule, SafePoint, Supervision, Task, ToolCallEvent, hookimpl
from tandem.core.plugin.tools import tool_named
from tandem.plugins.rules._gate import again, text_option
from tandem.plugins.rules._schema import misfits, repaired, sentences

TANDEM_API = ">=0.2,<0.3"

DOC = """Repairs a call that can't run as it is written, or lets the model write it again.

## Why

A client answers a call that does not parse, names no tool or breaks the tool's schema with an error that costs a whole
step; some answer it by asking again without end. The model that is told what is wrong puts it right in the same answer.

## When it acts

* A block that looks like calls and could not be read is written again. One that the token limit cut ends the answer
  with `give_up`, since nothing can be written any more; one that the client's own stop string cut is no mistake and
  goes out as the text that it is.
* A tool that the request does not offer: written again, with the nearest name that it does offer.
* Arguments that are no JSON object. A raw line break or tab inside a text, and an object inside a JSON text, are
  repaired; all else is written again.
* Arguments that break the tool's schema: a missing parameter, a wrong type, a value outside an `enum`, a limit. Only
  what every validator sees alike counts; `pattern` and `format` do not, and a schema that is broken or refers to
  another document is not used. Repaired are: a null for a parameter that may be left out; a text that reads as the
  right type, a whole number where text belongs; an `enum` word in another case; an undeclared parameter that is empty
  where none are allowed. An undeclared parameter with a value is not dropped: the call would do something else than
  the model meant.

## Parameters

See the table.

## Example

`read {"limit": null, "path": "a.py"}` goes out as `read {"path": "a.py"}`; `raed {"path": "a.py"}` is written again,
and the model reads that `read` is offered.
"""

AGAIN = "The other calls of that answer, if there were any, were not run either: write them again too."

PARAMS = {
    "unreadable": text_option(
        "What the model reads when its calls could not be read.",
        "Your last message has a tool call that could not be read, so nothing was run. Write the call again from its "
        "beginning, complete and in the tool call format that you were given: opened, the tool's name, its arguments, "
        "closed, with nothing in between. " + AGAIN,
    ),
    "unknown": text_option(
        "What the model reads when it called a tool that is not offered.",
        "There is no tool `{name}`, so nothing was run. {hint} Write the call again with the exact name of a tool that "
        "is offered, or answer without a tool. " + AGAIN,
        "name",
        "hint",
    ),
    "arguments": text_option(
        "What the model reads when the arguments are no JSON object.",
        "The arguments of `{name}` are no JSON object, so nothing was run. Write the call again with one object, `{}` "
        "when there are none: each parameter's name in double quotes, texts in double quotes with `\\n` for a line "
        'break and `\\"` for a quote. ' + AGAIN,
        "name",
    ),
    "schema": text_option(
        "What the model reads when the arguments break the tool's schema.",
        "The call of `{name}` was not run: {problems}. Write the call again with this put right and everything else as "
        "it was. " + AGAIN,
        "name",
        "problems",
    ),
    "give_up": text_option(
        "What the client reads when the model can't be asked again.",
        "[Tandem stopped here: the model wrote a tool call that could not be run. Nothing was run. Asking again, or "
        "for a smaller step, may help.]",
        "name",
    ),
    "cut": text_option(
        "What the client reads when the token limit cut a call.",
        "[Tandem stopped here: the token limit was reached inside a tool call. Nothing was run. A higher limit or a "
        "smaller step, such as a file in several parts, may help.]",
    ),
}


def check(event: ToolCallEvent, task: Task, sup: Supervision) -> Action | None:
    if event.problem == "cut_by_stop":
        return Action.passed("cut_by_stop")
    if event.problem == "cut_by_limit":
        return Action.give_up(task.params["cut"], "cut_by_limit")
    if event.problem or event.name is None:
        return again(event, task, "unreadable", text="unreadable")
    if not sup.request.tools:
        return None
    if event.tool is None:
        return again(event, task, "unknown_tool", text="unknown", hint=_hint(event.name, sup))
    arguments = event.arguments
    if arguments is None:
        arguments = _object(event.written)
        if arguments is None:
            return again(event, task, "no_object", text="arguments")
    found = misfits(event.tool, arguments)
    if not found:
        return None if event.arguments is not None else Action.repair_call(arguments, "read_leniently")
    better = repaired(event.tool, arguments)
    if better is not None:
        return Action.repair_call(better, f"repaired({len(found)})")
    problems = sentences(event.tool, found)
    return again(event, task, f"schema({len(found)})", text="schema", problems=problems)


def _hint(name: str, sup: Supervision) -> str:
    """The offered names: the nearest one, else all of them."""
    offered = [tool.name for tool in sup.request.tools]
    meant = tool_named(sup.request.tools, name).name
    near = [meant] if meant in offered else get_close_matches(name, offered, 1, 0.6)
    if near:
        return f"Did you mean `{near[0]}`?"
    listed = ", ".join(f"`{one}`" for one in offered[:40])
    return f"The tools are {listed}{' and others' if len(offered) > 40 else ''}."


def _object(written: str) -> Mapping[str, Any] | None:
    """Arguments that a strict reader refuses and that can mean only one object: control characters stand raw inside
    texts, or the object is written as a JSON text."""
    try:
        value = json.loads(written, strict=False)
        value = json.loads(value, strict=False) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@hookimpl
def tandem_rules() -> list[Rule]:
    return [Rule("malformed_call", SafePoint.SP3, check, PARAMS, DOC)]
