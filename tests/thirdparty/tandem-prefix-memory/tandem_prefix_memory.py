"""A cache tier: snapshots of whole prompts in memory, the least recently used dropped first."""

from collections import abc
from dataclasses import dataclass
from typing import Any

from tandem.core.plugin import (
    Cache,
    CacheTier,
    Match,
    Model,
    Moment,
    Options,
    Sequence,
    common_prefix,
    hookimpl,
    option,
)

TANDEM_API = ">=0.2,<0.3"


@dataclass(frozen=True)
class Entry:
    """The state of a sequence that had committed exactly `tokens`."""

    tokens: tuple[int, ...]
    snapshot: Any
    nbytes: int


class Prompts(CacheTier):
    """The tier. `entries` is in the order of use, the oldest first; their bytes never exceed `budget`."""

    def __init__(self, budget: int, trim: bool, grid: int) -> None:
        self.budget = budget
        self.trim = trim
        self.grid = grid
        self.entries: dict[tuple[int, ...], Entry] = {}
        self.nbytes = 0

    def lookup(self, tokens: abc.Sequence[int]) -> Match | None:
        """The entry that shares the longest beginning. Only a model that can trim may use a part of an entry."""
        best, length = None, 0
        for entry in self.entries.values():
            shared = common_prefix(entry.tokens, tokens)
            if shared > length and (self.trim or shared == len(entry.tokens)):
                best, length = entry, shared
        return Match(length, best) if best is not None else None

    def resume(self, match: Match, new_sequence: abc.Callable[[], Sequence]) -> Sequence | None:
        entry: Entry = match.handle
        if entry.tokens not in self.entries:
            return None
        sequence = new_sequence()
        sequence.restore(entry.snapshot)
        if match.length < len(entry.tokens):
            sequence.trim(match.length)
        self.entries[entry.tokens] = self.entries.pop(entry.tokens)
        return sequence

    def offer(self, moment: Moment, tokens: abc.Sequence[int], sequence: Sequence) -> None:
        """Keep the ends of prompts; where a state is only useful on a grid, the places of the grid instead."""
        wanted = moment is (Moment.PROMPT_END if self.grid == 1 else Moment.GRID)
        key = tuple(tokens)
        if not wanted or len(key) % self.grid or key in self.entries or sequence.nbytes > self.budget:
            return
        # Room first: `sequence.nbytes` is the bound of what the copy will hold.
        self.shed(self.nbytes + sequence.nbytes - self.budget)
        self.entries[key] = Entry(key, sequence.snapshot(), sequence.nbytes)
        self.nbytes += sequence.nbytes

    def shed(self, nbytes: int) -> int:
        freed = 0
        while freed < nbytes and self.entries:
            freed += self.entries.pop(next(iter(self.entries))).nbytes
        self.nbytes -= freed
        return freed

    def stats(self) -> abc.Mapping[str, float]:
        return {"bytes": self.nbytes, "entries": len(self.entries)}

    def clear(self) -> None:
        self.entries.clear()
        self.nbytes = 0

    def check(self) -> list[str]:
        held = sum(entry.nbytes for entry in self.entries.values())
        broken = [f"{self.nbytes} bytes counted, {held} held"] if held != self.nbytes else []
        return broken + ([f"{held} bytes over the budget of {self.budget}"] if held > self.budget else [])


def build(options: Options, model: Model) -> CacheTier:
    return Prompts(options["budget_mib"] << 20, model.caps.trim, model.caps.anchor_grid)


@hookimpl
def tandem_caches() -> list[Cache]:
    return [
        Cache(
            name="prefix_memory",
            doc="Keeps the state of each prompt in memory, the least recently used dropped first.",
            options={"budget_mib": option("integer", "How much memory it may hold, in MiB.", 256, minimum=1)},
            build=build,
        )
    ]
