"""The engine's own proof: whatever is drafted, the text is that of plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from qwen35_tiny import Tiny, load, text

from tandem.core.engine.exactness import Case, verify
from tandem.core.engine.request import Sampling
from tandem.core.plugin import DraftStart, DraftTree

PROMPTS = [text(40, 1), text(90, 2), text(3, 3)]
CASES = [Case("greedy"), Case("seeded", Sampling(temperature=0.8, top_k=40, seed=7))]


class HeadDrafts:
    """The likeliest guesses of the model's own head, as a small tree."""

    def __init__(self, model: Any, start: DraftStart) -> None:
        self._head, self._sequence = model.head, start.sequence

    def extend(self, tokens: Sequence[int]) -> None:
        return

    def close(self) -> None:
        return

    def propose(self, root: int, limit: int) -> DraftTree | None:
        self._head.start(self._sequence)
        tree, rows = DraftTree(source="head"), {-1: 0}
        logits = self._head.extend(self._sequence, [root], [-1])[0]
        first = [tree.add(token, -1, 0.5) for token in logits.topk(min(3, limit)).indices.tolist()]
        below = self._head.extend(self._sequence, [tree.tokens[node] for node in first], [0] * len(first))
        rows.update({node: place + 1 for place, node in enumerate(first)})
        for node, row in zip(first, below, strict=True):
            if len(tree) < limit:
                tree.add(int(row.argmax()), node, 0.25)
        return tree


@pytest.mark.parametrize("kind", ["text", "moe"])
def test_speculation_changes_no_token(kind: str, tiny_of: Callable[..., Tiny]) -> None:
    model = load(tiny_of(kind).path, mtp="on")
    outcomes = list(
        verify(model, PROMPTS, [("head", lambda start: HeadDrafts(model, start))], max_tokens=16, cases=CASES)
    )
    assert {outcome.way for outcome in outcomes} >= {"head"}
    for outcome in outcomes:
        assert outcome.passed(1e-3), outcome
        assert outcome.prompts == 3
    assert sum(outcome.accepted for outcome in outcomes if "half" in outcome.way) > 0


def test_a_drafter_may_ask_the_head_in_some_rounds_only(folder: Path) -> None:
    model = load(folder, mtp="on")

    class Sometimes(HeadDrafts):
        asked = 0

        def propose(self, root: int, limit: int) -> DraftTree | None:
            self.asked += 1
            return super().propose(root, limit) if self.asked % 3 == 0 else None

    outcomes = list(verify(model, PROMPTS, [("head", lambda start: Sometimes(model, start))], max_tokens=16,
                           cases=CASES[:1], only=["head"]))  # fmt: skip
    assert [outcome.passed(1e-3) for outcome in outcomes] == [True]
    assert outcomes[0].drafted > 0
