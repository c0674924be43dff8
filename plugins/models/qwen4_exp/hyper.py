"""Gated residual streams (hyper-connections): what stands in the place of the layer norms and the residual sum.

The residual of a row is n streams of the model's width, one after another. Each sub-block reads a gated mean of the
normed streams and adds its result to every stream with a weight of its own:

    N = norm of each stream;  m = sigmoid(up(silu(down(N) / n)));  read = mean over streams of m * N
    w = 2 * sigmoid(inject(N) / n);  stream b += w_b * result

The norm is zero-centred: its factor is 1 + weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import silu

from tandem.plugins._ops.norm import rms_norm
from tandem.plugins.models._hybrid.weights import Linear


def stream_norm(x: torch.Tensor, weight: torch.Tensor, streams: int, eps: float) -> torch.Tensor:
    """RMS norm of each stream by itself: `x` `[T, streams * H]` to `[T, streams, H]` float32; `weight` `[streams * H]`,
    zero-centred."""
    weight = weight.view(streams, -1)
    return rms_norm(x.unflatten(-1, tuple(weight.shape)), weight, eps, True, torch.float32)


@dataclass(frozen=True, slots=True)
class Mixer:
    """Reads one row of the model's width out of the streams. The last one of a model feeds the output head."""

    norm: torch.Tensor
    """`[streams * H]`"""
    down: Linear
    """`[rank, streams * H]`"""
    up: Linear
    """`[streams * H, rank]`"""
    streams: int
    eps: float

    def read(self, residual: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """`residual` `[T, streams * H]` to `[T, H]` of the type that the matrices compute in."""
        return self._mix(self._normed(residual), dtype)

    def _normed(self, residual: torch.Tensor) -> torch.Tensor:
        return stream_norm(residual, self.norm, self.streams, self.eps)

    def _mix(self, normed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        gate = torch.sigmoid(self.up(silu(self.down(normed.flatten(1).to(dtype)) / self.streams))).float()
        return gate.view(normed.shape).mul_(normed).mean(1).to(dtype)


@dataclass(frozen=True, slots=True)
class HyperConnection(Mixer):
    """A sub-block's way in and out of the streams."""

    injection: Linear
    """`[streams, streams * H]`"""

    def open(self, residual: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """The sub-block's input `[T, H]` and the weights `[T, streams]` float32 that its result comes back with."""
        normed = self._normed(residual)
        weights = 2 * torch.sigmoid(self.injection(normed.flatten(1).to(dtype)).float() / self.streams)
        return self._mix(normed, dtype), weights

    def close(self, residual: torch.Tensor, result: torch.Tensor, weights: torch.Tensor) -> None:
        """Add `result` `[T, H]` to the streams of `residual` `[T, streams * H]` float32, in place."""
        streams = residual.view(len(residual), self.streams, -1)
        streams.add_(weights[:, :, None] * result.float()[:, None])
