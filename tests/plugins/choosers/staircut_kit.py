"""What the tests of StairCut share: its options, trees, prices, and a machine that is simulated."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tandem.core.plugin import DraftTree, TreeChooser
from tandem.core.plugin.part import with_defaults
from tandem.plugins.choosers.staircut import tandem_choosers
from tandem.plugins.choosers.staircut.prices import Prices
from tandem.plugins.choosers.staircut.shared import Shared

(PART,) = tandem_choosers()
WIDTHS = (1, 2, 4, 8, 16, 32)


def options(**given: Any) -> dict[str, Any]:
    return with_defaults(PART.options, given)


def linear(per_row: float) -> Callable[[int], float]:
    """A plain step takes 1 s, each further row `per_row`."""
    return lambda rows: 1.0 + per_row * (rows - 1)


TENTH = linear(0.1)


def shared(price: Callable[[int], float] = TENTH, branches: bool = True, **given: Any) -> Shared:
    return Shared(
        Prices({rows: price(rows) for rows in WIDTHS}), options(**given), branches=branches, clock=lambda: 0.0
    )


def chain(*q: float, source: str = "s", start: int = 1) -> DraftTree:
    tree = DraftTree(source=source)
    for value in q:
        tree.add(start + len(tree), len(tree) - 1, value)
    return tree


@dataclass
class Guesser:
    """A drafter of a simulated text: chains of `depth` tokens, each right with probability `right` as long as those
    before were, while it says `says`. One proposal takes `seconds`."""

    name: str
    right: Callable[[int], float]
    """By position in the text."""
    says: float | Callable[[int], float]
    depth: int = 8
    seconds: float = 0.0
    asked: int = 0

    def propose(self, truth: Sequence[int], at: int, noise: random.Random) -> DraftTree:
        self.asked += 1
        tree, q = DraftTree(source=self.name), 1.0
        says = self.says(at) if callable(self.says) else self.says
        for step in range(self.depth):
            q *= says
            good = noise.random() < self.right(at)
            tree.add(truth[at + 1 + step] if good else -1 - step, step - 1, q)
        return tree


@dataclass
class Played:
    tokens: int = 0
    seconds: float = 0.0
    widths: list[int] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def play(
    chooser: TreeChooser,
    guessers: Sequence[Guesser],
    price: Callable[[int], float],
    tokens: int,
    seed: int = 0,
    jitter: Callable[[random.Random], float] = lambda noise: 1.0,
    after: Callable[[int], None] = lambda at: None,
) -> Played:
    """Write so many tokens with the chooser deciding; time is what the prices say, times the jitter. `after` is told
    after each round where it began."""
    noise = random.Random(seed)
    truth = list(range(1000, 1000 + tokens + 64))
    played = Played()
    while played.tokens < tokens:
        at, trees = played.tokens, []
        for guesser in guessers:
            if chooser.wants(guesser.name, at):
                tree = guesser.propose(truth, at, noise)
                played.seconds += guesser.seconds
                chooser.drafted(guesser.name, tree, guesser.seconds)
                trees.append(tree)
        chosen = chooser.choose(trees, at, 0) if trees else None
        rows = 1 + (len(chosen) if chosen is not None else 0)
        taken = price(rows) * jitter(noise)
        played.seconds += taken
        played.tokens += 1
        played.widths.append(rows)
        if chosen is not None:
            accepted = walk(chosen, truth[at + 1 :])
            played.tokens += len(accepted)
            chooser.learn(chosen, accepted)
        chooser.observe(rows, at, taken)
        after(at)
    return played


def walk(tree: DraftTree, truth: Sequence[int]) -> list[int]:
    """The nodes that the text goes through."""
    child = {(parent, token): i for i, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True))}
    accepted: list[int] = []
    node = -1
    for token in truth:
        following = child.get((node, token))
        if following is None:
            break
        accepted.append(following)
        node = following
    return accepted


class Fixed:
    """Verifies the first `count` nodes of one drafter's chain, always; what StairCut is measured against."""

    def __init__(self, drafter: str, count: int) -> None:
        self.drafter, self.count = drafter, count

    def wants(self, drafter: str, context: int) -> bool:
        return self.count > 0 and drafter == self.drafter

    def drafted(self, drafter: str, tree: DraftTree | None, seconds: float) -> None:
        return

    def choose(self, trees: Sequence[DraftTree], context: int, others: int) -> DraftTree | None:
        (tree,) = trees
        return DraftTree(tree.tokens[: self.count], tree.parents[: self.count], tree.q[: self.count], tree.source)

    def learn(self, tree: DraftTree, accepted: Sequence[int]) -> None:
        return

    def observe(self, rows: int, context: int, seconds: float) -> None:
        return


def best_fixed(guessers: Sequence[Guesser], price: Callable[[int], float], tokens: int) -> float:
    """The rate of the best policy that never changes: plain steps, or so many nodes of one drafter."""
    policies = [("", 0), *((g.name, count) for g in guessers for count in range(1, g.depth + 1))]
    return max(play(Fixed(*policy), guessers, price, tokens, seed=1).rate for policy in policies)
