"""The gated delta rule."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from kernel_cases import DTYPES, SHAPES, assert_near, parents, path_to, same_bits

from tandem.plugins._ops import gdn as reference, tree as trees
from tandem.plugins._ops.kernels import gdn


def inputs(rows, key_heads=1, shared=2, dk=16, dv=16, decay=1.0, dtype=torch.float32):
    """q, k, v, g, beta, state."""
    heads = key_heads * shared
    q = reference.l2_norm(torch.randn(rows, key_heads, dk)) * dk**-0.5
    k = reference.l2_norm(torch.randn(rows, key_heads, dk))
    v = torch.randn(rows, heads, dv)
    g, beta = -decay * torch.rand(rows, heads), torch.rand(rows, heads)
    return q.to(dtype), k.to(dtype), v.to(dtype), g, beta, torch.randn(heads, dk, dv)


def assert_all_near(ours, theirs):
    for mine, other in zip(ours, theirs, strict=True):
        assert_near(mine, other)


@settings(max_examples=12)
@given(
    tree=parents(), key_heads=st.integers(1, 2), shared=st.integers(1, 3), dk=st.sampled_from((16, 64)),
    dv=st.sampled_from((16, 64)), decay=st.sampled_from((0.0, 0.1, 5.0, 90.0)), dtype=st.sampled_from(DTYPES),
)  # fmt: skip
def test_a_tree_and_its_path_equal_their_references(tree, key_heads, shared, dk, dv, decay, dtype):
    q, k, v, g, beta, state = inputs(len(tree), key_heads, shared, dk, dv, decay, dtype)
    mask, before = trees.ancestors(tree), state.clone()
    ours = gdn.tree(q, k, v, g, beta, state, mask)
    theirs = reference.tree(q, k, v, g, beta, state, mask)
    assert_all_near(ours, theirs)
    path = path_to(tree, len(tree) - 1)
    assert_near(gdn.commit(state, k, *ours[1:], path), reference.commit(state, k, *theirs[1:], path))
    assert torch.equal(state, before)


@pytest.mark.parametrize("tree", SHAPES)
def test_each_path_of_a_tree_is_the_recurrence(tree):
    shape = SHAPES[tree]
    q, k, v, g, beta, state = inputs(len(shape))
    out, u, decay = gdn.tree(q, k, v, g, beta, state, trees.ancestors(shape))
    for row in (0, len(shape) // 2, len(shape) - 1):
        path = path_to(shape, row)
        expected, after = reference.recurrence(q[path], k[path], v[path], g[path], beta[path], state)
        assert_near(out[row], expected[-1])
        assert_near(gdn.commit(state, k, u, decay, path), after)


@settings(max_examples=8)
@given(
    rows=st.integers(1, 50), shared=st.integers(1, 2), dv=st.sampled_from((16, 32)),
    decay=st.sampled_from((0.0, 0.1, 90.0)), dtype=st.sampled_from(DTYPES),
)  # fmt: skip
def test_a_chain_in_chunks_is_the_recurrence(rows, shared, dv, decay, dtype):
    arguments = inputs(rows, 1, shared, 16, dv, decay, dtype)
    assert_all_near(gdn.chunked(*arguments, chunk=16), reference.recurrence(*arguments))


def test_chunks_of_64_rows_are_the_recurrence():
    arguments = inputs(130, dk=32, dv=32)
    assert_all_near(gdn.chunked(*arguments), reference.recurrence(*arguments))


def test_equal_keys_that_are_overwritten_each_time_stay_exact():
    """beta 1 and one key for all rows: the system is full, and the state holds the last value alone."""
    _, k, v, g, _, state = inputs(32, shared=1, decay=0.0)
    k[:] = k[0].clone()
    out, u, decay = gdn.tree(k, k, v, g, torch.ones_like(g), state, trees.chain(32))
    assert_near(out, v)
    after = gdn.commit(state, k, u, decay, range(32))
    assert_near(torch.einsum("d,hdv->hv", k[0, 0], after), v[31])


@pytest.mark.parametrize("tree", ["deep", "binary"])
def test_a_row_has_the_same_bits_whatever_rows_come_after_it(tree):
    shape = SHAPES[tree]
    q, k, v, g, beta, state = inputs(len(shape))
    mask = trees.ancestors(shape)
    together = gdn.tree(q, k, v, g, beta, state, mask)
    path = path_to(shape, 6)
    after = gdn.commit(state, k, *together[1:], path)
    for rows in (7, 12):
        alone = gdn.tree(q[:rows], k[:rows], v[:rows], g[:rows], beta[:rows], state, mask[:rows, :rows])
        for mine, whole in zip(alone, together, strict=True):
            assert same_bits(mine, whole[:rows])
        assert same_bits(gdn.commit(state, k[:rows], *alone[1:], path), after)


def test_an_empty_path_leaves_the_state():
    _, k, v, g, _, state = inputs(2)
    assert gdn.commit(state, k, v, g, []) is state


def test_heads_out_of_one_wide_tensor_are_read_with_their_strides():
    q, k, v, g, beta, state = inputs(5, key_heads=2, shared=1)
    fused = torch.cat([q, k, v], dim=1)
    q, k, v = fused.split([2, 2, 2], dim=1)
    mask = trees.chain(5)
    assert_all_near(gdn.tree(q, k, v, g, beta, state, mask), reference.tree(q, k, v, g, beta, state, mask))
    assert_all_near(gdn.chunked(q, k, v, g, beta, state, 16), reference.chunked(q, k, v, g, beta, state, 16))
