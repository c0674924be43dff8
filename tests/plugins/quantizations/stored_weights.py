"""Tiny quantised checkpoints in each layout, and an independent decoder of what they hold, in numpy alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from tandem.core.plugin import ModelError, Quantization
from tandem.plugins._ops import packed
from tandem.plugins.models._hf.folder import Folder
from tandem.plugins.models._hybrid.config import read_config
from tandem.plugins.models._hybrid.plan import check, entries
from tandem.plugins.models._hybrid.weights import Loader
from tandem.plugins.quantizations import fp8_block, nvfp4

CONFIG: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "architectures": ["Qwen3_5ForCausalLM"],
    "vocab_size": 48,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
MOE: dict[str, Any] = {
    **CONFIG,
    "model_type": "qwen3_5_moe_text",
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}

ENABLED: tuple[tuple[Quantization, dict[str, Any]], ...] = (
    *((part, {}) for part in fp8_block.tandem_quantizations()),
    *((part, {}) for part in nvfp4.tandem_quantizations()),
)

Tensors = dict[str, torch.Tensor]
Store = Callable[[str, torch.Tensor], tuple[Tensors, np.ndarray]]
"""Layer and its matrix -> the tensors that store it, and what they stand for."""


def dense_tensors(config: Mapping[str, Any], seed: int = 0) -> Tensors:
    """A whole random model by the names in files, experts one by one."""
    generator = torch.Generator().manual_seed(seed)
    found: Tensors = {}
    for entry in entries(read_config(config, Path("config.json"))):
        value = torch.randn(entry.shape, generator=generator)
        name = entry.name if entry.name.startswith("lm_head") else f"model.{entry.name}"
        if name.endswith("experts.gate_up_proj"):
            for expert, both in enumerate(value):
                at = name.replace("gate_up_proj", str(expert))
                found[f"{at}.gate_proj.weight"], found[f"{at}.up_proj.weight"] = (
                    half.clone() for half in both.chunk(2)
                )
        elif name.endswith("experts.down_proj"):
            for expert, matrix in enumerate(value):
                found[f"{name.replace('down_proj', str(expert))}.down_proj.weight"] = matrix.clone()
        else:
            found[name] = value
    return found


def write(
    folder: Path,
    config: Mapping[str, Any],
    quantization: Mapping[str, Any] | None,
    store_of: Callable[[str], Store | None],
    extra: Tensors | None = None,
    spoil: Callable[[Tensors], object] = lambda tensors: None,
) -> dict[str, np.ndarray]:
    """Write a checkpoint in which `store_of` says how each matrix `[out, in]` is stored; None = as it is.

    Returns every layer's matrix as an independent decoder reads it.
    """
    tensors, expected = dict(extra or {}), {}
    for name, value in dense_tensors(config).items():
        layer = name.removesuffix(".weight")
        # the embedding is a table, and the router no linear layer
        linear = value.ndim == 2 and "embed_tokens" not in name and not name.endswith("mlp.gate.weight")
        store = store_of(layer) if linear else None
        if store is None:
            tensors[name] = value.bfloat16()
            expected[layer] = tensors[name].float().numpy()
        else:
            stored, expected[layer] = store(layer, value)
            tensors |= stored
    spoil(tensors)
    save_file(tensors, folder / "model.safetensors")
    said = {} if quantization is None else {"quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps({**config, **said}))
    return expected


def open_checkpoint(folder: Path, dtype: torch.dtype = torch.float32, enabled: Iterable[Any] = ENABLED) -> Loader:
    """The loader of a written checkpoint, its tensors checked."""
    opened = Folder(folder)
    loader = Loader(opened, read_config(opened.config, folder / "config.json"), tuple(enabled), "cpu", dtype)
    check(loader)
    return loader


def load_all(loader: Loader) -> None:
    """Read every linear layer of a checkpoint without experts."""
    for entry in entries(loader.config):
        if entry.linear:
            loader.linear(entry.layer, (entry.shape[0], entry.shape[1]))


def refusal(folder: Path, enabled: Iterable[Any] = ENABLED) -> str:
    """What a checkpoint is refused with, at the latest when its matrices are read."""
    try:
        load_all(open_checkpoint(folder, enabled=enabled))
    except ModelError as error:
        return str(error)
    return "it was loaded"


# ----------------------------------------------------------------------------------------------- the number formats


def e2m1(code: int) -> float:
    """One sign, two exponent bits (bias 1), one bit of the fraction."""
    sign, exponent, fraction = code >> 3, code >> 1 & 3, code & 1
    size = fraction * 0.5 if exponent == 0 else (1 + fraction / 2) * 2.0 ** (exponent - 1)
    return -size if sign else size


def e4m3(byte: int) -> float:
    """One sign, four exponent bits (bias 7), three bits of the fraction; all ones is no number."""
    sign, exponent, fraction = byte >> 7, byte >> 3 & 15, byte & 7
    if exponent == 15 and fraction == 7:
        return float("nan")
    size = fraction / 8 * 2.0**-6 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7)
    return -size if sign else size


def decode_e4m3(stored: torch.Tensor) -> np.ndarray:
    table = np.array([e4m3(byte) for byte in range(256)])
    return np.asarray(table[stored.view(torch.uint8).numpy()])


def decode_nvfp4(codes: torch.Tensor, scales: torch.Tensor, factor: float) -> np.ndarray:
    """`[N, K / 2]` uint8 and `[N, K / 16]` e4m3 to `[N, K]`."""
    table = np.array([e2m1(code) for code in range(16)])
    raw = codes.numpy()
    values = np.empty((raw.shape[0], 2 * raw.shape[1]))
    values[:, 0::2], values[:, 1::2] = table[raw & 15], table[raw >> 4]
    return values * np.repeat(decode_e4m3(scales), 16, axis=1) * factor


def decode_fp8(codes: torch.Tensor, scales: np.ndarray, block: tuple[int, int]) -> np.ndarray:
    values = decode_e4m3(codes)
    found = np.empty_like(values)
    for row in range(values.shape[0]):
        for column in range(values.shape[1]):
            found[row, column] = values[row, column] * scales[row // block[0], column // block[1]]
    return found


# ----------------------------------------------------------------------------------------------------- the layouts


def fp8_blocks(block: tuple[int, int], dtype: torch.dtype = torch.bfloat16) -> Store:
    """`quant_method: fp8`."""

    def store(layer: str, matrix: torch.Tensor) -> tuple[Tensors, np.ndarray]:
        codes, scales = packed.quantise_fp8(matrix, block)
        scales = scales.to(dtype)
        stored = {f"{layer}.weight": codes, f"{layer}.weight_scale_inv": scales}
        return stored, decode_fp8(codes, scales.double().numpy(), block)

    return store


def fp8_compressed(strategy: str) -> Store:
    """compressed-tensors, 8-bit floats: `channel` or `tensor`."""

    def store(layer: str, matrix: torch.Tensor) -> tuple[Tensors, np.ndarray]:
        block = (1, matrix.shape[1]) if strategy == "channel" else (matrix.shape[0], matrix.shape[1])
        codes, scales = packed.quantise_fp8(matrix, block)
        shaped = scales if strategy == "channel" else scales.view(1)
        return {f"{layer}.weight": codes, f"{layer}.weight_scale": shaped}, decode_fp8(codes, scales.numpy(), block)

    return store


def fp8_modelopt(layer: str, matrix: torch.Tensor) -> tuple[Tensors, np.ndarray]:
    """ModelOpt, 8-bit floats: one scale of no dimension, and one for the activations."""
    codes, scales = packed.quantise_fp8(matrix, (matrix.shape[0], matrix.shape[1]))
    stored = {
        f"{layer}.weight": codes,
        f"{layer}.weight_scale": scales.reshape(()),
        f"{layer}.input_scale": torch.tensor(0.5),
    }
    return stored, decode_fp8(codes, scales.numpy(), (matrix.shape[0], matrix.shape[1]))


def nvfp4_compressed(layer: str, matrix: torch.Tensor) -> tuple[Tensors, np.ndarray]:
    """compressed-tensors: the one number is what scales were multiplied with, so it divides."""
    codes, scales, factor = packed.quantise_nvfp4(matrix)
    divisor = 1 / factor
    stored = {
        f"{layer}.weight_packed": codes,
        f"{layer}.weight_scale": scales,
        f"{layer}.weight_global_scale": divisor.view(1),
        f"{layer}.input_global_scale": torch.ones(1),
    }
    return stored, decode_nvfp4(codes, scales, 1 / divisor.double().item())


def nvfp4_modelopt(layer: str, matrix: torch.Tensor) -> tuple[Tensors, np.ndarray]:
    """ModelOpt: the one number multiplies."""
    codes, scales, factor = packed.quantise_nvfp4(matrix)
    stored = {
        f"{layer}.weight": codes,
        f"{layer}.weight_scale": scales,
        f"{layer}.weight_scale_2": factor,
        f"{layer}.input_scale": torch.tensor(0.5),
    }
    return stored, decode_nvfp4(codes, scales, factor.double().item())
