"""Attention of new rows over their own sequence: its committed rows and, among the new ones, their ancestors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Seq
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch

ONEDNN_ROWS = 16
"""From how many rows on a pass uses oneDNN's batched products. Both of SmolLM2's (9 heads, 3 for keys, 64 numbers) for
16 rows over 512, 1024 and 2048 take 106, 186 and 352 us with it and 124, 250 and 516 us without; for 8 rows there is
no gain, and for one row it takes twice as long (2 threads of an AMD EPYC, Zen 5)."""


class BlockAttention:
    """The views that one block's attention needs, made once for all layers.

    `heads` is the pass's scratch `[heads + 2 * kv_heads, R, head_dim]`: queries (already scaled), keys, values of the
    rows of all blocks, turned to their positions. `out` is the pass's result `[R, heads * head_dim]`. Rows
    `start:start + n` are this block's. `cache` is the sequence's `[layers, 2 * kv_heads, capacity, head_dim]` with
    room for n rows after its `length` committed ones.
    """

    def __init__(
        self,
        heads: torch.Tensor,
        out: torch.Tensor,
        start: int,
        parents: Seq[int] | None,
        n: int,
        cache: torch.Tensor,
        length: int,
        tile: int,
    ) -> None:
        kv_heads, size = cache.shape[1] // 2, cache.shape[3]
        query_heads = heads.shape[0] - 2 * kv_heads
        group = query_heads // kv_heads
        mine = heads.narrow(1, start, n)
        self._new = mine[query_heads:]
        self._slots = cache.narrow(2, length, n).unbind(0)

        # The query heads that share a key head are rows of one product: [kv_heads, group * rows, head_dim].
        queries = mine[:query_heads].view(kv_heads, group, n, size)
        results = out.narrow(0, start, n).view(n, kv_heads, group, size).permute(1, 2, 0, 3)
        self._tiles = []
        for first, rows in _tiles(n, tile if parents is None else n):
            seen = length + first + rows
            self._tiles.append(
                _Tile(
                    _flat(queries.narrow(2, first, rows)),
                    (kv_heads, group * rows, size),
                    cache[:, :kv_heads, :seen].transpose(2, 3).unbind(0),
                    cache[:, kv_heads:, :seen].unbind(0),
                    None if rows == 1 else chain_mask(rows) if parents is None else tree_mask(parents),
                    (kv_heads, group, rows, size),
                    results.narrow(2, first, rows),
                )
            )

    def store(self, layer: int) -> None:
        """Put the rows' keys and values into the cache."""
        self._slots[layer].copy_(self._new)

    def run(self, layer: int) -> None:
        """Write the attention's result into `out`; the rows must have been stored."""
        for queries, flat, keys, values, mask, shape, results in self._tiles:
            scores = torch.bmm(queries.reshape(flat), keys[layer])
            if mask is not None:
                scores.view(*shape[:3], -1)[..., -shape[2] :].add_(mask)
            results.copy_(torch.bmm(torch.softmax(scores, -1), values[layer]).view(shape))


class _Tile(NamedTuple):
    """Rows of a block that are computed together: all of a tree's, or a run of a chain's."""

    queries: torch.Tensor
    """A view of the scratch, of `flat` shape where one exists, else of `shape`."""
    flat: tuple[int, int, int]
    """`[kv_heads, group * rows, head_dim]`"""
    keys: tuple[torch.Tensor, ...]
    """For each layer `[kv_heads, head_dim, seen]`: what the rows see, through the mask for the last of it."""
    values: tuple[torch.Tensor, ...]
    """For each layer `[kv_heads, seen, head_dim]`."""
    mask: torch.Tensor | None
    """`[rows, rows]`"""
    shape: tuple[int, int, int, int]
    """`[kv_heads, group, rows, head_dim]`"""
    results: torch.Tensor
    """A view of the pass's result, of `shape`."""


def _flat(queries: torch.Tensor) -> torch.Tensor:
    """`[kv_heads, group, rows, head_dim]` -> `[kv_heads, group * rows, head_dim]` if that is a view, else as it is."""
    try:
        return queries.view(queries.shape[0], -1, queries.shape[3])
    except RuntimeError:
        return queries


def _tiles(n: int, size: int) -> list[tuple[int, int]]:
    """First row and number of rows of each tile."""
    return [(first, min(size, n - first)) for first in range(0, n, size)]


@cache
def _whole_chain_mask(rows: int) -> torch.Tensor:
    return torch.full((rows, rows), float("-inf")).triu_(1)


def chain_mask(rows: int) -> torch.Tensor:
    """What is added to the scores of a chain's rows among themselves, `[rows, rows]`: -inf for later rows."""
    whole = _whole_chain_mask(max(64, rows))
    return whole[:rows, :rows]


def tree_mask(parents: Seq[int]) -> torch.Tensor:
    """The same for a tree, `[n, n]`: 0 for a row's ancestors and itself, -inf for every other row."""
    n = len(parents)
    rows: list[list[float]] = []
    for row, parent in enumerate(parents):
        seen = list(rows[parent]) if parent >= 0 else [float("-inf")] * n
        seen[row] = 0.0
        rows.append(seen)
    return torch.tensor(rows)


def depths(parents: Seq[int]) -> list[int]:
    """How many rows of the block lie above each row, `[n]`."""
    found: list[int] = []
    for parent in parents:
        found.append(found[parent] + 1 if parent >= 0 else 0)
    return found


@contextmanager
def onednn_products(wanted: bool) -> Iterator[None]:
    """Let oneDNN do the float32 products inside, where a pass of many rows gains from it.

    torch hands float32 batched products to oneDNN only if they may be rounded to bfloat16 on the way. oneDNN makes
    use of that with AMX; with AVX-512 it computes in float32. On an AMD EPYC the attention of 512 rows (9 heads, tiles
    of 128) takes 1.4 ms with it, 4.5 ms with MKL and 3.3 ms with torch's fused attention.
    """
    if not wanted:
        yield
        return
    setting = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = setting.fp32_precision
    setting.fp32_precision = "bf16"
    try:
        yield
    finally:
        setting.fp32_precision = before
