"""Attention of new rows over a long prefix and their ancestors: keys are read once for a tile of queries.

The heads that share a key head, of all rows, are the rows of a tile. The prefix is cut into spans that programs sum up
apart (a running maximum, the sum of the weights, the weighted values); one more program takes the new keys, masked to
each row's ancestors. A second kernel joins what they found, first span to last.

The spans depend on the prefix alone. A key that a row doesn't see has the weight 0, and adding it changes no bit, so a
row's result is the same however many rows come after it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language import constexpr, tensor

from tandem.plugins._ops.kernels.common import interpreted, rows_contiguous

TILE_ROWS = 64
TILE_KEYS = 32
LEAST_SPAN = 256
"""Keys of a span at the least."""
MOST_SPANS = 32
FEW_ROWS = 32
"""Up to so many rows the prefix is cut into spans. More fill the device by themselves, and partial results of each span
would be bigger than the keys."""
LOG2_E = 1.4426950408889634


def spans(prefix: int) -> tuple[int, int]:
    """How many spans a prefix has, and keys a span; the last may be shorter."""
    if prefix == 0:
        return 0, TILE_KEYS
    count = min(MOST_SPANS, triton.cdiv(prefix, LEAST_SPAN))
    length = triton.cdiv(triton.cdiv(prefix, count), TILE_KEYS) * TILE_KEYS
    return triton.cdiv(prefix, length), length


@triton.jit(do_not_specialize=["rows", "new", "prefix", "count", "length"])
def _attend_span(
    q: tensor, keys: tensor, values: tensor, ancestors: tensor, found: tensor, stats: tensor, rows: tensor,
    new: tensor, prefix: tensor, count: tensor, length: tensor, scale: tensor, q_row: tensor, q_head: tensor,
    keys_head: tensor, keys_row: tensor, values_head: tensor, values_row: tensor, anc_row: tensor,
    GROUP: constexpr, HEADS: constexpr, SIZE: constexpr, CHAIN: constexpr, TILE_ROWS: constexpr, TILE_KEYS: constexpr,
    WIDEN: constexpr,
) -> None:  # fmt: skip
    """Program (tile of query rows, key head, span); the last span is the new keys. `scale` has log2(e) in it."""
    head = tl.program_id(1)
    span = tl.program_id(2)
    spot = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    row = spot // GROUP
    query = head * GROUP + spot % GROUP
    real = row < rows
    dim = tl.arange(0, SIZE)
    own = prefix + new - rows + row  # where this row stands among the keys
    place = row.to(tl.int64) * q_row + query * q_head
    asked = tl.load(q + place[:, None] + dim[None, :], mask=real[:, None], other=0.0)
    if WIDEN:
        asked = asked.to(tl.float32)
    ours = keys + head.to(tl.int64) * keys_head
    theirs = values + head.to(tl.int64) * values_head
    stop = prefix + new
    if CHAIN:  # keys behind the tile's last row are out of sight
        stop -= rows - 1 - tl.minimum((tl.program_id(0) * TILE_ROWS + TILE_ROWS - 1) // GROUP, rows - 1)
    begin = tl.where(span == count, prefix, span * length)
    end = tl.where(span == count, stop, tl.minimum(span * length + length, prefix))
    most = tl.full((TILE_ROWS,), float("-inf"), dtype=tl.float32)
    weight = tl.zeros((TILE_ROWS,), dtype=tl.float32)
    total = tl.zeros((TILE_ROWS, SIZE), dtype=tl.float32)
    for start in range(begin, end, TILE_KEYS):
        key = start + tl.arange(0, TILE_KEYS)
        there = key < end
        far = key.to(tl.int64)
        k = tl.load(ours + far[None, :] * keys_row + dim[:, None], mask=there[None, :], other=0.0)
        v = tl.load(theirs + far[:, None] * values_row + dim[None, :], mask=there[:, None], other=0.0)
        if WIDEN:
            k, v = k.to(tl.float32), v.to(tl.float32)
        scores = tl.dot(asked.to(k.dtype), k, input_precision="ieee") * scale
        if CHAIN:
            seen = key[None, :] <= own[:, None]
        else:
            seen = (key < prefix)[None, :] | (key[None, :] == own[:, None])
            above = tl.load(
                ancestors + row[:, None] * anc_row + (key - prefix)[None, :],
                mask=real[:, None] & (there & (key >= prefix))[None, :], other=0,
            )  # fmt: skip
            seen = seen | (above != 0)
        scores = tl.where(seen & there[None, :], scores, float("-inf"))
        greater = tl.maximum(most, tl.max(scores, axis=1))
        # A row that has seen nothing yet keeps -inf; 0 in its stead makes its weights exp2(-inf) = 0 and no NaN.
        level = tl.where(greater == float("-inf"), 0.0, greater)
        share = tl.exp2(scores - level[:, None])
        faded = tl.exp2(most - level)
        weight = weight * faded + tl.sum(share, axis=1)
        total = tl.dot(share.to(v.dtype), v, total * faded[:, None], input_precision="ieee")
        most = greater
    place = (span.to(tl.int64) * rows + row) * HEADS + query
    tl.store(found + place[:, None] * SIZE + dim[None, :], total, mask=real[:, None])
    tl.store(stats + place * 2, most, mask=real)
    tl.store(stats + place * 2 + 1, weight, mask=real)


@triton.jit(do_not_specialize=["places", "count"])
def _join(
    found: tensor, stats: tensor, out: tensor, places: tensor, count: tensor,
    SIZE: constexpr,
) -> None:  # fmt: skip
    """Program (row, head): the spans' results, first to last."""
    place = tl.program_id(0).to(tl.int64)
    dim = tl.arange(0, SIZE)
    most = tl.load(stats + place * 2)
    weight = tl.load(stats + place * 2 + 1)
    total = tl.load(found + place * SIZE + dim)
    for span in range(1, count):
        at = span * places + place
        other = tl.load(stats + at * 2)
        level = tl.maximum(most, other)
        faded, fresh = tl.exp2(most - level), tl.exp2(other - level)
        weight = weight * faded + tl.load(stats + at * 2 + 1) * fresh
        total = total * faded + tl.load(found + at * SIZE + dim) * fresh
        most = level
    tl.store(out + place * SIZE + dim, (total / weight).to(out.dtype.element_ty))


def attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    prefix: int,
    ancestors: torch.Tensor | None,
    scale: float,
) -> torch.Tensor:
    """See `_ops.attention.attend`; `q`, `keys` and `values` are of one type, d is a power of two."""
    rows, heads, size = q.shape
    groups, length, _ = keys.shape
    out = torch.empty((rows, heads, size), dtype=q.dtype, device=q.device)
    if rows == 0:
        return out
    new = length - prefix
    q, keys, values = rows_contiguous(q), rows_contiguous(keys), rows_contiguous(values)
    count, span = spans(prefix) if rows <= FEW_ROWS else ((1, prefix) if prefix else (0, TILE_KEYS))
    seen = q if ancestors is None else ancestors.contiguous().view(torch.uint8)
    found = torch.empty((count + 1, rows, heads, size), dtype=torch.float32, device=q.device)
    stats = torch.empty((count + 1, rows, heads, 2), dtype=torch.float32, device=q.device)
    group = heads // groups
    _attend_span[(triton.cdiv(rows * group, TILE_ROWS), groups, count + 1)](
        q, keys, values, seen, found, stats, rows, new, prefix, count, span, scale * LOG2_E,
        q.stride(0), q.stride(1), keys.stride(0), keys.stride(1), values.stride(0), values.stride(1),
        0 if ancestors is None else new,
        GROUP=group, HEADS=heads, SIZE=size, CHAIN=ancestors is None,
        TILE_ROWS=TILE_ROWS, TILE_KEYS=TILE_KEYS, WIDEN=interpreted(),
        num_warps=8, num_stages=2,
    )  # fmt: skip
    _join[(rows * heads,)](found, stats, out, rows * heads, count + 1, SIZE=size, num_warps=max(1, min(4, size // 64)))
    return out
