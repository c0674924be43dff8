"""Cuts the merged draft tree where more rows would cost more than they bring."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from tandem.core.plugin import DraftTree, cut, merge
from tandem.plugins.choosers.staircut.prices import Prices

MAX_NODES = 31
"""Drafted nodes in one verify pass, at most; 32 rows with the root."""


class StairCut:
    """Cuts the merged tree at the node count that maximises expected tokens per second.

    With nodes in falling calibrated q, verifying the first n costs price(1 + n) and is expected to commit
    1 + sum of their q tokens (each node is accepted with probability q). A plain step is n = 0.
    """

    PRIOR = 4.0
    """Weight, in expected tokens, of the belief that a source's q is right."""
    MEMORY = 200.0
    """Expected tokens after which old evidence is halved."""
    RECOVERY = 0.002
    """How far a source that was passed over moves back to its prior, so that it is tried again some day."""

    def __init__(self, prices: Prices) -> None:
        self.prices = prices
        self._evidence: dict[str, tuple[float, float]] = {}  # source -> (accepted, expected)

    def wants(self, drafter: str, context: int) -> bool:
        return True

    def drafted(self, drafter: str, tree: DraftTree | None, seconds: float) -> None:
        return

    def observe(self, rows: int, context: int, seconds: float) -> None:
        self.prices.observe(rows, context, seconds)

    def choose(self, trees: Seq[DraftTree], context: int, others: int) -> DraftTree | None:
        calibrated = [self._calibrated(tree) for tree in trees if len(tree)]
        if not calibrated:
            return None
        tree = merge(calibrated)
        gains = sorted(tree.q, reverse=True)[:MAX_NODES]
        base = others + 1
        best, best_rate, expected = 0, 1.0 / self.prices.price(base, context), 1.0
        for count, q in enumerate(gains, start=1):
            expected += q
            rate = expected / self.prices.price(base + count, context)
            if rate > best_rate:
                best, best_rate = count, rate
        if best == 0:
            for tree in trees:
                self._forget(tree.source)
            return None
        return cut(tree, best)

    def learn(self, tree: DraftTree, accepted: Seq[int]) -> None:
        ratio = self._ratio(tree.source)
        got, expected = self._evidence.get(tree.source, (0.0, 0.0))
        got += len(accepted)
        expected += sum(tree.q) / ratio  # the source's own q, before calibration
        if expected > self.MEMORY:
            got, expected = got / 2, expected / 2
        self._evidence[tree.source] = (got, expected)

    def _ratio(self, source: str) -> float:
        got, expected = self._evidence.get(source, (0.0, 0.0))
        return (got + self.PRIOR) / (expected + self.PRIOR)

    def _forget(self, source: str) -> None:
        got, expected = self._evidence.get(source, (0.0, 0.0))
        self._evidence[source] = (got * (1 - self.RECOVERY), expected * (1 - self.RECOVERY))

    def _calibrated(self, tree: DraftTree) -> DraftTree:
        ratio = self._ratio(tree.source)
        return DraftTree(tree.tokens, tree.parents, [min(1.0, q * ratio) for q in tree.q], tree.source)
