"""Root-mean-square norms, computed in float32."""

from __future__ import annotations

import torch


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    zero_centred: bool = False,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`weight * x / sqrt(mean(x^2) + eps)` over the last dimension, or `(1 + weight) * ...` where the stored weights
    are centred on zero. `weight` is `[width]`, or more where rows have weights of their own.
    The result has the type of `x` unless `dtype` says another."""
    factor = 1.0 + weight.float() if zero_centred else weight.float()
    return (torch.rms_norm(x.float(), x.shape[-1:], None, eps) * factor).to(dtype or x.dtype)


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    zero_centred: bool = False,
    dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`residual + x` in the type of `residual`, and its norm: (norm, sum). `residual` is left as it is."""
    total = residual + x.to(residual.dtype)
    return rms_norm(total, weight, eps, zero_centred, dtype or x.dtype), total


def gated_rms_norm(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float, activation: str = "silu"
) -> torch.Tensor:
    """`rms_norm(x) * silu(gate)` or `* sigmoid(gate)`, of the type of `gate`. The weights are not centred on zero."""
    wide = gate.float()
    opened = torch.sigmoid(wide) if activation == "sigmoid" else torch.nn.functional.silu(wide)
    return (rms_norm(x, weight, eps, dtype=torch.float32) * opened).to(gate.dtype)
