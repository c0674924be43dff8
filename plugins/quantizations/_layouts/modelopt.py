"""The `quantization_config` that ModelOpt writes: one algorithm and the layers left alone, or an algorithm a layer."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from tandem.core.plugin import ModelError
from tandem.plugins.quantizations._layouts.stores import Fp8Store, LayerScheme, Nvfp4Store, Store

METHODS = ("modelopt", "modelopt_fp4", "modelopt_mixed")

NVFP4 = Nvfp4Store("weight", "weight_scale", "weight_scale_2", divides=False)
STORES: Mapping[str, Store] = {"NVFP4": NVFP4, "FP8": Fp8Store("weight_scale", "tensor")}
"""By `quant_algo`."""

MIXED = "MIXED_PRECISION"


def algorithms(config: Mapping[str, Any]) -> frozenset[str]:
    """The algorithms that a config names; empty when one of them is not in `STORES`. Raises ModelError for NVFP4 with
    other groups."""
    sections = [config] if config.get("quant_algo") != MIXED else list(_layers(config).values())
    found = frozenset(str(section.get("quant_algo")) for section in sections)
    for section in sections:
        if section.get("quant_algo") == "NVFP4" and section.get("group_size", 16) != 16:
            raise ModelError(f"group_size is {section['group_size']!r}; for NVFP4 it must be 16")
    return found if found <= STORES.keys() else frozenset()


def scheme(config: Mapping[str, Any]) -> LayerScheme:
    """The scheme of a whole `quantization_config`, whose `algorithms` are known."""
    mixed = {name: STORES[layer["quant_algo"]] for name, layer in _layers(config).items()}
    default = None if config["quant_algo"] == MIXED else STORES[config["quant_algo"]]
    ignored = [str(pattern) for key in ("ignore", "exclude_modules") for pattern in config.get(key) or []]

    @cache
    def store_of(name: str) -> Store | None:
        if any(_names(pattern, name) for pattern in ignored):
            return None
        return next((store for pattern, store in mixed.items() if _names(pattern, name)), default)

    return LayerScheme(store_of)


def _names(pattern: str, name: str) -> bool:
    """Whether a pattern names a layer: its whole name, with `*` for anything, or the module that it is in."""
    return fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")


def _layers(config: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    layers = config.get("quantized_layers") or {}
    if not isinstance(layers, Mapping) or not all(isinstance(layer, Mapping) for layer in layers.values()):
        raise ModelError(f"quantized_layers is {layers!r}; it must map a layer's name to its quant_algo")
    return layers
