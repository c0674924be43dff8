"""New keys and values: turned to their positions and written behind the committed ones."""

from __future__ import annotations

import torch

from tandem.plugins._ops.rope import rotate


def rotate_and_write(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    start: int,
) -> torch.Tensor:
    """Write T new rows at `start` of a cache and return the queries turned, `[T, hq, d]` of the type of `q`.

    `q` is `[T, hq, d]`, `k` and `v` `[T, hk, d]`; `cos` and `sin` are `[T, r / 2]` (see `rope.rotate`); the cache's
    `keys` and `values` are `[hk, capacity, d]`, changed in place from row `start` on.
    """
    stop = start + len(k)
    keys[:, start:stop] = rotate(k, cos, sin).transpose(0, 1)
    values[:, start:stop] = v.transpose(0, 1)
    return rotate(q, cos, sin)
