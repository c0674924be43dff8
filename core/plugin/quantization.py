"""The seam for packed weights: a quantization tells how a checkpoint's linear layers are stored, and computes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tandem.core.plugin.part import Options, Part

if TYPE_CHECKING:
    import torch


class PackedLinear(Protocol):
    """One matrix `[out, in]`, held packed."""

    @property
    def shape(self) -> tuple[int, int]:
        """`(out, in)`."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        ...

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """`rows @ matrix.T`: `[n, in]` to `[n, out]` of the same number type and device.

        A row's result must not depend on which other rows share the call, beyond the rounding of the product.
        """
        ...

    def dense(self) -> torch.Tensor:
        """The matrix that it stands for, `[out, in]` float32."""
        ...


class WeightScheme(Protocol):
    """How one checkpoint stores its linear layers. Made from the checkpoint's own `quantization_config`.

    Names are those of the checkpoint, without a suffix: `model.layers.0.mlp.up_proj`. Shapes are `(out, in)` of the
    matrix, not of what is stored.
    """

    def tensors(self, name: str, shape: tuple[int, int]) -> Mapping[str, tuple[int, ...]] | None:
        """The tensors that hold this layer: full name -> shape as stored. None = it is stored as it is in a checkpoint
        that is not quantised, as `NAME.weight`."""
        ...

    def nbytes(self, name: str, shape: tuple[int, int]) -> int:
        """Bytes that `pack` will hold for this layer. Only asked where `tensors` gives some."""
        ...

    def pack(
        self, name: str, shape: tuple[int, int], tensor: Callable[[str], torch.Tensor], device: torch.device
    ) -> PackedLinear:
        """The layer. `tensor` reads one of the checkpoint's tensors by its full name.

        Raises ModelError, naming the tensor, for numbers that can't be: a number type that the scheme does not use, a
        scale that is missing or not finite.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Quantization(Part):
    """A way to store weights in fewer bits.

    `open(options, config)` is given a checkpoint's `quantization_config` and returns the scheme, or None when this
    checkpoint is not of this kind. It raises ModelError for one that is, but in a variant that is not supported.
    """

    open: Callable[[Options, Mapping[str, Any]], WeightScheme | None]
