"""What the launchers share."""

from __future__ import annotations

import os

import torch

WIDE_PRECISION = "tf32x3"
"""How float32 products of the gated delta rule are made: three passes over the tensor cores, nearly as exact."""


def interpreted() -> bool:
    """Whether the kernels run in Triton's interpreter (`TRITON_INTERPRET=1`).

    It keeps bfloat16 as bit patterns and would multiply those, so products have their operands widened to float32
    there. A product of two bfloat16 numbers is exact in float32, which is also what a tensor core adds up.
    """
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")


def power_of_two(least: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << max(0, least - 1).bit_length()


def rows_contiguous(x: torch.Tensor) -> torch.Tensor:
    """`x`, or a copy of it, with the last dimension contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()
