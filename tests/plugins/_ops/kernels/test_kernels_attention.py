"""Attention over a prefix and the ancestors of a tree's rows."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from kernel_cases import DTYPES, SHAPES, assert_near, parents, same_bits

from tandem.plugins._ops import attention as reference, tree as trees
from tandem.plugins._ops.kernels import attention


def inputs(rows, groups, shared, size, length, dtype=torch.float32, spare=0):
    """Queries, and keys and values as views of caches with `spare` more rows, which hold no numbers."""
    caches = [torch.full((groups, length + spare, size), float("nan")).to(dtype) for _ in range(2)]
    for cache in caches:
        cache[:, :length] = torch.randn(groups, length, size).to(dtype)
    return torch.randn(rows, groups * shared, size).to(dtype), *(cache[:, :length] for cache in caches)


@settings(max_examples=12)
@given(
    tree=parents(), groups=st.integers(1, 2), shared=st.integers(1, 6), size=st.sampled_from((16, 32)),
    prefix=st.one_of(st.integers(0, 70), st.integers(250, 300)), dtype=st.sampled_from(DTYPES),
)  # fmt: skip
def test_a_tree_equals_its_reference(tree, groups, shared, size, prefix, dtype):
    q, keys, values = inputs(len(tree), groups, shared, size, prefix + len(tree), dtype, spare=3)
    mask = trees.ancestors(tree)
    ours = attention.attend(q, keys, values, prefix, mask, size**-0.5)
    theirs = reference.attend(q, keys, values, prefix, mask, size**-0.5)
    assert_near(ours, theirs, scale=values.float().abs().max().item())


@pytest.mark.parametrize("tree", SHAPES)
@pytest.mark.parametrize("prefix", [0, 40])
def test_trees_of_up_to_32_rows_equal_their_reference(tree, prefix):
    mask = trees.ancestors(SHAPES[tree])
    q, keys, values = inputs(len(mask), 1, 3, 16, prefix + len(mask))
    assert_near(
        attention.attend(q, keys, values, prefix, mask, 0.25), reference.attend(q, keys, values, prefix, mask, 0.25)
    )


@settings(max_examples=8)
@given(rows=st.integers(1, 80), prefix=st.integers(0, 90), dtype=st.sampled_from(DTYPES))
def test_a_chain_of_any_length_equals_its_reference(rows, prefix, dtype):
    q, keys, values = inputs(rows, 1, 2, 16, prefix + rows, dtype, spare=1)
    ours = attention.attend(q, keys, values, prefix, None, 0.25)
    assert_near(ours, reference.attend(q, keys, values, prefix, None, 0.25), scale=values.float().abs().max().item())


def test_a_row_that_sees_nothing_of_many_keys_is_not_lost():
    mask = trees.ancestors([-1] * 40)
    q, keys, values = inputs(40, 1, 1, 16, 40)
    ours = attention.attend(q, keys, values, 0, mask, 0.25)
    assert_near(ours, values[0, :, None])  # each sees itself alone


def test_rows_may_be_the_last_of_the_new_ones():
    tree = [-1, 0, 0, 1, 3, 2]
    q, keys, values = inputs(6, 2, 2, 16, 40 + 6)
    mask = trees.ancestors(tree)
    whole = reference.attend(q, keys, values, 40, mask, 0.25)
    for first in (1, 4):
        assert_near(attention.attend(q[first:], keys, values, 40, mask[first:], 0.25), whole[first:])
        chain = reference.attend(q[first:], keys, values, 40, None, 0.25)
        assert_near(attention.attend(q[first:], keys, values, 40, None, 0.25), chain)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("prefix", [0, 300])
@pytest.mark.parametrize("tree", ["chain", "binary"])
def test_a_row_has_the_same_bits_whatever_rows_come_after_it(dtype, prefix, tree):
    shape = list(range(-1, 31)) if tree == "chain" else SHAPES["binary"]
    q, keys, values = inputs(len(shape), 1, 3, 16, prefix + len(shape), dtype)
    mask = None if tree == "chain" else trees.ancestors(shape)
    together = attention.attend(q, keys, values, prefix, mask, 0.25)
    for rows in (1, 2, 23):
        part = None if mask is None else mask[:rows, :rows]
        end = prefix + rows
        alone = attention.attend(q[:rows], keys[:, :end], values[:, :end], prefix, part, 0.25)
        assert same_bits(alone, together[:rows])


@given(prefix=st.integers(0, 300_000))
def test_spans_cover_the_prefix_without_an_empty_one(prefix):
    count, length = attention.spans(prefix)
    assert (count - 1) * length < prefix <= count * length or prefix == count == 0
    assert count <= attention.MOST_SPANS
