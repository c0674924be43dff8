"""The arm `novelty`: the newest words say again, in other order or with small changes, what was said before."""

from __future__ import annotations

from collections import deque

from tandem.plugins.rules._phrases import Phrases


class Novelty:
    """How much of the last `window` words is new.

    A word is new when the phrase of `order` words that it ends was written fewer than `times` times before. Counting
    the times, and not only whether, leaves a draft alone that is written out once more. O(1) a word.
    """

    def __init__(self, order: int, window: int, times: int) -> None:
        self._window, self._times = window, times
        self._phrases = Phrases(order)
        self._seen: dict[int, int] = {}
        """Hash of a phrase -> how often it was written."""
        self._new: deque[bool] = deque(maxlen=window)
        self._count = 0

    def feed(self, text: str) -> None:
        for phrase in self._phrases.feed(text):
            before = self._seen.get(phrase, 0)
            self._seen[phrase] = before + 1
            if len(self._new) == self._window:
                self._count -= self._new[0]
            self._new.append(before < self._times)
            self._count += before < self._times

    @property
    def share(self) -> float:
        """The share of new words in the window; 1.0 while it is not full."""
        return self._count / self._window if len(self._new) == self._window else 1.0
