"""One generation's StairCut: which drafters are asked, and how many of their nodes are verified.

The cut maximises tokens a second of the round,

    (1 + sum of the kept nodes' calibrated q) / (pass of that many rows + drafting + what a round takes besides)

over every count of nodes in falling q, for each drafter's tree alone and for all merged. A pass's price includes its
walk and its commit. Rows of other sequences in the pass are there in any case: the price is that of all rows together,
and they count with the tokens they bring on average, so a node is taken where it brings more a second than the pass
does without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tandem.core.plugin import DraftTree
from tandem.plugins.choosers.staircut.asking import DrafterRecord, Worth, situation
from tandem.plugins.choosers.staircut.calibration import FIRST, LATER, TextOdds
from tandem.plugins.choosers.staircut.prices import context_class
from tandem.plugins.choosers.staircut.trees import (
    Cut,
    Reading,
    Said,
    Voice,
    agreeing,
    best_cut,
    chain,
    first_nodes,
    merge,
    read,
)

if TYPE_CHECKING:
    from tandem.plugins.choosers.staircut.shared import Shared


def shares(said: Seq[Said], rank: Mapping[str, int]) -> list[tuple[str, float]]:
    """What each drafter added to a node that several proposed: in the order they were asked, by how far each one's q
    rose above what those before had said."""
    out: list[tuple[str, float]] = []
    top = max(q for _, _, _, q in said)
    before = 0.0
    for voice, _, _, q in sorted(said, key=lambda one: rank.get(one[0].drafter, 0)):
        if q > before:
            out.append((voice.drafter, (q - before) / top))
            before = q
    return out


@dataclass(slots=True)
class Choice:
    """What `choose` gave, until it is learned from."""

    tree: DraftTree
    said: list[list[Said]]
    """By node of the tree: what was said of it."""
    row_price: float
    """Plain steps that each of its nodes cost."""


@dataclass(slots=True)
class Round:
    """One round's asking, from the first drafter that is wanted to what became of their trees."""

    asked: list[tuple[str, int]] = field(default_factory=list)
    """Drafters, each with the situation it was asked in."""
    consulted: set[str] = field(default_factory=set)
    readings: list[tuple[DraftTree, Reading]] = field(default_factory=list)
    promised: float = 0.0
    """Expected tokens of the best tree so far."""
    spent: float = 0.0
    """Expected seconds of the drafting."""
    choice: Choice | None = None
    chosen: bool = False
    """`choose` was asked, so that whatever comes next is another round."""


class StairCut:
    """The `TreeChooser` of one generation: its text's own evidence, over what all generations share."""

    TRIES = 0.25
    """A source is tried in spite of its record once its pot holds this many plain steps."""
    POT = 4.0
    """Plain steps that a source's pot holds at most."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._voices: dict[tuple[str, str], Voice] = {}
        self._worth: dict[str, Worth] = {}
        self._round = Round()
        self._drafter = ""
        self._kind = context_class(0)

    # --------------------------------------------------------------------------------------------------- asking

    def wants(self, drafter: str, context: int) -> bool:
        round_ = self._round
        if round_.chosen or drafter in round_.consulted:
            round_ = self._next_round()
        round_.consulted.add(drafter)
        self._kind = kind = context_class(context)
        where = situation(round_.promised)
        record, worth = self._record(drafter)
        shared = self._shared
        plain = shared.prices.speed * shared.prices.curve(kind)[1] + shared.between
        if not record.wants(kind, where, worth, plain, shared.exploration):
            return False
        record.asked += 1
        round_.asked.append((drafter, where))
        return True

    def drafted(self, drafter: str, tree: DraftTree | None, seconds: float) -> None:
        record, _ = self._record(drafter)
        record.took(self._kind, seconds)
        self._shared.spent_drafting(seconds)
        self._round.spent += record.cost(self._kind) or 0.0
        if tree:
            reading = read(tree, self._voice(drafter, tree.source))
            self._round.readings.append((tree, reading))
            self._round.promised = max(self._round.promised, reading.gain)

    def _next_round(self) -> Round:
        """The round before is over: what was asked in vain is known to be so."""
        before = self._round
        if before.choice is None:
            self._shared.count(1, 1)
            for drafter, where in before.asked:
                self._settle(drafter, where, 0.0)
        self._round = Round()
        return self._round

    def _settle(self, drafter: str, where: int, saved: float) -> None:
        record, worth = self._record(drafter)
        record.worth.add(where, saved, record.MEMORY)
        worth.add(where, saved, record.TEXT_MEMORY)

    def _record(self, drafter: str) -> tuple[DrafterRecord, Worth]:
        worth = self._worth.get(drafter)
        if worth is None:
            worth = self._worth[drafter] = Worth()
        return self._shared.drafter(drafter), worth

    def _voice(self, drafter: str, source: str) -> Voice:
        key = drafter, source
        voice = self._voices.get(key)
        if voice is None:
            voice = self._voices[key] = Voice(drafter, self._shared.source(source), TextOdds())
        return voice

    # -------------------------------------------------------------------------------------------------- choosing

    def choose(self, trees: Seq[DraftTree], context: int, others: int) -> DraftTree | None:
        round_, shared = self._round, self._shared
        if round_.chosen:
            round_ = self._next_round()
        round_.chosen = True
        readings = [self._reading(tree) for tree in trees if len(tree)]
        if not readings:
            return None
        if not shared.branches:
            readings = [chain(reading) for reading in readings]
        candidates = readings if len(readings) == 1 else [merge(readings), *readings]
        if len(readings) > 1 and not shared.branches:
            candidates[0] = chain(candidates[0])
        prices = shared.prices
        curve = prices.curve(context_class(context))
        widest = min(shared.max_nodes, max(len(candidate.q) for candidate in candidates))
        if others:
            passes = [prices.at(curve, others + 1 + n) for n in range(widest + 1)]
        else:
            passes = curve[1 : widest + 2]
        besides = shared.between / prices.speed
        spent = round_.spent / prices.speed + besides
        tokens = 1.0 + others * shared.tokens_per_row
        plain = tokens / (passes[0] + spent)
        reading, cut = None, Cut(0, 0.0, passes[0] + spent, plain)
        for candidate in candidates:
            found = best_cut([candidate.q[i] for i in candidate.order], passes, tokens, spent)
            if found.rate > cut.rate and found.rate > plain * shared.least_gain:
                reading, cut = candidate, found
        if reading is None:
            for one in readings:
                one.said[0][0][0].text.fade()
        tried = self._try(trees, readings, reading, cut, passes, tokens, spent)
        if tried is not None:
            reading, cut = tried
        if reading is None or (not others and shared.exploration * prices.since_plain(context) > 1.0):
            # the second is for the price of a plain step: where every round drafts, none would ever be seen
            return None
        tree, kept = first_nodes(reading, cut.count)
        alone = len(readings) > 1 and any(reading is one for one in readings)
        said = agreeing(reading, kept, readings) if alone else [reading.said[node] for node in kept]
        round_.choice = Choice(tree, said, (passes[cut.count] - passes[0]) / (cut.count * (curve[1] + besides)))
        return tree

    def _reading(self, tree: DraftTree) -> Reading:
        for known, reading in self._round.readings:
            if known is tree:
                return reading
        # not told of by `drafted`, so nobody says which drafter it is from
        return read(tree, self._voice("", tree.source))

    def _try(
        self,
        trees: Seq[DraftTree],
        readings: Seq[Reading],
        chosen: Reading | None,
        cut: Cut,
        passes: Seq[float],
        tokens: float,
        spent: float,
    ) -> tuple[Reading, Cut] | None:
        """A cut that does not seem to pay, now and then: of a source that was passed over although its own
        probabilities, taken at their word, would have had more nodes verified. Otherwise what was wrong once would
        never be known to have become right. What it is expected to lose comes out of the source's pot, and so is a
        bounded share of the time."""
        prices = self._shared.prices
        plain = passes[0] * prices.speed
        for tree, reading in zip((tree for tree in trees if len(tree)), readings, strict=True):
            source = reading.said[0][0][0].source
            source.pot = min(source.pot + self._shared.exploration * plain, self.POT * plain)
            if source.pot < self.TRIES * plain:
                continue
            trusted = best_cut(sorted(tree.q, reverse=True), passes, tokens, spent).count
            verified = (
                sum(any(voice.source is source for voice, *_ in chosen.said[i]) for i in chosen.order[: cut.count])
                if chosen
                else 0
            )
            gains = [reading.q[i] for i in reading.order]
            for count in range(min(trusted, len(gains)), verified, -1):
                gain = sum(gains[:count])
                loss = (passes[count] + spent - (tokens + gain) / cut.rate) * prices.speed
                if loss <= source.pot:
                    source.pot -= max(loss, 0.0)
                    self._shared.tried += 1
                    return reading, Cut(count, gain, passes[count] + spent, (tokens + gain) / (passes[count] + spent))
        return None

    # -------------------------------------------------------------------------------------------------- learning

    def learn(self, tree: DraftTree, accepted: Seq[int]) -> None:
        round_ = self._round
        choice = round_.choice
        if choice is None or tree is not choice.tree:
            return
        right = set(accepted)
        saved: dict[str, float] = {}
        rank = {drafter: at for at, (drafter, _) in enumerate(round_.asked)}
        for place, (parent, said) in enumerate(zip(tree.parents, choice.said, strict=True)):
            here = place in right
            worth = here - choice.row_price
            if len(said) == 1:
                drafter = said[0][0].drafter
                saved[drafter] = saved.get(drafter, 0.0) + worth
            else:
                for drafter, share in shares(said, rank):
                    saved[drafter] = saved.get(drafter, 0.0) + share * worth
            tried = parent < 0 or parent in right  # else the walk never came here: no trial of this step
            for voice, step, known, _ in said:
                source = voice.source
                source.verified[0] += 1
                source.verified[1] += here
                if tried:
                    where = FIRST if parent < 0 else LATER
                    source.add(where, step, here)
                    voice.text.add(where, known, here)
        for drafter, where in round_.asked:
            self._settle(drafter, where, saved.get(drafter, 0.0))
            self._record(drafter)[0].used += drafter in saved
        round_.asked.clear()
        self._shared.count(1 + len(right), 1 + len(tree))
        self._shared.drafted += 1

    def observe(self, rows: int, context: int, seconds: float) -> None:
        self._shared.passed(rows, context, seconds)
