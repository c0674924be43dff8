"""Checkpoints of 8-bit floats, written in each layout and read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stored_weights import (
    CONFIG,
    ENABLED,
    MOE,
    Tensors,
    fp8_blocks,
    fp8_compressed,
    fp8_modelopt,
    open_checkpoint,
    refusal,
    write,
)

from tandem.plugins.models._hybrid.plan import check, entries, facts
from tandem.plugins.models._hybrid.weights import DenseLinear, Loader
from tandem.plugins.quantizations.fp8_block import open_scheme

LEFT_ALONE = ("lm_head", "in_proj_a", "in_proj_b")

FP8: dict[str, Any] = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [32, 16],
    "modules_to_not_convert": [
        "lm_head", "model.layers.0.linear_attn.in_proj_a", "in_proj_b", r"model\.layers\.1\.mlp\.(gate|up)_proj",
    ],
}  # fmt: skip
WEIGHTS = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False}


def compressed(strategy: str, **more: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {**WEIGHTS, "strategy": strategy, **more}}},
        "ignore": ["lm_head", "re:.*in_proj_[ab]$"],
    }


def listed(layer: str) -> bool:
    """Whether `FP8` lists the layer among those left alone."""
    return layer.endswith(LEFT_ALONE) or layer.endswith(("layers.1.mlp.gate_proj", "layers.1.mlp.up_proj"))


def is_same_model(loader: Loader, expected: dict[str, np.ndarray], packed_layers: int) -> None:
    """Every matrix is that of the independent decoder, and a product with it is the dense one's."""
    rows = torch.randn(3, 64, generator=torch.Generator().manual_seed(5))
    packed = 0
    for entry in entries(loader.config):
        if not entry.linear:
            continue
        shape = (entry.shape[0], entry.shape[1])
        linear = loader.linear(entry.layer, shape)
        name = entry.layer if entry.layer == "lm_head" else f"model.{entry.layer}"
        np.testing.assert_allclose(linear.dense().numpy(), expected[name], rtol=1e-6)
        assert linear.shape == shape
        if not isinstance(linear, DenseLinear):
            packed += 1
            assert loader.scheme is not None
            assert linear.nbytes == loader.scheme.nbytes(name, shape)
        if shape[1] == 64:
            wanted = rows.numpy() @ expected[name].T
            np.testing.assert_allclose(linear(rows).numpy(), wanted, rtol=1e-4, atol=1e-3)
    assert packed == packed_layers


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_blocks_with_inverse_scales_are_the_model_they_stand_for(dtype: torch.dtype, tmp_path: Path) -> None:
    store = fp8_blocks((32, 16), dtype)
    expected = write(tmp_path, CONFIG, FP8, lambda layer: None if listed(layer) else store)
    loader = open_checkpoint(tmp_path)
    assert loader.quantized_by == "fp8_block"
    is_same_model(loader, expected, packed_layers=5 - 2 + 3 + 4 + 1)


def test_without_a_block_size_a_matrix_has_one_scale(tmp_path: Path) -> None:
    config = {key: value for key, value in FP8.items() if key != "weight_block_size"}

    def store(layer: str, matrix: torch.Tensor) -> tuple[Tensors, np.ndarray]:
        return fp8_blocks((matrix.shape[0], matrix.shape[1]))(layer, matrix)

    expected = write(tmp_path, CONFIG, config, lambda layer: None if listed(layer) else store)
    is_same_model(open_checkpoint(tmp_path), expected, packed_layers=11)


@pytest.mark.parametrize("strategy", ["channel", "tensor"])
def test_the_layout_of_compressed_tensors_is_read(strategy: str, tmp_path: Path) -> None:
    store = fp8_compressed(strategy)
    expected = write(
        tmp_path, CONFIG, compressed(strategy), lambda layer: None if layer.endswith(LEFT_ALONE) else store
    )
    loader = open_checkpoint(tmp_path)
    assert loader.quantized_by == "fp8_block"
    is_same_model(loader, expected, packed_layers=13)


def test_the_layout_of_modelopt_is_read(tmp_path: Path) -> None:
    config = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head", "*in_proj_a", "*in_proj_b"]}
    expected = write(tmp_path, CONFIG, config, lambda layer: None if layer.endswith(LEFT_ALONE) else fp8_modelopt)
    loader = open_checkpoint(tmp_path)
    assert loader.quantized_by == "fp8_block"
    is_same_model(loader, expected, packed_layers=13)


def test_experts_stay_packed_one_by_one(tmp_path: Path) -> None:
    store = fp8_blocks((32, 16))
    expected = write(tmp_path, MOE, FP8, lambda layer: store if ".experts." in layer else None)
    experts = open_checkpoint(tmp_path).experts("layers.1.mlp.experts")
    rows = torch.randn(4, 64, generator=torch.Generator().manual_seed(5))
    assert len(experts) == 3
    assert experts.nbytes == 3 * 3 * 64 * 32 + 3 * 4 * (2 * 1 * 4 + 2 * 2)
    for expert in range(3):
        gate, up, down = (
            torch.from_numpy(expected[f"model.layers.1.mlp.experts.{expert}.{part}_proj"]).float()
            for part in ("gate", "up", "down")
        )
        wanted = (torch.nn.functional.silu(rows @ gate.t()) * (rows @ up.t())) @ down.t()
        torch.testing.assert_close(experts[expert](rows), wanted, rtol=1e-4, atol=1e-3)


def test_a_layer_whose_plain_numbers_are_in_the_files_is_dense_though_no_list_says_so(tmp_path: Path) -> None:
    store = fp8_blocks((32, 16))
    config = {**FP8, "modules_to_not_convert": None}
    write(tmp_path, CONFIG, config, lambda layer: None if listed(layer) else store)
    assert isinstance(open_checkpoint(tmp_path).linear("lm_head", (48, 64)), DenseLinear)


def test_a_description_counts_the_packed_bytes(tmp_path: Path) -> None:
    store = fp8_blocks((32, 16))
    write(tmp_path, CONFIG, FP8, lambda layer: None if listed(layer) else store)
    loader = open_checkpoint(tmp_path, torch.bfloat16)
    told = facts(loader, check(loader))
    held = 0
    for entry in entries(loader.config):
        if entry.linear:
            held += loader.linear(entry.layer, (entry.shape[0], entry.shape[1])).nbytes
        else:
            held += loader.tensor(entry.name).nbytes
    assert told["weight_bytes"] == held
    assert told["weights"] == "fp8_block"
    assert told["parameters"] == sum(entry.size for entry in entries(loader.config))


# --------------------------------------------------------------------------------------------------- what can be wrong

LAYER = "model.layers.1.mlp.down_proj"


def spoiled(tmp_path: Path, spoil: Any, quantization: dict[str, Any] | None = None) -> str:
    store = fp8_blocks((32, 16))
    write(tmp_path, CONFIG, quantization or FP8, lambda layer: None if listed(layer) else store, spoil=spoil)
    return refusal(tmp_path)


def test_a_missing_scale_is_named(tmp_path: Path) -> None:
    said = spoiled(tmp_path, lambda tensors: tensors.pop(f"{LAYER}.weight_scale_inv"))
    assert f"1 missing: {LAYER}.weight_scale_inv" in said


def test_scales_of_another_shape_are_named(tmp_path: Path) -> None:
    said = spoiled(tmp_path, lambda tensors: tensors.update({f"{LAYER}.weight_scale_inv": torch.ones(2, 4)}))
    assert f"{LAYER}.weight_scale_inv is [2, 4] and must be [2, 5]" in said


def test_a_scale_that_is_no_number_is_named(tmp_path: Path) -> None:
    said = spoiled(tmp_path, lambda tensors: tensors[f"{LAYER}.weight_scale_inv"][0, 1].fill_(float("nan")))
    assert f"{LAYER}.weight_scale_inv: 1 of its 10 scales are not finite" in said


def test_codes_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    said = spoiled(tmp_path, lambda tensors: tensors[f"{LAYER}.weight"].view(torch.uint8)[3, :2].fill_(0xFF))
    assert said == f"{tmp_path}: {LAYER}.weight: 2 of its codes are no numbers; the file is damaged"


def test_codes_of_another_number_type_are_named(tmp_path: Path) -> None:
    said = spoiled(tmp_path, lambda tensors: tensors.update({f"{LAYER}.weight": torch.zeros(64, 80)}))
    assert f"{LAYER}.weight holds float32; it must be float8_e4m3fn" in said


def test_a_plain_layer_that_holds_codes_is_named(tmp_path: Path) -> None:
    codes = torch.zeros(48, 64).to(torch.float8_e4m3fn)
    said = spoiled(tmp_path, lambda tensors: tensors.update({"lm_head.weight": codes}))
    assert "1 of another number type: lm_head.weight is F8_E4M3 and must be one of F64, F32, F16, BF16" in said


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"fmt": "e5m2"}, "config.json: quantization_config.fmt is 'e5m2'; it must be 'e4m3'"),
        ({"weight_block_size": [128]}, "weight_block_size is [128]; it must be two numbers"),
        ({"weight_block_size": [0, 128]}, "weight_block_size is [0, 128]; it must be two numbers"),
    ],
)
def test_an_unknown_variant_is_refused_with_what_is_right(changes: dict[str, Any], wanted: str, tmp_path: Path) -> None:
    assert wanted in spoiled(tmp_path, lambda tensors: None, {**FP8, **changes})


@pytest.mark.parametrize("strategy", ["group", None])
def test_an_unknown_strategy_is_refused(strategy: Any, tmp_path: Path) -> None:
    said = spoiled(tmp_path, lambda tensors: None, compressed(strategy))
    assert f"config_groups.group_0.weights.strategy is {strategy!r}; for 8-bit floats it must be block" in said


def test_blocks_of_compressed_tensors_are_known() -> None:
    scheme = open_scheme({}, compressed("block", block_structure=[128, 128]))
    assert scheme is not None
    assert scheme.tensors("model.a", (300, 200)) == {"model.a.weight": (300, 200), "model.a.weight_scale": (3, 2)}


def test_an_unknown_method_is_refused_with_what_is_enabled(tmp_path: Path) -> None:
    write(tmp_path, CONFIG, {"quant_method": "gptq", "bits": 4}, lambda layer: None)
    assert "config.json: quant_method `gptq` is not among the enabled quantizations (fp8_block, nvfp4)" in refusal(
        tmp_path
    )
    assert "is not among the enabled quantizations (none)" in refusal(tmp_path, ())


def test_other_codes_of_a_known_method_are_left_to_others(tmp_path: Path) -> None:
    """So that another plugin may read them."""
    config = compressed("channel", type="int")
    assert open_scheme({}, config) is None
    write(tmp_path, CONFIG, config, lambda layer: None)
    assert "quant_method `compressed-tensors` with float-quantized is not among" in refusal(tmp_path, ENABLED[:1])


def test_a_plain_checkpoint_needs_no_quantization(tmp_path: Path) -> None:
    expected = write(tmp_path, CONFIG, None, lambda layer: None)
    loader = open_checkpoint(tmp_path, enabled=())
    assert loader.quantized_by is None
    is_same_model(loader, expected, packed_layers=0)
