"""QSA: gated full attention over the tokens that the indexer chose."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from tandem.plugins._ops import attention
from tandem.plugins._ops.norm import rms_norm
from tandem.plugins._ops.rope import Rotary, rotate
from tandem.plugins.models._hybrid.kv import KvState
from tandem.plugins.models._hybrid.rows import Pass
from tandem.plugins.models._hybrid.weights import Linear
from tandem.plugins.models.qwen4_exp.indexer import Indexer, Selection
from tandem.plugins.models.qwen4_exp.lineage import Lineage
from tandem.plugins.models.qwen4_exp.states import IndexState

TILE = 32
"""Rows whose chosen keys are gathered at once: 32 rows of 2,051 tokens with 2 heads of 256 numbers are 128 MiB of
float32 keys, and as many of values."""


@dataclass(frozen=True, slots=True)
class QsaLayer:
    """`out(attend(q, k, v) * sigmoid(gate))`, where one projection holds each head's query, then its gate.

    Queries and keys are normalised over the head (weights centred on zero), then turned to their positions. Computes in
    the number type of its matrices, softmax in float32.
    """

    q: Linear
    """`[2 * heads * head_dim, H]`"""
    k: Linear
    """`[kv_heads * head_dim, H]`"""
    v: Linear
    out: Linear
    """`[H, heads * head_dim]`"""
    q_norm: torch.Tensor
    """`[head_dim]`"""
    k_norm: torch.Tensor
    heads: int
    kv_heads: int
    rotary: Rotary
    eps: float
    indexer: Indexer

    def __call__(
        self, x: torch.Tensor, rows: Pass, lineages: Seq[Lineage], kv: Seq[KvState], index: Seq[IndexState]
    ) -> torch.Tensor:
        """`[R, H]` to `[R, H]`; lineages and states are those of the blocks, whose fresh rows `x` holds."""
        count, size = len(x), len(self.q_norm)
        q, gate = self.q(x).view(count, self.heads, 2 * size).split(size, -1)
        q = rotate(rms_norm(q, self.q_norm, self.eps, True), *rows.tables(self.rotary))
        seen = self._append(x, rows, kv)
        selections = self.indexer(x, *rows.tables(self.rotary), list(zip(index, lineages, strict=True)))
        attended = torch.empty_like(q)
        parts = zip(rows.rows, lineages, kv, seen, selections, strict=True)
        for part, lineage, state, (keys, values), selection in parts:
            here = part.here
            if selection is None:
                attended[here] = attention.attend(q[here], keys, values, state.length, lineage.ancestors, size**-0.5)
            else:
                attended[here] = attend_selected(q[here], keys, values, selection, size**-0.5)
        return self.out((attended * torch.sigmoid(gate)).reshape(count, -1))

    def store(
        self, x: torch.Tensor, rows: Pass, lineages: Seq[Lineage], kv: Seq[KvState], index: Seq[IndexState]
    ) -> None:
        """Leave the rows in the states, and compute nothing else."""
        self._append(x, rows, kv)
        self.indexer.store(x, *rows.tables(self.rotary), list(zip(index, lineages, strict=True)))

    def _append(self, x: torch.Tensor, rows: Pass, kv: Seq[KvState]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """All keys and values of each block's sequence, the new ones at the end."""
        k, v = (project(x).view(len(x), self.kv_heads, len(self.k_norm)) for project in (self.k, self.v))
        k = rotate(rms_norm(k, self.k_norm, self.eps, True), *rows.tables(self.rotary))
        return [state.append(k[part.here], v[part.here]) for part, state in zip(rows.rows, kv, strict=True)]


def attend_selected(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, selection: Selection, scale: float, tile: int = TILE
) -> torch.Tensor:
    """Attention of each row over its own tokens: the cost does not grow with the text.

    `q` `[T, hq, d]`, `keys` and `values` `[hk, L + T, d]` to `[T, hq, d]`; `tile` rows are computed at once.
    """
    heads, _, size = keys.shape
    out = torch.empty_like(q)
    for start in range(0, len(q), tile):
        part = slice(start, start + tile)
        chosen, valid = selection.tokens[part], selection.valid[part]
        query = q[part].unflatten(1, (heads, -1)).transpose(0, 1)  # [hk, tile, group, d]
        scores = (query @ keys[:, chosen].transpose(-1, -2)).float() * scale  # [hk, tile, group, S]
        weights = scores.masked_fill_(~valid[:, None], -torch.inf).softmax(-1).to(q.dtype)
        out[part] = (weights @ values[:, chosen]).transpose(0, 1).reshape(-1, q.shape[1], size)
    return out
