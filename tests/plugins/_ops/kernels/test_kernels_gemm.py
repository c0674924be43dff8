"""Products with packed matrices."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from kernel_cases import DTYPES, assert_near, same_bits

from tandem.plugins._ops import int4, packed
from tandem.plugins._ops.kernels import gemm

CUTS = (gemm.Plan(16, 32, 1), gemm.Plan(32, 32, 3), gemm.Plan(16, 32, 4))


def nvfp4(n, k):
    scales = torch.randint(0, 0x7F, (n, k // 16), dtype=torch.uint8)  # every one but the last, which is no number
    return torch.randint(0, 256, (n, k // 2), dtype=torch.uint8), scales.view(torch.float8_e4m3fn), torch.tensor(0.0625)


def int4_groups(n, k):
    return int4.quantise(torch.randn(n, k), torch.bfloat16)


def fp8(n, k):
    """Blocks of 3 rows and 32 columns, or of one row where there are few: the last ones are cut off."""
    block = (3, 32) if k > 32 else (1, k)
    bits = torch.randint(0, 256, (n, k), dtype=torch.uint8)
    bits[bits & 0x7F == 0x7F] = 0  # no number
    scales = torch.rand(-(-n // block[0]), -(-k // block[1])) * 0.01
    return bits.view(torch.float8_e4m3fn), scales, block


LAYOUTS = {
    "nvfp4": (16, nvfp4, packed.dense_nvfp4, gemm.matmul_nvfp4, packed.matmul_nvfp4),
    "fp8": (16, fp8, packed.dense_fp8, gemm.matmul_fp8, packed.matmul_fp8),
    "int4": (32, int4_groups, int4.dense, gemm.matmul_int4, int4.matmul),
}


@pytest.fixture(params=LAYOUTS)
def layout(request):
    return LAYOUTS[request.param]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_code_under_every_scale_is_read_exactly(dtype):
    scales = torch.tensor([bits for bits in range(256) if bits & 0x7F != 0x7F], dtype=torch.uint8)
    low = torch.arange(0, 16, 2, dtype=torch.uint8)
    codes = (low | low + 1 << 4).expand(len(scales), 8).contiguous()
    matrix = codes, scales[:, None].view(torch.float8_e4m3fn), torch.tensor(1.0)
    out = gemm.matmul_nvfp4(torch.eye(16).to(dtype), *matrix)
    assert torch.equal(out.float(), packed.dense_nvfp4(*matrix).t())


def test_every_int4_code_is_read_exactly():
    low = torch.arange(0, 16, 2, dtype=torch.uint8)
    codes = (low | low + 1 << 4).repeat(2)[None].contiguous()
    matrix = codes, torch.tensor([[0.5]]), torch.tensor([[-3.0]])
    out = gemm.matmul_int4(torch.eye(32), *matrix)
    assert torch.equal(out[:, 0], torch.arange(16).repeat(2) * 0.5 - 3.0)


@pytest.mark.parametrize("block", [(128, 128), (1, 300), (200, 300), (5, 256)])
def test_fp8_blocks_of_the_usual_sizes_suit_the_plan(block):
    weight, x = torch.randn(200, 300), torch.randn(2, 300)
    matrix = *packed.quantise_fp8(weight, block), block
    assert_near(gemm.matmul_fp8(x, *matrix), packed.matmul_fp8(x, *matrix))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_fp8_number_is_read_exactly(dtype):
    bits = torch.tensor([bits for bits in range(256) if bits & 0x7F != 0x7F], dtype=torch.uint8)
    codes = bits[:, None].expand(-1, 16).contiguous().view(torch.float8_e4m3fn)
    out = gemm.matmul_fp8(torch.eye(16)[:1].to(dtype), codes, torch.ones(1, 1), (254, 16))
    assert torch.equal(out[0].float(), codes[:, 0].float())


@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_a_product_by_the_plan_equals_its_reference(name):
    group, make, _, ours, reference = LAYOUTS[name]
    matrix = make(70, 4 * group) if name != "fp8" else (*packed.quantise_fp8(torch.randn(70, 64), (1, 64)), (1, 64))
    x = torch.randn(3, 4 * group)
    assert_near(ours(x, *matrix), reference(x, *matrix))


@settings(max_examples=15)
@given(
    name=st.sampled_from(sorted(LAYOUTS)), rows=st.integers(1, 32), n=st.integers(1, 70), groups=st.integers(1, 9),
    dtype=st.sampled_from(DTYPES), cut=st.sampled_from(CUTS),
)  # fmt: skip
def test_a_product_equals_its_reference_at_any_shape_and_cut(name, rows, n, groups, dtype, cut):
    group, make, dense, ours, reference = LAYOUTS[name]
    matrix = make(n, groups * group)
    x = torch.randn(rows, groups * group).to(dtype)
    expected = reference(x, *matrix)
    # int4 weights are rounded to the type of the rows before they are multiplied
    spread = (x.float().abs() @ dense(*matrix).abs().t()).max().item() if name == "int4" else None
    assert_near(ours(x, *matrix, cut=cut), expected, spread)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_at_1_row_and_at_32(layout, cut, dtype):
    group, make, _, ours, _ = layout
    matrix = make(40, 5 * group)
    x = torch.randn(32, 5 * group).to(dtype)
    together = ours(x, *matrix, cut=cut)
    for rows in (1, 2, 16, 17):
        assert same_bits(ours(x[:rows], *matrix, cut=cut), together[:rows])


def test_a_row_has_the_same_bits_at_any_place_among_others(layout, monkeypatch):
    # numpy's products depend on where in the tile a row stands, a tensor core's don't: here too, row by row
    monkeypatch.setattr(np, "matmul", lambda a, b, dtype: np.stack([row @ b for row in a]).astype(dtype))
    group, make, _, ours, _ = layout
    matrix = make(40, 5 * group)
    x = torch.randn(32, 5 * group)
    together = ours(x, *matrix, cut=CUTS[1])
    for row in (0, 13, 31):
        assert same_bits(ours(x[row : row + 1], *matrix, cut=CUTS[1])[0], together[row])


def test_rows_out_of_a_wider_tensor_are_read_with_their_stride(layout):
    group, make, _, ours, _ = layout
    matrix = make(8, group)
    wide = torch.randn(3, 2 * group)
    assert torch.equal(ours(wide[:, group:], *matrix), ours(wide[:, group:].contiguous(), *matrix))


def test_no_rows_give_no_rows(layout):
    group, make, _, ours, _ = layout
    assert ours(torch.randn(0, group), *make(8, group)).shape == (0, 8)


@given(n=st.integers(1, 300_000), k=st.integers(1, 2000).map(lambda groups: 16 * groups))
def test_parts_cover_the_columns_and_stay_few(n, k):
    cut = gemm.plan(n, k)
    steps = -(-k // cut.block_k)
    assert cut.parts & (cut.parts - 1) == 0
    assert cut.parts == 1 or steps >= 4 * cut.parts
