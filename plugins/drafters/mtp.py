"""Drafts with the model's own multi-token prediction head, as a tree.

Some checkpoints bring a small head that was trained to say what follows a token which the model has not read yet. Asked
again about its own guesses, it goes several tokens deep, and it says how sure it is of each. The drafter grows the tree
of the likeliest paths level by level: one pass of the head reads all nodes of a level that are worth going on from, and
the `breadth` best guesses behind each become candidates. What is proposed are the likeliest of all candidates.

A path is drafted `depth` tokens deep, and deeper, up to `deepest`, while it is likelier than `sure`. The head was
trained to predict one token after real text; `temperature` says how far its probabilities are flattened before they are
multiplied along a path. At 1 they are what its training made them, and how far they can be trusted is learned from
what is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem.core.plugin import (
    Drafter,
    DraftHead,
    DraftSession,
    DraftStart,
    DraftTree,
    Model,
    Options,
    Sequence,
    cut,
    hookimpl,
    option,
)

if TYPE_CHECKING:
    from torch import Tensor

TANDEM_API = ">=0.2,<0.3"


@dataclass(frozen=True, slots=True)
class Limits:
    """The drafter's options, as its part describes them."""

    depth: int
    deepest: int
    breadth: int
    rows: int
    sure: float
    min_q: float
    temperature: float


class MtpSession:
    """Grows one tree a round. The head keeps what it needs of the text in the sequence, so nothing is kept here."""

    def __init__(self, head: DraftHead, sequence: Sequence, limits: Limits) -> None:
        self._head = head
        self._sequence = sequence
        self._limits = limits

    def extend(self, tokens: Seq[int]) -> None:
        return

    def close(self) -> None:
        return

    def propose(self, root: int, limit: int) -> DraftTree | None:
        """The `limit` likeliest nodes within reach.

        A node outside the `limit` likeliest so far can't have a child among them, since q never grows downwards. So
        only nodes inside are read; if a level never has more than `rows` of them, the tree is the best one.
        """
        limits = self._limits
        head, sequence = self._head, self._sequence
        deepest = min(limits.deepest, limit)
        if deepest < 1 or sequence.length == 0:
            return None
        head.start(sequence)
        tree = DraftTree(source="mtp")  # all candidates
        rows = {-1: 0}  # node -> its row in the head; the root is row 0
        level = [-1]
        logits = head.extend(sequence, [root], [-1])
        for depth in range(1, deepest + 1):
            added = self._add_guesses(tree, level, logits)
            bar = limits.min_q if depth < limits.depth else max(limits.sure, limits.min_q)
            likeliest = set(sorted(range(len(tree)), key=lambda node: -tree.q[node])[:limit])
            level = [node for node in added if node in likeliest and tree.q[node] >= bar]
            level = sorted(level, key=lambda node: -tree.q[node])[: limits.rows]
            if not level or depth == deepest:
                break
            parents = [rows[tree.parents[node]] for node in level]
            for node in level:
                rows[node] = len(rows)
            logits = head.extend(sequence, [tree.tokens[node] for node in level], parents)
        if not len(tree):
            head.start(sequence)  # nothing will be verified, so no rows are left behind
            return None
        return cut(tree, limit)

    def _add_guesses(self, tree: DraftTree, level: Seq[int], logits: Tensor) -> range:
        """Hang the best guesses behind the nodes of a level (`logits` `[n, vocab_size]`) into the tree."""
        start = len(tree)
        tempered = logits / self._limits.temperature
        best, tokens = tempered.topk(min(self._limits.breadth, tempered.shape[-1]))
        shares = (best - tempered.logsumexp(dim=-1, keepdim=True)).exp()
        for node, share_row, token_row in zip(level, shares.tolist(), tokens.tolist(), strict=True):
            above = tree.q[node] if node >= 0 else 1.0
            for share, token in zip(share_row, token_row, strict=True):
                if share > 0.0:  # a head that says nothing (not a number) proposes nothing
                    tree.add(token, node, above * min(1.0, share))
        return range(start, len(tree))


def _build(options: Options, model: Model) -> Callable[[DraftStart], DraftSession]:
    head = model.head
    if head is None:
        raise ValueError("this model has no multi-token prediction head")
    limits = Limits(
        depth=options["depth"],
        deepest=max(options["depth"], options["deepest"]),
        breadth=options["breadth"],
        rows=options["rows"],
        sure=options["sure"],
        min_q=options["min_q"],
        temperature=options["temperature"],
    )
    return lambda start: MtpSession(head, start.sequence, limits)


@hookimpl
def tandem_drafters() -> list[Drafter]:
    return [
        Drafter(
            name="mtp",
            doc=__doc__,
            build=_build,
            options={
                "depth": option("integer", "How many tokens deep a draft goes.", 4, minimum=1),
                "deepest": option("integer", "How deep a path goes while it is `sure`.", 8, minimum=1),
                "breadth": option("integer", "How many guesses behind each node are candidates.", 4, minimum=1),
                "rows": option(
                    "integer", "How many nodes, the likeliest first, the head reads in one pass.", 8, minimum=1
                ),
                "sure": option(
                    "number",
                    "A path goes beyond `depth` while its probability is at least this.",
                    0.5,
                    minimum=0,
                    maximum=1,
                ),
                "min_q": option(
                    "number", "A path less likely than this is not gone on from.", 0.05, minimum=0, maximum=1
                ),
                "temperature": option(
                    "number", "What the head's logits are divided by before they are probabilities.", 1.0, minimum=0.05
                ),
            },
        )
    ]
