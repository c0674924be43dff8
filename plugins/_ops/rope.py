"""Rotary positions: half-split pairs over the first dimensions of a head, one or three position axes."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch


class Rotary:
    """The angles of a model. Pair i of a head turns by `position * theta ** (-2 i / dim)` radians.

    With `sections` (time, height, width) the axes are interleaved: pair i follows the height where `i % 3 == 1` and
    `i < 3 * sections[1]`, the width where `i % 3 == 2` and `i < 3 * sections[2]`, else the time. For text all three
    are equal.
    """

    def __init__(self, theta: float, dim: int, sections: Seq[int] | None, device: torch.device | None = None) -> None:
        """`dim` is how many dimensions of a head turn; they are `dim / 2` pairs."""
        steps = torch.arange(0, dim, 2, dtype=torch.int64).float()
        self.frequencies = (1.0 / theta ** (steps / dim)).to(device)
        axes = torch.zeros(dim // 2, dtype=torch.int64)
        if sections is not None:
            for axis in (1, 2):
                axes[axis : 3 * sections[axis] : 3] = axis
        self._axes = axes.to(device)

    def tables(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine of positions `[T]` or `[T, 3]` (time, height, width): each `[T, dim / 2]` float32."""
        at = positions.float()
        at = at[:, None] if at.dim() == 1 else at[:, self._axes]
        angles = at * self.frequencies
        return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn the heads of `x` `[T, h, d]` by tables `[T, r / 2]`: dimension i with i + r/2, for i below r/2.

    The dimensions from r on stay as they are. Computed in float32; the result has the type of `x`.
    """
    half = cos.shape[-1]
    first, second = x[..., :half].float(), x[..., half : 2 * half].float()
    cos, sin = cos[:, None], sin[:, None]
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)
    return torch.cat([turned, x[..., 2 * half :]], -1)
