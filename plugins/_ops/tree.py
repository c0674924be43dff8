"""What the rows of a block see of one another, worked out from their parents."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch


def is_chain(parents: Seq[int] | None) -> bool:
    """Every row hangs on the one before it."""
    return parents is None or all(parent == row - 1 for row, parent in enumerate(parents))


def depths(parents: Seq[int]) -> list[int]:
    """How many rows of the block lie above each row, `[T]`."""
    found: list[int] = []
    for parent in parents:
        found.append(found[parent] + 1 if parent >= 0 else 0)
    return found


def ancestors(parents: Seq[int]) -> torch.Tensor:
    """`[T, T]` bool: row i descends from row j. No row is its own ancestor; the committed rows are not in it."""
    count = len(parents)
    found: list[list[bool]] = []
    for parent in parents:
        line = list(found[parent]) if parent >= 0 else [False] * count
        if parent >= 0:
            line[parent] = True
        found.append(line)
    return torch.tensor(found, dtype=torch.bool).view(count, count)


def chain(count: int, device: torch.device | None = None) -> torch.Tensor:
    """The ancestors of a chain's rows, `[count, count]` bool."""
    return torch.ones(count, count, dtype=torch.bool, device=device).tril(-1)


def lineage(parents: Seq[int], span: int) -> torch.Tensor:
    """Each row's `span` nearest forebears, oldest first, and the row itself: `[T, span + 1]` int64.

    The numbers count the last `span` committed rows first (0 to span - 1) and the block's rows after them.
    """
    above = list(range(-1, span))
    found: list[list[int]] = []
    for row, parent in enumerate(parents):
        line = found[parent] if parent >= 0 else above
        found.append([*line[1:], span + row])
    return torch.tensor(found, dtype=torch.int64).view(len(parents), span + 1)
