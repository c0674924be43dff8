"""Checkpoints of 4-bit floats, written in each layout and read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stored_weights import (
    CONFIG,
    ENABLED,
    MOE,
    Store,
    fp8_compressed,
    fp8_modelopt,
    nvfp4_compressed,
    nvfp4_modelopt,
    open_checkpoint,
    refusal,
    write,
)

from tandem.plugins._ops import dispatch, packed
from tandem.plugins.models._hybrid.plan import check, entries, facts
from tandem.plugins.models._hybrid.weights import DenseLinear, Loader
from tandem.plugins.quantizations._layouts.matrices import Fp8Matrix, Nvfp4Matrix
from tandem.plugins.quantizations.nvfp4 import open_scheme

NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}

COMPRESSED: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "nvfp4-pack-quantized",
    "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": NVFP4, "input_activations": {"num_bits": 4, "type": "float"}}
    },
    "ignore": ["lm_head", "re:.*in_proj_[ab]$"],
}
MODELOPT: dict[str, Any] = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "group_size": 16,
    "ignore": ["lm_head", "model.layers.0.linear_attn*"],
}


def is_same_model(loader: Loader, expected: dict[str, np.ndarray]) -> dict[str, str]:
    """Every matrix is that of the independent decoder; layer -> how it is held."""
    held = {}
    for entry in entries(loader.config):
        if entry.linear:
            linear = loader.linear(entry.layer, (entry.shape[0], entry.shape[1]))
            name = entry.layer if entry.layer == "lm_head" else f"model.{entry.layer}"
            np.testing.assert_allclose(linear.dense().numpy(), expected[name], rtol=1e-6)
            held[entry.layer] = type(linear).__name__
    return held


def of_compressed(layer: str) -> Store | None:
    """How `COMPRESSED` says that a layer is stored."""
    return None if layer.endswith(("lm_head", "in_proj_a", "in_proj_b")) else nvfp4_compressed


def of_modelopt(layer: str) -> Store | None:
    """How `MODELOPT` says that a layer is stored."""
    return None if layer == "lm_head" or ".linear_attn" in layer else nvfp4_modelopt


def test_the_layout_of_compressed_tensors_is_the_model_it_stands_for(tmp_path: Path) -> None:
    expected = write(tmp_path, CONFIG, COMPRESSED, of_compressed)
    loader = open_checkpoint(tmp_path)
    assert loader.quantized_by == "nvfp4"
    held = is_same_model(loader, expected)
    assert held.pop("lm_head") == "DenseLinear"
    assert {name for name, kind in held.items() if kind == "DenseLinear"} == {
        "layers.0.linear_attn.in_proj_a",
        "layers.0.linear_attn.in_proj_b",
    }


@pytest.mark.parametrize("method", ["modelopt", "modelopt_fp4"])
def test_the_layout_of_modelopt_is_the_model_it_stands_for(method: str, tmp_path: Path) -> None:
    expected = write(tmp_path, CONFIG, {**MODELOPT, "quant_method": method}, of_modelopt)
    held = is_same_model(open_checkpoint(tmp_path), expected)
    assert {name for name, kind in held.items() if kind == "Nvfp4Matrix"} == {
        *(f"layers.{layer}.mlp.{part}_proj" for layer in range(2) for part in ("gate", "up", "down")),
        *(f"layers.1.self_attn.{part}_proj" for part in "qkvo"),
    }


def test_the_file_that_older_exports_of_modelopt_have_is_read(tmp_path: Path) -> None:
    expected = write(tmp_path, CONFIG, None, of_modelopt)
    quantization = {
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": None,
        "group_size": 16,
        "exclude_modules": ["lm_head", "*.linear_attn.*"],
    }
    said = {"producer": {"name": "modelopt", "version": "0.39"}, "quantization": quantization}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(said))
    loader = open_checkpoint(tmp_path)
    assert loader.quantized_by == "nvfp4"
    assert is_same_model(loader, expected)["layers.1.mlp.up_proj"] == "Nvfp4Matrix"


def test_groups_of_compressed_tensors_may_be_mixed(tmp_path: Path) -> None:
    """A layer's own name goes before a pattern, a pattern before the class; what is ignored before all."""
    config = {
        **COMPRESSED,
        "format": "mixed-precision",
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": NVFP4, "format": "nvfp4-pack-quantized"},
            "group_1": {"targets": ["re:.*self_attn.*", "model.layers.1.mlp.up_proj"], "weights": FP8},
            "group_2": {"targets": ["re:.*layers.1.mlp.*"], "weights": NVFP4},
        },
    }
    fp8 = fp8_compressed("channel")

    def stores(layer: str) -> Store | None:
        if layer.endswith(("lm_head", "in_proj_a", "in_proj_b")):
            return None
        return fp8 if "self_attn" in layer or layer.endswith("layers.1.mlp.up_proj") else nvfp4_compressed

    expected = write(tmp_path, CONFIG, config, stores)
    held = is_same_model(open_checkpoint(tmp_path), expected)
    assert held["layers.1.self_attn.q_proj"] == held["layers.1.mlp.up_proj"] == "Fp8Matrix"
    assert held["layers.1.mlp.gate_proj"] == held["layers.0.linear_attn.out_proj"] == "Nvfp4Matrix"


def test_modelopt_may_name_an_algorithm_for_each_layer(tmp_path: Path) -> None:
    config = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {
            "model.layers.0.mlp*": {"quant_algo": "NVFP4", "group_size": 16},
            "model.layers.1.self_attn": {"quant_algo": "FP8"},
        },
    }

    def stores(layer: str) -> Store | None:
        return nvfp4_modelopt if "layers.0.mlp" in layer else fp8_modelopt if "self_attn" in layer else None

    expected = write(tmp_path, CONFIG, config, stores)
    loader = open_checkpoint(tmp_path)
    assert loader.quantized_by == "nvfp4"
    held = is_same_model(loader, expected)
    assert held["layers.0.mlp.down_proj"] == "Nvfp4Matrix"
    assert held["layers.1.self_attn.k_proj"] == "Fp8Matrix"
    assert held["layers.1.mlp.down_proj"] == "DenseLinear"


@pytest.mark.parametrize(("quantization", "store"), [(COMPRESSED, nvfp4_compressed), (MODELOPT, nvfp4_modelopt)])
def test_experts_stay_packed_one_by_one(quantization: dict[str, Any], store: Store, tmp_path: Path) -> None:
    expected = write(tmp_path, MOE, quantization, lambda layer: store if ".experts." in layer else None)
    loader = open_checkpoint(tmp_path)
    experts = loader.experts("layers.1.mlp.experts")
    rows = torch.randn(4, 64, generator=torch.Generator().manual_seed(5))
    assert len(experts) == len(experts.packed) == 3
    assert all(isinstance(matrix, Nvfp4Matrix) for expert in experts.packed for matrix in expert)
    assert experts.nbytes == 3 * 3 * (64 * 32 * 9 // 16 + 4)
    for expert in range(3):
        gate, up, down = (
            torch.from_numpy(expected[f"model.layers.1.mlp.experts.{expert}.{part}_proj"]).float()
            for part in ("gate", "up", "down")
        )
        wanted = (torch.nn.functional.silu(rows @ gate.t()) * (rows @ up.t())) @ down.t()
        torch.testing.assert_close(experts[expert](rows), wanted, rtol=1e-4, atol=1e-3)
    with pytest.raises(IndexError):
        experts[3]


def test_activations_keep_the_models_number_type(tmp_path: Path) -> None:
    """W4A16: what a product is given and gives is bfloat16, whatever scales for activations the files hold."""
    expected = write(tmp_path, CONFIG, MODELOPT, of_modelopt)
    linear = open_checkpoint(tmp_path, torch.bfloat16).linear("layers.1.mlp.up_proj", (80, 64))
    rows = torch.randn(5, 64, generator=torch.Generator().manual_seed(3)).bfloat16()
    product = linear(rows)
    assert product.dtype == torch.bfloat16
    wanted = rows.double().numpy() @ expected["model.layers.1.mlp.up_proj"].T
    # twice the rounding of bfloat16, of the sum and of the factor
    np.testing.assert_allclose(product.double().numpy(), wanted, rtol=2**-7, atol=2**-5)
    for row in range(5):  # and a row is the same whoever shares the call
        torch.testing.assert_close(linear(rows[row : row + 1]), product[row : row + 1], rtol=2**-7, atol=2**-5)


def test_off_the_cpu_the_table_of_kernels_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    codes, scales, factor = (part.to("meta") for part in packed.quantise_nvfp4(torch.randn(8, 32)))
    matrix, asked = Nvfp4Matrix(codes, scales, factor), []
    chosen = dispatch.matmul_nvfp4
    monkeypatch.setattr(dispatch, "matmul_nvfp4", lambda *parts: asked.append(parts) or chosen(*parts))
    product = matrix(torch.zeros(3, 32, dtype=torch.bfloat16, device="meta"))
    assert len(asked) == 1
    assert (product.shape, product.dtype, product.device.type) == ((3, 8), torch.bfloat16, "meta")


def test_scales_of_a_packed_cache_are_not_foreign(tmp_path: Path) -> None:
    extra = {f"model.layers.1.self_attn.{name}_proj.{name}_scale": torch.tensor(1.0) for name in "kv"}
    write(tmp_path, CONFIG, MODELOPT, of_modelopt, extra)
    open_checkpoint(tmp_path)


def test_a_description_counts_the_packed_bytes(tmp_path: Path) -> None:
    write(tmp_path, CONFIG, COMPRESSED, of_compressed)
    loader = open_checkpoint(tmp_path, torch.bfloat16)
    told = facts(loader, check(loader))
    assert told["bytes_by_part"]["mlp"] == 2 * 3 * (80 * 64 * 9 // 16 + 4)
    assert told["weights"] == "nvfp4"
    assert told["bytes_by_part"]["head"] == 48 * 64 * 2


# --------------------------------------------------------------------------------------------------- what can be wrong

LAYER = "model.layers.1.mlp.down_proj"


def spoiled(tmp_path: Path, spoil: Any, quantization: dict[str, Any] = COMPRESSED) -> str:
    stores = of_compressed if quantization["quant_method"] == "compressed-tensors" else of_modelopt
    write(tmp_path, CONFIG, quantization, stores, spoil=spoil)
    return refusal(tmp_path)


def test_all_missing_scales_are_named_at_once(tmp_path: Path) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[f"{LAYER}.weight_scale"], tensors["model.layers.0.mlp.up_proj.weight_global_scale"]

    said = spoiled(tmp_path, spoil)
    assert "2 missing: " in said
    assert f"{LAYER}.weight_scale" in said
    assert "model.layers.0.mlp.up_proj.weight_global_scale" in said


def test_codes_without_any_scale_are_refused(tmp_path: Path) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[f"{LAYER}.weight_scale"], tensors[f"{LAYER}.weight_scale_2"]

    said = spoiled(tmp_path, spoil, MODELOPT)
    assert f"2 missing: {LAYER}.weight_scale, {LAYER}.weight_scale_2" in said


@pytest.mark.parametrize("shape", [(64, 4), (63, 5), (64, 5, 1)])
def test_scales_of_another_shape_are_named(shape: tuple[int, ...], tmp_path: Path) -> None:
    scales = torch.ones(shape).to(torch.float8_e4m3fn)
    said = spoiled(tmp_path, lambda tensors: tensors.update({f"{LAYER}.weight_scale": scales}))
    assert f"{LAYER}.weight_scale is {list(shape)} and must be [64, 5]" in said


def test_a_scale_that_is_no_number_is_named(tmp_path: Path) -> None:
    said = spoiled(tmp_path, lambda tensors: tensors[f"{LAYER}.weight_scale"].view(torch.uint8)[1, 2].fill_(0x7F))
    assert said == f"{tmp_path}: {LAYER}.weight_scale: 1 of its 320 scales are not finite; the file is damaged"


@pytest.mark.parametrize(("value", "wanted"), [(float("nan"), "not finite"), (0.0, "is 0.0; it must be above 0")])
def test_a_factor_that_can_not_be_is_named(value: float, wanted: str, tmp_path: Path) -> None:
    said = spoiled(tmp_path, lambda tensors: tensors[f"{LAYER}.weight_global_scale"].fill_(value))
    assert f"{LAYER}.weight_global_scale" in said
    assert wanted in said


@pytest.mark.parametrize(
    ("part", "value", "wanted"),
    [
        ("weight_packed", torch.zeros(64, 40, dtype=torch.int8), "holds int8; it must be uint8"),
        ("weight_scale", torch.ones(64, 5), "holds float32; it must be float8_e4m3fn"),
        ("weight_global_scale", torch.ones(1).bfloat16(), "holds bfloat16; it must be float32"),
    ],
)
def test_another_number_type_is_named(part: str, value: torch.Tensor, wanted: str, tmp_path: Path) -> None:
    said = spoiled(tmp_path, lambda tensors: tensors.update({f"{LAYER}.{part}": value}))
    assert f"{LAYER}.{part} {wanted}" in said


def test_columns_that_are_no_multiple_of_sixteen_are_refused() -> None:
    from tandem.core.plugin import ModelError

    scheme = open_scheme({}, MODELOPT)
    assert scheme is not None
    with pytest.raises(ModelError, match=r"model\.odd: its 40 columns can't be stored as NVFP4"):
        scheme.tensors("model.odd", (8, 40))


@pytest.mark.parametrize(
    ("quantization", "wanted"),
    [
        ({**MODELOPT, "group_size": 32}, "group_size is 32; for NVFP4 it must be 16"),
        ({**MODELOPT, "quant_algo": "NVFP4_AWQ"}, "quant_method `modelopt` with NVFP4_AWQ is not among the enabled"),
        (
            {**MODELOPT, "quant_algo": "MIXED_PRECISION", "quantized_layers": [1]},
            "quantized_layers is [1]; it must map",
        ),
        ({**COMPRESSED, "config_groups": {}}, "quantization_config.config_groups is missing"),
        ({**COMPRESSED, "config_groups": {"g": {"targets": ["Linear"]}}}, "config_groups.g has no `weights`"),
        ({**COMPRESSED, "config_groups": {"g": {"targets": "Linear", "weights": NVFP4}}}, "config_groups.g.targets is"),
        (
            {**COMPRESSED, "config_groups": {"g": {"targets": ["Linear"], "weights": {**NVFP4, "group_size": 32}}}},
            "config_groups.g.weights.group_size is 32; for 4-bit floats it must be 16",
        ),
        (
            {**COMPRESSED, "config_groups": {"g": {"targets": ["Linear"], "weights": {**NVFP4, "type": "int"}}}},
            "quant_method `compressed-tensors` with nvfp4-pack-quantized is not among the enabled",
        ),
    ],
)
def test_an_unknown_variant_is_refused_with_what_is_right(
    quantization: dict[str, Any], wanted: str, tmp_path: Path
) -> None:
    said = spoiled(tmp_path, lambda tensors: None, quantization)
    assert "config.json: " in said
    assert wanted in said


def test_a_file_of_modelopt_without_an_algorithm_is_refused(tmp_path: Path) -> None:
    write(tmp_path, CONFIG, None, lambda layer: None)
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": []}')
    assert "hf_quant_config.json: `quantization` is []; it must be an object" in refusal(tmp_path)


def test_the_order_of_the_enabled_quantizations_does_not_matter_here(tmp_path: Path) -> None:
    """Each leaves the other's checkpoints alone."""
    write(tmp_path, CONFIG, COMPRESSED, of_compressed)
    assert open_checkpoint(tmp_path, enabled=ENABLED[::-1]).quantized_by == "nvfp4"
    assert "is not among the enabled quantizations (fp8_block)" in refusal(tmp_path, ENABLED[:1])


def test_both_kinds_of_matrices_say_what_they_hold(tmp_path: Path) -> None:
    write(tmp_path, CONFIG, COMPRESSED, of_compressed)
    matrix = open_checkpoint(tmp_path).linear("layers.1.mlp.up_proj", (80, 64))
    assert isinstance(matrix, Nvfp4Matrix)
    assert not isinstance(matrix, Fp8Matrix | DenseLinear)
    assert matrix.shape == (80, 64)
    assert matrix.nbytes == matrix.codes.nbytes + matrix.scales.nbytes + 4
