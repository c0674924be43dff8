"""Softmax attention of new rows over the committed rows of their sequence and, among the new ones, their ancestors."""

from __future__ import annotations

import torch

TILE = 128
"""Rows whose scores are held at once."""


def attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    prefix: int,
    ancestors: torch.Tensor | None,
    scale: float,
    allowed: torch.Tensor | None = None,
) -> torch.Tensor:
    """Grouped-query attention: `[T, hq, d]` of the type of `q`; scores and sums are float32.

    `q` is `[T, hq, d]`; `keys` and `values` `[hk, prefix + M, d]` hold `prefix` committed rows that all see, then M new
    ones, the last T of which are those of `q`. `ancestors` `[T, M]` bool says which of the M each row descends from;
    every row sees itself besides. None = a chain. Query head h reads key head `h // (hq / hk)`.
    `allowed` `[T, prefix + M]` bool narrows what a row sees further; it must leave each row something.
    """
    count, heads, size = q.shape
    shared, total, _ = keys.shape
    group = heads // shared
    # The query heads that share a key head are rows of one product: [hk, group, T, d].
    ours = scale * q.float().view(count, shared, group, size).permute(1, 2, 0, 3)
    keys, values = keys.float(), values.float()
    out = torch.empty_like(ours)
    first = total - count  # where row 0 of q stands among the keys
    for start in range(0, count, TILE):
        stop = min(start + TILE, count)
        end = first + stop if ancestors is None else total  # a chain's later rows are out of sight
        rows = ours[:, :, start:stop].reshape(shared, -1, size)
        scores = (rows @ keys[:, :end].transpose(1, 2)).view(shared, group, stop - start, end)
        if ancestors is not None or allowed is not None or stop - start > 1:  # one row of a chain sees all
            seen = _visible(start, stop, end, first, prefix, ancestors, q.device)
            seen = seen if allowed is None else seen & allowed[start:stop, :end]
            scores.masked_fill_(~seen, float("-inf"))
        weights = scores.softmax(-1).view(shared, -1, end)
        out[:, :, start:stop] = (weights @ values[:, :end]).view(shared, group, stop - start, size)
    return out.permute(2, 0, 1, 3).reshape(count, heads, size).to(q.dtype)


def _visible(
    start: int, stop: int, end: int, first: int, prefix: int, ancestors: torch.Tensor | None, device: torch.device
) -> torch.Tensor:
    """What rows `start` to `stop` see of the first `end` keys, `[stop - start, end]` bool."""
    own = torch.arange(first + start, first + stop, device=device)[:, None]
    places = torch.arange(end, device=device)
    if ancestors is None:
        return places <= own
    seen = (places < prefix) | (places == own)
    seen[:, prefix:] |= ancestors[start:stop]
    return seen
