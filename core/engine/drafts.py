"""One generation's drafters, kept from harming it: a session that raises is dropped, and nothing else happens."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Sequence as Seq
from functools import partial
from typing import TypeVar

from tandem.core.engine.drafting import MAX_NODES, checked
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

    def extend(self, tokens: Seq[int], *, hidden: bool = False) -> None:
        """These tokens became part of the text; `hidden` ones are nobody else's business."""
        for name, session in list(self._sessions.items()):
            take = getattr(session, "extend_hidden", session.extend) if hidden else session.extend
            self._guarded(name, partial(take, tokens), None)

    def propose(self, root: int, limit: int, chooser: TreeChooser, context: int) -> list[DraftTree]:
        """The trees of all drafters that the chooser wants and that have something to say.

        Near the end of the room that the text has, where `limit` is less than a pass takes, all trees together keep to
        it, so that the chooser may merge them without counting.
        """
        trees = []
        left = limit
        for name, session in list(self._sessions.items()):
            if left <= 0:
                break
            if not chooser.wants(name, context):
                continue
            start = time.perf_counter()
            tree = self._guarded(name, partial(_proposed, session, root, left), None)
            chooser.drafted(name, tree, time.perf_counter() - start)
            if tree:
                trees.append(tree)
                if limit < MAX_NODES:
                    left -= len(tree)
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


def _proposed(session: DraftSession, root: int, limit: int) -> DraftTree | None:
    return checked(session.propose(root, limit), limit)
