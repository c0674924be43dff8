"""The dense MLP of a decoder layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import silu

Linear = Callable[[torch.Tensor], torch.Tensor]


class Mlp:
    """`down(silu(gate(x)) * up(x))`."""

    def __init__(self, gate: Linear, up: Linear, down: Linear) -> None:
        self._gate, self._up, self._down = gate, up, down

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`[R, hidden]` to `[R, hidden]`."""
        return self._down(silu(self._gate(x)) * self._up(x))
