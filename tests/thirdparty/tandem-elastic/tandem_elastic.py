"""A chooser: how many guesses are verified follows how many came true."""

from collections.abc import Mapping, Sequence
from typing import Any

from tandem.core.plugin import Chooser, DraftTree, Model, Options, cut, hookimpl, merge, option

TANDEM_API = ">=0.2,<0.3"


class Elastic:
    """What all generations share: the most nodes of a pass, and the counts of what was verified."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.verified = 0
        self.accepted = 0

    def open(self) -> "Width":
        return Width(self)

    def report(self) -> Mapping[str, Any]:
        return {"verified": self.verified, "accepted": self.accepted}

    def close(self) -> None:
        pass


class Width:
    """One generation's width: doubled by a tree that was right down to a leaf, halved by one that was all wrong."""

    def __init__(self, shared: Elastic) -> None:
        self.shared = shared
        self.width = min(2, shared.most)

    def wants(self, drafter: str, context: int) -> bool:
        return True

    def drafted(self, drafter: str, tree: DraftTree | None, seconds: float) -> None:
        pass

    def choose(self, trees: Sequence[DraftTree], context: int, others: int) -> DraftTree | None:
        return cut(merge(trees), self.width)

    def learn(self, tree: DraftTree, accepted: Sequence[int]) -> None:
        self.shared.verified += len(tree)
        self.shared.accepted += len(accepted)
        if not accepted:
            self.width = max(1, self.width // 2)
        elif accepted[-1] not in tree.parents:
            self.width = min(self.shared.most, self.width * 2)

    def observe(self, rows: int, context: int, seconds: float) -> None:
        pass


def build(options: Options, model: Model) -> Elastic:
    return Elastic(options["most"])


@hookimpl
def tandem_choosers() -> list[Chooser]:
    return [
        Chooser(
            name="elastic",
            doc="Verifies more guesses after those that came true, and fewer after those that did not.",
            options={"most": option("integer", "The most nodes that one pass verifies.", 16, minimum=1, maximum=31)},
            build=build,
        )
    ]
