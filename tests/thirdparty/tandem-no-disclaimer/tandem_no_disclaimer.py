"""A monitor rule: an answer that hides behind a disclaimer ends with a sentence that says so."""

from tandem.core.plugin import Action, FinishEvent, Rule, SafePoint, Supervision, Task, hookimpl, option

TANDEM_API = ">=0.2,<0.3"


def check(event: FinishEvent, task: Task, sup: Supervision) -> Action | None:
    """At the end of an answer: give up on one that contains the phrase, whatever its case."""
    phrase: str = task.params["phrase"]
    if phrase.lower() not in event.answer.lower():
        return None
    return Action.give_up(" (The answer above is a disclaimer.)", reason=f"the answer contains {phrase!r}")


@hookimpl
def tandem_rules() -> list[Rule]:
    return [
        Rule(
            "no_disclaimer",
            at=SafePoint.SP2,
            check=check,
            params={"phrase": option("string", "What gives a disclaimer away.", "as an AI", minLength=1)},
            doc="Ends an answer that contains a disclaimer with a sentence that says so.",
        )
    ]
