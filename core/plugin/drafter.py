"""The drafter contract: guesses of what comes next, as a tree, verified by the model in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol

from tandem.core.plugin.model import Model
from tandem.core.plugin.part import Options, Part


@dataclass(slots=True)
class DraftTree:
    """Guessed tokens below the next token, whose value (`root`) is known already.

    Nodes are in topological order; `parents[i]` is a node index below i, or -1 for a child of the root.
    """

    tokens: list[int] = field(default_factory=list)
    """`[n]`"""
    parents: list[int] = field(default_factory=list)
    """`[n]`"""
    q: list[float] = field(default_factory=list)
    """`[n]` the drafter's probability that the node is accepted, the whole path from the root included; it never
    grows from parent to child."""
    source: str = ""
    """Who drafted it; acceptance is learned per source, so a drafter may name a finer class (`lookup:5`)."""

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, token: int, parent: int, q: float) -> int:
        """Append a node and return its index."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.q.append(q)
        return len(self.tokens) - 1


class DraftSession(Protocol):
    """One generation's drafting state."""

    def extend(self, tokens: Seq[int]) -> None:
        """These tokens are now part of the text (the prompt first, then each committed run)."""
        ...

    def propose(self, root: int, limit: int) -> DraftTree | None:
        """A tree of at most `limit` nodes for the text followed by `root`, or None for nothing worth verifying.

        A wrong guess costs time only: the model decides every token.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Drafter(Part):
    """Opens a `DraftSession` for each generation: `build(options, model)` returns the function that opens one.

    `build` runs once at start and may raise ValueError when the drafter can't serve this model.
    """

    build: Callable[[Options, Model], Callable[[], DraftSession]]
