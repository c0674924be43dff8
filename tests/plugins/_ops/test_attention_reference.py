"""Attention over committed rows and ancestors, against torch's own attention with the mask spelled out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st

from tandem.plugins._ops import tree
from tandem.plugins._ops.attention import TILE, attend

seeds = st.integers(0, 2**31)


@st.composite
def parents(draw: st.DrawFn, most: int = 16) -> list[int]:
    return [draw(st.integers(-1, row - 1)) for row in range(draw(st.integers(1, most)))]


def rows(count: int, heads: int, seed: int, size: int = 8) -> torch.Tensor:
    return torch.randn(count, heads, size, generator=torch.Generator().manual_seed(seed))


def spelled_out(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """torch's attention; `mask` `[T, L]` says what is seen."""
    group = q.shape[1] // keys.shape[0]
    keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
    out = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None], keys[None], values[None], mask[None, None], scale=0.3
    )
    return out[0].transpose(0, 1)


def cached(count: int, seed: int, heads: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    return rows(count, heads, seed + 1).transpose(0, 1), rows(count, heads, seed + 2).transpose(0, 1)


@settings(max_examples=40, deadline=None)
@given(prefix=st.integers(0, 20), above=parents(), seed=seeds, group=st.integers(1, 3))
def test_a_row_of_a_tree_sees_the_committed_rows_its_ancestors_and_itself(
    prefix: int, above: list[int], seed: int, group: int
) -> None:
    count = len(above)
    q, (keys, values) = rows(count, 2 * group, seed), cached(prefix + count, seed)
    ancestors = tree.ancestors(above)
    mask = torch.cat([torch.ones(count, prefix).bool(), ancestors | torch.eye(count).bool()], 1)
    torch.testing.assert_close(
        attend(q, keys, values, prefix, ancestors, 0.3), spelled_out(q, keys, values, mask), rtol=1e-5, atol=1e-5
    )


@settings(max_examples=20, deadline=None)
@given(prefix=st.integers(0, 30), count=st.sampled_from([1, 2, 17, TILE, TILE + 1, 2 * TILE + 5]), seed=seeds)
def test_a_chain_sees_what_came_before(prefix: int, count: int, seed: int) -> None:
    q, (keys, values) = rows(count, 4, seed), cached(prefix + count, seed)
    mask = torch.cat([torch.ones(count, prefix).bool(), torch.ones(count, count).tril().bool()], 1)
    found = attend(q, keys, values, prefix, None, 0.3)
    torch.testing.assert_close(found, spelled_out(q, keys, values, mask), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found, attend(q, keys, values, prefix, tree.chain(count), 0.3), rtol=1e-5, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(prefix=st.integers(0, 9), above=parents(), seed=seeds, data=st.data())
def test_a_tree_may_be_read_in_parts(prefix: int, above: list[int], seed: int, data: st.DataObject) -> None:
    count = len(above)
    first = data.draw(st.integers(0, count - 1))
    q, (keys, values) = rows(count, 4, seed), cached(prefix + count, seed)
    ancestors = tree.ancestors(above)
    whole = attend(q, keys, values, prefix, ancestors, 0.3)
    later = attend(q[first:], keys, values, prefix, ancestors[first:], 0.3)
    torch.testing.assert_close(later, whole[first:], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("above", [None, [-1, 0, 0, 1, 2]])
def test_rows_see_only_what_they_are_allowed_besides(above: list[int] | None) -> None:
    q, (keys, values) = rows(5, 4, 7), cached(11, 7)
    allowed = torch.rand(5, 11, generator=torch.Generator().manual_seed(1)) < 0.5
    allowed[:, 0] = True
    seen = (tree.chain(5) if above is None else tree.ancestors(above)) | torch.eye(5).bool()
    mask = torch.cat([torch.ones(5, 6).bool(), seen], 1) & allowed
    found = attend(q, keys, values, 6, None if above is None else tree.ancestors(above), 0.3, allowed)
    torch.testing.assert_close(found, spelled_out(q, keys, values, mask), rtol=1e-5, atol=1e-5)


def test_the_result_has_the_number_type_of_the_queries() -> None:
    q, (keys, values) = rows(3, 4, 3), cached(8, 3)
    low = attend(q.bfloat16(), keys.bfloat16(), values.bfloat16(), 5, None, 0.3)
    exact = attend(q.bfloat16().float(), keys.bfloat16().float(), values.bfloat16().float(), 5, None, 0.3)
    assert torch.equal(low, exact.bfloat16())
