"""Packed matrices that rows can be multiplied with. Rows stay in the model's own number type (W4A16, W8A16)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tandem.plugins._ops import dispatch, packed


@dataclass(frozen=True, slots=True, eq=False)
class Nvfp4Matrix:
    """`weight = code * scale * factor`; see `tandem.plugins._ops.packed`."""

    codes: torch.Tensor
    """`[out, in / 2]` uint8"""
    scales: torch.Tensor
    """`[out, in / 16]` float8_e4m3fn"""
    factor: torch.Tensor
    """`[]` float32"""

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], 2 * self.codes.shape[1]

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes + self.factor.nbytes

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """`[n, in]` to `[n, out]`."""
        # A CPU multiplies bfloat16 faster than the float32 of the reference, and unpacking is most of the time.
        run = packed.unpacked_matmul_nvfp4 if rows.device.type == "cpu" else dispatch.matmul_nvfp4
        return run(rows, self.codes, self.scales, self.factor)

    def dense(self) -> torch.Tensor:
        """`[out, in]` float32."""
        return packed.dense_nvfp4(self.codes, self.scales, self.factor)


@dataclass(frozen=True, slots=True, eq=False)
class Fp8Matrix:
    """`weight = code * scale of its block`; see `tandem.plugins._ops.packed`."""

    codes: torch.Tensor
    """`[out, in]` float8_e4m3fn"""
    scales: torch.Tensor
    """`[ceil(out / block rows), ceil(in / block columns)]` float32"""
    block: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """`[n, in]` to `[n, out]`."""
        return packed.unpacked_matmul_fp8(rows, self.codes, self.scales, self.block)

    def dense(self) -> torch.Tensor:
        """`[out, in]` float32."""
        return packed.dense_fp8(self.codes, self.scales, self.block)
