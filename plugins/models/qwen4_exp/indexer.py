"""The indexer of QSA attention: which tokens a row attends to once it sees too many.

The tokens that a row sees, itself included and in order, are cut into blocks of R. A block's key is the mean of its
tokens' raw keys, normed and turned to the position of its first token; its score is the sum over the indexer's heads
of relu(query . key) / sqrt(head size). A row attends to the tokens of the best `budget / R` blocks, and always to the
last, incomplete block. A row that sees no more complete blocks than that attends to everything.

Along a tree each row has blocks of its own path. Two rows share every block that ends at or before their last common
row, so a block belongs to the row that completes it, and a row sees the blocks that the committed rows, its ancestors
and itself completed. A block never changes once it is complete: of committed rows only block keys are kept, and
raw keys of the last R - 1 rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence as Seq
from dataclasses import dataclass

import torch

from tandem.plugins._ops.norm import rms_norm
from tandem.plugins._ops.rope import rotate
from tandem.plugins.models._hybrid.weights import Linear
from tandem.plugins.models.qwen4_exp.lineage import Lineage
from tandem.plugins.models.qwen4_exp.states import IndexState

SCORE_ROWS = 64
"""Rows that are scored at once: 64 rows with 4 heads over 65,536 blocks (262,144 tokens) are 64 MiB of scores."""


@dataclass(slots=True)
class Selection:
    """What the rows of a block attend to."""

    tokens: torch.Tensor
    """`[T, S]` int64, numbers of tokens: the committed ones first, then the block's rows."""
    valid: torch.Tensor
    """`[T, S]` bool: rows that see less than others have fewer tokens."""


Blocks = Seq[tuple[IndexState, Lineage]]
"""The sequences of a pass, and the paths of the rows that it brings for each."""


@dataclass(frozen=True, slots=True)
class Indexer:
    """The indexer of one layer."""

    project: Linear
    """`[(heads + 1) * size, H]`: the queries of all heads, then the one raw key."""
    norm_query: torch.Tensor
    """`[size]`, zero-centred, as `norm_key`"""
    norm_key: torch.Tensor
    heads: int
    ratio: int
    """Tokens in a block."""
    budget: int
    """Tokens of complete blocks that a row attends to, at most."""
    eps: float

    @property
    def size(self) -> int:
        return len(self.norm_query)

    def new_state(self, rotary: int, dtype: torch.dtype) -> IndexState:
        """`rotary` is how many numbers of a head positions turn, `dtype` the number type of the rows."""
        return IndexState(self.ratio, self.size, rotary, dtype, self.norm_key.device)

    def __call__(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, blocks: Blocks) -> list[Selection | None]:
        """What each block's fresh rows attend to; None = each to all that it sees.

        `x` `[R, H]` holds the fresh rows of all blocks, `cos` and `sin` `[R, rotary / 2]` float32 the turns of their
        positions. The rows join those that wait in the states.
        """
        found: list[Selection | None] = []
        for (state, lineage), rows, c, s in self._store(x, cos, sin, blocks):
            if (state.length + lineage.longest) // self.ratio <= self.budget // self.ratio:
                found.append(None)
                continue
            queries = rotate(rms_norm(rows[:, : self.heads], self.norm_query, self.eps, True), c, s)
            found.append(self._select(queries, state, lineage))
        return found

    def store(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, blocks: Blocks) -> None:
        """Leave the rows in the states, and choose nothing."""
        for _ in self._store(x, cos, sin, blocks):
            pass

    def _store(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, blocks: Blocks
    ) -> Iterator[tuple[tuple[IndexState, Lineage], torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Each block with its rows' queries and keys `[T, heads + 1, size]`, cosine and sine, once they are stored."""
        projected = self.project(x).view(len(x), self.heads + 1, self.size)
        fresh = [lineage.fresh for _, lineage in blocks]
        parts = (tensor.split(fresh) for tensor in (projected, cos, sin))
        for (state, lineage), rows, c, s in zip(blocks, *parts, strict=True):
            state.append(rows[:, self.heads], c, s)
            self._complete(state, lineage)
            yield (state, lineage), rows, c, s

    def _complete(self, state: IndexState, lineage: Lineage) -> None:
        """Find the blocks that the rows complete, and their keys."""
        full = (state.length + lineage.depth + 1) % self.ratio == 0
        waiting, members = state.waiting, lineage.back(self.ratio - 1)[full]  # [blocks, R]
        first = members[:, 0]
        pooled = torch.cat([state.raw, waiting.raw])[members].float().mean(1).to(waiting.raw.dtype)
        normed = rms_norm(pooled, self.norm_key, self.eps, True)[:, None]
        cos, sin = torch.cat([state.cos, waiting.cos])[first], torch.cat([state.sin, waiting.sin])[first]
        state.append_blocks(lineage.rows[full], members, rotate(normed, cos, sin)[:, 0])

    def _select(self, queries: torch.Tensor, state: IndexState, lineage: Lineage) -> Selection:
        """`queries` `[T, heads, size]`."""
        waiting, rows = state.waiting, lineage.rows[:, None]
        keys = torch.cat([state.keys, waiting.keys])
        sees = waiting.ends <= rows  # [T, new blocks]
        if lineage.ancestors is not None:
            sees = lineage.ancestors[:, waiting.ends] | (waiting.ends == rows)
        count = min(self.budget // self.ratio, len(keys))
        best, valid = [], []
        for start in range(0, len(queries), SCORE_ROWS):
            part = slice(start, start + SCORE_ROWS)
            scores = torch.relu(queries[part].float() @ keys.float().T).sum(1) / math.sqrt(self.size)
            rank = _rank(scores)
            rank[:, state.blocks :].masked_fill_(~sees[part], -1)
            rank, block = rank.topk(count, -1)
            best.append(block)
            valid.append(rank >= 0)
        # Where each block's tokens are: committed blocks one after another, the others along their last token's path.
        shift = state.length - (self.ratio - 1)
        committed = torch.arange(state.blocks * self.ratio, device=keys.device).view(state.blocks, self.ratio)
        members = torch.cat([committed, waiting.members + shift])
        left = (state.length + lineage.depth + 1) % self.ratio
        tail = torch.arange(self.ratio - 1, 0, -1, device=keys.device) <= left[:, None]  # [T, R - 1], oldest first
        last = (lineage.back(self.ratio - 1)[:, 1:] + shift).clamp_min(0)
        return Selection(
            torch.cat([members[torch.cat(best)].flatten(1), last], 1),
            torch.cat([torch.cat(valid).repeat_interleave(self.ratio, 1), tail], 1),
        )


def _rank(scores: torch.Tensor) -> torch.Tensor:
    """Numbers that order blocks by score, and blocks of one score by age, `[T, blocks]` int64 from 0 on.

    Many a block scores 0 exactly, and which of equals `topk` takes depends on how many there are: the same row would
    attend to different tokens in a tree and in a chain. The bits of floats that are not negative ascend as they do.
    """
    count = scores.shape[-1]
    return (scores.contiguous().view(torch.int32).clamp_min(0).long() + 1) * 2**31 - torch.arange(
        count, device=scores.device
    )
