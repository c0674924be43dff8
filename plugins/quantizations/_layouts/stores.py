"""The ways in which files store one matrix, and a scheme that knows each layer's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

from tandem.core.plugin import ModelError

if TYPE_CHECKING:
    import torch

    from tandem.core.plugin import PackedLinear

Read = Callable[[str], Any]
"""Reads a tensor of the checkpoint by its full name."""

ACTIVATION_SCALES = ("input_scale", "input_global_scale", "activation_scale", "k_scale", "v_scale", "q_scale")
"""Last words of tensors that serve 8-bit or 4-bit activations or caches. Here those keep the model's own number type,
so the tensors are not read."""


class Store(Protocol):
    """One way to store a matrix."""

    def tensors(self, name: str, shape: tuple[int, int]) -> Mapping[str, tuple[int, ...]]:
        """Full name -> shape of the tensors that hold it. Raises ModelError for a shape that can't be stored so."""
        ...

    def nbytes(self, shape: tuple[int, int]) -> int:
        """Bytes that the packed matrix holds."""
        ...

    def pack(self, name: str, shape: tuple[int, int], tensor: Read, device: torch.device) -> PackedLinear: ...


class LayerScheme:
    """The contract's `WeightScheme`, made of what each layer's store is."""

    def __init__(self, store_of: Callable[[str], Store | None]) -> None:
        self._store_of = store_of

    def tensors(self, name: str, shape: tuple[int, int]) -> Mapping[str, tuple[int, ...]] | None:
        store = self._store_of(name)
        return None if store is None else store.tensors(name, shape)

    def nbytes(self, name: str, shape: tuple[int, int]) -> int:
        return self._store(name).nbytes(shape)

    def pack(self, name: str, shape: tuple[int, int], tensor: Read, device: torch.device) -> PackedLinear:
        return self._store(name).pack(name, shape, tensor, device)

    def unused(self, tensor: str) -> bool:
        """Whether the checkpoint may hold this tensor although no layer's store names it."""
        return tensor.rpartition(".")[2] in ACTIVATION_SCALES

    def _store(self, name: str) -> Store:
        store = self._store_of(name)
        assert store is not None, f"{name} is not packed"
        return store


@dataclass(frozen=True, slots=True)
class Fp8Store:
    """e4m3 codes in `NAME.weight`, a scale for each block in another tensor."""

    scales: str
    """The last word of that tensor: `weight_scale_inv` or `weight_scale`. Both are multiplied with."""
    block: tuple[int, int] | str
    """Rows and columns of a block; `channel` = a row, `tensor` = all."""

    def tensors(self, name: str, shape: tuple[int, int]) -> Mapping[str, tuple[int, ...]]:
        return {f"{name}.weight": shape, f"{name}.{self.scales}": self._stored_scales(shape)}

    def nbytes(self, shape: tuple[int, int]) -> int:
        rows, columns = self._grid(shape)
        return shape[0] * shape[1] + 4 * rows * columns

    def pack(self, name: str, shape: tuple[int, int], tensor: Read, device: torch.device) -> PackedLinear:
        import torch

        from tandem.plugins.quantizations._layouts.matrices import Fp8Matrix

        codes = read(tensor, f"{name}.weight", shape, ("float8_e4m3fn",))
        wrong = (codes.view(torch.uint8) & 0x7F == 0x7F).sum().item()  # the two codes that are no numbers
        if wrong:
            raise ModelError(f"{name}.weight: {wrong} of its codes are no numbers; the file is damaged")
        full = f"{name}.{self.scales}"
        scales = read(tensor, full, self._stored_scales(shape), ("float32", "bfloat16", "float16"))
        finite(scales, full)
        return Fp8Matrix(
            codes.to(device, copy=True),
            scales.to(device, torch.float32, copy=True).view(self._grid(shape)),
            self._block(shape),
        )

    def _block(self, shape: tuple[int, int]) -> tuple[int, int]:
        if isinstance(self.block, tuple):
            return self.block
        return shape if self.block == "tensor" else (1, shape[1])

    def _grid(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Blocks down and across."""
        n, k = self._block(shape)
        return -(-shape[0] // n), -(-shape[1] // k)

    def _stored_scales(self, shape: tuple[int, int]) -> tuple[int, ...]:
        return (1,) if self.block == "tensor" else self._grid(shape)


@dataclass(frozen=True, slots=True)
class Nvfp4Store:
    """e2m1 codes, an e4m3 scale for 16 columns, and one float32 for the whole matrix."""

    codes: str
    scales: str
    factor: str
    divides: bool
    """The one number is divided by, instead of multiplied with."""

    def tensors(self, name: str, shape: tuple[int, int]) -> Mapping[str, tuple[int, ...]]:
        rows, columns = shape
        if columns % 16:
            raise ModelError(
                f"{name}: its {columns} columns can't be stored as NVFP4, which has a scale for 16; the config must "
                "list it among the layers that are left alone"
            )
        return {
            f"{name}.{self.codes}": (rows, columns // 2),
            f"{name}.{self.scales}": (rows, columns // 16),
            f"{name}.{self.factor}": (1,),
        }

    def nbytes(self, shape: tuple[int, int]) -> int:
        return shape[0] * shape[1] // 2 + shape[0] * shape[1] // 16 + 4

    def pack(self, name: str, shape: tuple[int, int], tensor: Read, device: torch.device) -> PackedLinear:
        import torch

        from tandem.plugins.quantizations._layouts.matrices import Nvfp4Matrix

        (codes_name, codes_shape), (scales_name, scales_shape), (factor_name, one) = self.tensors(name, shape).items()
        codes = read(tensor, codes_name, codes_shape, ("uint8",))
        scales = read(tensor, scales_name, scales_shape, ("float8_e4m3fn",))
        finite(scales, scales_name)
        factor = read(tensor, factor_name, one, ("float32",)).reshape(())
        finite(factor, factor_name)
        if not factor > 0:
            raise ModelError(f"{factor_name} is {factor.item()}; it must be above 0")
        return Nvfp4Matrix(
            codes.to(device, copy=True),
            scales.to(device, copy=True),
            (factor.reciprocal() if self.divides else factor).to(device, torch.float32, copy=True),
        )


def read(tensor: Read, name: str, shape: tuple[int, ...], types: tuple[str, ...]) -> torch.Tensor:
    """The tensor `name`, its shape and number type checked. One number may have any number of dimensions."""
    value: torch.Tensor = tensor(name)
    if tuple(value.shape) != shape and not value.numel() == 1 == prod(shape):
        raise ModelError(f"{name} has the shape {list(value.shape)}; it must be {list(shape)}")
    if (kind := str(value.dtype).removeprefix("torch.")) not in types:
        raise ModelError(f"{name} holds {kind}; it must be {' or '.join(types)}")
    return value


def finite(scales: torch.Tensor, name: str) -> None:
    """Raise ModelError when some of the scales are no finite numbers."""
    wrong = (~scales.float().isfinite()).sum().item()
    if wrong:
        raise ModelError(f"{name}: {wrong} of its {scales.numel()} scales are not finite; the file is damaged")
