"""One generation's drafting out of the store."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tandem.core.plugin import DraftTree
from tandem.plugins.drafters.suffix.layout import WORD
from tandem.plugins.drafters.suffix.order import SORTED
from tandem.plugins.drafters.suffix.votes import spread, vote

if TYPE_CHECKING:
    from tandem.plugins.drafters.suffix.order import Run
    from tandem.plugins.drafters.suffix.store import Store

LONGEST_ORDER = 32
"""Matches are compared up to this many tokens; a longer one says nothing more."""
LEAST_KEPT = 8
"""A shorter text is not worth keeping."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The drafter's options, as its part describes them."""

    min_order: int
    max_depth: int
    branch_top_k: int
    max_samples: int
    min_q: float


class Recent:
    """The last few texts, so that of a prompt which goes on from one of them only the new part is kept."""

    TEXTS = 8

    def __init__(self) -> None:
        self._texts: deque[np.ndarray] = deque(maxlen=self.TEXTS)

    def add(self, text: Seq[int]) -> None:
        self._texts.append(np.array(text, np.uint32))

    def known(self, prompt: Seq[int]) -> int:
        """How many tokens the prompt begins alike with one of them."""
        asked = np.array(prompt, np.uint32)
        return max((_alike(text, asked) for text in self._texts), default=0)


def _alike(a: np.ndarray, b: np.ndarray) -> int:
    size = min(len(a), len(b))
    different = np.flatnonzero(a[:size] != b[:size])
    return int(different[0]) if len(different) else size


class SuffixSession:
    """Searches the store for what the text ends with; at its end the store gets the new text.

    `recent` is given where prompts are kept too. With `keep` False nothing of the text gets anywhere.
    """

    def __init__(self, store: Store, limits: Limits, keep: bool, recent: Recent | None = None) -> None:
        self._store = store
        self._limits = limits
        self._keep = keep
        self._recent = recent if keep else None
        self._prompt: Seq[int] | None = None
        self._answer: list[int] = []
        self._pieces: list[list[int]] = []
        """What was written before something hidden; each piece is kept by itself."""
        self._newest: deque[int] = deque(maxlen=LONGEST_ORDER - 1)

    def extend(self, tokens: Seq[int]) -> None:
        self._newest.extend(tokens[-LONGEST_ORDER:])
        if self._prompt is None:
            self._prompt = tokens if self._recent is not None else ()
        elif self._keep:
            self._answer.extend(tokens)

    def extend_hidden(self, tokens: Seq[int]) -> None:
        self._newest.extend(tokens[-LONGEST_ORDER:])
        self._pieces.append(self._answer)
        self._answer = []
        self._recent = None  # a prompt and its answer are kept as one text, and this one has a gap

    def close(self) -> None:
        for piece in self._pieces:
            if len(piece) >= LEAST_KEPT:
                self._store.add(piece)
        self._pieces = []
        text = self._answer
        if self._recent is not None and self._prompt:
            whole = [*self._prompt, *self._answer]
            text = whole[self._recent.known(self._prompt) :]
            self._recent.add(whole)
        if len(text) >= LEAST_KEPT:
            self._store.add(text)
        self._answer = []

    def propose(self, root: int, limit: int) -> DraftTree | None:
        if limit < 1:
            return None
        newest = array("I", [*self._newest, root]).tobytes()[::-1]
        order, matches = self._matches(newest[: SORTED * WORD])
        if not matches:
            return None
        order, continuations = self._continuations(matches, newest, order, limit)
        if not continuations:
            return None
        limits = self._limits
        tree = vote(continuations, order, limit, limits.branch_top_k, limits.max_depth, limits.min_q)
        tree.source = f"suffix:{_size(order)}"
        return tree if len(tree) else None

    def _matches(self, newest: bytes) -> tuple[int, list[tuple[Run, int, int]]]:
        """The longest match in the store, up to `SORTED` tokens, and its places: `(run, first, behind the last)`."""
        best = self._limits.min_order
        found: list[tuple[Run, int]] = []
        for run in self._store.view:
            order, spot = run.longest(newest)
            if order > best:
                best, found = order, []
            if order == best:
                found.append((run, spot))
        return best, [(run, *run.range(newest[: best * WORD], spot)) for run, spot in found]

    def _continuations(
        self, matches: Seq[tuple[Run, int, int]], newest: bytes, order: int, limit: int
    ) -> tuple[int, list[list[int]]]:
        """Of some of the places, those whose match is the longest: its length and what follows each.

        Each place is compared with the text itself, so an order that is wrong costs a proposal and no more.
        """
        chosen = spread([end - first for _, first, end in matches], self._limits.max_samples)
        deep = min(self._limits.max_depth, limit) * WORD
        before, behind = [], []
        for (run, first, _), picked in zip(matches, chosen, strict=True):
            text, end = run.text, run.end * WORD
            for index in picked:
                at = run.places[first + index] * WORD
                # A separator's bytes fill what is missing at either end of the text.
                before.append(text[max(0, at - LONGEST_ORDER * WORD) : at][::-1].ljust(LONGEST_ORDER * WORD, b"\xff"))
                behind.append(text[at : min(at + deep, end)].ljust(deep, b"\xff"))
        if not before:
            return 0, []
        wanted = np.frombuffer(newest.ljust(LONGEST_ORDER * WORD, b"\xfe"), ">u4")
        alike = np.frombuffer(b"".join(before), ">u4").reshape(-1, LONGEST_ORDER) == wanted
        lengths = np.where(alike.all(axis=1), LONGEST_ORDER, alike.argmin(axis=1))
        longest = int(lengths.max())
        if longest < order:
            return 0, []
        following = np.frombuffer(b"".join(behind), np.uint32).reshape(len(behind), -1)
        return longest, following[lengths == longest].tolist()


def _size(order: int) -> str:
    """The class of match lengths whose acceptance is learned together."""
    return "short" if order <= 4 else "middle" if order <= 8 else "long" if order < LONGEST_ORDER else "whole"
