"""From places of the log to a tree of what may come next."""

from __future__ import annotations

import heapq
from collections.abc import Sequence as Seq

from tandem.core.plugin import DraftTree
from tandem.plugins.drafters.suffix.layout import SEPARATOR


def spread(counts: Seq[int], most: int) -> list[list[int]]:
    """For each group, which of its `count` members to look at: all, or `most` altogether, evenly over the groups."""
    total = sum(counts)
    chosen: list[list[int]] = [[] for _ in counts]
    group, first = 0, 0
    for index in range(total) if total <= most else (i * total // most for i in range(most)):
        while index >= first + counts[group]:
            first += counts[group]
            group += 1
        chosen[group].append(index - first)
    return chosen


def going_on(order: int, voters: int) -> float:
    """The chance that the next token is one that followed a match of `order` tokens at one of `voters` places.

    It fails less often the longer the match is, and the more places have it: as 3 / (order + 3), by the fourth root of
    the places. Both were read off Python files that were drafted from other ones (docs/suffix-store.md has the table);
    which sources of text do better or worse is learned from what is accepted.
    """
    return 1.0 - 3.0 / (order + 3.0) * voters**-0.25


def vote(continuations: Seq[Seq[int]], order: int, limit: int, branches: int, depth: int, min_q: float) -> DraftTree:
    """The `limit` likeliest nodes of the tree that the continuations vote for; each voter counts once.

    A child's q is its parent's, times the share of its voters among the parent's, times the chance that the match
    goes on: a node at depth d stands behind a match of order + d. A continuation's end (its length, or a separator)
    votes for nothing below, and counts. At a node the `branches` children with most votes are followed, up to
    `depth` tokens deep, while q is at least `min_q`.
    """
    tree = DraftTree()
    # (-q, when it was found, token, parent, its depth, its voters); what was found first goes first among equals
    waiting: list[tuple[float, int, int, int, int, Seq[Seq[int]]]] = []
    found = 0

    def follow(node: int, q: float, at: int, voters: Seq[Seq[int]]) -> None:
        nonlocal found
        if at >= depth:
            return
        votes: dict[int, list[Seq[int]]] = {}
        for voter in voters:
            if at < len(voter) and (token := voter[at]) != SEPARATOR:
                votes.setdefault(token, []).append(voter)
        q *= going_on(order + at, len(voters)) / len(voters)
        for token, group in sorted(votes.items(), key=lambda item: -len(item[1]))[:branches]:
            if q * len(group) < min_q:
                break
            found += 1
            heapq.heappush(waiting, (-q * len(group), found, token, node, at, group))

    follow(-1, 1.0, 0, continuations)
    while waiting and len(tree) < limit:
        negative, _, token, parent, at, group = heapq.heappop(waiting)
        node = tree.add(token, parent, -negative)
        follow(node, -negative, at + 1, group)
    return tree
