"""What lies before each new row on its own path, worked out once for all layers that look back."""

from __future__ import annotations

import torch


class Lineage:
    """The paths of the rows that a pass brings for one sequence, from the last committed row down to each.

    Rows of the same tree may be pending from passes before, as where a draft head reads a tree level by level. Pending
    rows are counted in the order in which they came, so a path's rows have ascending numbers.
    """

    def __init__(
        self, ancestors: torch.Tensor | None, fresh: int, before: int = 0, device: torch.device | None = None
    ) -> None:
        """`ancestors` is `[fresh, before + fresh]` bool as in `_hybrid.rows.Rows`; None = a chain, which goes on where
        the `before` rows end."""
        self.ancestors = ancestors
        self.fresh = fresh
        self.before = before
        self.rows = torch.arange(before, before + fresh, device=device)
        """`[fresh]` int64: the rows' numbers."""
        self.depth = self.rows if ancestors is None else ancestors.sum(1)
        """`[fresh]` int64: how many pending rows are before each on its path."""
        self.longest = before + fresh if ancestors is None else int(self.depth.max()) + 1
        """Rows of the longest path."""
        self._spans: dict[int, torch.Tensor] = {}

    @property
    def chain(self) -> bool:
        return self.ancestors is None

    def back(self, span: int) -> torch.Tensor:
        """Each row's `span` nearest forebears, oldest first, and the row itself: `[fresh, span + 1]` int64.

        The numbers count the last `span` committed rows first (0 to span - 1) and the pending rows after them.
        """
        if span not in self._spans:
            self._spans[span] = self._back(span)
        return self._spans[span]

    def _back(self, span: int) -> torch.Tensor:
        device = self.rows.device
        if self.ancestors is None:
            return self.rows[:, None] + torch.arange(span + 1, device=device)
        # A path's numbers ascend, committed rows first: its end is what is greatest.
        on_path = self.ancestors | (torch.arange(self.before + self.fresh, device=device) == self.rows[:, None])
        committed = torch.arange(span, device=device).expand(self.fresh, span)
        pending = torch.where(on_path, torch.arange(span, span + on_path.shape[1], device=device), -1)
        return torch.cat([committed, pending], 1).sort(1).values[:, -span - 1 :]
