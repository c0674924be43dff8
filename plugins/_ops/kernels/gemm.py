"""Products of up to 32 rows with packed matrices, bound by the bytes of the matrix.

The weights are unpacked in registers and multiplied on the tensor cores; sums are float32. A byte of 4-bit codes holds
an even and an odd column, so a tile is two products: the even columns of the rows with the low halves, the odd ones
with the high halves; no weights are interleaved.

All rows share one tile of 32, however many there are. What else shapes the sum (columns a step, parts of K) comes from
`plan(N, K)`, so a row's result is the same bits at 1 row and at 32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language import constexpr, tensor

from tandem.plugins._ops.kernels.common import interpreted

ROWS = 32
"""Rows of a tile, and the most that a call may have."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How one matrix is cut. `parts` of K are summed apart and added in order."""

    block_n: int
    block_k: int
    parts: int
    warps: int = 4
    stages: int = 4


PROGRAMS = 256
"""Programs that a product is cut into where its columns allow: about two for each multiprocessor of a big device."""


def plan(n: int, k: int) -> Plan:
    """The cut for a matrix `[n, k]`. It must not depend on anything else: see the module."""
    block_n, block_k = 64, 128
    tiles, steps = triton.cdiv(n, block_n), triton.cdiv(k, block_k)
    parts = 1
    while tiles * parts * 2 <= PROGRAMS + tiles and steps >= parts * 8:  # at least four steps a part
        parts *= 2
    return Plan(block_n, block_k, parts)


@triton.jit(do_not_specialize=["rows", "steps"])
def _multiply_nvfp4(
    x: tensor, codes: tensor, scales: tensor, factor: tensor, out: tensor, rows: tensor, n_size: tensor,
    k_size: tensor, x_row: tensor, steps: tensor,
    ROWS: constexpr, BLOCK_N: constexpr, BLOCK_K: constexpr, PARTIAL: constexpr, WIDEN: constexpr,
) -> None:  # fmt: skip
    HALF: constexpr = BLOCK_K // 2
    GROUPS: constexpr = BLOCK_K // 16
    part = tl.program_id(1)
    m = tl.arange(0, ROWS)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    wide = n.to(tl.int64)
    real = m < rows
    total = tl.zeros((ROWS, BLOCK_N), dtype=tl.float32)
    for step in range(steps):
        first = (part * steps + step) * BLOCK_K
        byte = first // 2 + tl.arange(0, HALF)
        there = byte < k_size // 2
        packed = tl.load(
            codes + wide[:, None] * (k_size // 2) + byte[None, :], mask=(n < n_size)[:, None] & there[None, :], other=0
        ).to(tl.uint16)
        group = first // 16 + tl.arange(0, GROUPS)
        scale = tl.load(
            scales + wide[:, None] * (k_size // 16) + group[None, :],
            mask=(n < n_size)[:, None] & (group < k_size // 16)[None, :],
            other=0,
        ).to(tl.uint16)
        # The bits of e4m3 and e2m1 at their places in a float16 are the number over 2^8 and over 2^14 (float16 numbers
        # below the normal range included). Half of that is given back here, which fits, and 2^7 after the sum.
        scale = ((scale & 0x7F) << 7 | (scale & 0x80) << 8).to(tl.float16, bitcast=True) * 32768.0
        scale = tl.reshape(tl.broadcast_to(scale[:, :, None], (BLOCK_N, GROUPS, 8)), (BLOCK_N, HALF))
        low = ((packed & 0x7) << 9 | (packed & 0x8) << 12).to(tl.float16, bitcast=True) * scale
        high = ((packed & 0x70) << 5 | (packed & 0x80) << 8).to(tl.float16, bitcast=True) * scale
        column = first + tl.arange(0, BLOCK_K)
        row = tl.load(
            x + m[:, None] * x_row + column[None, :], mask=real[:, None] & (column < k_size)[None, :], other=0.0
        )
        even, odd = tl.split(tl.reshape(row, (ROWS, HALF, 2)))
        if WIDEN:
            even, odd = even.to(tl.float32), odd.to(tl.float32)
        total = tl.dot(even, tl.trans(low.to(even.dtype)), total, input_precision="ieee")
        total = tl.dot(odd, tl.trans(high.to(odd.dtype)), total, input_precision="ieee")
    total *= 128.0 * tl.load(factor).to(tl.float32)
    to = out + (part.to(tl.int64) * rows + m)[:, None] * n_size + n[None, :]
    keep = real[:, None] & (n < n_size)[None, :]
    if PARTIAL:
        tl.store(to, total, mask=keep)
    else:
        tl.store(to, total.to(out.dtype.element_ty), mask=keep)


@triton.jit(do_not_specialize=["rows", "steps"])
def _multiply_int4(
    x: tensor, codes: tensor, scales: tensor, zeros: tensor, out: tensor, rows: tensor, n_size: tensor, k_size: tensor,
    x_row: tensor, steps: tensor,
    ROWS: constexpr, BLOCK_N: constexpr, BLOCK_K: constexpr, PARTIAL: constexpr, WIDEN: constexpr,
) -> None:  # fmt: skip
    HALF: constexpr = BLOCK_K // 2
    GROUPS: constexpr = BLOCK_K // 32
    part = tl.program_id(1)
    m = tl.arange(0, ROWS)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    wide = n.to(tl.int64)
    real = m < rows
    total = tl.zeros((ROWS, BLOCK_N), dtype=tl.float32)
    for step in range(steps):
        first = (part * steps + step) * BLOCK_K
        byte = first // 2 + tl.arange(0, HALF)
        there = byte < k_size // 2
        packed = tl.load(
            codes + wide[:, None] * (k_size // 2) + byte[None, :], mask=(n < n_size)[:, None] & there[None, :], other=0
        ).to(tl.uint16)
        group = first // 32 + tl.arange(0, GROUPS)
        spot = wide[:, None] * (k_size // 32) + group[None, :]
        held = (n < n_size)[:, None] & (group < k_size // 32)[None, :]
        scale = tl.load(scales + spot, mask=held, other=0.0).to(tl.float32)
        zero = tl.load(zeros + spot, mask=held, other=0.0).to(tl.float32)
        scale = tl.reshape(tl.broadcast_to(scale[:, :, None], (BLOCK_N, GROUPS, 16)), (BLOCK_N, HALF))
        zero = tl.reshape(tl.broadcast_to(zero[:, :, None], (BLOCK_N, GROUPS, 16)), (BLOCK_N, HALF))
        # 0x6400 is 1024 as float16, whose last bit is worth 1: the bits of a code there add exactly that code.
        low = ((packed & 0xF) | 0x6400).to(tl.float16, bitcast=True).to(tl.float32) - 1024.0
        high = (packed >> 4 | 0x6400).to(tl.float16, bitcast=True).to(tl.float32) - 1024.0
        low, high = low * scale + zero, high * scale + zero
        column = first + tl.arange(0, BLOCK_K)
        row = tl.load(
            x + m[:, None] * x_row + column[None, :], mask=real[:, None] & (column < k_size)[None, :], other=0.0
        )
        even, odd = tl.split(tl.reshape(row, (ROWS, HALF, 2)))
        low, high = low.to(even.dtype), high.to(odd.dtype)
        if WIDEN:
            even, odd, low, high = even.to(tl.float32), odd.to(tl.float32), low.to(tl.float32), high.to(tl.float32)
        total = tl.dot(even, tl.trans(low), total, input_precision="ieee")
        total = tl.dot(odd, tl.trans(high), total, input_precision="ieee")
    to = out + (part.to(tl.int64) * rows + m)[:, None] * n_size + n[None, :]
    keep = real[:, None] & (n < n_size)[None, :]
    if PARTIAL:
        tl.store(to, total, mask=keep)
    else:
        tl.store(to, total.to(out.dtype.element_ty), mask=keep)


@triton.jit(do_not_specialize=["rows", "steps"])
def _multiply_fp8(
    x: tensor, codes: tensor, scales: tensor, out: tensor, rows: tensor, n_size: tensor, k_size: tensor, x_row: tensor,
    steps: tensor, block_n: tensor, block_k: tensor, scale_row: tensor,
    ROWS: constexpr, BLOCK_N: constexpr, BLOCK_K: constexpr, PARTIAL: constexpr, WIDEN: constexpr,
) -> None:  # fmt: skip
    part = tl.program_id(1)
    m = tl.arange(0, ROWS)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    real = m < rows
    total = tl.zeros((ROWS, BLOCK_N), dtype=tl.float32)
    for step in range(steps):
        first = (part * steps + step) * BLOCK_K
        column = first + tl.arange(0, BLOCK_K)
        there = (column < k_size)[None, :]
        code = tl.load(
            codes + n.to(tl.int64)[:, None] * k_size + column[None, :], mask=(n < n_size)[:, None] & there, other=0
        ).to(tl.uint16)
        # As above: the bits at their places in a float16 are the number over 2^8.
        weight = ((code & 0x7F) << 7 | (code & 0x80) << 8).to(tl.float16, bitcast=True) * 256.0
        row = tl.load(x + m[:, None] * x_row + column[None, :], mask=real[:, None] & there, other=0.0)
        weight = weight.to(row.dtype)
        if WIDEN:
            row, weight = row.to(tl.float32), weight.to(tl.float32)
        # A step stays within one block of columns, so its scale is given to the sum.
        scale = tl.load(
            scales + (n // block_n) * scale_row + first // block_k, mask=(n < n_size) & (first < k_size), other=0.0
        )
        total += tl.dot(row, tl.trans(weight), input_precision="ieee") * scale[None, :]
    to = out + (part.to(tl.int64) * rows + m)[:, None] * n_size + n[None, :]
    keep = real[:, None] & (n < n_size)[None, :]
    if PARTIAL:
        tl.store(to, total, mask=keep)
    else:
        tl.store(to, total.to(out.dtype.element_ty), mask=keep)


@triton.jit
def _add_parts(
    partial: tensor, out: tensor, size: tensor,
    PARTS: constexpr, BLOCK: constexpr,
) -> None:  # fmt: skip
    """The parts of every number, first to last."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for part in range(PARTS):
        total += tl.load(partial + part * size + at, mask=inside, other=0.0)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


def matmul_nvfp4(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, factor: torch.Tensor, cut: Plan | None = None
) -> torch.Tensor:
    """`x @ weight.T`, rows `[T, K]` to `[T, N]` of the type of `x`, T from 1 to 32; see `_ops.packed` for the layout.

    `codes` `[N, K / 2]` uint8, `scales` `[N, K / 16]` float8_e4m3fn, `factor` one float32.
    """
    return _product(_multiply_nvfp4, x, codes, (scales.view(torch.uint8).contiguous(), factor), cut)


def matmul_int4(
    x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, cut: Plan | None = None
) -> torch.Tensor:
    """`x @ weight.T`, rows `[T, K]` to `[T, N]` of the type of `x`, T from 1 to 32; see `_ops.int4` for the layout."""
    return _product(_multiply_int4, x, codes, (scale.contiguous(), zero.contiguous()), cut)


def matmul_fp8(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, block: tuple[int, int], cut: Plan | None = None
) -> torch.Tensor:
    """`x @ weight.T`, rows `[T, K]` to `[T, N]` of the type of `x`, T from 1 to 32; see `_ops.packed` for the layout.

    `codes` `[N, K]` float8_e4m3fn, `scales` `[ceil(N / n), ceil(K / k)]` float32 for blocks of n rows and k columns; k
    is K, or a multiple of the columns of a step.
    """
    n, k = block
    if k >= x.shape[1]:
        k = 1 << 30  # the step that reaches over the end is in the same block
    return _product(_multiply_fp8, x, codes.view(torch.uint8), (scales.contiguous(),), cut, (n, k, scales.shape[1]))


def _product(
    kernel: Any,
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: tuple[torch.Tensor, ...],
    cut: Plan | None,
    more: tuple[int, ...] = (),
) -> torch.Tensor:
    rows, columns = x.shape
    outs = len(codes)
    out = torch.empty((rows, outs), dtype=x.dtype, device=x.device)
    if rows == 0:
        return out
    cut = cut or plan(outs, columns)
    if x.stride(-1) != 1:
        x = x.contiguous()
    steps = triton.cdiv(triton.cdiv(columns, cut.block_k), cut.parts)
    partial = cut.parts > 1
    to = torch.empty((cut.parts, rows, outs), dtype=torch.float32, device=x.device) if partial else out
    kernel[(triton.cdiv(outs, cut.block_n), cut.parts)](
        x, codes.contiguous(), *scales, to, rows, outs, columns, x.stride(0), steps, *more,
        ROWS=ROWS, BLOCK_N=cut.block_n, BLOCK_K=cut.block_k, PARTIAL=partial, WIDEN=interpreted(),
        num_warps=cut.warps, num_stages=cut.stages,
    )  # fmt: skip
    if partial:
        size = rows * outs
        _add_parts[(triton.cdiv(size, 1024),)](to, out, size, PARTS=cut.parts, BLOCK=1024)
    return out
