"""What may come next, besides what the model wants: the end of a thinking budget, and the answer's constraint."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from torch import Tensor

from tandem.core.answer import Answer
from tandem.core.engine.constraint import Constraint
from tandem.core.engine.request import Thinking

UNBOUNDED = 1 << 30


class Steering:
    """Looks at where the answer is and says what is forced or masked. Nothing of it depends on drafts.

    The constraint holds for the answer alone: it sees the tokens drawn after the reasoning was closed.
    """

    def __init__(self, answer: Answer, thinking: Thinking | None, constraint: Constraint | None) -> None:
        self._answer = answer
        self._budget = thinking.budget if thinking is not None else None
        self._closing: Seq[int] = thinking.closing if thinking is not None else ()
        self._constraint = constraint
        self._cut = False
        self.end_thinking = False
        """Set from outside, on any thread: the reasoning is to close before the next token."""

    @property
    def constrained(self) -> bool:
        return self._constraint is not None

    def forced(self) -> Seq[int]:
        """Tokens that have to come now: the phrase that closes the reasoning, once its budget is spent."""
        if self._cut or not self._answer.reasoning or (self._left() > 0 and not self.end_thinking):
            return ()
        self._cut = True
        return self._closing

    def before_forced(self) -> int:
        """How many tokens may be drawn before something is forced."""
        return self._left() if self._answer.reasoning and not self._cut else UNBOUNDED

    def mask(self, row: Tensor) -> Tensor | None:
        """The tokens that may come next; None = all of them."""
        if self._constraint is None or not self._answer.answering:
            return None
        return self._constraint.mask(row)

    def accept(self, token: int) -> None:
        """Called with each token before the answer is told of it."""
        if self._constraint is not None and self._answer.answering:
            self._constraint.accept(token)

    @property
    def complete(self) -> bool:
        """The constraint is fulfilled and nothing may follow."""
        return self._constraint is not None and self._constraint.complete

    def _left(self) -> int:
        return UNBOUNDED if self._budget is None else self._budget - self._answer.reasoning_tokens
