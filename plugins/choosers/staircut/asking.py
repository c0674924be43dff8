"""Which drafters are asked: what each one costs, and what its guesses have been saving."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from math import isfinite

from tandem.plugins.choosers.staircut.prices import CLASSES

SITUATIONS = (0.3, 1.0, 3.0)
"""Expected tokens that the drafters asked before promise in this round. What a drafter adds depends on it: nothing,
where a copy is being followed anyway."""


def situation(promised: float) -> int:
    return bisect_right(SITUATIONS, promised)


class Worth:
    """Plain steps saved by asking, on average: by situation, with old rounds counting less and less."""

    __slots__ = ("means", "rounds")

    def __init__(self) -> None:
        self.means = [0.0] * (len(SITUATIONS) + 1)
        self.rounds = [0] * (len(SITUATIONS) + 1)

    def add(self, where: int, saved: float, memory: int) -> None:
        self.rounds[where] += 1
        self.means[where] += (saved - self.means[where]) / min(self.rounds[where], memory)


class DrafterRecord:
    """What all generations know of one drafter."""

    PRIOR, PRIOR_ROUNDS = 0.5, 4
    """Plain steps that an unknown drafter is believed to save, and how many rounds that belief weighs."""
    TEXT_WEIGHT = 8
    """Rounds that all texts' evidence weighs against one text's own."""
    MEMORY, TEXT_MEMORY = 200, 40
    SURE = 3
    """It is asked so often before its cost says anything: the first time may load or compile something."""

    def __init__(self) -> None:
        self.asked = self.skipped = self.tried = self.used = 0
        """Rounds: asked at all; passed over; asked although it did not seem to pay; some node of its was verified."""
        self.worth = Worth()
        self.pot = 0.0
        """Seconds that may be spent on asking although it does not seem to pay."""
        self._costs: dict[int, list[float]] = {}  # context class -> [seconds, times]

    def cost(self, kind: int) -> float | None:
        """Seconds of a proposal in this context class, or in the nearest one known; None before the first."""
        costs = self._costs.get(kind)
        if costs is not None:
            return costs[0]
        known = min(
            list(self._costs), key=lambda other: (abs(CLASSES.index(other) - CLASSES.index(kind)), other), default=0
        )
        return self._costs[known][0] if known else None

    def took(self, kind: int, seconds: float) -> None:
        """A proposal took so long. Long ones are believed slowly, as with passes; the first few by their least."""
        seconds = max(seconds, 1e-7)
        costs = self._costs.get(kind)
        if costs is None:
            known = self.cost(kind)
            self._costs[kind] = [seconds, 1.0] if known is None else [known, float(self.SURE)]
            if known is None:
                return
            costs = self._costs[kind]
        if costs[1] < self.SURE:
            costs[0] = min(costs[0], seconds)
        else:
            # most proposals find nothing and are short, some are long: the mean counts, so one of them moves it by
            # its share, and what lies far out by no more than a bound
            known = costs[0]
            costs[0] = known + max(0.03, 1.0 / (costs[1] + 1.0)) * (min(seconds, 20.0 * known) - known)
        costs[1] += 1.0

    def expected(self, where: int, text: Worth) -> float:
        """Plain steps that asking will save."""
        shared = self.worth
        rounds = shared.rounds[where]
        weight = min(rounds, self.MEMORY)
        mean = (shared.means[where] * weight + self.PRIOR * self.PRIOR_ROUNDS) / (weight + self.PRIOR_ROUNDS)
        own = min(text.rounds[where], self.TEXT_MEMORY)
        return (text.means[where] * own + mean * self.TEXT_WEIGHT) / (own + self.TEXT_WEIGHT)

    def wants(self, kind: int, where: int, text: Worth, plain: float, share: float) -> bool:
        """Whether to ask now, where a plain step takes `plain` seconds and `share` of them may go into trying."""
        cost = self.cost(kind)
        if cost is None or self.asked < self.SURE:
            return True
        if self.expected(where, text) * plain > cost:
            return True
        self.pot = min(self.pot + share * plain, max(plain, cost))
        if self.pot >= cost:
            self.pot -= cost
            self.tried += 1
            return True
        self.skipped += 1
        return False

    # --------------------------------------------------------------------------------------------- to and from JSON

    def report(self) -> dict[str, object]:
        return {
            "asked": self.asked,
            "skipped": self.skipped,
            "tried": self.tried,
            "used": self.used,
            "draft_ms": {str(kind): round(costs[0] * 1e3, 4) for kind, costs in sorted(dict(self._costs).items())},
            "saved_steps": [
                round(mean, 3) if rounds else None
                for mean, rounds in zip(list(self.worth.means), list(self.worth.rounds), strict=True)
            ],
        }

    def to_json(self) -> dict[str, list[float]]:
        """Context class -> [seconds, times asked]."""
        return {str(kind): list(costs) for kind, costs in sorted(dict(self._costs).items())}

    @classmethod
    def from_json(cls, stored: object) -> DrafterRecord:
        """Raises ValueError for anything that `to_json` could not have written."""
        record = cls()
        if not isinstance(stored, Mapping):
            raise ValueError("has drafting costs that are no object")
        for kind, costs in stored.items():
            right = (
                kind in map(str, CLASSES)
                and isinstance(costs, list)
                and len(costs) == 2
                and all(isinstance(number, int | float) and isfinite(number) and number > 0 for number in costs)
            )
            if not right:
                raise ValueError(f"has the drafting cost {costs!r} for the context class {kind!r}")
            record._costs[int(kind)] = [float(costs[0]), min(float(costs[1]), 10.0)]
        return record
