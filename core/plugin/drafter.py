"""The drafter contract: guesses of what comes next, as a tree, verified by the model in one pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import dataclass, field
from typing import Any, Protocol

from tandem.core.plugin.model import Model, Sequence
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


def merge(trees: Seq[DraftTree]) -> DraftTree:
    """One tree that holds every path of `trees`; where two agree on a node the larger q counts.

    The source is that of the tree with the most expected tokens.
    """
    if len(trees) == 1:
        return trees[0]
    merged = DraftTree(source=max(trees, key=lambda t: sum(t.q)).source)
    known: dict[tuple[int, int], int] = {}
    for tree in trees:
        place: list[int] = []
        for token, parent, q in zip(tree.tokens, tree.parents, tree.q, strict=True):
            under = place[parent] if parent >= 0 else -1
            node = known.get((under, token))
            if node is None:
                node = known[under, token] = merged.add(token, under, q)
            elif q > merged.q[node]:
                merged.q[node] = q
            place.append(node)
    return merged


def cut(tree: DraftTree, count: int) -> DraftTree:
    """The `count` likeliest nodes. A node goes only with its parent: q never grows downwards, and ties keep order."""
    if len(tree) <= count:
        return tree
    kept = sorted(sorted(range(len(tree)), key=lambda i: -tree.q[i])[:count])
    place = {-1: -1}
    small = DraftTree(source=tree.source)
    for i in kept:
        if tree.parents[i] in place:
            place[i] = small.add(tree.tokens[i], place[tree.parents[i]], tree.q[i])
    return small


@dataclass(frozen=True, slots=True)
class DraftStart:
    """The generation that a drafting session is opened for."""

    sequence: Sequence
    """The sequence that it runs on. Read it only, through `Model.head` for instance; the engine commits to it."""
    keep_text: bool = True
    """Whether text of this generation may be kept for later ones. False for a request that says `store: false`."""
    hidden: tuple[range, ...] = ()
    """Places of the prompt that the client did not send: never to be kept for another generation."""


class DraftSession(Protocol):
    """One generation's drafting state."""

    def extend(self, tokens: Seq[int]) -> None:
        """These tokens are now part of the text (the prompt first, then each committed run).

        A session that keeps text for other generations has a method `extend_hidden(tokens)` besides. It is called in
        place of `extend` for tokens that the client does not see, which must not be kept.
        """
        ...

    def propose(self, root: int, limit: int) -> DraftTree | None:
        """A tree of at most `limit` nodes for the text followed by `root`, or None for nothing worth verifying.

        A wrong guess costs time only: the model decides every token.
        """
        ...

    def close(self) -> None:
        """The generation is over. Called once."""
        ...


@dataclass(frozen=True, kw_only=True)
class Drafter(Part):
    """Opens a `DraftSession` for each generation: `build(options, model)` returns the function that opens one.

    `build` runs once at start, on the thread that computes, and may raise ValueError when the drafter can't serve this
    model. A drafter whose trees change a token, or break the contract, in a short self-check is not used.
    """

    build: Callable[[Options, Model], Callable[[DraftStart], DraftSession]]


class TreeChooser(Protocol):
    """Decides, for one generation, which drafters are asked and which of their nodes are verified."""

    def wants(self, drafter: str, context: int) -> bool:
        """Whether to ask this drafter (by its name) now, with `context` rows committed."""
        ...

    def drafted(self, drafter: str, tree: DraftTree | None, seconds: float) -> None:
        """The drafter was asked, and took this long."""
        ...

    def choose(self, trees: Seq[DraftTree], context: int, others: int) -> DraftTree | None:
        """One tree out of all, or None for a plain step. `others` rows of other sequences share the pass."""
        ...

    def learn(self, tree: DraftTree, accepted: Seq[int]) -> None:
        """`accepted` are the nodes that became text, of the tree (the same object) that `choose` gave."""
        ...

    def observe(self, rows: int, context: int, seconds: float) -> None:
        """A pass of exactly `rows` rows of this sequence alone, with `context` rows committed, took this long."""
        ...


class Choosing(Protocol):
    """What all generations of one server share."""

    def open(self) -> TreeChooser:
        """The chooser of one generation."""
        ...

    def report(self) -> Mapping[str, Any]:
        """What was measured and learned, ready for JSON. May be called from any thread."""
        ...

    def close(self) -> None:
        """The server goes down: keep what should be kept. Called once."""
        ...


@dataclass(frozen=True, kw_only=True)
class Chooser(Part):
    """Weighs what drafts bring against what they cost: `build(options, model)` returns what generations share.

    `build` runs once at start, on the thread that computes, and may measure. The first chooser in the manifest's order
    is used; without one a fixed number of nodes is verified.
    """

    build: Callable[[Options, Model], Choosing]
