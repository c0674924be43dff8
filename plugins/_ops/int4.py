"""Matrices of 4-bit codes in groups of 32 columns, each group with a scale and a zero.

A matrix `[N, K]` is held as codes `[N, K / 2]` uint8, the even column in the low four bits, and `scale` and `zero`
`[N, K / 32]` of any float type: `weight = code * scale + zero`. This is what a GGUF file of the type Q4_1 holds.
"""

from __future__ import annotations

import torch

GROUP = 32
"""Columns that share a scale and a zero."""


def quantise(weight: torch.Tensor, dtype: torch.dtype = torch.float16) -> tuple[torch.Tensor, ...]:
    """`[N, K]` -> (codes, scale, zero): each group spans from its least to its greatest number.

    Scale and zero are rounded to `dtype` before the codes are chosen. K must be a multiple of 32.
    """
    rows, columns = weight.shape
    values = weight.float().reshape(rows, columns // GROUP, GROUP)
    low, high = values.amin(2), values.amax(2)
    tiny = torch.finfo(dtype).tiny  # a group of equal numbers is all zero
    scale, zero = ((high - low) / 15).clamp_(min=tiny).to(dtype), low.to(dtype)
    codes = ((values - zero.float()[..., None]) / scale.float()[..., None]).round_().clamp_(0, 15)
    pairs = codes.to(torch.uint8).view(rows, columns // 2, 2)
    return pairs[..., 0] | pairs[..., 1] << 4, scale, zero


def dense(codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """The matrix that is held, `[N, K]` float32."""
    rows, half = codes.shape
    wide = torch.stack([codes & 15, codes >> 4], -1).view(rows, 2 * half // GROUP, GROUP).float()
    return (wide * scale.float()[..., None] + zero.float()[..., None]).view(rows, 2 * half)


def matmul(x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """`x @ weight.T`: rows `[T, K]` to `[T, N]` of the type of `x`, in float32."""
    return (x.float() @ dense(codes, scale, zero).t()).to(x.dtype)
