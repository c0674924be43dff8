"""The tier: whole sequences, least recently used dropped first, and the anchors that lead back into them."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence as Seq
from dataclasses import dataclass, field

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


@dataclass(slots=True, eq=False)
class Running:
    """A sequence in use, as far as the tier was shown it. It may have gone on since."""

    sequence: Callable[[], Sequence | None]
    """A weak reference: the tier holds nothing that its user has dropped."""
    tokens: Seq[int]
    """What it has committed, from the start; only its user adds to it."""
    anchors: list[Anchor] = field(default_factory=list)

    @property
    def open(self) -> Sequence | None:
        """The sequence, unless it was closed meanwhile."""
        sequence = self.sequence()
        return sequence if sequence is not None and sequence.length >= len(self.tokens) else None


def last_anchor(anchors: Seq[Anchor], length: int) -> Anchor | None:
    """The longest one that is not longer than `length`."""
    place = bisect_right(anchors, length, key=lambda anchor: anchor.length)
    return anchors[place - 1] if place else None


class Resident(CacheTier):
    """See the contract `CacheTier`. `trim`: sequences can be cut anywhere, so no anchors are needed.

    The kept sequences are in the order of use, the oldest first. A sequence is either kept here or in use by the
    engine, never both, so nothing that is given away can change under another generation. Of one in use the tier gives
    copies of the rows that it was shown: whoever goes on with a conversation while somebody else does need not read it
    again.
    """

    def __init__(self, budget: int, anchor_budget: int, conversations: int, anchor_every: int, trim: bool) -> None:
        """Budgets in bytes."""
        self._budget = budget
        self._anchor_budget = anchor_budget
        self._conversations = conversations
        self._every = anchor_every
        self._trim = trim
        self._kept: list[Kept] = []
        self._running: dict[int, Running] = {}
        """The sequences in use, by their `id`. An entry goes with its sequence."""
        self._copies = self._evictions = 0

    # ------------------------------------------------------------------------------------------------ the contract

    def lookup(self, tokens: Seq[int]) -> Match | None:
        wanted = list(tokens)
        best: tuple[int, Kept | Running] | None = None
        in_use = list(self._running.values())  # a list at once: a sequence that ends elsewhere takes its entry away
        entries: list[Kept | Running] = [running for running in in_use if running.open is not None]
        entries += self._kept
        for entry in entries:  # of equals the latest used, and one that need not be copied first of all
            length = self._usable(entry, common_prefix(entry.tokens, wanted))
            if length >= LEAST and (best is None or length >= best[0]):
                best = length, entry
        if best is None:
            return None
        length, entry = best
        return Match(length, entry, copied=isinstance(entry, Running) or self._is_a_fork(entry, length))

    def resume(self, match: Match, new_sequence: Callable[[], Sequence]) -> Sequence | None:
        entry: Kept | Running = match.handle
        if isinstance(entry, Running):
            source = entry.open
            return None if source is None else self._copy(source, entry, match.length, new_sequence())
        if entry not in self._kept:
            return None
        if self._is_a_fork(entry, match.length):
            self._use(entry)
            return self._copy(entry.sequence, entry, match.length, new_sequence())
        self._kept.remove(entry)
        if match.length < len(entry.tokens):
            entry.sequence.trim(match.length, last_anchor(entry.anchors, match.length))
        anchors = [known for known in entry.anchors if known.length <= match.length]
        self._show(entry.sequence, entry.tokens[: match.length], anchors)
        return entry.sequence

    def offer(self, moment: Moment, tokens: Seq[int], sequence: Sequence) -> None:
        """Remember what the sequence holds, and take an anchor where the model needs them."""
        if moment is Moment.GENERATION_END or moment is Moment.CLOSING:
            return
        running = self._show(sequence, tokens)
        if self._trim or self._anchor_budget == 0:
            return
        anchors = running.anchors
        last = anchors[-1].length if anchors else 0
        if len(tokens) > last and (moment is Moment.PROMPT_END or len(tokens) - last >= self._every):
            anchors.append(sequence.anchor())
            self._fit_anchors()

    def adopt(self, tokens: Seq[int], sequence: Sequence) -> bool:
        known = self._running.pop(id(sequence), None)
        anchors = known.anchors if known is not None else []
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
        self._running.clear()

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

    def _usable(self, entry: Kept | Running, shared: int) -> int:
        """How many of the shared tokens the sequence can be cut back to."""
        if self._trim or (shared == len(entry.tokens) and isinstance(entry, Kept)):
            return shared
        anchor = last_anchor(entry.anchors, shared)
        return anchor.length if anchor is not None else 0

    def _copy(self, source: Sequence, entry: Kept | Running, length: int, empty: Sequence) -> Sequence:
        """`empty` with a copy of the source's first `length` rows."""
        self._copies += 1
        whole = isinstance(entry, Kept) and length == len(entry.tokens)
        anchor = None if whole else last_anchor(entry.anchors, length)
        empty.restore(source.snapshot(anchor if anchor is not None or whole else Anchor(length, 0)))
        self._show(empty, entry.tokens[:length])
        return empty

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

    def _show(self, sequence: Sequence, tokens: Seq[int], anchors: Seq[Anchor] = ()) -> Running:
        """A sequence in use has committed these tokens."""
        key = id(sequence)
        known = self._running.get(key)
        if known is None:
            known = Running(_reference(sequence, lambda: self._running.pop(key, None)), tokens, list(anchors))
            if known.sequence() is not None:
                self._running[key] = known
        known.tokens = tokens
        return known

    def _fit_anchors(self) -> None:
        """Give anchors up while they pass their budget: the oldest conversation's first, each one's first ones first,
        and nobody's newest before all others are gone."""
        lists = [kept.anchors for kept in self._kept] + [entry.anchors for entry in list(self._running.values())]
        held = sum(anchor.nbytes for anchors in lists for anchor in anchors)
        for spared in (NEWEST, 0):
            for anchors in lists:
                while held > self._anchor_budget and len(anchors) > spared:
                    held -= anchors.pop(0).nbytes


def _reference(sequence: Sequence, gone: Callable[[], object]) -> Callable[[], Sequence | None]:
    """A weak reference that tells when the sequence is gone. One whose class allows none is never known."""
    try:
        return weakref.ref(sequence, lambda _: gone())
    except TypeError:
        return lambda: None
