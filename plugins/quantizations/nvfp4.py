"""NVFP4 checkpoints: 4-bit float codes with an 8-bit float scale for 16 weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.core.plugin import Options, Quantization, WeightScheme, hookimpl
from tandem.plugins.quantizations._layouts import compressed_tensors, modelopt
from tandem.plugins.quantizations._layouts.stores import Nvfp4Store

TANDEM_API = ">=0.2,<0.3"

DOC = """\
Weights of 4 bits: float codes (e2m1), with an 8-bit float scale (e4m3) for 16 weights and one number for each matrix.

Reads checkpoints of compressed-tensors and of ModelOpt, also those where some layers are in 8-bit floats and others
are left alone, as their lists of targets and exceptions say. Only weights are in 4 bits: activations, keys and values
keep the model's number type (W4A16), and scales for activations in the files are not read. The weights stay packed in
memory, 4.5 bits each with their scales; a pass unpacks a part of a matrix at a time.
"""


def open_scheme(options: Options, config: Mapping[str, Any]) -> WeightScheme | None:
    """The contract's `Quantization.open`."""
    method = config.get("quant_method")
    if method == compressed_tensors.METHOD:
        stores = [store for _, store in compressed_tensors.read_groups(config)]
        if any(isinstance(store, Nvfp4Store) for store in stores):
            return compressed_tensors.scheme(config)
    if method in modelopt.METHODS and "NVFP4" in modelopt.algorithms(config):
        return modelopt.scheme(config)
    return None


@hookimpl
def tandem_quantizations() -> list[Quantization]:
    return [Quantization(name="nvfp4", doc=DOC, open=open_scheme)]
