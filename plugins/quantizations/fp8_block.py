"""FP8 checkpoints: e4m3 codes with a scale for each block, row or matrix."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from tandem.core.plugin import ModelError, Options, Quantization, WeightScheme, hookimpl
from tandem.plugins.quantizations._layouts import compressed_tensors, modelopt
from tandem.plugins.quantizations._layouts.stores import Fp8Store, LayerScheme, Store

TANDEM_API = ">=0.2,<0.3"

DOC = """\
Weights of 8 bits: float codes (e4m3), with a scale for each block of 128 x 128 weights, for each row, or for a matrix.

Reads checkpoints whose `quantization_config` says `quant_method: fp8` (as Qwen publishes them: `weight` and
`weight_scale_inv`), and those of compressed-tensors and ModelOpt that hold 8-bit floats and nothing smaller. Layers
that the config leaves alone are read as they are. Only weights are in 8 bits: activations, keys and values keep the
model's number type (W8A16), and scales for activations in the files are not read. The weights stay packed in memory,
one byte each; a pass unpacks a part of a matrix at a time.
"""

METHOD = "fp8"


def open_scheme(options: Options, config: Mapping[str, Any]) -> WeightScheme | None:
    """The contract's `Quantization.open`."""
    method = config.get("quant_method")
    if method == METHOD:
        return _own_scheme(config)
    if method == compressed_tensors.METHOD:
        stores = [store for _, store in compressed_tensors.read_groups(config)]
        if stores and all(isinstance(store, Fp8Store) for store in stores):
            return compressed_tensors.scheme(config)
    if method in modelopt.METHODS and modelopt.algorithms(config) == {"FP8"}:
        return modelopt.scheme(config)
    return None


def _own_scheme(config: Mapping[str, Any]) -> WeightScheme:
    fmt = config.get("fmt", "e4m3")
    if fmt not in ("e4m3", "float8_e4m3fn"):
        raise ModelError(f"quantization_config.fmt is {fmt!r}; it must be 'e4m3'")
    block = config.get("weight_block_size")
    if block is None:
        store = Fp8Store("weight_scale_inv", "tensor")
    elif compressed_tensors.is_block(block):
        store = Fp8Store("weight_scale_inv", (block[0], block[1]))
    else:
        raise ModelError(
            f"quantization_config.weight_block_size is {block!r}; it must be two numbers such as [128, 128]"
        )
    ignored = [str(pattern) for pattern in config.get("modules_to_not_convert") or []]

    @cache
    def store_of(name: str) -> Store | None:
        return None if any(_names(pattern, name) for pattern in ignored) else store

    return LayerScheme(store_of)


def _names(pattern: str, name: str) -> bool:
    """Whether a pattern of `modules_to_not_convert` names a layer: the start of its name, as a plain text or a regular
    expression, up to the end of a word; or the end of its name."""
    if name.endswith(pattern) or f"{name}.".startswith(f"{pattern}."):
        return True
    try:
        return re.match(rf"(?:{pattern})(?:(?<=\.)|(?=\.|$))", name) is not None
    except re.error:
        return False


@hookimpl
def tandem_quantizations() -> list[Quantization]:
    return [Quantization(name="fp8_block", doc=DOC, open=open_scheme)]
