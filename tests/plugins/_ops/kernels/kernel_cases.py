"""What the kernels' tests share: random inputs and how near a result must be."""

from __future__ import annotations

import random

import torch
from hypothesis import strategies as st

DTYPES = (torch.float32, torch.bfloat16)


def assert_near(
    ours: torch.Tensor, reference: torch.Tensor, scale: float | None = None, coarsest: torch.dtype | None = None
) -> None:
    """Within two roundings of the type, relative to the greatest number (or to `scale`): the interpreter cuts bfloat16
    off where hardware rounds. `coarsest` is a number type on the way that is coarser than the result's."""
    assert ours.dtype == reference.dtype
    assert ours.shape == reference.shape
    assert torch.isfinite(ours).all()
    unit = 2.0**-7 if torch.bfloat16 in (ours.dtype, coarsest) else 5e-6
    greatest = reference.float().abs().max().item() if scale is None else scale
    assert (ours.float() - reference.float()).abs().max().item() <= 2 * unit * max(1e-3, greatest)


def same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return torch.equal(ours.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8))


@st.composite
def parents(draw: st.DrawFn, most: int = 12) -> list[int]:
    """A tree: each row's parent is an earlier row or the committed text."""
    count = draw(st.integers(1, most))
    return [draw(st.integers(-1, row - 1)) for row in range(count)]


def path_to(tree: list[int], row: int) -> list[int]:
    found = [row]
    while tree[found[-1]] >= 0:
        found.append(tree[found[-1]])
    return found[::-1]


WIDE = [-1] * 32
DEEP = list(range(-1, 31))
BINARY = [-1, *((row - 1) // 2 for row in range(1, 31))]
RANDOM = [random.Random(3).randint(-1, row - 1) for row in range(27)]
SHAPES = {"wide": WIDE, "deep": DEEP, "binary": BINARY, "random": RANDOM}
