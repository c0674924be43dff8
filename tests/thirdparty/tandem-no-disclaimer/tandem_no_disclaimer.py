"""A monitor rule: an answer that hides behind a disclaimer ends with a sentence that says so."""

from tandem.core.plugin import Action, FinishEvent, Rule, SafePoint, Supervision, Task, hookimpl, option

TANDEM_API = ">=0.2,<0.3"

DOC = """\
Ends an answer that contains a disclaimer with a sentence that says so.

## Why
A reader who is told what the model is instead of what was asked should know that this was no answer.

## When it acts
At the end of an answer that contains the phrase, in any case. The sentence is put behind it.

## Parameters
`phrase` is looked for as it stands, without wildcards.

## Example
"As an AI, I have no opinion." is followed by "(The answer above is a disclaimer.)".
"""


def check(event: FinishEvent, task: Task, sup: Supervision) -> Action | None:
    """At the end of an answer: give up on one that contains the phrase, whatever its case."""
    phrase: str = task.params["phrase"]
    if phrase.lower() not in event.answer.lower():
        return None
    return Action.give_up(" (The answer above is a disclaimer.)", reason="disclaimer(1)")


@hookimpl
def tandem_rules() -> list[Rule]:
    return [
        Rule(
            "no_disclaimer",
            at=SafePoint.SP2,
            check=check,
            params={"phrase": option("string", "What gives a disclaimer away.", "as an AI", minLength=1)},
            doc=DOC,
        )
    ]
