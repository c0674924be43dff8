"""One log with its places in order: in memory while it grows, mapped from its files once it is full."""

from __future__ import annotations

import mmap
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tandem.plugins.drafters.suffix.layout import FIRST, HEADER, WORD, Refused, order_header
from tandem.plugins.drafters.suffix.order import SORTED, Run, sort

if TYPE_CHECKING:
    import numpy as np


@dataclass(slots=True)
class Segment:
    """`words` of `text` are valid, and `runs` sort them from the first document on.

    Text is only ever added behind `words`, so runs that are out in the world stay right.
    """

    number: int
    text: mmap.mmap
    words: int
    runs: list[Run] = field(default_factory=list)

    @classmethod
    def growing(cls, number: int, capacity: int, content: bytes) -> Segment:
        """A segment in memory with room for `capacity` words, the `content` included (a header, and documents)."""
        text = mmap.mmap(-1, max(capacity * WORD, len(content)))  # zeroed, and taken from the system as it is written
        text[: len(content)] = content
        return cls(number, text, len(content) // WORD)

    @property
    def capacity(self) -> int:
        return len(self.text) // WORD

    def append(self, document: bytes) -> None:
        """Add a document's bytes; it is found after the next `sort_new`."""
        self.text[self.words * WORD : self.words * WORD + len(document)] = document
        self.words += len(document) // WORD

    def sort_new(self) -> None:
        """Sort what was added. Runs that are no longer than what follows them are sorted again with it.

        So there are at most about log2(words) runs, and a place is sorted that many times, whatever the sizes.
        """
        start = self.runs[-1].end if self.runs else FIRST
        if start == self.words:
            return
        kept = list(self.runs)
        while kept and kept[-1].end - kept[-1].start <= self.words - start:
            start = kept.pop().start
        kept.append(self._sorted(start))
        self.runs = kept

    def sort_all(self) -> None:
        """One run over everything."""
        if self.words > FIRST and not (len(self.runs) == 1 and self.runs[0].end == self.words):
            self.runs = [self._sorted(FIRST)]

    def _sorted(self, start: int) -> Run:
        return Run(self.text, start, self.words, sort(self._array(), start, self.words).data)

    def _array(self) -> np.ndarray:
        import numpy as np

        return np.frombuffer(self.text, np.uint32, self.words)

    # ------------------------------------------------------------------------------------- the order's own file

    def order_bytes(self) -> bytes:
        """The file that keeps the order of a segment with one run."""
        places = self.runs[0].places.tobytes() if self.runs else b""
        return order_header(self.number, self.words, self._checksum(), places) + places

    def take_order(self, file: mmap.mmap) -> None:
        """Use the order that such a file holds. Raises Refused when it is not this segment's."""
        import numpy as np

        if file[:HEADER] != order_header(self.number, self.words, self._checksum(), file[HEADER:]):
            raise Refused("is damaged, or is not the order of its log")
        places = memoryview(file)[HEADER:].cast("I")
        if len(places):
            ordered = np.frombuffer(places, np.uint32)
            if ordered.min() < max(FIRST, SORTED) or ordered.max() >= self.words:
                raise Refused("names places that its log does not have")
            self.runs = [Run(self.text, FIRST, self.words, places)]

    def _checksum(self) -> int:
        with memoryview(self.text) as text:
            return zlib.crc32(text[: self.words * WORD])
