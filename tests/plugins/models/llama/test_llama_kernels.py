"""Packed matrices: what they say, and that a head's logits are float32 all the way."""

from __future__ import annotations

import pytest
import torch

from tandem.plugins.models.llama import attention, cpu, linear
from tandem.plugins.models.llama.source import Groups, pairs_together


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(11)


def written_out(groups: Groups) -> torch.Tensor:
    rows, columns = groups.codes.shape
    codes = groups.codes.float().view(rows, columns // 32, 32) - 8
    return (codes * groups.scale[..., None] + groups.zero[..., None]).view(rows, columns)


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 17])
def test_a_four_bit_product_is_that_of_the_written_out_matrix(rows: int) -> None:
    groups = linear.quantise_groups(torch.randn(48, 96))
    x, bias = torch.randn(rows, 96).bfloat16(), torch.randn(48)
    expected = x.float() @ written_out(groups).t() + bias
    found = linear.int4(groups, bias)(x).float()
    assert (found - expected).norm() < 0.006 * expected.norm()


def test_four_bit_groups_round_to_the_nearest_of_sixteen_steps() -> None:
    weight = torch.randn(48, 96)
    weight[0, :32] = 0.25  # a group of one value
    groups = linear.quantise_groups(weight)
    steps = groups.scale.repeat_interleave(32, 1)
    assert ((written_out(groups) - weight).abs() <= 0.6 * steps + 0.004 * weight.abs()).all()
    assert written_out(linear.quantise_groups(torch.zeros(16, 32))).abs().max() < 1e-28


@pytest.mark.parametrize("rows", [1, 4, 9])
def test_an_eight_bit_product_is_that_of_the_written_out_matrix(rows: int) -> None:
    weight = torch.randn(48, 96)
    codes, scale = linear.quantise_rows(weight)
    assert codes.abs().max() == 127
    assert ((codes * scale[:, None] - weight).abs() <= 0.5001 * scale[:, None]).all()
    x, bias = torch.randn(rows, 96).bfloat16(), torch.randn(48)
    expected = x.float() @ (codes * scale[:, None]).t() + bias
    found = linear.int8(weight, bias)(x).float()
    assert (found - expected).norm() < 0.008 * expected.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_dense_product_is_the_plain_one(dtype: torch.dtype) -> None:
    weight, bias, x = torch.randn(50, 70), torch.randn(50), torch.randn(6, 70)
    expected = x.to(dtype).float() @ weight.to(dtype).float().t() + bias.to(dtype).float()
    found = linear.dense(weight, bias, dtype)(x.to(dtype))
    assert found.dtype == dtype
    assert (found.float() - expected).norm() < (1e-6 if dtype == torch.float32 else 4e-3) * expected.norm()


def run(head: linear.Head, x: torch.Tensor, vocab: int) -> torch.Tensor:
    logits = torch.empty(len(x), vocab)
    head(x, logits)
    return logits


@pytest.mark.parametrize("rows", [1, 5, 20])
def test_the_bfloat16_head_rounds_its_weights_and_not_its_logits(rows: int) -> None:
    weight, x = torch.randn(500, 64), torch.randn(rows, 64)
    expected = x.bfloat16().double() @ weight.bfloat16().double().t()
    found = run(linear.bfloat16_head(weight), x, 500).double()
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.skipif(not cpu.multiplies_int8(), reason="this processor has no exact 8-bit products")
@pytest.mark.parametrize("rows", [1, 5, 20])
def test_the_eight_bit_head_rounds_its_weights_and_not_its_logits(rows: int) -> None:
    weight, x = torch.randn(500, 64), torch.randn(rows, 64)
    x[0, 3] = 40.0  # an outlier must not drown the rest of its row
    codes, scale = linear.quantise_rows(weight)
    expected = x.double() @ (codes * scale[:, None].double()).t()
    found = run(linear.int8_head(weight), x, 500)
    assert (found - expected).abs().max() < 3e-4 * expected.abs().max()


@pytest.mark.skipif(not cpu.multiplies_int8(), reason="this processor has no exact 8-bit products")
def test_the_eight_bit_head_gives_a_row_the_same_logits_in_any_company() -> None:
    weight, x = torch.randn(500, 64), torch.randn(40, 64)
    x[7] = 0.0
    head = linear.int8_head(weight)
    together = run(head, x, 500)
    assert all(torch.equal(together[row : row + 1], run(head, x[row : row + 1], 500)) for row in range(40))


def test_rotary_pairs_come_together() -> None:
    rows = torch.arange(12).view(12, 1)  # two heads of three pairs: 0 1 2 | 3 4 5 and 6 7 8 | 9 10 11
    assert pairs_together(rows, 2).flatten().tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]


def test_a_tree_mask_shows_each_row_its_ancestors_and_itself() -> None:
    mask = attention.tree_mask([-1, 0, 0, 2, -1])
    seen = [{column for column in range(5) if mask[row, column] == 0} for row in range(5)]
    assert seen == [{0}, {0, 1}, {0, 2}, {0, 2, 3}, {4}]
    assert torch.equal(attention.chain_mask(5), attention.tree_mask([-1, 0, 1, 2, 3]))
    assert attention.depths([-1, 0, 0, 2, -1]) == [0, 1, 1, 2, 0]


def test_onednn_products_leave_the_setting_as_it_was() -> None:
    def setting() -> str:
        return str(torch.backends.mkldnn.matmul.fp32_precision)

    before = setting()
    with attention.onednn_products(True):
        assert setting() == "bf16"
    assert setting() == before

    def fails() -> None:
        with attention.onednn_products(True):
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fails()
    assert setting() == before
