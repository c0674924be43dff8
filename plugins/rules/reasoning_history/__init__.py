"""Ends a reasoning that says for the fourth time what the conversation, or the reasoning itself, says already."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tandem.core.plugin import Action, BlockEvent, RequestEvent, Rule, SafePoint, Supervision, Task, hookimpl, option

if TYPE_CHECKING:
    from tandem.plugins.rules.reasoning_history.conversation import Conversation

TANDEM_API = ">=0.2,<0.3"

DOC = """\
Ends a reasoning that says for the fourth time what the conversation, or the reasoning itself, says already.

## Why

Some loops are longer than one reasoning. An agent has the same thoughts in every turn, or it reads a file to itself
over and over instead of changing it. Each pass is too long, and too different from the one before, for
`reasoning_loop`.

## When it acts

Between two blocks, while the reasoning is open. Of its last `stretch` words those are counted that are old: the phrase
of `order` words that such a word ends was written at least `passes` times before. What counts as a time:

* all messages of the conversation together, once: who quotes a file does not repeat himself;
* each earlier reasoning that the client sent along, once;
* each time in this reasoning.

So a file can be quoted while it is edited, and be written out once more with the changes; with the third pass over it
in one reasoning the words are old. So are thoughts that stand in three earlier turns. The rule acts when the share of
old words reaches `share`.

The reasoning is closed, hidden: the model reads `text` as its own last thought and begins its answer. Each stretch of
reasoning is closed once. The reason in the journal is `history(SHARE)`; `quoted` is the share of the last words that
stand in the conversation.

The conversation is read in slices of half a millisecond, one a block, beginning with the newest message, once the
reasoning has `after` tokens. What a client leaves out of the messages, as many do with earlier reasonings, is not
known.

## Parameters

See the table.

## Example

    rules:
      reasoning_history: {mode: act, stretch: 300, passes: 3}
"""


class History:
    """One stretch of reasoning against all that was said before it."""

    def __init__(self, request: RequestEvent, params: Mapping[str, Any]) -> None:
        from tandem.plugins.rules._phrases import Phrases
        from tandem.plugins.rules.reasoning_history.conversation import Conversation

        self._conversation: Conversation = Conversation(request.messages, params["order"], params["characters"])
        self._after, self._passes, self._limit = params["after"], params["passes"], params["share"]
        self._phrases = Phrases(params["order"])
        self._own: dict[int, int] = {}
        """Phrase -> how often this reasoning wrote it."""
        self._last: deque[tuple[bool, bool]] = deque(maxlen=params["stretch"])
        """By word: whether it is old, and whether the conversation has it."""
        self._old = self._quoted = 0
        self.fired = False

    def read(self, text: str, tokens: int) -> bool:
        """Take more of the reasoning, which has `tokens` tokens now; True when the share is reached, once."""
        if tokens >= self._after and not self._conversation.complete:
            self._conversation.step()
        for phrase in self._phrases.feed(text):
            self._take(phrase)
        found = not self.fired and self.share >= self._limit
        self.fired = self.fired or found
        return found

    def _take(self, phrase: int) -> None:
        own = self._own.get(phrase, 0)
        self._own[phrase] = own + 1
        word = own + self._conversation.times(phrase) >= self._passes, phrase in self._conversation
        gone = self._last[0] if len(self._last) == self._last.maxlen else (False, False)
        self._last.append(word)
        self._old += word[0] - gone[0]
        self._quoted += word[1] - gone[1]

    @property
    def share(self) -> float:
        """The share of old words in the last stretch; 0.0 while there is no whole one."""
        return self._old / len(self._last) if len(self._last) == self._last.maxlen else 0.0

    @property
    def quoted(self) -> float:
        return self._quoted / max(1, len(self._last))


def check(event: BlockEvent, task: Task, sup: Supervision) -> Action | None:
    if not event.inside:
        sup.memo.clear()
        return None
    if "history" not in sup.memo:
        sup.memo["history"] = History(sup.request, task.params)
    history: History = sup.memo["history"]
    if history.fired or not history.read(event.new_reasoning, event.reasoning_tokens):
        return None
    return Action.close_reasoning(
        task.params["text"],
        f"history({history.share:.2f})",
        arm="history",
        share=round(history.share, 3),
        quoted=round(history.quoted, 3),
        tokens=event.reasoning_tokens,
    )


@hookimpl
def tandem_rules() -> list[Rule]:
    return [
        Rule(
            "reasoning_history",
            at=SafePoint.SP1,
            check=check,
            doc=DOC,
            params={
                "stretch": option("integer", "How many of the newest words are looked at.", 256, minimum=32),
                "share": option("number", "The share of old words that is too much.", 0.8, minimum=0.1, maximum=1),
                "passes": option("integer", "How often a phrase was written before when it is old.", 3, minimum=1),
                "order": option("integer", "How many words are a phrase.", 4, minimum=1),
                "after": option("integer", "From so many tokens on the conversation is read.", 128, minimum=0),
                "characters": option(
                    "integer", "So much of the conversation is read at most, the end of it.", 400_000, minimum=0
                ),
                "text": option(
                    "string",
                    "The last thought, which the model reads as its own.",
                    "All of this was said before, so going through it once more brings nothing new. I will take the "
                    "next step now, and answer with what I know.",
                ),
            },
        )
    ]
