"""Finding the entry that serves most of a prompt. Shared by the tiers that keep copies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence as Seq
from typing import Protocol, TypeVar

from tandem.core.plugin import common_prefix


class Entry(Protocol):
    """A copy of a state."""

    @property
    def tokens(self) -> list[int]:
        """What the state has committed."""
        ...


E = TypeVar("E", bound=Entry)


def longest(entries: Iterable[E], tokens: Seq[int], trim: bool) -> tuple[E, int] | None:
    """The entry that knows the longest beginning of `tokens`, and how long that is; of equals the last.

    Without `trim` an entry serves only prompts that hold all of it.
    """
    wanted = list(tokens)
    best: tuple[E, int] | None = None
    for entry in entries:
        most = min(len(entry.tokens), len(wanted))
        if most < (best[1] if best else 1) or (not trim and most < len(entry.tokens)):
            continue
        shared = common_prefix(entry.tokens, wanted)
        if shared < (best[1] if best else 1) or (not trim and shared < len(entry.tokens)):
            continue
        best = entry, shared
    return best
