"""Matrices of 8-bit and 4-bit floating-point codes with shared scales: what they stand for, and products with them.

**NVFP4.** A matrix `[N, K]` is held as codes `[N, K / 2]` uint8 (e2m1, two a byte, the even column in the low four
bits), scales `[N, K / 16]` float8_e4m3fn, and one float32 factor: `weight = code * scale * factor`. A code times its
scale has at most six significant bits, so it is exact in bfloat16 and float16; the factor is left to the sum.

**FP8.** A matrix `[N, K]` is held as codes `[N, K]` float8_e4m3fn and float32 scales `[ceil(N / n), ceil(K / k)]`, one
for each block of `n` rows and `k` columns: `(128, 128)`, `(1, K)` for a scale a row, `(N, K)` for one in all.

e2m1 and e4m3 are the formats of the OCP microscaling specification: e4m3 has no infinities, and 0x7F and 0xFF are no
numbers.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F

GROUP = 16
"""Columns of an NVFP4 matrix that share a scale."""

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""What each code stands for: the sign is bit 3."""

WORKSPACE = 32 << 20
"""Bytes that a product takes for unpacked weights, at most (but one row at least)."""


def unpack_e2m1(codes: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """`[N, K / 2]` uint8 to the numbers `[N, K]`."""
    return F.embedding(codes.int(), _pairs(dtype, codes.device)).flatten(1)


def pack_e2m1(values: torch.Tensor) -> torch.Tensor:
    """`[N, K]` to codes `[N, K / 2]` uint8, each number rounded to the nearest that a code stands for."""
    steps = torch.tensor(E2M1[:8], device=values.device)
    middles = (steps[1:] + steps[:-1]) / 2
    codes = torch.bucketize(values.float().abs(), middles).to(torch.uint8)
    codes |= torch.signbit(values).to(torch.uint8) << 3
    return codes[:, 0::2] | codes[:, 1::2] << 4


def dense_nvfp4(codes: torch.Tensor, scales: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """The matrix that is held, `[N, K]` float32."""
    return _scaled_e2m1(codes, scales, torch.float32) * factor.float()


def dense_fp8(codes: torch.Tensor, scales: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """The matrix that is held, `[N, K]` float32."""
    return _scaled_e4m3(codes, scales, block, 0, torch.float32)


def matmul_nvfp4(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """`x @ weight.T`: rows `[T, K]` to `[T, N]` of the type of `x`, computed in float32."""
    return unpacked_matmul_nvfp4(x.float(), codes, scales, factor).to(x.dtype)


def matmul_fp8(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """`x @ weight.T`: rows `[T, K]` to `[T, N]` of the type of `x`, computed in float32."""
    return unpacked_matmul_fp8(x.float(), codes, scales, block).to(x.dtype)


def unpacked_matmul_nvfp4(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, factor: torch.Tensor, workspace: int = WORKSPACE
) -> torch.Tensor:
    """The same product computed in the type of `x`. The matrix is unpacked a few rows at a time, into `workspace`
    bytes, and the factor is applied to the sums."""
    out = x.new_empty(len(x), len(codes))
    for start, stop in _spans(len(codes), x.shape[1] * x.element_size(), workspace):
        weight = _scaled_e2m1(codes[start:stop], scales[start:stop], x.dtype)
        out[:, start:stop] = (x @ weight.t()) * factor
    return out


def unpacked_matmul_fp8(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, block: tuple[int, int], workspace: int = WORKSPACE
) -> torch.Tensor:
    """The same product computed in the type of `x`; see `unpacked_matmul_nvfp4`."""
    out = x.new_empty(len(x), len(codes))
    for start, stop in _spans(len(codes), x.shape[1] * 4, workspace):
        weight = _scaled_e4m3(codes[start:stop], scales, block, start, x.dtype)
        out[:, start:stop] = x @ weight.t()
    return out


def quantise_nvfp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`[N, K]` -> (codes, scales, factor): the largest number of a group becomes a 6, as nearly as its scale can.

    The factor lets the largest scale be e4m3's largest number, 448. K must be a multiple of 16.
    """
    rows, columns = weight.shape
    groups = weight.float().view(rows, columns // GROUP, GROUP)
    largest = groups.abs().amax(2)
    factor = (largest.max() / (6.0 * 448.0)).clamp_(min=torch.finfo(torch.float32).tiny)
    scales = (largest / (6.0 * factor)).to(torch.float8_e4m3fn)
    step = scales.float() * factor
    values = torch.where(step[..., None] > 0, groups / step[..., None], 0.0)
    return pack_e2m1(values.view(rows, columns)), scales, factor


def quantise_fp8(weight: torch.Tensor, block: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """`[N, K]` -> (codes, scales): the largest number of a block becomes a 448."""
    (rows, columns), (n, k) = weight.shape, block
    padded = F.pad(weight.float(), (0, -columns % k, 0, -rows % n))
    tiles = padded.view(padded.shape[0] // n, n, padded.shape[1] // k, k)
    scales = (tiles.abs().amax((1, 3)) / 448.0).clamp_(min=torch.finfo(torch.float32).tiny)
    codes = (tiles / scales[:, None, :, None]).view(padded.shape)[:rows, :columns]
    return codes.to(torch.float8_e4m3fn), scales


def _scaled_e2m1(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`code * scale`, `[N, K]`."""
    values = unpack_e2m1(codes, dtype)
    values.view(len(values), -1, GROUP).mul_(scales.to(dtype)[..., None])
    return values


def _scaled_e4m3(
    codes: torch.Tensor, scales: torch.Tensor, block: tuple[int, int], start: int, dtype: torch.dtype
) -> torch.Tensor:
    """`code * scale` for `codes`, which are the matrix's rows from `start` on; multiplied in float32, then rounded."""
    (n, k), columns = block, codes.shape[1]
    mine = scales[torch.arange(start, start + len(codes), device=scales.device) // n]
    # A GPU widens bfloat16 in registers; a CPU would make a wide copy and a narrow one.
    values = codes.float() if codes.device.type == "cpu" else codes.to(dtype)
    if columns % k:
        values.mul_(mine.repeat_interleave(k, 1)[:, :columns])
    else:
        values.view(len(codes), -1, k).mul_(mine[..., None])
    return values.to(dtype)


def _spans(rows: int, row_bytes: int, workspace: int) -> list[tuple[int, int]]:
    """Runs of rows that fit into the workspace."""
    step = max(1, workspace // row_bytes)
    return [(start, min(start + step, rows)) for start in range(0, rows, step)]


@cache
def _pairs(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The two numbers of each byte, `[256, 2]`."""
    return torch.tensor([[E2M1[byte & 15], E2M1[byte >> 4]] for byte in range(256)], dtype=dtype, device=device)
