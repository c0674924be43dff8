"""Closes a reasoning that has become longer than any question needs."""

from __future__ import annotations

from tandem.core.plugin import Action, BlockEvent, Rule, SafePoint, Supervision, Task, hookimpl, option

TANDEM_API = ">=0.2,<0.3"

DOC = """\
Closes a reasoning that has become longer than any question needs.

## Why

The last resort behind `reasoning_loop` and `reasoning_history`: a reasoning that neither repeats itself nor comes to an
end. Without a limit it takes the whole output limit, and the client waits for minutes and gets no answer.

## When it acts

Between two blocks, once the reasoning has more than `tokens` tokens. A client that asked for a larger budget of its own
gets that. A smaller one, and the caps of the effort words (1,024 for `low`, 8,192 for `medium`, 16,384 for `high`), are
kept by the server itself and end the reasoning long before; `xhigh`, which has no cap, ends here at the latest.

The reasoning is closed, hidden: the model reads `text` as its own last thought and begins its answer. One that is
opened again beyond the limit is closed again. The reason in the journal is `length(TOKENS)`.

## Parameters

See the table.

## Example

    rules:
      reasoning_length: {mode: act, tokens: 20000}
"""


def check(event: BlockEvent, task: Task, sup: Supervision) -> Action | None:
    if not event.inside:
        sup.memo.clear()
        return None
    limit = max(task.params["tokens"], sup.request.budget or 0)
    if event.reasoning_tokens <= limit or "closed" in sup.memo:
        return None
    sup.memo["closed"] = True
    return Action.close_reasoning(
        task.params["text"], f"length({event.reasoning_tokens})", tokens=event.reasoning_tokens, limit=limit
    )


@hookimpl
def tandem_rules() -> list[Rule]:
    return [
        Rule(
            "reasoning_length",
            at=SafePoint.SP1,
            check=check,
            doc=DOC,
            params={
                "tokens": option("integer", "So many tokens of reasoning are enough for anything.", 32768, minimum=1),
                "text": option(
                    "string",
                    "The last thought, which the model reads as its own.",
                    "I have thought about this for a long time. I will answer now with what I have worked out, and say "
                    "plainly what I could not settle.",
                ),
            },
        )
    ]
