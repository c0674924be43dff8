"""Gated full attention: the layer, over the keys and values that it keeps of a sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence as Seq

import torch

from tandem.plugins._ops import dispatch, rope
from tandem.plugins._ops.rope import Rotary
from tandem.plugins.models._hybrid.kv import KvState
from tandem.plugins.models._hybrid.rows import Pass

Linear = Callable[[torch.Tensor], torch.Tensor]


class AttentionLayer:
    """`out(attend(q, k, v) * sigmoid(gate))`, where one projection holds each head's query, then its gate.

    Queries and keys are normalised over the head (weights centred on zero), then turned to their positions.
    """

    def __init__(
        self,
        *,
        q: Linear,
        k: Linear,
        v: Linear,
        out: Linear,
        q_norm: torch.Tensor,
        k_norm: torch.Tensor,
        heads: int,
        kv_heads: int,
        head_dim: int,
        rotary: Rotary,
        eps: float,
    ) -> None:
        """`q` gives `2 * heads * head_dim` numbers a row; `q_norm` and `k_norm` are `[head_dim]`."""
        self._q, self._k, self._v, self._out = q, k, v, out
        self._q_norm, self._k_norm = q_norm, k_norm
        self._heads, self._kv_heads, self._head_dim = heads, kv_heads, head_dim
        self._rotary = rotary
        self._eps = eps

    def __call__(self, x: torch.Tensor, rows: Pass, states: Seq[KvState]) -> torch.Tensor:
        """`[R, hidden]` to `[R, hidden]`; `states` are those of the blocks."""
        count, size = len(x), self._head_dim
        q, gate = self._q(x).view(count, self._heads, 2 * size).split(size, -1)
        q = dispatch.rms_norm(q, self._q_norm, self._eps, zero_centred=True)
        k, v = self._keys_values(x)
        cos, sin = rows.tables(self._rotary)
        attended = torch.empty_like(q)
        for part, state in zip(rows.rows, states, strict=True):
            here = part.here
            keys, values, start = state.grow(part.count)
            turned = dispatch.rotate_and_write(q[here], k[here], v[here], cos[here], sin[here], keys, values, start)
            seen = start + part.count
            attended[here] = dispatch.attend(
                turned, keys[:, :seen], values[:, :seen], state.length, part.ancestors, size**-0.5
            )
        opened = attended * torch.sigmoid(gate)
        return self._out(opened.reshape(count, self._heads * size))

    def store(self, x: torch.Tensor, rows: Pass, states: Seq[KvState]) -> None:
        """Leave the rows' keys and values in the states, and compute nothing else."""
        k, v = self._keys_values(x)
        k = rope.rotate(k, *rows.tables(self._rotary))
        for part, state in zip(rows.rows, states, strict=True):
            state.append(k[part.here], v[part.here])

    def _keys_values(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`[R, kv_heads, head_dim]` each, the keys normalised, not turned yet."""
        k = self._k(x).view(len(x), self._kv_heads, self._head_dim)
        v = self._v(x).view(len(x), self._kv_heads, self._head_dim)
        return dispatch.rms_norm(k, self._k_norm, self._eps, zero_centred=True), v
