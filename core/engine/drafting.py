"""Choosing what to verify where no chooser is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from typing import Any

from tandem.core.plugin import DraftTree, TreeChooser, cut, merge

MAX_NODES = 31
"""Drafted nodes in one verify pass, at most; 32 rows with the root."""


class FixedCut:
    """Verifies the likeliest `nodes` nodes of whatever is proposed, and learns nothing.

    With all nodes it serves exactness checks, where the cost does not matter.
    """

    def __init__(self, nodes: int = MAX_NODES) -> None:
        self._nodes = nodes

    def wants(self, drafter: str, context: int) -> bool:
        return True

    def drafted(self, drafter: str, tree: DraftTree | None, seconds: float) -> None:
        return

    def choose(self, trees: Seq[DraftTree], context: int, others: int) -> DraftTree | None:
        return cut(merge(trees), self._nodes) if trees else None

    def learn(self, tree: DraftTree, accepted: Seq[int]) -> None:
        return

    def observe(self, rows: int, context: int, seconds: float) -> None:
        return


class FixedCutting:
    """What the engine falls back on: eight nodes, which cost little on any machine."""

    NODES = 8

    def open(self) -> TreeChooser:
        return FixedCut(self.NODES)

    def report(self) -> Mapping[str, Any]:
        return {}

    def close(self) -> None:
        return
