"""Choosing what to verify: candidate trees are merged, and cut where more rows would cost more than they bring."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from typing import Protocol

from tandem.core.plugin import Block, DraftTree, Model

MAX_NODES = 31
"""Drafted nodes in one verify pass, at most; 32 rows with the root."""
CLASSES = (1024, 4096, 8192, 16384, 32768)
"""Context lengths (tokens) up to which verify prices are kept apart; longer ones share the last class."""


class Chooser(Protocol):
    """Decides which of the proposed nodes are verified."""

    def choose(self, trees: Seq[DraftTree], context: int, others: int) -> DraftTree | None:
        """One tree out of all, or None for a plain step. `others` rows of other sequences share the pass."""
        ...

    def learn(self, tree: DraftTree, accepted: Seq[int]) -> None:
        """`accepted` are the nodes of `tree` that became text."""
        ...


class TakeAll:
    """Verifies whatever is proposed. For exactness checks, where the cost does not matter."""

    def choose(self, trees: Seq[DraftTree], context: int, others: int) -> DraftTree | None:
        return cut(merge(trees), MAX_NODES) if trees else None

    def learn(self, tree: DraftTree, accepted: Seq[int]) -> None:
        return


class Prices:
    """Seconds of a forward pass by rows and context class, measured on this machine and learned from every pass."""

    ROWS = (1, 2, 4, 8, 16, 32)
    WEIGHT = 0.1  # of a new observation
    OUTLIER = 3.0  # an observation counts as at most this many times the known price

    def __init__(self, first: dict[int, float]) -> None:
        self._tables: dict[int, dict[int, float]] = {CLASSES[0]: dict(first)}

    @classmethod
    def measured(cls, model: Model, repeats: int = 5) -> Prices:
        """Time passes of 1 to 32 rows on an empty sequence; the median of `repeats` each, after one to warm up."""
        sequence = model.new_sequence(min(model.caps.max_len, 64))
        table: dict[int, float] = {}
        try:
            for rows in cls.ROWS:
                if rows > model.caps.max_len:
                    break
                taken = []
                for _ in range(repeats + 1):
                    block = Block(sequence, [0] * rows, logits=range(rows))
                    start = time.perf_counter()
                    model.forward([block])
                    taken.append(time.perf_counter() - start)
                    sequence.commit([])
                table[rows] = sorted(taken[1:])[repeats // 2]
        finally:
            sequence.close()
        return cls(table)

    def price(self, rows: int, context: int) -> float:
        """Expected seconds of a pass of `rows` rows, linear between the measured counts."""
        table = self._table(context)
        known = sorted(table)
        low = max((r for r in known if r <= rows), default=known[0])
        high = min((r for r in known if r >= rows), default=known[-1])
        if low == high:
            return table[low] * max(1.0, rows / high)
        share = (rows - low) / (high - low)
        return table[low] + share * (table[high] - table[low])

    def observe(self, rows: int, context: int, seconds: float) -> None:
        """Learn from a real pass of exactly `rows` rows of one sequence."""
        table = self._table(context)
        known = table[rows] if rows in table else self.price(rows, context)
        taken = min(seconds, self.OUTLIER * known)
        if rows in table or rows <= 32:
            table[rows] = known + self.WEIGHT * (taken - known)

    def _table(self, context: int) -> dict[int, float]:
        upto = next((c for c in CLASSES if context <= c), CLASSES[-1])
        if upto not in self._tables:
            nearest = max(c for c in self._tables if c < upto) if any(c < upto for c in self._tables) else CLASSES[0]
            self._tables[upto] = dict(self._tables[nearest])
        return self._tables[upto]

    def report(self) -> dict[int, dict[int, float]]:
        """Context class -> rows -> milliseconds."""
        tables = list(self._tables.items())  # the engine's thread may add one meanwhile
        return {c: {r: round(s * 1e3, 3) for r, s in sorted(t.items())} for c, t in tables}


class PricedChooser:
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


def merge(trees: Seq[DraftTree]) -> DraftTree:
    """One tree that holds every path of `trees`; where two agree on a node the larger q counts.

    The source is that of the tree with the most expected tokens.
    """
    if len(trees) == 1:
        return trees[0]
    merged = DraftTree(source=max(trees, key=lambda t: sum(t.q)).source)
    known: dict[tuple[int, int], int] = {}
    for tree in trees:
        place: list[int] = []
        for token, parent, q in zip(tree.tokens, tree.parents, tree.q, strict=True):
            under = place[parent] if parent >= 0 else -1
            node = known.get((under, token))
            if node is None:
                node = known[under, token] = merged.add(token, under, q)
            elif q > merged.q[node]:
                merged.q[node] = q
            place.append(node)
    return merged


def cut(tree: DraftTree, count: int) -> DraftTree:
    """The `count` likeliest nodes. A node goes only with its parent: q never grows downwards, and ties keep order."""
    if len(tree) <= count:
        return tree
    kept = sorted(sorted(range(len(tree)), key=lambda i: -tree.q[i])[:count])
    place = {-1: -1}
    small = DraftTree(source=tree.source)
    for i in kept:
        if tree.parents[i] in place:
            place[i] = small.add(tree.tokens[i], place[tree.parents[i]], tree.q[i])
    return small
