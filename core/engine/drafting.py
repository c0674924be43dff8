"""Choosing what to verify: what is done where no chooser is installed, and what keeps an installed one from harm."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence as Seq
from typing import Any

from tandem.core.plugin import Choosing, DraftTree, TreeChooser, cut, merge

log = logging.getLogger("tandem.drafting")

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


class GuardedChoosing:
    """A chooser that may raise, or choose what can't be verified, without harm to any generation.

    After its first fault `fail` is told the reason, and a fixed number of nodes is verified from then on.
    """

    def __init__(self, choosing: Choosing, fail: Callable[[str], None]) -> None:
        self._choosing = choosing
        self._fallback: FixedCutting | None = None
        self._fail = fail

    def open(self) -> TreeChooser:
        if self._fallback is None:
            try:
                return _Guarded(self, self._choosing.open())
            except Exception as error:
                return self.fault(error)
        return self._fallback.open()

    def report(self) -> Mapping[str, Any]:
        try:
            return {} if self._fallback is not None else self._choosing.report()
        except Exception as error:  # on whichever thread asked: the generations go on
            return {"error": _told(error)}

    def close(self) -> None:
        try:
            self._choosing.close()
        except Exception as error:
            log.warning("the chooser did not close: %s", _told(error))

    def fault(self, error: Exception) -> TreeChooser:
        """The chooser failed; what to go on with."""
        if self._fallback is None:
            self._fallback = FixedCutting()
            log.warning("the chooser is switched off: %s", _told(error))
            self._fail(_told(error))
        return self._fallback.open()


class _Guarded:
    """One generation's chooser, until its first fault."""

    def __init__(self, shared: GuardedChoosing, chooser: TreeChooser) -> None:
        self._shared = shared
        self._chooser = chooser

    def wants(self, drafter: str, context: int) -> bool:
        try:
            return self._chooser.wants(drafter, context)
        except Exception as error:
            self._chooser = self._shared.fault(error)
            return True

    def drafted(self, drafter: str, tree: DraftTree | None, seconds: float) -> None:
        try:
            self._chooser.drafted(drafter, tree, seconds)
        except Exception as error:
            self._chooser = self._shared.fault(error)

    def choose(self, trees: Seq[DraftTree], context: int, others: int) -> DraftTree | None:
        try:
            return checked(self._chooser.choose(trees, context, others), MAX_NODES)
        except Exception as error:
            self._chooser = self._shared.fault(error)
            return self._chooser.choose(trees, context, others)

    def learn(self, tree: DraftTree, accepted: Seq[int]) -> None:
        try:
            self._chooser.learn(tree, accepted)
        except Exception as error:
            self._chooser = self._shared.fault(error)

    def observe(self, rows: int, context: int, seconds: float) -> None:
        try:
            self._chooser.observe(rows, context, seconds)
        except Exception as error:
            self._chooser = self._shared.fault(error)


def checked(tree: DraftTree | None, limit: int) -> DraftTree | None:
    """The tree, None for an empty one. Raises ValueError for one that breaks the contract."""
    if tree is None or not len(tree):
        return None
    if not len(tree.tokens) == len(tree.parents) == len(tree.q):
        raise ValueError("gave a tree whose tokens, parents and q differ in length")
    if len(tree) > limit:
        raise ValueError(f"gave {len(tree)} nodes where {limit} were asked for")
    if any(not -1 <= parent < place for place, parent in enumerate(tree.parents)):
        raise ValueError("gave a node whose parent does not come before it")
    if not (min(tree.q) >= 0 and max(tree.q) <= 1.001 and sum(tree.q) <= limit * 1.001):  # a NaN fails one of them
        raise ValueError("gave a node whose q is no probability")
    return tree


def _told(error: Exception) -> str:
    return traceback.format_exception_only(error)[-1].strip()
