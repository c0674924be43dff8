"""A decoder's RMS norms, with their weights."""

from __future__ import annotations

import torch

from tandem.plugins._ops import dispatch


class Norm:
    """RMS norm with weights centred on zero: wide rows in, rows of the layers' number type out."""

    def __init__(self, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> None:
        """`weight` is `[width]`; `dtype` is that of the result."""
        self.weight, self.eps, self.dtype = weight, eps, dtype

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`[R, width]`"""
        return dispatch.rms_norm(x, self.weight, self.eps, zero_centred=True, dtype=self.dtype)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of `residual + x`, and that sum."""
        return dispatch.add_rms_norm(x, residual, self.weight, self.eps, zero_centred=True, dtype=self.dtype)
