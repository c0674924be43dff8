"""Gated DeltaNet: the linear-attention layer, and what it keeps of a sequence."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import silu, softplus

from tandem.plugins._ops import dispatch, gdn, norm
from tandem.plugins.models._hybrid.config import GdnConfig
from tandem.plugins.models._hybrid.rows import Pass, Rows
from tandem.plugins.models._hybrid.sequence import Path, Tensors

Linear = Callable[[torch.Tensor], torch.Tensor]
"""Rows `[n, in]` to rows `[n, out]` of the same number type."""


@dataclass(frozen=True, slots=True)
class _Branches:
    """Every row of a small block: what it adds to the state (`_ops.gdn.tree`) and its column of the convolution."""

    keys: torch.Tensor
    u: torch.Tensor
    decay: torch.Tensor
    columns: torch.Tensor

    @property
    def count(self) -> int:
        return len(self.columns)

    @property
    def nbytes(self) -> int:
        return _nbytes(self.keys, self.u, self.decay, self.columns)


@dataclass(frozen=True, slots=True)
class _End:
    """The state after the last row of a long chain."""

    count: int
    matrix: torch.Tensor
    tail: torch.Tensor

    @property
    def nbytes(self) -> int:
        return _nbytes(self.matrix, self.tail)


class GdnState:
    """The recurrent matrix in float32, and the last columns that went into the convolution.

    A path that is committed out of a tree gives the matrix of the same rows read one at a time, up to the rounding of
    float32 sums: it adds the rows' shares to the decayed matrix at once, and not one after another.
    """

    def __init__(self, config: GdnConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._config = config
        self._dtype = dtype
        self._device = device
        self._shape = config.value_heads, config.key_dim, config.value_dim
        self._tail_shape = config.conv_kernel - 1, config.channels
        self._matrix: torch.Tensor | None = None
        self._tail: torch.Tensor | None = None
        self._waiting: _Branches | _End | None = None

    @property
    def layout(self) -> Hashable:
        return "gdn", self._config, self._dtype

    @property
    def nbytes(self) -> int:
        return _nbytes(self._matrix, self._tail) + (self._waiting.nbytes if self._waiting else 0)

    @property
    def pending(self) -> int:
        return self._waiting.count if self._waiting else 0

    @property
    def matrix(self) -> torch.Tensor:
        """`[value heads, key dim, value dim]` float32"""
        if self._matrix is None:
            self._matrix = torch.zeros(self._shape, device=self._device)
        return self._matrix

    @property
    def tail(self) -> torch.Tensor:
        """The last raw columns of q, k and v, `[kernel - 1, channels]`, oldest first."""
        if self._tail is None:
            self._tail = torch.zeros(self._tail_shape, dtype=self._dtype, device=self._device)
        return self._tail

    def hold(self, waiting: _Branches | _End) -> None:
        """What a pass leaves for `commit`."""
        self._waiting = waiting

    def commit(self, path: Path) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is None or not len(path):
            return
        if isinstance(waiting, _Branches):
            rows: Any = path.on(self._device)  # a path on the device is one too
            self._matrix = dispatch.gdn_commit(self.matrix, waiting.keys, waiting.u, waiting.decay, rows)
            self._tail = gdn.conv_tail(waiting.columns, self.tail, rows)
            return
        assert len(path) == waiting.count, "a part of a long chain is run again, not committed"
        self._matrix, self._tail = waiting.matrix, waiting.tail

    def anchor(self) -> Tensors:
        # What is committed is replaced, never written to, so it can be shared.
        return {"matrix": self.matrix, "tail": self.tail}

    def rewind(self, anchor: Tensors) -> None:
        self._matrix, self._tail = anchor["matrix"], anchor["tail"]

    def snapshot(self, anchor: Tensors | None = None) -> Tensors:
        kept = self.anchor() if anchor is None else anchor
        return {name: value.clone() for name, value in kept.items()}

    def fits(self, snapshot: Tensors) -> bool:
        found = {name: (tuple(value.shape), value.dtype) for name, value in snapshot.items()}
        return found == {"matrix": (self._shape, torch.float32), "tail": (self._tail_shape, self._dtype)}

    def restore(self, snapshot: Tensors) -> None:
        self._matrix = snapshot["matrix"].to(self._device, copy=True)
        self._tail = snapshot["tail"].to(self._device, copy=True)

    def close(self) -> None:
        self._matrix = self._tail = self._waiting = None


class GdnLayer:
    """`out(gated_norm(rule(conv(qkv(x))), z(x)))`, see `_ops.gdn`.

    The projections and gates run over the rows of all blocks at once, the convolution and the rule over each block.
    """

    def __init__(
        self,
        config: GdnConfig,
        *,
        qkv: Linear,
        z: Linear,
        b: Linear,
        a: Linear,
        out: Linear,
        conv: torch.Tensor,
        a_log: torch.Tensor,
        dt_bias: torch.Tensor,
        norm_weight: torch.Tensor,
        eps: float,
    ) -> None:
        """`conv` is `[channels, kernel]`; `a_log` and `dt_bias` `[value heads]`; `norm_weight` `[value dim]`, not
        centred on zero."""
        self._config = config
        self._qkv, self._z, self._b, self._a, self._out = qkv, z, b, a, out
        self._conv = conv
        self._rate = -a_log.float().exp()
        self._dt_bias = dt_bias.float()
        self._norm_weight = norm_weight
        self._eps = eps

    def __call__(self, x: torch.Tensor, rows: Pass, states: Seq[GdnState]) -> torch.Tensor:
        """`[R, hidden]` to `[R, hidden]`; `states` are those of the blocks."""
        config = self._config
        qkv = self._qkv(x)
        beta = torch.sigmoid(self._b(x).float())
        g = self._rate * softplus(self._a(x).float() + self._dt_bias)
        mixed = [
            self._mix(qkv[part.here], g[part.here], beta[part.here], part, state)
            for part, state in zip(rows.rows, states, strict=True)
        ]
        out = mixed[0] if len(mixed) == 1 else torch.cat(mixed)
        z = self._z(x).view(len(x), config.value_heads, config.value_dim)
        opened = norm.gated_rms_norm(out, z, self._norm_weight, self._eps, config.output_gate)
        return self._out(opened.reshape(len(x), config.values))

    def _mix(
        self, columns: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, part: Rows, state: GdnState
    ) -> torch.Tensor:
        """Convolution and rule over one block, `[n, value heads, value dim]` float32; leaves the block in `state`."""
        config = self._config
        lineage = part.lineage(config.conv_kernel - 1)
        mixed = silu(gdn.conv(columns, state.tail, self._conv, lineage))
        width = config.key_heads * config.key_dim
        q, k, v = mixed.split([width, width, config.values], -1)
        q = gdn.l2_norm(q.view(-1, config.key_heads, config.key_dim)) * config.key_dim**-0.5
        k = gdn.l2_norm(k.view(-1, config.key_heads, config.key_dim))
        v = v.view(-1, config.value_heads, config.value_dim)
        if part.kept:
            out, u, decay = dispatch.gdn_tree(q, k, v, g, beta, state.matrix, part.above(columns.device))
            state.hold(_Branches(k, u, decay, columns.clone()))
            return out
        out, matrix = dispatch.gdn_chunked(q, k, v, g, beta, state.matrix)
        last = range(max(0, part.count - len(state.tail)), part.count)
        state.hold(_End(part.count, matrix, gdn.conv_tail(columns, state.tail, last)))
        return out


def _nbytes(*tensors: torch.Tensor | None) -> int:
    return sum(int(tensor.nbytes) for tensor in tensors if tensor is not None)
