"""Rotary positions: complex numbers as the oracle, and transformers' own tables for the three axes."""

from __future__ import annotations

import os

import pytest
import torch

from tandem.plugins._ops.rope import Rotary, rotate

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def test_pairs_turn_by_their_angles() -> None:
    """Dimension i with i + r / 2 is one complex number; the rest of the head stays."""
    rotary, positions = Rotary(1e4, 12, None), torch.tensor([0, 3, 17, 999])
    x = torch.randn(4, 2, 16)
    turned = rotate(x, *rotary.tables(positions))
    pairs = torch.complex(x[..., :6].double(), x[..., 6:12].double())
    angles = positions.double()[:, None] * 1e4 ** (-torch.arange(6).double() / 6)
    expected = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    torch.testing.assert_close(turned[..., :6], expected.real.float(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(turned[..., 6:12], expected.imag.float(), rtol=1e-4, atol=1e-4)
    assert torch.equal(turned[..., 12:], x[..., 12:])
    assert torch.equal(turned[0], x[0])


def test_a_whole_head_may_turn() -> None:
    rotary, x = Rotary(1e4, 8, None), torch.randn(3, 1, 8)
    turned = rotate(x, *rotary.tables(torch.tensor([5, 6, 7])))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))


def test_scores_depend_on_distance_alone() -> None:
    rotary, q, k = Rotary(1e4, 16, None), torch.randn(1, 1, 16), torch.randn(1, 1, 16)

    def score(at: int, of: int) -> torch.Tensor:
        turned_q, turned_k = (rotate(x, *rotary.tables(torch.tensor([p]))) for x, p in ((q, at), (k, of)))
        return (turned_q * turned_k).sum()

    torch.testing.assert_close(score(40, 31), score(109, 100), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("head", "factor", "sections"), [(256, 0.25, [11, 11, 10]), (16, 0.5, [2, 1, 1])])
def test_three_axes_interleave_as_in_transformers(head: int, factor: float, sections: list[int]) -> None:
    from transformers import Qwen3_5TextConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextRotaryEmbedding

    parameters = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": factor, "mrope_section": sections}
    config = Qwen3_5TextConfig(head_dim=head, rope_parameters=parameters)
    positions = torch.randint(0, 5000, (9, 3), generator=torch.Generator().manual_seed(4))
    cos, sin = Qwen3_5TextRotaryEmbedding(config)(torch.zeros(1), positions.t()[:, None])
    dim = int(head * factor)
    ours = Rotary(1e7, dim, sections).tables(positions)
    torch.testing.assert_close(ours[0], cos[0, :, : dim // 2])
    torch.testing.assert_close(ours[1], sin[0, :, : dim // 2])


def test_equal_axes_are_one_axis() -> None:
    positions = torch.arange(50)
    one = Rotary(1e7, 64, None).tables(positions)
    three = Rotary(1e7, 64, [11, 11, 10]).tables(positions[:, None].expand(-1, 3))
    assert torch.equal(one[0], three[0])
    assert torch.equal(one[1], three[1])


def test_the_number_type_stays() -> None:
    rotary = Rotary(1e4, 8, None)
    assert rotate(torch.randn(2, 1, 16).bfloat16(), *rotary.tables(torch.tensor([1, 2]))).dtype == torch.bfloat16
