"""Draft trees with calibrated probabilities: read, merged with every node's sources kept, and cut."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from tandem.core.plugin import DraftTree
from tandem.plugins.choosers.staircut.calibration import BAND, FIRST, LATER, Source, TextOdds


@dataclass(slots=True)
class Voice:
    """Who drafted a tree, and what is known of him."""

    drafter: str
    source: Source
    text: TextOdds


Said = tuple[Voice, float, float, float]
"""Who proposed a node; its step's probability as drafted, and calibrated by all texts' evidence; its path's q."""


@dataclass(slots=True)
class Reading:
    """A tree as the chooser sees it."""

    tokens: list[int]
    parents: list[int]
    q: list[float]
    """`[n]` calibrated, the whole path from the root included; never grows from parent to child."""
    said: list[list[Said]]
    """`[n]` what was said of the node, first by the one whose q it has."""
    order: list[int]
    """The nodes in falling q, each behind its parent."""
    name: str

    @property
    def gain(self) -> float:
        """Expected accepted tokens with every node verified."""
        return sum(self.q)


def read(tree: DraftTree, voice: Voice) -> Reading:
    """The tree with calibrated probabilities.

    What can't be is put right: a node likelier than its parent, and children of one node that are together likelier
    than it (they exclude each other, so their shares are scaled down).
    """
    raw, parents = tree.q, tree.parents
    ratios = [
        (voice.source.ratios(where), voice.text.odds[where])
        for where in ((FIRST,) if len(raw) == 1 else (FIRST, LATER))
    ]
    q: list[float] = []
    said: list[list[Said]] = []
    for i, parent in enumerate(parents):
        if parent < 0:
            step, above = raw[i], 1.0
            by_band, odds = ratios[FIRST]
        else:
            step, above = (raw[i] / raw[parent] if raw[i] < raw[parent] else 1.0), q[parent]
            by_band, odds = ratios[LATER]
        if step > 1.0:
            step = 1.0
        known = step * by_band[BAND[int(step * 100)]]
        if known > TextOdds.SURE:
            known = TextOdds.SURE
        favour = known * odds
        path = above * favour / (1.0 - known + favour)
        q.append(path)
        said.append([(voice, step, known, path)])
    if len(set(parents)) < len(parents):
        q = exclusive(parents, q)
    return Reading(tree.tokens, parents, q, said, in_order(q), tree.source)


def exclusive(parents: Seq[int], q: Seq[float]) -> list[float]:
    """Path probabilities with the children of one node scaled down where they sum to more than the node."""
    together = [0.0] * (len(q) + 1)  # the last one is the root's, which parent -1 reaches
    for parent, value in zip(parents, q, strict=True):
        together[parent] += value
    out: list[float] = []
    for parent, value in zip(parents, q, strict=True):
        room, above = (1.0, 1.0) if parent < 0 else (q[parent], out[parent])
        share = value / max(together[parent], room) if value > 0 else 0.0
        out.append(above * share if share < 1.0 else above)
    return out


def in_order(q: Seq[float]) -> list[int]:
    """Node indices in falling q; equals keep their order, so that a parent comes before its child."""
    return sorted(range(len(q)), key=q.__getitem__, reverse=True)


def merge(readings: Seq[Reading]) -> Reading:
    """One tree with every path of all; a node's q is the largest one given to it, and everybody who proposed it is
    kept, so that its fate teaches all of them."""
    tokens: list[int] = []
    parents: list[int] = []
    q: list[float] = []
    said: list[list[Said]] = []
    known: dict[tuple[int, int], int] = {}
    for reading in readings:
        place: list[int] = []
        for i, (token, parent) in enumerate(zip(reading.tokens, reading.parents, strict=True)):
            under = place[parent] if parent >= 0 else -1
            node = known.get((under, token))
            if node is None:
                node = known[under, token] = len(tokens)
                tokens.append(token)
                parents.append(under)
                q.append(reading.q[i])
                said.append(list(reading.said[i]))
            elif reading.q[i] > q[node]:
                q[node] = reading.q[i]
                said[node] = [*reading.said[i], *said[node]]
            else:
                said[node] += reading.said[i]
            place.append(node)
    q = exclusive(parents, q)
    return Reading(tokens, parents, q, said, in_order(q), max(readings, key=lambda reading: reading.gain).name)


def agreeing(reading: Reading, kept: Seq[int], others: Seq[Reading]) -> list[list[Said]]:
    """What was said of these nodes (in topological order), in this tree and, on the same paths, in others."""
    said = [list(reading.said[node]) for node in kept]
    for other in others:
        if other is reading:
            continue
        child = {(parent, token): i for i, (parent, token) in enumerate(zip(other.parents, other.tokens, strict=True))}
        place = {-1: -1}
        for at, node in enumerate(kept):
            above = place.get(reading.parents[node])
            there = child.get((above, reading.tokens[node])) if above is not None else None
            if there is not None:
                place[node] = there
                said[at] += other.said[there]
    return said


def chain(reading: Reading) -> Reading:
    """The likeliest child of each node from the root down: for a model that can't verify branches."""
    best: dict[int, int] = {}
    for i, parent in enumerate(reading.parents):
        if parent not in best or reading.q[i] > reading.q[best[parent]]:
            best[parent] = i
    path: list[int] = []
    node = -1
    while (node := best.get(node, -1)) >= 0:
        path.append(node)
    return Reading(
        [reading.tokens[i] for i in path],
        list(range(-1, len(path) - 1)),
        [reading.q[i] for i in path],
        [reading.said[i] for i in path],
        list(range(len(path))),
        reading.name,
    )


@dataclass(frozen=True, slots=True)
class Cut:
    """How many nodes, in falling q, and what that promises."""

    count: int
    gain: float
    """Expected accepted tokens."""
    seconds: float
    """The pass and what was spent on drafting."""
    rate: float
    """Tokens a second of the whole pass, the tokens of others in it included."""


def best_cut(gains: Seq[float], passes: Seq[float], tokens: float, spent: float, least: int = 0) -> Cut:
    """The count that maximises `(tokens + gains[:count]) / (passes[count] + spent)`; the smallest of equals.

    `gains` falls; `passes[n]` is the price of the pass with n nodes; `tokens` come in any case (the root, and what the
    pass brings others). Every count from `least` on is tried.
    """
    gain = sum(gains[:least])
    cut = Cut(least, gain, passes[least] + spent, (tokens + gain) / (passes[least] + spent))
    best_rate = cut.rate
    count, best_gain = least, gain
    for n in range(least, min(len(gains), len(passes) - 1)):
        gain += gains[n]
        rate = (tokens + gain) / (passes[n + 1] + spent)
        if rate > best_rate:
            best_rate, count, best_gain = rate, n + 1, gain
    if count == least:
        return cut
    return Cut(count, best_gain, passes[count] + spent, best_rate)


def first_nodes(reading: Reading, count: int) -> tuple[DraftTree, list[int]]:
    """The tree of the first `count` nodes in order, and which nodes of the reading they are."""
    kept = sorted(reading.order[:count])
    place = {node: at for at, node in enumerate(kept)}
    place[-1] = -1
    tree = DraftTree(
        [reading.tokens[i] for i in kept],
        [place[reading.parents[i]] for i in kept],
        [reading.q[i] for i in kept],
        reading.name,
    )
    return tree, kept
