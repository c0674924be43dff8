"""The keys and values that one attention layer keeps of one sequence."""

from __future__ import annotations

from collections.abc import Hashable

import torch

from tandem.plugins.models._hybrid.sequence import Path, Tensors

FIRST_ROWS = 64


class KvState:
    """Committed rows, followed in the same buffer by pending ones; keys before values, after norm and rotation.

    The buffer is `[2 * heads, capacity, size]`. It starts empty and at least doubles when it is full, so that a
    sequence of n rows has copied fewer than 2n of them.
    """

    def __init__(self, heads: int, size: int, dtype: torch.dtype, device: torch.device, max_len: int) -> None:
        self._heads = heads
        self._max_len = max_len
        self._rows = torch.empty(2 * heads, 0, size, dtype=dtype, device=device)
        self.length = 0
        """Committed rows."""
        self.pending = 0

    @property
    def layout(self) -> Hashable:
        heads, _, size = self._rows.shape
        return "kv", heads, size, self._rows.dtype

    @property
    def nbytes(self) -> int:
        return int(self._rows.nbytes)

    def grow(self, count: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Room for `count` rows behind the pending ones, which the caller fills: the buffers of keys and of values,
        `[heads, capacity, size]` each, and where those rows begin."""
        start = self.length + self.pending
        self._reserve(start + count, start)
        self.pending += count
        return self._rows[: self._heads], self._rows[self._heads :], start

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Put rows `[n, heads, size]` behind the pending ones; all keys and all values, `[heads, length + pending,
        size]` each, views of the buffer."""
        held_keys, held_values, start = self.grow(len(keys))
        end = start + len(keys)
        held_keys[:, start:end] = keys.transpose(0, 1)
        held_values[:, start:end] = values.transpose(0, 1)
        return held_keys[:, :end], held_values[:, :end]

    def commit(self, path: Path) -> None:
        if len(path) and path[-1] != len(path) - 1:  # some row was skipped, so the kept ones must move up
            kept = path.on(self._rows.device) + self.length
            self._rows[:, self.length : self.length + len(path)] = self._rows[:, kept]
        self.length += len(path)
        self.pending = 0

    def anchor(self) -> Tensors:
        return {"length": torch.tensor(self.length)}

    def rewind(self, anchor: Tensors) -> None:
        self.length = int(anchor["length"])

    def snapshot(self, anchor: Tensors | None = None) -> Tensors:
        length = self.length if anchor is None else int(anchor["length"])
        return {"rows": self._rows[:, :length].clone()}

    def fits(self, snapshot: Tensors) -> bool:
        rows = snapshot.get("rows")
        if rows is None or len(snapshot) > 1 or rows.dim() != 3 or rows.dtype != self._rows.dtype:
            return False
        return (rows.shape[0], rows.shape[2]) == (self._rows.shape[0], self._rows.shape[2])

    def restore(self, snapshot: Tensors) -> None:
        rows = snapshot["rows"]
        self.length, self.pending = rows.shape[1], 0
        self._reserve(self.length, 0)  # nothing of the old rows is worth copying
        self._rows[:, : self.length] = rows

    def close(self) -> None:
        self._rows = self._rows[:, :0].clone()
        self.length = self.pending = 0

    def _reserve(self, needed: int, kept: int) -> None:
        capacity = self._rows.shape[1]
        if needed <= capacity:
            return
        # A tree that a draft head reads may pass the end of the sequence by its depth.
        rows = max(needed, min(self._max_len, max(2 * capacity, FIRST_ROWS)))
        grown = self._rows.new_empty(self._rows.shape[0], rows, self._rows.shape[2])
        grown[:, :kept] = self._rows[:, :kept]
        self._rows = grown
