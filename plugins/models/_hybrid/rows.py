"""The rows of one pass: those of all blocks, one block after another, as the layers see them."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch

from tandem.plugins._ops import tree
from tandem.plugins._ops.rope import Rotary

KEPT_ROWS = 32
"""Up to how many rows of a chain are kept one by one until `commit`, so that any part of it can be committed at once:
as many as the engine verifies in one pass. A longer chain is a prompt's chunk, which is committed whole: the layers
keep the state after its last row only (a row is 2.5 MiB over the Gated DeltaNet layers of Qwen3.8-27B)."""


@dataclass(slots=True)
class Rows:
    """The rows of one block within a pass."""

    start: int
    """The first of them among the rows of the pass."""
    tokens: Seq[int]
    parents: Seq[int] | None
    """None = a chain."""
    length: int
    """Committed rows of their sequence."""
    ancestors: torch.Tensor | None = None
    """Which of the new rows each one descends from, `[n, n]` bool (`_ops.tree.ancestors`); None = a chain.
    `[n, m + n]` where m rows of the same tree were read before, as a draft head does it."""
    _lineages: dict[int, torch.Tensor] = field(default_factory=dict)
    _chain: torch.Tensor | None = None

    @property
    def count(self) -> int:
        return len(self.tokens)

    @property
    def here(self) -> slice:
        """Where the rows are in the pass."""
        return slice(self.start, self.start + len(self.tokens))

    @property
    def kept(self) -> bool:
        """Whether layers must keep every row until `commit`, or the state after the last one only."""
        return self.parents is not None or len(self.tokens) <= KEPT_ROWS

    def above(self, device: torch.device) -> torch.Tensor:
        """`ancestors`, those of a chain spelled out."""
        if self.ancestors is not None:
            return self.ancestors
        if self._chain is None:
            self._chain = tree.chain(self.count, device)
        return self._chain

    def lineage(self, span: int) -> torch.Tensor | None:
        """Each row's `span` nearest forebears (`_ops.tree.lineage`); None = a chain."""
        if self.parents is None:
            return None
        assert self.ancestors is not None
        if span not in self._lineages:
            self._lineages[span] = tree.lineage(self.parents, span).to(self.ancestors.device)
        return self._lineages[span]


class Pass:
    """All rows that go through the weights at once."""

    def __init__(self, rows: Seq[Rows], positions: torch.Tensor) -> None:
        """`positions` is `[R, 3]` int64 (time, height, width), on the device that computes."""
        self.rows = rows
        self.positions = positions
        self._tables: dict[Rotary, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def device(self) -> torch.device:
        return self.positions.device

    def tables(self, rotary: Rotary) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine of all rows' positions, made once for all layers."""
        if rotary not in self._tables:
            self._tables[rotary] = rotary.tables(self.positions)
        return self._tables[rotary]


def block_rows(start: int, tokens: Seq[int], parents: Seq[int] | None, length: int, device: torch.device) -> Rows:
    """The rows of one block; a tree that is a chain is taken as one."""
    if tree.is_chain(parents):
        return Rows(start, tokens, None, length)
    assert parents is not None
    return Rows(start, tokens, parents, length, tree.ancestors(parents).to(device))
