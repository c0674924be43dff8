"""Who is calling: the client shapes of the manifest, asked in order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from tandem.core.plugin import ClientMatch

log = logging.getLogger("tandem.api")

PLAIN = ClientMatch("plain")
"""A client that no shape knows."""

ALWAYS_TOLD = frozenset({"stop", "length"})
"""Finish reasons that every client knows; `length` stands for those that one does not."""

REASONING_FORMATS = (None, "tags", "reasoning_content", "both", "hidden")

Recognise = Callable[[Mapping[str, str], Mapping[str, Any]], ClientMatch | None]


class Clients:
    """The shapes that are on. One that raises has not recognised anybody; `fault(name)` counts it."""

    def __init__(self, shapes: list[tuple[str, Recognise]], fault: Callable[[str], None]) -> None:
        self._shapes = shapes
        self._fault = fault
        self._complained: set[str] = set()

    def recognise(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> ClientMatch:
        """The first match, or the plain client. `headers` have lower-case names."""
        for name, recognise in self._shapes:
            try:
                match = recognise(headers, body)
                if match is None:
                    continue
                _check(match)
                return match
            except Exception as error:
                self._fault(name)
                if name not in self._complained:
                    self._complained.add(name)
                    log.warning("the client shape %s raised %s: %s", name, type(error).__name__, error)
        return PLAIN


def _check(match: ClientMatch) -> None:
    """Raises TypeError or ValueError for a match that would do harm later on."""
    if not isinstance(match, ClientMatch):
        raise TypeError(f"returned {type(match).__name__}, not a ClientMatch or None")
    # It becomes a header, a label and a log word.
    if not (isinstance(match.kind, str) and match.kind.isascii() and match.kind.isprintable() and match.kind):
        raise ValueError(f"returned the kind {match.kind!r}, which is no printable word")
    if match.session is not None and not isinstance(match.session, str):
        raise TypeError(f"returned a session that is {type(match.session).__name__}, not text or None")
    if match.reasoning_format not in REASONING_FORMATS:
        raise ValueError(f"returned the reasoning format {match.reasoning_format!r}, which does not exist")
    if match.finish_words is not None and not match.finish_words >= ALWAYS_TOLD:
        raise ValueError(f"returned finish words without {' or '.join(sorted(ALWAYS_TOLD - match.finish_words))}")
