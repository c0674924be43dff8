"""Products of a few rows with a big matrix, in each way a matrix may be held.

A kernel is a function of rows `[R, in]` that returns `[R, out]`, both in the number type it was made for.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from tandem.plugins.models.llama.source import Groups

Kernel = Callable[[torch.Tensor], torch.Tensor]
Head = Callable[[torch.Tensor, torch.Tensor], None]

GROUP = 32
"""Columns that share a scale in a 4-bit matrix."""
PACK_ROWS = 16
"""Packed matrices must have a multiple of this many rows."""
SLICE_ROWS = 4096
"""Rows of a matrix that are quantised at a time."""

_ONEDNN = torch.backends.mkldnn.is_available()


def packable(rows: int, columns: int) -> bool:
    """Whether torch's packed kernels take a matrix of this shape."""
    return rows % PACK_ROWS == 0 and columns % GROUP == 0


def dense(weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> Kernel:
    """The matrix as it is, laid out once for oneDNN's kernels where there are any: one float32 row times a matrix of
    960 x 576 takes 45 us so, and 125 us with a plain `linear` (2 threads of an AMD EPYC)."""
    weight = weight.to(dtype).contiguous()
    bias = None if bias is None else bias.to(dtype).contiguous()
    if not _ONEDNN:
        return lambda x: torch.nn.functional.linear(x, weight, bias)
    laid_out = torch.ops.mkldnn._reorder_linear_weight(weight, 1)
    multiply = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: multiply(x, laid_out, bias, "none", [], "")


def int4(groups: Groups, bias: torch.Tensor | None) -> Kernel:
    """A 4-bit matrix against bfloat16 rows: codes are widened in registers, sums are float32."""
    codes = torch.ops.aten._convert_weight_to_int4pack_for_cpu(groups.codes.int(), 1)
    # [in / 32, out, 2]: scale and zero side by side.
    scale_zero = torch.stack([groups.scale.t(), groups.zero.t()], dim=-1).bfloat16().contiguous()
    multiply = torch._weight_int4pack_mm_for_cpu
    return _with_bias(lambda x: multiply(x, codes, GROUP, scale_zero), bias)


def int8(weight: torch.Tensor, bias: torch.Tensor | None) -> Kernel:
    """An 8-bit matrix with one scale a row, against bfloat16 rows."""
    codes, scale = quantise_rows(weight)
    scale = scale.bfloat16()
    multiply = torch._weight_int8pack_mm
    return _with_bias(lambda x: multiply(x, codes, scale), bias)


def as_bfloat16(kernel: Kernel, dtype: torch.dtype) -> Kernel:
    """A kernel of `dtype` for a pass in bfloat16: for matrices that can't be packed among those that are."""
    if dtype == torch.bfloat16:
        return kernel
    return lambda x: kernel(x.to(dtype)).bfloat16()


def _with_bias(kernel: Kernel, bias: torch.Tensor | None) -> Kernel:
    if bias is None:
        return kernel
    added = bias.bfloat16()
    return lambda x: kernel(x).add_(added)


# -------------------------------------------------------------------------------------------------------- quantisation


def quantise_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`[out, in]` -> int8 codes and float32 scales `[out]`, with weight = code * scale and codes in -127..127."""
    codes = torch.empty(weight.shape, dtype=torch.int8)
    scales = torch.empty(len(weight))
    for start in range(0, len(weight), SLICE_ROWS):  # an embedding is big, and so would its intermediate results be
        part = weight[start : start + SLICE_ROWS].float()
        scale = part.abs().amax(dim=1).clamp_(min=1e-30).div_(127)
        scales[start : start + SLICE_ROWS] = scale
        codes[start : start + SLICE_ROWS] = (part / scale[:, None]).round_()
    return codes, scales


def quantise_groups(weight: torch.Tensor) -> Groups:
    """`[out, in]` -> 4-bit groups of 32 columns that span from the least to the greatest of their numbers.

    Scale and zero are rounded to bfloat16, as the kernel holds them, before the codes are chosen.
    """
    rows, columns = weight.shape
    values = weight.float().reshape(rows, columns // GROUP, GROUP)
    low, high = values.amin(dim=2), values.amax(dim=2)
    scale = ((high - low) / 15).clamp_(min=1e-30).bfloat16().float()
    zero = (low + 8 * scale).bfloat16().float()
    codes = ((values - zero[..., None]) / scale[..., None] + 8).round_().clamp_(0, 15)
    return Groups(codes.to(torch.uint8).reshape(rows, columns), scale, zero)


# ---------------------------------------------------------------------------------------------------------------- heads
#
# A head turns float32 rows [R, hidden] into float32 logits [R, vocabulary], written into its second argument. Logits
# near 20 lie 0.125 apart in bfloat16, which would make ties of tokens that are none, so no head rounds to that.


def float32_head(weight: torch.Tensor) -> Head:
    multiply = dense(weight, None, torch.float32)

    def head(x: torch.Tensor, logits: torch.Tensor) -> None:
        logits.copy_(multiply(x))

    return head


def bfloat16_head(weight: torch.Tensor) -> Head:
    """bfloat16 weights. The kernel sums in float32 and then rounds to bfloat16; a second product that starts from
    the negated first result returns what the rounding took off."""
    if not _ONEDNN:
        return float32_head(weight)
    laid_out = torch.ops.mkldnn._reorder_linear_weight(weight.bfloat16().contiguous(), 1)
    multiply = torch.ops.mkldnn._linear_pointwise.default
    multiply_add = torch.ops.mkldnn._linear_pointwise.binary

    def head(x: torch.Tensor, logits: torch.Tensor) -> None:
        rows = x.bfloat16()
        rounded = multiply(rows, laid_out, None, "none", [], "")
        rest = multiply_add(rows, rounded.neg(), laid_out, None, "add")
        logits.copy_(rounded).add_(rest)

    return head


def int8_head(weight: torch.Tensor) -> Head:
    """8-bit weights with one scale a row, times rows of 16 bits: each row goes in as two of 8 bits, the second with
    what the first rounded off. The sums of products are whole numbers, so a row's logits don't depend on the rows
    beside it."""
    codes, scale = quantise_rows(weight)
    laid_out = torch.ops.onednn.qlinear_prepack(codes, None)
    zero_points = torch.zeros(len(scale), dtype=torch.int64)
    multiply = torch.ops.onednn.qlinear_pointwise.default

    def head(x: torch.Tensor, logits: torch.Tensor) -> None:
        step = x.abs().amax(dim=1, keepdim=True).clamp_(min=1e-30).div_(127)
        exact = x / step
        coarse = exact.round()
        fine = exact.sub_(coarse).mul_(254).round_()
        rows = torch.cat([coarse, fine]).add_(128).to(torch.uint8)
        products = multiply(rows, 1.0, 128, laid_out, scale, zero_points, None, 1.0, 0, torch.float32, "none", [], "")
        high, low = products.chunk(2)
        torch.add(high, low, alpha=1 / 254, out=logits).mul_(step)

    return head
