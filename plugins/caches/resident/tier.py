"""The tier: whole sequences, least recently used dropped first, and the anchors that lead back into them."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

from tandem.core.plugin import Anchor, CacheTier, Match, Moment, Sequence, common_prefix

LEAST = 16
"""Fewer shared tokens than this are read again sooner than found."""

NEWEST = 4
"""The last anchors of each conversation, which are given up last: the next turn parts near its end."""


@dataclass(slots=True, eq=False)
class Kept:
    """An ended generation's sequence."""

    tokens: list[int]
    """What it has committed."""
    sequence: Sequence
    anchors: list[Anchor] = field(default_factory=list)
    """Ascending lengths, all below the sequence's own."""

    @property
    def nbytes(self) -> int:
        return self.sequence.nbytes

    def last_anchor(self, length: int) -> Anchor | None:
        """The longest one that is not longer than `length`."""
        place = bisect_right(self.anchors, length, key=lambda anchor: anchor.length)
        return self.anchors[place - 1] if place else None


class Resident(CacheTier):
    """See the contract `CacheTier`. `trim`: sequences can be cut anywhere, so no anchors are needed.

    The kept sequences are in the order of use, the oldest first. A sequence is either kept here or in use by the
    engine, never both, so nothing that is given away can change under another generation.
    """

    def __init__(self, budget: int, anchor_budget: int, conversations: int, anchor_every: int, trim: bool) -> None:
        """Budgets in bytes."""
        self._budget = budget
        self._anchor_budget = anchor_budget
        self._conversations = conversations
        self._every = anchor_every
        self._trim = trim
        self._kept: list[Kept] = []
        self._running: dict[int, tuple[Any, list[Anchor]]] = {}
        """The anchors of sequences in use: id -> (weak reference, anchors). An entry goes with its sequence."""
        self._copies = self._evictions = 0

    # ------------------------------------------------------------------------------------------------ the contract

    def lookup(self, tokens: Seq[int]) -> Match | None:
        wanted = list(tokens)
        best: tuple[int, Kept] | None = None
        for kept in self._kept:
            length = self._usable(kept, common_prefix(kept.tokens, wanted))
            if length >= LEAST and (best is None or length >= best[0]):  # of equals the latest used
                best = length, kept
        return Match(*best) if best is not None else None

    def resume(self, match: Match, new_sequence: Callable[[], Sequence]) -> Sequence | None:
        kept: Kept = match.handle
        if kept not in self._kept:
            return None
        anchor = None if match.length == len(kept.tokens) else kept.last_anchor(match.length)
        if self._is_a_fork(kept, match.length):
            self._copies += 1
            self._use(kept)
            sequence = new_sequence()
            sequence.restore(kept.sequence.snapshot(anchor or Anchor(match.length, 0)))
            return sequence
        self._kept.remove(kept)
        if match.length < len(kept.tokens):
            kept.sequence.trim(match.length, anchor)
        self._remember(kept.sequence, [known for known in kept.anchors if known.length <= match.length])
        return kept.sequence

    def offer(self, moment: Moment, tokens: Seq[int], sequence: Sequence) -> None:
        """Take an anchor, where the model needs them."""
        if self._trim or moment is Moment.GENERATION_END or self._anchor_budget == 0:
            return
        anchors = self._anchors_of(sequence)
        last = anchors[-1].length if anchors else 0
        if len(tokens) > last and (moment is Moment.PROMPT_END or len(tokens) - last >= self._every):
            anchors.append(sequence.anchor())
            self._fit_anchors()

    def adopt(self, tokens: Seq[int], sequence: Sequence) -> bool:
        anchors = self._forget(sequence)
        if len(tokens) < LEAST or sequence.nbytes > self._budget:
            return False
        new = Kept(list(tokens), sequence, [anchor for anchor in anchors if anchor.length < len(tokens)])
        for kept in list(self._kept):  # what the new one holds too is kept once
            if len(kept.tokens) <= len(new.tokens) and common_prefix(kept.tokens, new.tokens) == len(kept.tokens):
                self._drop(kept)
        while len(self._kept) >= self._conversations or self._bytes() + new.nbytes > self._budget:
            self._evict()
        self._kept.append(new)
        self._fit_anchors()
        return True

    def held(self) -> Iterator[tuple[Seq[int], Sequence]]:
        for kept in list(self._kept):
            yield kept.tokens, kept.sequence

    def shed(self, nbytes: int) -> int:
        freed = 0
        while freed < nbytes and self._kept:
            freed += self._evict()
        return freed

    def stats(self) -> Mapping[str, float]:
        kept = list(self._kept)
        anchors = [anchor for entry in kept for anchor in list(entry.anchors)]
        return {
            "bytes": sum(entry.nbytes for entry in kept),
            "entries": len(kept),
            "tokens": sum(len(entry.tokens) for entry in kept),
            "anchors": len(anchors),
            "anchor_bytes": sum(anchor.nbytes for anchor in anchors),
            "copies": self._copies,
            "evictions": self._evictions,
        }

    def clear(self) -> None:
        for kept in list(self._kept):
            self._drop(kept)
        for _, anchors in self._running.values():
            anchors.clear()

    def check(self) -> list[str]:
        problems = []
        for place, kept in enumerate(self._kept):
            if kept.sequence.length != len(kept.tokens):
                problems.append(f"sequence {place} has {kept.sequence.length} rows for {len(kept.tokens)} tokens")
            lengths = [anchor.length for anchor in kept.anchors]
            if lengths != sorted(set(lengths)) or (lengths and lengths[-1] >= len(kept.tokens)):
                problems.append(f"the anchors of sequence {place} are at {lengths}")
        if len(self._kept) > self._conversations or self._bytes() > self._budget:
            problems.append(f"{len(self._kept)} sequences of {self._bytes()} bytes pass the budget")
        return problems

    def close(self) -> None:
        self.clear()

    # ------------------------------------------------------------------------------------------------ its sequences

    def _usable(self, kept: Kept, shared: int) -> int:
        """How many of the shared tokens the sequence can be cut back to."""
        if self._trim or shared == len(kept.tokens):
            return shared
        anchor = kept.last_anchor(shared)
        return anchor.length if anchor is not None else 0

    def _is_a_fork(self, kept: Kept, length: int) -> bool:
        """Most of the conversation lies behind the shared part, so somebody may still go on with it."""
        return length < len(kept.tokens) // 2

    def _bytes(self) -> int:
        return sum(kept.nbytes for kept in self._kept)

    def _use(self, kept: Kept) -> None:
        self._kept.remove(kept)
        self._kept.append(kept)

    def _evict(self) -> int:
        """Drop the least recently used; the bytes that it held."""
        self._evictions += 1
        return self._drop(self._kept[0])

    def _drop(self, kept: Kept) -> int:
        freed = kept.nbytes + sum(anchor.nbytes for anchor in kept.anchors)
        self._kept.remove(kept)
        kept.sequence.close()
        return freed

    # -------------------------------------------------------------------------------------------------- its anchors

    def _anchors_of(self, sequence: Sequence) -> list[Anchor]:
        """Those of a sequence in use."""
        known = self._running.get(id(sequence))
        return known[1] if known is not None else self._remember(sequence, [])

    def _remember(self, sequence: Sequence, anchors: list[Anchor]) -> list[Anchor]:
        if not self._trim:
            key = id(sequence)
            gone = weakref.ref(sequence, lambda _: self._running.pop(key, None))
            self._running[key] = gone, anchors
        return anchors

    def _forget(self, sequence: Sequence) -> list[Anchor]:
        return self._running.pop(id(sequence), (None, []))[1]

    def _fit_anchors(self) -> None:
        """Give anchors up while they pass their budget: the oldest conversation's first, each one's first ones first,
        and nobody's newest before all others are gone."""
        lists = [kept.anchors for kept in self._kept] + [anchors for _, anchors in self._running.values()]
        held = sum(anchor.nbytes for anchors in lists for anchor in anchors)
        for spared in (NEWEST, 0):
            for anchors in lists:
                while held > self._anchor_budget and len(anchors) > spared:
                    held -= anchors.pop(0).nbytes
