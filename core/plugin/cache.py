"""The cache contract: tiers that keep a sequence's state, and give it back to a prompt that starts the same way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from tandem.core.plugin.model import Model, Sequence
from tandem.core.plugin.part import Options, Part


class Moment(Enum):
    """When a tier is offered a sequence."""

    GRID = "grid"
    """A prefill chunk was committed."""
    PROMPT_END = "prompt_end"
    """The whole prompt is committed, nothing generated yet."""
    GENERATION_END = "generation_end"
    """The generation has ended; the sequence is about to be closed."""


@dataclass(frozen=True, slots=True)
class Match:
    """A tier holds the state of the first `length` tokens of a prompt."""

    length: int
    handle: Any
    """What the tier needs to find it again; opaque to everyone else."""


class CacheTier(Protocol):
    """One store of sequence states. Calls come from the engine's thread; `stats` may come from any."""

    def lookup(self, tokens: Seq[int]) -> Match | None:
        """The longest stored prefix of `tokens`, every stored token compared with the prompt's."""
        ...

    def resume(self, match: Match, sequence: Sequence) -> bool:
        """Restore the match into an empty sequence; False when it is gone in the meantime."""
        ...

    def offer(self, moment: Moment, tokens: Seq[int], sequence: Sequence) -> None:
        """The sequence has committed exactly `tokens`. A tier copies what it wants to keep."""
        ...

    def shed(self, nbytes: int) -> int:
        """Give back at least `nbytes` if possible, cheapest first; returns the bytes freed."""
        ...

    def stats(self) -> Mapping[str, float]:
        """Counters and sizes; `bytes`, `entries`, `hits` and `misses` at least."""
        ...

    def clear(self) -> None: ...

    def check(self) -> list[str]:
        """Broken invariants, in words; empty when all is well. Called by tests and in idle time."""
        ...


@dataclass(frozen=True, kw_only=True)
class Cache(Part):
    """A cache tier: `build(options, model)` returns the working `CacheTier`."""

    build: Callable[[Options, Model], CacheTier]
