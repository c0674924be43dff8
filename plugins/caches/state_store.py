"""The state store: snapshots where prompts end and at chunk boundaries, for prompts that begin alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import dataclass
from typing import Any

from tandem.core.plugin import Cache, CacheTier, Match, Model, Moment, Options, Sequence, hookimpl, option
from tandem.plugins.caches._entries import longest

TANDEM_API = ">=0.2,<0.3"

DOC = """\
Keeps copies of the state where prompts end and every so many tokens on the way.

A sequence that the resident tier keeps serves one conversation at a time. Copies serve any number: several chats that
begin with the same long system prompt, or one prompt asked again while the first answer is still being written.
"""

SHARE = 4
"""A snapshot may take at most this part of the budget, so that one long prompt never throws all others out."""


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """The state of a sequence that had committed exactly `tokens`."""

    tokens: list[int]
    snapshot: Any
    nbytes: int


class StateStore(CacheTier):
    """Snapshots in the order of use, the oldest first; their bytes never pass the budget."""

    def __init__(self, budget: int, every: int, trim: bool) -> None:
        """`budget` in bytes; a snapshot is taken every `every` tokens of a prompt and at its end."""
        self._budget = budget
        self._every = every
        self._trim = trim
        self._entries: list[Stored] = []
        self._evictions = 0

    def lookup(self, tokens: Seq[int]) -> Match | None:
        found = longest(self._entries, tokens, self._trim)
        return Match(found[1], found[0]) if found is not None else None

    def resume(self, match: Match, new_sequence: Callable[[], Sequence]) -> Sequence | None:
        entry: Stored = match.handle
        if entry not in self._entries:
            return None
        self._entries.remove(entry)
        self._entries.append(entry)
        sequence = new_sequence()
        sequence.restore(entry.snapshot)
        if match.length < len(entry.tokens):
            sequence.trim(match.length)
        return sequence

    def offer(self, moment: Moment, tokens: Seq[int], sequence: Sequence) -> None:
        on_the_way = moment is Moment.GRID and len(tokens) % self._every == 0
        if not tokens or not (on_the_way or moment is Moment.PROMPT_END):
            return
        known = longest(self._entries, tokens, self._trim)
        if known is not None and known[1] == len(tokens):
            return  # a copy of this, or one that can be cut back to it
        if sequence.nbytes > self._budget // SHARE:  # its spare room included, so a copy is no larger
            return
        self.shed(self._bytes() + sequence.nbytes - self._budget)
        snapshot = sequence.snapshot()
        new = Stored(list(tokens), snapshot, getattr(snapshot, "nbytes", sequence.nbytes))
        if self._trim:  # the beginnings of the new one are in it
            self._entries = [entry for entry in self._entries if new.tokens[: len(entry.tokens)] != entry.tokens]
        self._entries.append(new)

    def shed(self, nbytes: int) -> int:
        freed = 0
        while freed < nbytes and self._entries:
            freed += self._entries.pop(0).nbytes
            self._evictions += 1
        return freed

    def stats(self) -> Mapping[str, float]:
        entries = list(self._entries)
        return {
            "bytes": sum(entry.nbytes for entry in entries),
            "entries": len(entries),
            "evictions": self._evictions,
        }

    def clear(self) -> None:
        self._entries.clear()

    def check(self) -> list[str]:
        problems = [f"{self._bytes()} bytes pass the budget of {self._budget}"] if self._bytes() > self._budget else []
        texts = [tuple(entry.tokens) for entry in self._entries]
        return problems + (["a prompt is stored twice"] if len(set(texts)) < len(texts) else [])

    def _bytes(self) -> int:
        return sum(entry.nbytes for entry in self._entries)


def build(options: Options, model: Model) -> CacheTier:
    return StateStore(int(options["gib"] * 2**30), options["every"], model.caps.trim)


@hookimpl
def tandem_caches() -> list[Cache]:
    return [
        Cache(
            name="state_store",
            doc=DOC,
            build=build,
            options={
                "gib": option("number", "How much memory the snapshots may hold, in GiB.", 2, exclusiveMinimum=0),
                "every": option(
                    "integer",
                    "Tokens of a prompt from one snapshot to the next; a multiple of `prefill_chunk`.",
                    1024,
                    minimum=1,
                ),
            },
        )
    ]
