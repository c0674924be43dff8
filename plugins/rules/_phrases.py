"""Text as words, read piece by piece while it is written."""

from __future__ import annotations

import re
from collections import deque

LONGEST = 64
"""Longer words are several items, each of this many characters."""
_CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_ITEM = re.compile(rf"[^\W{_CJK}]{{1,{LONGEST}}}|[{_CJK}]|[^\w\s]")
_OPEN = re.compile(rf"[^\W{_CJK}]{{1,{LONGEST - 1}}}")


class Words:
    """Cuts a text that comes in pieces into items: words, numbers and names (`foo_bar`), single signs, and single
    characters where a script writes no spaces. How it is cut into pieces changes nothing: the last word is held back
    until something follows it."""

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, text: str) -> list[str]:
        """The items that are complete now."""
        text = self._rest + text
        items = _ITEM.findall(text)
        self._rest = items.pop() if items and text.endswith(items[-1]) and _OPEN.fullmatch(items[-1]) else ""
        return items

    def end(self) -> list[str]:
        """The item that was held back. The next piece begins another text."""
        items, self._rest = [self._rest] if self._rest else [], ""
        return items


def is_word(item: str) -> bool:
    """Whether an item says something by itself: no sign, no number, no single letter."""
    return not item[0].isdigit() if len(item) > 1 else "\u3040" <= item <= "\ud7af"


class Phrases:
    """The phrases of a text: `order` words in a row with everything between them, numbers and signs.

    So the next case of an enumeration, or the next row of a table, is another phrase by its numbers, and a sentence
    that is written again is the same. Fewer than `order` words, at a text's beginning, are a phrase too.
    """

    def __init__(self, order: int) -> None:
        self._words = Words()
        self._last: deque[tuple[str, ...]] = deque(maxlen=order)
        """The last words, each with the numbers and signs in front of it."""
        self._between: list[str] = []

    def feed(self, text: str) -> list[int]:
        """A hash for each word that is complete now: that of the phrase that it ends. O(order) a word."""
        return self._hashes(self._words.feed(text))

    def end(self) -> list[int]:
        """Those that were held back. The next piece begins another text."""
        hashes = self._hashes(self._words.end())
        self._last.clear()
        self._between.clear()
        return hashes

    def _hashes(self, items: list[str]) -> list[int]:
        hashes = []
        for item in items:
            if not is_word(item):
                if len(self._between) < LONGEST:
                    self._between.append(item)
                continue
            self._last.append((*self._between, item))
            self._between.clear()
            first, *others = self._last
            hashes.append(hash((first[-1], *others)))  # what stands before the first word is no part of it
        return hashes
