"""The norms."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from kernel_cases import DTYPES, assert_near, same_bits

from tandem.plugins._ops import norm as reference
from tandem.plugins._ops.kernels import norm

SHAPES = {"rows": st.integers(0, 4), "width": st.integers(1, 70), "dtype": st.sampled_from(DTYPES)}


@settings(max_examples=12)
@given(zero_centred=st.booleans(), wide=st.booleans(), **SHAPES)
def test_a_norm_equals_its_reference_at_any_width(rows, width, dtype, zero_centred, wide):
    x, weight = torch.randn(rows, 2, width).to(dtype), torch.randn(width).to(dtype)
    out = torch.float32 if wide else None
    ours = norm.rms_norm(x, weight, 1e-6, zero_centred, out)
    theirs = reference.rms_norm(x, weight, 1e-6, zero_centred, out)
    if rows:
        assert_near(ours, theirs)
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype


@settings(max_examples=12)
@given(residual_dtype=st.sampled_from(DTYPES), zero_centred=st.booleans(), **SHAPES)
def test_an_added_residual_is_summed_in_its_own_type_and_left_alone(rows, width, dtype, residual_dtype, zero_centred):
    x, residual = torch.randn(rows + 1, width).to(dtype), torch.randn(rows + 1, width).to(residual_dtype)
    weight, before = torch.randn(width), residual.clone()
    y, total = norm.add_rms_norm(x, residual, weight, 1e-5, zero_centred)
    expected, expected_total = reference.add_rms_norm(x, residual, weight, 1e-5, zero_centred)
    assert_near(total, expected_total)
    assert_near(y, expected, coarsest=total.dtype)
    assert torch.equal(residual, before)


@settings(max_examples=8)
@given(activation=st.sampled_from(("silu", "sigmoid")), gate_dtype=st.sampled_from(DTYPES), **SHAPES)
def test_a_gated_norm_equals_its_reference_with_either_gate(rows, width, dtype, gate_dtype, activation):
    x, gate, weight = (
        torch.randn(rows, 3, width).to(dtype),
        torch.randn(rows, 3, width).to(gate_dtype),
        torch.randn(width),
    )
    ours = norm.gated_rms_norm(x, gate, weight, 1e-6, activation)
    theirs = reference.gated_rms_norm(x, gate, weight, 1e-6, activation)
    if rows:
        assert_near(ours, theirs)
    assert ours.dtype == gate_dtype
    assert ours.shape == theirs.shape


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_alone_and_among_others(dtype):
    x, residual, weight = torch.randn(9, 48).to(dtype), torch.randn(9, 48).to(dtype), torch.randn(48)
    y, total = norm.add_rms_norm(x, residual, weight, 1e-6)
    for row in range(9):
        alone, alone_total = norm.add_rms_norm(x[row : row + 1], residual[row : row + 1], weight, 1e-6)
        assert same_bits(alone[0], y[row])
        assert same_bits(alone_total[0], total[row])
