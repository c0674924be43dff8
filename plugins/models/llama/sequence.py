"""The keys and values of one token sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass

import torch

from tandem.core.plugin import Anchor

FIRST_ROWS = 64


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of committed rows."""

    rows: torch.Tensor
    """`[layers, 2 * kv_heads, length, head_dim]`"""

    @property
    def length(self) -> int:
        return int(self.rows.shape[2])

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes)

    def tensors(self) -> Mapping[str, torch.Tensor]:
        return {"rows": self.rows}


class KVSequence:
    """Committed rows, followed in the same buffer by the pending rows of the last block.

    The buffer is `[layers, 2 * kv_heads, capacity, head_dim]` float32, keys before values. It starts empty and at
    least doubles when it is full, so a sequence of n rows has copied fewer than 2n of them.
    """

    def __init__(self, layers: int, kv_heads: int, head_dim: int, max_len: int) -> None:
        self.max_len = max_len
        self.rows = torch.empty(layers, 2 * kv_heads, 0, head_dim)
        self._length = 0
        self._pending: Seq[int] | None = None  # parents of the pending rows
        self._closed = False

    # ------------------------------------------------------------------------------------------ the contract

    @property
    def length(self) -> int:
        return self._length

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes)

    def commit(self, path: Seq[int]) -> None:
        """Keep the pending rows `path`. Raises ValueError, changing nothing, when they are no path of the block."""
        parents = self._pending
        if parents is None:
            raise ValueError("there is no pending block to commit; `forward` makes one, and it is committed once")
        before = -1
        for row in path:
            if not 0 <= row < len(parents):
                raise ValueError(f"row {row} is not in the pending block; its rows are 0 to {len(parents) - 1}")
            if parents[row] != before:
                raise ValueError(
                    f"the rows {list(path)} are no path: row {row} hangs on {_named(parents[row])}, "
                    f"not on {_named(before)}"
                )
            before = row
        if before != len(path) - 1:  # some row was skipped, so the kept ones must move up
            self._gather(path)
        self._length += len(path)
        self._pending = None

    def anchor(self) -> Anchor:
        """Keys and values can be cut anywhere, so there is nothing to keep."""
        self._settled("anchor")
        return Anchor(self._length, 0)

    def trim(self, length: int, anchor: Anchor | None = None) -> None:
        self._settled("trim")
        if not 0 <= length <= self._length:
            raise ValueError(f"a sequence of {self._length} rows can't be trimmed to {length}")
        self._length = length

    def snapshot(self, anchor: Anchor | None = None) -> Snapshot:
        self._settled("snapshot")
        length = self._length if anchor is None else anchor.length
        if length > self._length:
            raise ValueError(f"the anchor is at row {length}, but the sequence has only {self._length}")
        return Snapshot(self.rows[:, :, :length].clone())

    def restore(self, snapshot: Snapshot) -> None:
        self._settled("restore")
        if not isinstance(snapshot, Snapshot) or _without_length(snapshot.rows) != _without_length(self.rows):
            raise ValueError("the snapshot is of another model")
        if snapshot.length > self.max_len:
            raise ValueError(
                f"a snapshot of {snapshot.length} rows is longer than this sequence may be ({self.max_len})"
            )
        self._length = 0  # nothing of the old rows is worth copying when the buffer grows
        self._reserve(snapshot.length)
        self._write(0, snapshot.rows)
        self._length = snapshot.length

    def close(self) -> None:
        self.rows = self.rows[:, :, :0].clone()
        self._length, self._pending, self._closed = 0, None, True

    # ------------------------------------------------------------------------------------ for the model only

    def check_room(self, rows: int) -> None:
        """Raise ValueError unless a block of `rows` may be appended now."""
        self._settled("extend")
        if self._length + rows > self.max_len:
            raise ValueError(f"{rows} more rows after {self._length} pass this sequence's limit of {self.max_len} rows")

    def reserve(self, rows: int) -> None:
        """Make room for `rows` pending rows."""
        self._reserve(self._length + rows)

    def set_pending(self, parents: Seq[int]) -> None:
        self._pending = parents

    def _gather(self, path: Seq[int]) -> None:
        """Move the pending rows `path` up, right behind the committed ones."""
        kept = torch.tensor(path) + self._length
        self._write(self._length, self.rows.index_select(2, kept))

    @torch.inference_mode()  # the buffer may have been made under it, and such a tensor is written only under it
    def _write(self, start: int, rows: torch.Tensor) -> None:
        self.rows[:, :, start : start + rows.shape[2]] = rows

    def _reserve(self, needed: int) -> None:
        capacity = self.rows.shape[2]
        if needed <= capacity:
            return
        layers, heads, _, size = self.rows.shape
        kept = self.rows[:, :, : self._length]
        self.rows = torch.empty(layers, heads, min(self.max_len, max(needed, 2 * capacity, FIRST_ROWS)), size)
        self._write(0, kept)

    def _settled(self, verb: str) -> None:
        if self._closed:
            raise ValueError(f"can't {verb} a sequence that is closed")
        if self._pending is not None:
            raise ValueError(f"can't {verb} a sequence while a block is pending; commit it first")


def _named(row: int) -> str:
    return "the last committed row" if row < 0 else f"row {row}"


def _without_length(rows: torch.Tensor) -> tuple[int, ...]:
    return (*rows.shape[:2], rows.shape[3])
