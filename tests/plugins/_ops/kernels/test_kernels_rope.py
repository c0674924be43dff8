"""Rotary positions with the write into the cache."""

import torch
from hypothesis import given, settings, strategies as st
from kernel_cases import DTYPES, assert_near, same_bits

from tandem.plugins._ops import kv_write as reference
from tandem.plugins._ops.kernels import rope


@settings(max_examples=12)
@given(
    rows=st.integers(1, 4), groups=st.integers(1, 3), shared=st.integers(1, 3), half=st.integers(1, 8),
    rest=st.integers(0, 9), start=st.integers(0, 5), dtype=st.sampled_from(DTYPES),
)  # fmt: skip
def test_queries_turn_and_the_cache_gets_keys_and_values(rows, groups, shared, half, rest, start, dtype):
    size = 2 * half + rest
    # as views of one wide product: what a fused projection gives
    fused = torch.randn(rows, groups * (shared + 2), size).to(dtype)
    q, k, v = fused.split([groups * shared, groups, groups], dim=1)
    cos, sin = torch.randn(rows, half), torch.randn(rows, half)
    caches = [torch.full((groups, start + rows + 2, size), 7.0).to(dtype) for _ in range(4)]
    ours = rope.rotate_and_write(q, k, v, cos, sin, caches[0], caches[1], start)
    theirs = reference.rotate_and_write(q, k, v, cos, sin, caches[2], caches[3], start)
    assert_near(ours, theirs)
    assert_near(caches[0], caches[2])
    assert torch.equal(caches[1], caches[3])
    for cache in caches[:2]:
        assert (cache[:, :start] == 7).all()
        assert (cache[:, start + rows :] == 7).all()


def test_dimensions_beyond_the_rotary_ones_stay_as_they_are():
    q, k = torch.randn(2, 3, 12), torch.randn(2, 1, 12)
    keys, values = torch.zeros(1, 4, 12), torch.zeros(1, 4, 12)
    turned = rope.rotate_and_write(q, k, k, torch.randn(2, 2), torch.randn(2, 2), keys, values, 1)
    assert torch.equal(turned[..., 4:], q[..., 4:])
    assert torch.equal(keys[0, 1:3, 4:], k[:, 0, 4:])


def test_a_row_has_the_same_bits_alone_and_among_others():
    q, k, cos, sin = torch.randn(5, 2, 16), torch.randn(5, 1, 16), torch.randn(5, 4), torch.randn(5, 4)
    keys, values, other = torch.zeros(1, 5, 16), torch.zeros(1, 5, 16), torch.zeros(1, 5, 16)
    turned = rope.rotate_and_write(q, k, k, cos, sin, keys, values, 0)
    for row in range(5):
        one = slice(row, row + 1)
        alone = rope.rotate_and_write(q[one], k[one], k[one], cos[one], sin[one], other, values, row)
        assert same_bits(alone[0], turned[row])
    assert same_bits(other, keys)
