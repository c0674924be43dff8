"""Norms, against the formula in float64."""

from __future__ import annotations

import pytest
import torch

from tandem.plugins._ops.norm import add_rms_norm, gated_rms_norm, rms_norm

X = torch.randn(7, 3, 16, generator=torch.Generator().manual_seed(1)) * 5
WEIGHT = torch.randn(16, generator=torch.Generator().manual_seed(2)) * 0.3


def formula(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.double()
    return (weight.double() * wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt()).float()


def test_a_plain_norm_is_the_formula() -> None:
    torch.testing.assert_close(rms_norm(X, WEIGHT, 1e-6), formula(X, WEIGHT))


def test_weights_centred_on_zero_count_from_one() -> None:
    torch.testing.assert_close(rms_norm(X, WEIGHT, 1e-6, zero_centred=True), formula(X, 1 + WEIGHT))
    zero = torch.zeros(16)
    torch.testing.assert_close(rms_norm(X, zero, 1e-6, zero_centred=True).square().mean(-1), torch.ones(7, 3))


def test_rows_may_have_weights_of_their_own() -> None:
    weights = torch.stack([WEIGHT, 2 * WEIGHT, WEIGHT - 1])
    torch.testing.assert_close(rms_norm(X, weights, 1e-6), formula(X, weights))


def test_epsilon_counts_for_small_rows() -> None:
    small = X * 1e-4
    torch.testing.assert_close(rms_norm(small, WEIGHT, 1e-6), formula(small, WEIGHT))
    assert rms_norm(small, WEIGHT, 1e-6).norm() < 0.5 * rms_norm(X, WEIGHT, 1e-6).norm()


def test_the_number_type_is_that_of_the_rows_or_as_told() -> None:
    assert rms_norm(X.bfloat16(), WEIGHT, 1e-6).dtype == torch.bfloat16
    assert rms_norm(X, WEIGHT, 1e-6, dtype=torch.bfloat16).dtype == torch.bfloat16
    expected = rms_norm(X.bfloat16().float(), WEIGHT, 1e-6).bfloat16()
    assert torch.equal(rms_norm(X.bfloat16(), WEIGHT, 1e-6), expected)


def test_a_sum_is_normed_and_kept() -> None:
    x, residual = X.bfloat16(), torch.randn(7, 3, 16)
    before = residual.clone()
    normed, total = add_rms_norm(x, residual, WEIGHT, 1e-6, zero_centred=True)
    assert torch.equal(residual, before)
    assert total.dtype == torch.float32
    assert torch.equal(total, residual + x.float())
    assert torch.equal(normed, rms_norm(total, WEIGHT, 1e-6, zero_centred=True, dtype=torch.bfloat16))


@pytest.mark.parametrize(("name", "opened"), [("silu", torch.nn.functional.silu), ("sigmoid", torch.sigmoid)])
def test_a_gate_opens_behind_the_norm(name: str, opened: torch.nn.Module) -> None:
    gate = torch.randn(7, 3, 16)
    expected = formula(X, WEIGHT) * opened(gate)
    torch.testing.assert_close(gated_rms_norm(X, gate, WEIGHT, 1e-6, name), expected)
    assert gated_rms_norm(X, gate.bfloat16(), WEIGHT, 1e-6, name).dtype == torch.bfloat16
