"""The rows that a vision tower has made, kept by the picture's content."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import torch


class PictureRows:
    """See the contract `tandem.core.plugin.Store`. The least lately asked for go first.

    The key is `Picture.id`, which is made of the pixels: equal pictures share their rows, whoever sent them.
    """

    def __init__(self, room: int) -> None:
        """`room` in bytes. The latest picture's rows stay even when they alone take more: the next chunk of the prompt
        asks for them again."""
        self.room = room
        self.nbytes = 0
        self._rows: OrderedDict[str, torch.Tensor] = OrderedDict()
        self._hits = self._misses = self._evictions = 0

    def get(self, picture: str) -> torch.Tensor | None:
        """The rows of a picture, None when they must be made."""
        rows = self._rows.get(picture)
        if rows is None:
            self._misses += 1
            return None
        self._hits += 1
        self._rows.move_to_end(picture)
        return rows

    def put(self, picture: str, rows: torch.Tensor) -> None:
        """Keep the rows of a picture that is not kept yet."""
        self._rows[picture] = rows
        self.nbytes += rows.nbytes
        while self.nbytes > self.room and len(self._rows) > 1:
            self._evict()

    def shed(self, nbytes: int) -> int:
        freed = 0
        while freed < nbytes and self._rows:
            freed += self._evict()
        return freed

    def stats(self) -> Mapping[str, float]:
        return {
            "bytes": self.nbytes,
            "entries": len(self._rows),
            "hits": self._hits,
            "misses": self._misses,
            "evictions": self._evictions,
        }

    def clear(self) -> None:
        self._rows.clear()
        self.nbytes = 0

    def check(self) -> list[str]:
        held = sum(rows.nbytes for rows in self._rows.values())
        problems = [f"{self.nbytes} bytes are counted, {held} are held"] if held != self.nbytes else []
        if held > self.room and len(self._rows) > 1:
            problems.append(f"{held} bytes of {len(self._rows)} pictures pass the room of {self.room}")
        return problems

    def _evict(self) -> int:
        freed = self._rows.popitem(last=False)[1].nbytes
        self.nbytes -= freed
        self._evictions += 1
        return freed
