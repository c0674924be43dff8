"""Ends a reasoning that goes in circles, and lets the model answer with what it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from typing import TYPE_CHECKING, Any

from tandem.core.plugin import Action, BlockEvent, Rule, SafePoint, Supervision, Task, hookimpl, option

if TYPE_CHECKING:
    from tandem.plugins.rules.reasoning_loop.novelty import Novelty
    from tandem.plugins.rules.reasoning_loop.repeat import Repeats

TANDEM_API = ">=0.2,<0.3"

DOC = """\
Ends a reasoning that goes in circles, and lets the model answer with what it has.

## Why

A model that thinks can fall into a loop: one sentence again and again, or the same few steps in changing words. It does
not come out of it by itself, and the request ends at its token limit without an answer. The drafters make it worse: a
loop is drafted perfectly, so it runs at full speed.

## When it acts

Between two blocks, while the reasoning is open. Two arms watch it:

* `repeat`: its newest tokens are one piece of at most `longest` tokens, written at least `copies` times in a row,
  exactly, over at least `tokens` tokens.
* `novelty`: of its last `window` words less than `share` are new. A word is new when the phrase of `order` words that
  it ends was written fewer than `times` times before. Numbers and signs between the words are part of the phrase, so
  the next case of an enumeration and the next row of a table are new. This arm finds loops with a counter in them, with
  other words here and there, or in another order.

The reasoning is closed, hidden: the model reads `text` as its own last thought and begins its answer. Each stretch of
reasoning is closed once. The reason in the journal is `repeat(COPIES)` or `novelty(SHARE)`.

## Parameters

See the table. Smaller numbers of copies, tokens, words and times, and a larger share, find a loop sooner and take more
honest work for one; `docs/rules/reasoning_loop.md` has the measurements behind the defaults.

## Example

    rules:
      reasoning_loop: {mode: act, copies: 4, window: 256}
"""


class Detectors:
    """Both arms over one stretch of reasoning."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        from tandem.plugins.rules.reasoning_loop.novelty import Novelty
        from tandem.plugins.rules.reasoning_loop.repeat import Repeats

        self._repeats: Repeats = Repeats(params["copies"], params["tokens"], params["longest"])
        self._novelty: Novelty = Novelty(params["order"], params["window"], params["times"])
        self._share: float = params["share"]
        self.fired = False

    def feed(self, tokens: Seq[int], text: str) -> Action | None:
        """The finding that these tokens complete, without its text; the first one only."""
        if self.fired:
            return None
        if found := self._repeats.feed(tokens):
            self.fired = True
            detail = {"arm": "repeat", "period": found.period, "copies": found.copies}
            return Action.passed(f"repeat({found.copies})", **detail)
        self._novelty.feed(text)
        if (share := self._novelty.share) < self._share:
            self.fired = True
            return Action.passed(f"novelty({share:.2f})", arm="novelty", share=round(share, 3))
        return None


def check(event: BlockEvent, task: Task, sup: Supervision) -> Action | None:
    if not event.inside:
        sup.memo.clear()  # a stretch that is opened later is another one
        return None
    if "detectors" not in sup.memo:
        sup.memo["detectors"] = Detectors(task.params)
    found: Action | None = sup.memo["detectors"].feed(event.new_ids, event.new_reasoning)
    if found is None:
        return None
    detail = {**found.detail, "tokens": event.reasoning_tokens}
    return Action.close_reasoning(task.params["text"], found.reason, **detail)


@hookimpl
def tandem_rules() -> list[Rule]:
    return [
        Rule(
            "reasoning_loop",
            at=SafePoint.SP1,
            check=check,
            doc=DOC,
            params={
                "copies": option("integer", "How many copies of a piece in a row are a loop.", 4, minimum=2),
                "tokens": option("integer", "How many tokens these copies have at least.", 320, minimum=16),
                "longest": option("integer", "The longest piece that is looked for, in tokens.", 512, minimum=1),
                "share": option(
                    "number", "Fewer new tokens than this share of the window are a loop.", 0.1, minimum=0, maximum=1
                ),
                "window": option("integer", "How many of the newest words are looked at.", 256, minimum=32),
                "order": option("integer", "How many words are a phrase.", 3, minimum=1),
                "times": option("integer", "How often a phrase may be written before it is old.", 3, minimum=1),
                "text": option(
                    "string",
                    "The last thought, which the model reads as its own.",
                    "I am going over the same ground again. I will stop here and answer now with what I know, and say "
                    "plainly what is still open.",
                ),
            },
        )
    ]
