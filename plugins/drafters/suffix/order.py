"""The places of a text in the order of what stands before them, and the search for a match in it.

A suffix array sorts the places of a text by what follows them. Here a place is sorted by what *precedes* it, read
backwards, since the question is where the newest tokens have stood before. So one binary search finds the longest
match at once: it is with a neighbour of the spot where the newest tokens would be inserted.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem.plugins.drafters.suffix.layout import NO_TOKEN, WORD, Readable

if TYPE_CHECKING:
    import numpy as np

SORTED = 16
"""Tokens by which places are sorted (a power of two). Places that agree in these stand in any order."""
_BYTES = SORTED * WORD


@dataclass(frozen=True, slots=True)
class Run:
    """Some places of one text, sorted."""

    text: Readable
    """The bytes of the log. A place is a word of it, at least `SORTED`."""
    start: int
    """The first word of the sorted part: a document begins there."""
    end: int
    """The word behind it; nothing from there on is read."""
    places: memoryview
    """`[n]` uint32. Where a continuation begins: this word and the one before it are tokens of one document."""

    def longest(self, newest: bytes) -> tuple[int, int]:
        """`(tokens, spot)`: the longest match of `newest`, up to `SORTED` tokens, and where it is inserted.

        `newest` are the bytes of the newest tokens in reverse: little-endian ids that are turned round compare, as
        bytes, like the ids themselves, the newest first.
        """
        text, places = self.text, self.places
        spot = bisect_left(places, newest, key=lambda place: text[place * WORD - _BYTES : place * WORD][::-1])
        best = 0
        for near in (spot - 1, spot):
            if 0 <= near < len(places):
                place = places[near]
                best = max(best, _common(newest, text[place * WORD - _BYTES : place * WORD][::-1]))
        return best, spot

    def range(self, newest: bytes, spot: int) -> tuple[int, int]:
        """The indices of the places behind exactly these tokens: the first, and the one after the last.

        `spot` is where a longer text that begins with `newest` is inserted, so it lies between them.
        """
        text, places = self.text, self.places

        def before(place: int) -> bytes:
            return text[place * WORD - _BYTES : place * WORD][::-1]

        behind = newest + b"\xff" * (_BYTES + 1 - len(newest))  # above all that begins with `newest`
        first = bisect_left(places, newest, 0, spot, key=before)
        return first, bisect_left(places, behind, spot, key=before)


def _common(a: bytes, b: bytes) -> int:
    """Tokens that two reversed texts begin with alike."""
    tokens = 0
    for at in range(0, min(len(a), len(b)), WORD):
        if a[at : at + WORD] != b[at : at + WORD]:
            break
        tokens += 1
    return tokens


def sort(words: np.ndarray, start: int, end: int) -> np.ndarray:
    """The places of `words[start:end]` in order, `[n]` uint32.

    `words` is the whole log, `[n]` uint32, `start` a document's first word and at least `SORTED`. Places are ranked by
    the word before them, then by prefix doubling: ranks over k words, paired with the ranks k words before, sort by
    2k words. Only the sorting of 64-bit keys costs much, and numpy does that without holding the interpreter.
    """
    import numpy as np

    # Rank i is that of the word at start - SORTED + i, and of all before it.
    rank = words[start - SORTED : end - 1].astype(np.uint32)
    width = 1
    while True:
        key = rank[SORTED - 1 :].astype(np.uint64) << np.uint64(32)
        key |= rank[SORTED - 1 - width : len(rank) - width]
        order = np.argsort(key)
        width *= 2
        if width >= SORTED:
            break
        ranked = key[order]
        # No query reaches back over the separator that a document begins with, so all before `start` may rank alike.
        rank = np.zeros_like(rank)
        rank[SORTED - 1 :][order[1:]] = np.cumsum(ranked[1:] != ranked[:-1], dtype=np.uint32)
    tokens = words[start - 1 : end] < NO_TOKEN
    follows = tokens[1:] & tokens[:-1]
    return (order[follows[order]] + start).astype(np.uint32)
