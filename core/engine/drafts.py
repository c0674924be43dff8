"""One generation's drafters, kept from harming it: a session that raises is dropped, and nothing else happens."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Sequence as Seq
from typing import TypeVar

from tandem.core.plugin import DraftSession, DraftStart, DraftTree, TreeChooser

log = logging.getLogger("tandem.drafting")
T = TypeVar("T")
Opener = tuple[str, Callable[[DraftStart], DraftSession]]
Fail = Callable[[str, str], None]


class Drafts:
    """The sessions, by drafter. `fail(name, reason)` is told when one raised."""

    def __init__(self, openers: Seq[Opener] = (), fail: Fail = lambda name, reason: None) -> None:
        self._openers = openers
        self._fail = fail
        self._sessions: dict[str, DraftSession] = {}

    def open(self, start: DraftStart) -> None:
        """Open the sessions. Before this there are none."""
        for name, opener in self._openers:
            session = self._guarded(name, lambda opener=opener: opener(start), None)  # type: ignore[misc]
            if session is not None:
                self._sessions[name] = session

    def __bool__(self) -> bool:
        return bool(self._sessions)

    def extend(self, tokens: Seq[int]) -> None:
        """These tokens became part of the text."""
        for name, session in list(self._sessions.items()):
            self._guarded(name, lambda session=session: session.extend(tokens), None)  # type: ignore[misc]

    def propose(self, root: int, limit: int, chooser: TreeChooser, context: int) -> list[DraftTree]:
        """The trees of all drafters that the chooser wants and that have something to say."""
        trees = []
        for name, session in list(self._sessions.items()):
            if not chooser.wants(name, context):
                continue
            start = time.perf_counter()
            tree = self._guarded(name, lambda session=session: _checked(session.propose(root, limit), limit), None)  # type: ignore[misc]
            chooser.drafted(name, tree, time.perf_counter() - start)
            if tree:
                trees.append(tree)
        return trees

    def close(self) -> None:
        """The generation is over. Safe to call twice."""
        for name, session in list(self._sessions.items()):
            self._guarded(name, session.close, None)
        self._sessions.clear()

    def _guarded(self, name: str, call: Callable[[], T], otherwise: T) -> T:
        try:
            return call()
        except Exception as error:
            reason = traceback.format_exception_only(error)[-1].strip()
            log.warning("drafter %s is switched off: %s", name, reason)
            self._sessions.pop(name, None)
            self._fail(name, reason)
            return otherwise


def _checked(tree: DraftTree | None, limit: int) -> DraftTree | None:
    """Raises ValueError for a tree that breaks the contract."""
    if tree is None or not len(tree):
        return None
    if not len(tree.tokens) == len(tree.parents) == len(tree.q):
        raise ValueError("proposed a tree whose tokens, parents and q differ in length")
    if len(tree) > limit:
        raise ValueError(f"proposed {len(tree)} nodes where {limit} were asked for")
    if any(not -1 <= parent < place for place, parent in enumerate(tree.parents)):
        raise ValueError("proposed a node whose parent does not come before it")
    return tree
