"""How far a drafter's probabilities can be trusted, learned from what was accepted.

A node's q is the probability of its whole path; q / q of its parent is that of its last step, given that the parent was
accepted. Steps are what is learned: given the parent, each verified node is one trial, whatever stands above it.

Trials are kept by source, by place (the first step below the root, or a later one: copying that has begun goes on more
easily than it begins) and by band of the step's probability. A calibrated step is

    c * (accepted + K m) / (expected + K m)

with the sums of the trials' outcomes and of their c, m the band's middle and K the weight of the belief before any
trial. That belief is what all bands of the source and place say together, which itself starts from "the drafter is
right". Sums are halved past a bound, so that the old counts less. On top of this, which holds for the server's life,
each text has a factor of its own on the odds of the calibrated steps.
"""

from __future__ import annotations

from bisect import bisect_right
from math import exp

EDGES = (0.05, 0.15, 0.3, 0.45, 0.6, 0.7, 0.8, 0.88, 0.94, 0.98)
"""Upper ends of the bands of a step's probability; above the last one is a band too."""
BAND = [bisect_right(EDGES, percent / 100) for percent in range(101)]
"""Band of a probability, by its whole percents."""
MIDDLE = [(low + high) / 2 for low, high in zip((0.0, *EDGES), (*EDGES, 1.0), strict=True)]
FIRST, LATER = 0, 1
"""Where a step is: below the root, or below another node."""


class Trials:
    """Sums over trials of one kind."""

    __slots__ = ("accepted", "expected", "trials")

    def __init__(self) -> None:
        self.trials = 0.0
        self.expected = 0.0
        self.accepted = 0.0

    def add(self, expected: float, accepted: bool, bound: float) -> None:
        """One trial; past `bound` trials all sums are halved."""
        self.trials += 1.0
        self.expected += expected
        if accepted:
            self.accepted += 1.0
        if self.trials > bound:
            self.trials, self.expected, self.accepted = self.trials / 2, self.expected / 2, self.accepted / 2


class Source:
    """What all texts taught about one source (`DraftTree.source`)."""

    __slots__ = ("_ratios", "bands", "bound", "pot", "verified", "whole")

    WHOLE_PRIOR = 4.0
    """Expected acceptances that the belief "the drafter is right" weighs."""
    BAND_PRIOR = 8.0
    """Trials that the belief of the whole source weighs in one band."""

    def __init__(self, bound: float) -> None:
        self.bound = bound
        self.whole = (Trials(), Trials())
        self.bands = tuple([Trials() for _ in MIDDLE] for _ in (FIRST, LATER))
        self.verified = [0, 0]
        """Nodes verified and nodes accepted, for the report."""
        self.pot = 0.0
        """Seconds that may be spent on trying it although it does not seem to pay."""
        self._ratios: list[list[float] | None] = [None, None]

    def ratios(self, where: int) -> list[float]:
        """By band: what a step's probability is to be multiplied with."""
        known = self._ratios[where]
        if known is None:
            whole = self.whole[where]
            belief = (whole.accepted + self.WHOLE_PRIOR) / (whole.expected + self.WHOLE_PRIOR)
            known = self._ratios[where] = [
                (trials.accepted + self.BAND_PRIOR * middle * belief) / (trials.expected + self.BAND_PRIOR * middle)
                for trials, middle in zip(self.bands[where], MIDDLE, strict=True)
            ]
        return known

    def add(self, where: int, step: float, accepted: bool) -> None:
        """A step of probability `step`, as the drafter said it, whose parent was accepted."""
        self.whole[where].add(step, accepted, self.bound)
        self.bands[where][BAND[int(step * 100)]].add(step, accepted, self.bound)
        self._ratios[where] = None

    def report(self) -> dict[str, object]:
        places = {}
        for name, where in (("first", FIRST), ("later", LATER)):
            bands, low = {}, 0.0
            for high, trials in zip((*EDGES, 1.0), list(self.bands[where]), strict=True):
                if trials.trials:
                    said, true = trials.expected / trials.trials, trials.accepted / trials.trials
                    bands[f"{low:g}-{high:g}"] = {
                        "trials": round(trials.trials, 1),
                        "said": round(said, 3),
                        "true": round(true, 3),
                    }
                low = high
            places[name] = bands
        return {"verified": self.verified[0], "accepted": self.verified[1], "steps": places}


class TextOdds:
    """What this text taught about one source, beside what all texts did: a factor on the odds of each step.

    The logarithm of the factor follows the errors of the steps' probabilities (online logistic regression with an
    intercept alone), fast at first and never slower than `RATE`, since a text changes: a copy begins, and ends.
    """

    __slots__ = ("_log", "_steps", "odds")

    RATE = 0.2
    FIRST_RATE = 1.0
    HALF = 3.0
    """Steps after which the rate is one half of the first."""
    DOUBT = -0.5
    """Where the logarithm begins: texts differ, and guesses that fail in one that is new cost more than caution."""
    BOUND = 6.0
    FADE = 0.97
    SURE = 0.995
    """A step is never taken as more certain than this, so that odds can always move it."""

    def __init__(self, doubt: float = DOUBT) -> None:
        self.odds = [exp(doubt), exp(doubt)]
        """By place: the factor on c / (1 - c) of a calibrated step c."""
        self._log = [doubt, doubt]
        self._steps = [0, 0]

    def step(self, where: int, known: float) -> float:
        """The step's probability in this text, from that by all texts' evidence."""
        favour = known * self.odds[where]
        return favour / (1.0 - known + favour)

    def fade(self) -> None:
        """A round went by in which nothing of the source was verified: what was learned here grows old."""
        for where in (FIRST, LATER):
            self._log[where] *= self.FADE
            self.odds[where] = exp(self._log[where])

    def add(self, where: int, known: float, accepted: bool) -> None:
        """A step whose probability all texts' evidence says to be `known`."""
        steps = self._steps[where]
        rate = max(self.RATE, self.FIRST_RATE / (1.0 + steps / self.HALF))
        moved = self._log[where] + rate * (accepted - self.step(where, known))
        self._log[where] = moved = min(self.BOUND, max(-self.BOUND, moved))
        self.odds[where] = exp(moved)
        self._steps[where] = steps + 1
