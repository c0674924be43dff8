"""The `quantization_config` that the compressed-tensors library writes: groups of layers, each stored one way."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeGuard

from tandem.core.plugin import ModelError
from tandem.plugins.quantizations._layouts.stores import Fp8Store, LayerScheme, Nvfp4Store, Store

METHOD = "compressed-tensors"

NVFP4 = Nvfp4Store("weight_packed", "weight_scale", "weight_global_scale", divides=True)


def read_groups(config: Mapping[str, Any]) -> list[tuple[tuple[str, ...], Store]]:
    """Targets and store of each group; empty when one of them is stored in other codes than 4-bit and 8-bit floats.

    Raises ModelError, naming the group, for such floats in a variant that is not supported.
    """
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise ModelError("quantization_config.config_groups is missing; it must say how which layers are stored")
    found = []
    for name, group in groups.items():
        at = f"quantization_config.config_groups.{name}"
        if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping):
            raise ModelError(f"{at} has no `weights`; it must say how they are stored")
        targets = group.get("targets")
        if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
            raise ModelError(f"{at}.targets is {targets!r}; it must be a list of names")
        if (store := _store(group["weights"], f"{at}.weights")) is None:
            return []
        found.append((tuple(targets), store))
    return found


def scheme(config: Mapping[str, Any]) -> LayerScheme:
    """The scheme of a whole `quantization_config`."""
    groups = read_groups(config)
    ignored = config.get("ignore") or []

    @cache
    def store_of(name: str) -> Store | None:
        if any(_rank(target, name) is not None for target in ignored):
            return None
        # A layer's own name goes before a pattern, and a pattern before the class of all linear layers.
        ranked = [
            (rank, place)
            for place, (targets, _) in enumerate(groups)
            for target in targets
            if (rank := _rank(target, name)) is not None
        ]
        return groups[min(ranked)[1]][1] if ranked else None

    return LayerScheme(store_of)


def _rank(target: str, name: str) -> int | None:
    """How closely a target names a layer, 0 the closest; None = it does not."""
    if target == name:
        return 0
    if target.startswith("re:"):
        return 1 if re.match(target[3:], name) else None
    return 2 if target == "Linear" else None


def _store(weights: Mapping[str, Any], at: str) -> Store | None:
    kind, bits, strategy = weights.get("type"), weights.get("num_bits"), weights.get("strategy")
    if (kind, bits) == ("float", 4):
        if weights.get("group_size", 16) != 16:
            raise ModelError(f"{at}.group_size is {weights['group_size']!r}; for 4-bit floats it must be 16")
        return NVFP4
    if (kind, bits) == ("float", 8):
        if strategy == "block":
            block = weights.get("block_structure")
            if not is_block(block):
                raise ModelError(f"{at}.block_structure is {block!r}; it must be two numbers, rows and columns")
            return Fp8Store("weight_scale", (block[0], block[1]))
        if strategy in ("channel", "tensor"):
            return Fp8Store("weight_scale", strategy)
        raise ModelError(f"{at}.strategy is {strategy!r}; for 8-bit floats it must be block, channel or tensor")
    return None


def is_block(value: Any) -> TypeGuard[list[int]]:
    """Whether it is two whole numbers above 0."""
    return isinstance(value, list) and len(value) == 2 and all(isinstance(side, int) and side > 0 for side in value)
