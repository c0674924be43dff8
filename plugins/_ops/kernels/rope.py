"""Rotary positions and the write into the cache in one pass over the new rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language import constexpr, tensor

from tandem.plugins._ops.kernels.common import power_of_two, rows_contiguous


@triton.jit(do_not_specialize=["start"])
def _rope_write(
    q: tensor, k: tensor, v: tensor, cos: tensor, sin: tensor, turned: tensor, keys: tensor, values: tensor,
    start: tensor, q_row: tensor, q_head: tensor, k_row: tensor, k_head: tensor, v_row: tensor, v_head: tensor,
    keys_head: tensor, keys_row: tensor, values_head: tensor, values_row: tensor,
    Q_HEADS: constexpr, KV_HEADS: constexpr, SIZE: constexpr, HALF: constexpr, BLOCK: constexpr,
) -> None:  # fmt: skip
    """Program (row, h): query head h, then key head h - Q_HEADS, then value head h - Q_HEADS - KV_HEADS."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < SIZE
    turns = at < 2 * HALF
    partner = tl.where(turns, tl.where(at < HALF, at + HALF, at - HALF), at)
    angle = row * HALF + at % HALF
    c = tl.load(cos + angle, mask=turns, other=1.0).to(tl.float32)
    s = tl.load(sin + angle, mask=turns, other=0.0).to(tl.float32)
    s = tl.where(at < HALF, -s, s)
    if head < Q_HEADS:
        query = q + row * q_row + head * q_head
        x = tl.load(query + at, mask=inside, other=0.0).to(tl.float32)
        pair = tl.load(query + partner, mask=inside, other=0.0).to(tl.float32)
        tl.store(
            turned + (row * Q_HEADS + head) * SIZE + at, (x * c + pair * s).to(turned.dtype.element_ty), mask=inside
        )
    elif head < Q_HEADS + KV_HEADS:
        group = head - Q_HEADS
        key = k + row * k_row + group * k_head
        y = tl.load(key + at, mask=inside, other=0.0).to(tl.float32)
        twin = tl.load(key + partner, mask=inside, other=0.0).to(tl.float32)
        tl.store(
            keys + group * keys_head + (start + row) * keys_row + at,
            (y * c + twin * s).to(keys.dtype.element_ty),
            mask=inside,
        )
    else:
        owner = head - Q_HEADS - KV_HEADS
        value = tl.load(v + row * v_row + owner * v_head + at, mask=inside)
        tl.store(
            values + owner * values_head + (start + row) * values_row + at,
            value.to(values.dtype.element_ty),
            mask=inside,
        )


def rotate_and_write(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    start: int,
) -> torch.Tensor:
    """See `_ops.kv_write.rotate_and_write`."""
    rows, heads, size = q.shape
    groups = k.shape[1]
    turned = torch.empty((rows, heads, size), dtype=q.dtype, device=q.device)
    if rows == 0:
        return turned
    q, k, v = rows_contiguous(q), rows_contiguous(k), rows_contiguous(v)
    block = power_of_two(size)
    _rope_write[(rows, heads + 2 * groups)](
        q, k, v, cos.contiguous(), sin.contiguous(), turned, keys, values, start,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        keys.stride(0), keys.stride(1), values.stride(0), values.stride(1),
        Q_HEADS=heads, KV_HEADS=groups, SIZE=size, HALF=cos.shape[-1], BLOCK=block,
        num_warps=max(1, min(4, block // 64)),
    )  # fmt: skip
    return turned
