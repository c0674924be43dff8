"""Packed matrices of float codes against an independent decoder."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from stored_weights import decode_e4m3, decode_fp8, decode_nvfp4, e2m1, e4m3

from tandem.plugins._ops import packed


def test_all_sixteen_four_bit_codes_stand_for_their_numbers() -> None:
    bytes_ = torch.arange(256, dtype=torch.uint8).view(256, 1)
    unpacked = packed.unpack_e2m1(bytes_)
    for byte, (low, high) in enumerate(unpacked.tolist()):
        assert (low, high) == (e2m1(byte & 15), e2m1(byte >> 4))  # the even column is in the low bits
    assert torch.signbit(packed.unpack_e2m1(torch.tensor([[0x08]], dtype=torch.uint8)))[0, 0]  # there is a -0
    assert sorted({abs(e2m1(code)) for code in range(16)}) == [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def test_all_eight_bit_codes_stand_for_their_numbers() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(1, 256).view(torch.float8_e4m3fn)
    dense = packed.dense_fp8(codes, torch.ones(1, 1), (1, 256))
    wanted = np.array([[e4m3(byte) for byte in range(256)]])
    np.testing.assert_array_equal(dense.numpy(), wanted)
    assert int(dense.isnan().sum()) == 2
    assert dense.nan_to_num(0).max() == 448


def test_packing_is_the_inverse_of_unpacking() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(16, 16)
    assert torch.equal(packed.pack_e2m1(packed.unpack_e2m1(codes)), codes)


@given(st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=2))
def test_a_number_is_packed_as_one_of_the_nearest(values: list[float]) -> None:
    numbers = [e2m1(code) for code in range(16)]
    found = packed.unpack_e2m1(packed.pack_e2m1(torch.tensor([values])))[0].tolist()
    for value, got in zip(values, found, strict=True):
        assert abs(value - got) == pytest.approx(min(abs(value - number) for number in numbers), abs=1e-6)


@given(rows=st.integers(1, 5), groups=st.integers(1, 4), seed=st.integers(0, 2**31))
def test_a_four_bit_matrix_is_what_its_bytes_say(rows: int, groups: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (rows, 8 * groups), generator=generator, dtype=torch.uint8)
    scales = torch.randint(0, 127, (rows, groups), generator=generator, dtype=torch.uint8).view(torch.float8_e4m3fn)
    factor = torch.rand((), generator=generator)
    wanted = decode_nvfp4(codes, scales, factor.double().item())
    np.testing.assert_allclose(packed.dense_nvfp4(codes, scales, factor).numpy(), wanted, rtol=1e-6)


@given(
    rows=st.integers(1, 7), columns=st.integers(1, 9), n=st.integers(1, 4), k=st.integers(1, 4),
    seed=st.integers(0, 2**31),
)  # fmt: skip
def test_an_eight_bit_matrix_is_what_its_bytes_say(rows: int, columns: int, n: int, k: int, seed: int) -> None:
    """Also where the blocks at the edges are smaller than the others."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 127, (rows, columns), generator=generator, dtype=torch.uint8).view(torch.float8_e4m3fn)
    scales = torch.rand(-(-rows // n), -(-columns // k), generator=generator)
    wanted = decode_fp8(codes, scales.double().numpy(), (n, k))
    np.testing.assert_allclose(packed.dense_fp8(codes, scales, (n, k)).numpy(), wanted, rtol=1e-6)
    again = packed.unpacked_matmul_fp8(torch.eye(columns), codes, scales, (n, k), workspace=8 * columns)
    np.testing.assert_allclose(again.t().numpy(), wanted, rtol=1e-6)


@pytest.mark.parametrize("workspace", [1, 4 * 64 * 5, 1 << 20])
def test_a_small_workspace_changes_nothing(workspace: int) -> None:
    generator = torch.Generator().manual_seed(0)
    rows, matrix = torch.randn(3, 64, generator=generator), torch.randn(17, 64, generator=generator)
    codes, scales, factor = packed.quantise_nvfp4(matrix)
    whole = packed.matmul_nvfp4(rows, codes, scales, factor)
    torch.testing.assert_close(packed.unpacked_matmul_nvfp4(rows, codes, scales, factor, workspace), whole)
    codes, blocks = packed.quantise_fp8(matrix, (4, 32))
    whole = packed.matmul_fp8(rows, codes, blocks, (4, 32))
    torch.testing.assert_close(packed.unpacked_matmul_fp8(rows, codes, blocks, (4, 32), workspace), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_has_the_rows_type_and_is_that_of_the_dense_matrix(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    rows, matrix = torch.randn(5, 96, generator=generator).to(dtype), torch.randn(40, 96, generator=generator)
    tolerance = {"rtol": 1e-5, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 0.15}
    codes, scales, factor = packed.quantise_nvfp4(matrix)
    wanted = (rows.float() @ packed.dense_nvfp4(codes, scales, factor).t()).to(dtype)
    for product in (packed.matmul_nvfp4, packed.unpacked_matmul_nvfp4):
        torch.testing.assert_close(product(rows, codes, scales, factor), wanted, **tolerance)
    codes, blocks = packed.quantise_fp8(matrix, (16, 32))
    wanted = (rows.float() @ packed.dense_fp8(codes, blocks, (16, 32)).t()).to(dtype)
    for product in (packed.matmul_fp8, packed.unpacked_matmul_fp8):
        torch.testing.assert_close(product(rows, codes, blocks, (16, 32)), wanted, **tolerance)


def test_a_four_bit_code_times_its_scale_is_exact_in_bfloat16() -> None:
    """So the only rounding of a bfloat16 product is that of its sum and of the factor."""
    codes = torch.arange(16, dtype=torch.uint8)[:, None] | torch.arange(16, dtype=torch.uint8)[:, None] << 4
    scales = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn)
    exact = packed.unpack_e2m1(codes)[:, :1] * scales.float()
    assert torch.equal(exact.bfloat16().float(), exact)
    assert torch.equal(exact.half().float(), exact)


def test_quantising_keeps_a_matrix_within_half_a_step() -> None:
    matrix = torch.randn(32, 64, generator=torch.Generator().manual_seed(2))
    codes, scales, factor = packed.quantise_nvfp4(matrix)
    largest = np.abs(matrix.view(32, 4, 16).numpy()).max(2).repeat(16, 1)
    # Between 4 and 6 lies the widest gap, half of it is a sixth of the largest; a scale is off by 1/16 at most.
    assert (np.abs(decode_nvfp4(codes, scales, factor.item()) - matrix.numpy()) <= largest * (1 / 6 + 1 / 16)).all()
    codes8, blocks = packed.quantise_fp8(matrix, (8, 16))
    assert not np.isnan(decode_e4m3(codes8)).any()
    largest8 = blocks.numpy().repeat(8, 0).repeat(16, 1) * 448
    assert (np.abs(decode_fp8(codes8, blocks.numpy(), (8, 16)) - matrix.numpy()) <= largest8 / 16).all()


def test_a_matrix_of_zeros_stays_one() -> None:
    codes, scales, factor = packed.quantise_nvfp4(torch.zeros(2, 32))
    assert torch.equal(packed.dense_nvfp4(codes, scales, factor), torch.zeros(2, 32))
    codes, blocks = packed.quantise_fp8(torch.zeros(3, 5), (2, 2))
    assert torch.equal(packed.dense_fp8(codes, blocks, (2, 2)), torch.zeros(3, 5))
