"""Root-mean-square norms: one program a row, the whole row in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language import constexpr, tensor

from tandem.plugins._ops.kernels.common import power_of_two


@triton.jit
def _rms_norm(
    x: tensor, residual: tensor, weight: tensor, y: tensor, total: tensor, eps: tensor, width: tensor,
    ADD: constexpr, ZERO_CENTRED: constexpr, BLOCK: constexpr,
) -> None:  # fmt: skip
    start = tl.program_id(0).to(tl.int64) * width
    at = tl.arange(0, BLOCK)
    inside = at < width
    value = tl.load(x + start + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        # What is normed is the sum as it is kept, rounded to the residual's type.
        kept = total.dtype.element_ty
        before = tl.load(residual + start + at, mask=inside, other=0.0).to(tl.float32)
        summed = (before + value.to(kept).to(tl.float32)).to(kept)
        tl.store(total + start + at, summed, mask=inside)
        value = summed.to(tl.float32)
    factor = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    if ZERO_CENTRED:
        factor += 1.0
    mean = tl.sum(value * value, axis=0) / width
    tl.store(y + start + at, (value * tl.rsqrt(mean + eps) * factor).to(y.dtype.element_ty), mask=inside)


@triton.jit
def _gated_rms_norm(
    x: tensor, gate: tensor, weight: tensor, y: tensor, eps: tensor, width: tensor,
    SIGMOID: constexpr, BLOCK: constexpr,
) -> None:  # fmt: skip
    start = tl.program_id(0).to(tl.int64) * width
    at = tl.arange(0, BLOCK)
    inside = at < width
    value = tl.load(x + start + at, mask=inside, other=0.0).to(tl.float32)
    opened = tl.load(gate + start + at, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    share = tl.sigmoid(opened)
    if not SIGMOID:
        share *= opened
    mean = tl.sum(value * value, axis=0) / width
    value *= tl.rsqrt(mean + eps) * factor * share
    tl.store(y + start + at, value.to(y.dtype.element_ty), mask=inside)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    zero_centred: bool = False,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """See `_ops.norm.rms_norm`."""
    x = x.contiguous()
    y = torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device)
    _launch(x, x, weight, y, x, eps, zero_centred, add=False)
    return y


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    zero_centred: bool = False,
    dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `_ops.norm.add_rms_norm`."""
    x, residual = x.contiguous(), residual.contiguous()
    y = torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device)
    total = torch.empty_like(residual)
    _launch(x, residual, weight, y, total, eps, zero_centred, add=True)
    return y, total


def gated_rms_norm(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float, activation: str = "silu"
) -> torch.Tensor:
    """See `_ops.norm.gated_rms_norm`."""
    x, gate = x.contiguous(), gate.contiguous()
    y = torch.empty_like(gate)
    width = x.shape[-1]
    if x.numel():
        _gated_rms_norm[(x.numel() // width,)](
            x, gate, weight.contiguous(), y, eps, width,
            SIGMOID=activation == "sigmoid", BLOCK=power_of_two(width), num_warps=_warps(width),
        )  # fmt: skip
    return y


def _warps(width: int) -> int:
    """About sixteen numbers a thread."""
    return min(16, max(1, power_of_two(width) // 512))


def _launch(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, total: torch.Tensor,
    eps: float, zero_centred: bool, add: bool,
) -> None:  # fmt: skip
    width = x.shape[-1]
    rows = x.numel() // width
    if rows == 0:
        return
    _rms_norm[(rows,)](
        x, residual, weight.contiguous(), y, total, eps, width,
        ADD=add, ZERO_CENTRED=zero_centred, BLOCK=power_of_two(width), num_warps=_warps(width),
    )  # fmt: skip
