"""A quantization: weights are stored in 8 bits, with a scale for each row of a matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tandem.core.plugin import ModelError, Options, Quantization, WeightScheme, hookimpl

if TYPE_CHECKING:
    import torch

TANDEM_API = ">=0.2,<0.3"

METHOD = "row_int8"
"""What `quant_method` says in the `quantization_config` of such a checkpoint."""


class Matrix:
    """A matrix `[out, in]`: weight = code * the scale of its row."""

    def __init__(self, codes: torch.Tensor, scales: torch.Tensor) -> None:
        self.codes = codes  # [out, in] int8
        self.scales = scales  # [out] float32

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """`[n, in]` to `[n, out]`. A code is exact in every float type, so only the sums need the scales."""
        sums = rows @ self.codes.to(rows.dtype).t()
        return (sums * self.scales).to(rows.dtype)

    def dense(self) -> torch.Tensor:
        return self.codes.float() * self.scales[:, None]


class Scheme:
    """Every layer is stored so, but those that the checkpoint's `ignore` names."""

    def __init__(self, ignored: frozenset[str]) -> None:
        self.ignored = ignored

    def tensors(self, name: str, shape: tuple[int, int]) -> Mapping[str, tuple[int, ...]] | None:
        if name in self.ignored:
            return None
        return {f"{name}.weight": shape, f"{name}.weight_scale": (shape[0],)}

    def nbytes(self, name: str, shape: tuple[int, int]) -> int:
        return shape[0] * shape[1] + 4 * shape[0]

    def pack(
        self, name: str, shape: tuple[int, int], tensor: Callable[[str], torch.Tensor], device: torch.device
    ) -> Matrix:
        codes, scales = tensor(f"{name}.weight"), tensor(f"{name}.weight_scale").float()
        if str(codes.dtype) != "torch.int8":
            raise ModelError(f"{name}.weight holds {codes.dtype}; it must be torch.int8")
        if not scales.isfinite().all():
            raise ModelError(f"{name}.weight_scale holds numbers that are not finite; the file is damaged")
        return Matrix(codes.to(device), scales.to(device))


def open_scheme(options: Options, config: Mapping[str, Any]) -> WeightScheme | None:
    """None for a checkpoint of another kind, so that other quantizations are asked."""
    if config.get("quant_method") != METHOD:
        return None
    return Scheme(frozenset(config.get("ignore", ())))


@hookimpl
def tandem_quantizations() -> list[Quantization]:
    return [
        Quantization(name="row_int8", doc="Weights of 8 bits, with a scale for each row of a matrix.", open=open_scheme)
    ]
