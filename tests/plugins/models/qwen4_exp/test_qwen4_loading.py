"""What the builder takes and refuses, and what it says of a checkpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from qwen4_tiny import IMAGE, TEXT, make, text
from safetensors.torch import load_file, save_file

from tandem.core.plugin import Checkpoint, ModelError
from tandem.core.plugin.part import with_defaults
from tandem.plugins.models.qwen4_exp import OPTIONS, describe, tandem_models


def change(path: Path, name: str, new: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change one tensor of a checkpoint."""
    index = json.loads((path / "model.safetensors.index.json").read_text())
    (full,) = (each for each in index["weight_map"] if each.endswith(name))
    file = path / index["weight_map"][full]
    tensors = load_file(file)
    tensors[full] = new(tensors[full])
    save_file(tensors, file)


@pytest.fixture
def copy4(tiny4_folder: tuple[Path, Any], tmp_path: Path) -> Path:
    """A checkpoint to spoil."""
    return Path(shutil.copytree(tiny4_folder[0], tmp_path / "copy"))


def test_the_builder_knows_the_published_architecture() -> None:
    (builder,) = tandem_models()
    assert builder.name == "qwen4_exp"
    assert "Qwen4ExpForConditionalGeneration" in builder.architectures


def test_what_would_be_loaded_is_what_is_loaded(tiny4: Any, tiny4_folder: tuple[Path, Any]) -> None:
    path, oracle = tiny4_folder
    said = describe(Checkpoint(path, str(path)), with_defaults(OPTIONS, {"dtype": "float32", "device": "cpu"}))
    assert said == tiny4.facts
    assert said["parameters"] == sum(value.numel() for value in oracle.parameters())
    assert said["mapped_bytes"] == oracle.model.language_model.layers[1].ple.ple_embedding.ngram_embedding.weight.nbytes
    assert tiny4.caps.max_len == TEXT["max_position_embeddings"]
    assert tiny4.vision.token == IMAGE
    assert tiny4.head is None


def test_the_table_of_n_grams_is_read_from_the_files(
    copy4: Path, load4: Callable[..., Any], read4: Callable[..., torch.Tensor]
) -> None:
    """Numbers that change in the file change in a loaded model: nothing of the table was copied."""
    model, tokens = load4(copy4), text(12)
    before = read4(model, model.new_sequence(20), tokens)
    index = json.loads((copy4 / "model.safetensors.index.json").read_text())
    for full, name in index["weight_map"].items():
        if ".shard_" in full:
            data = bytearray((copy4 / name).read_bytes())
            header = int.from_bytes(data[:8], "little")
            start, end = json.loads(data[8 : 8 + header])[full]["data_offsets"]
            data[8 + header + start : 8 + header + end] = bytes(end - start)
            with (copy4 / name).open("r+b") as file:
                file.write(data)
    after = read4(model, model.new_sequence(20), tokens)
    assert float((after - before).abs().max()) > 0.1


@pytest.mark.parametrize(
    ("name", "new", "said"),
    [
        ("layer_multipliers", lambda value: value * 2**20, r"a token's product with one must be below 2\^63"),
        ("layer_multipliers", lambda value: value.double(), "must be whole numbers"),
        ("ngram_heads_offsets", lambda value: value + 500, "lead out of the table, which has 560 rows"),
        ("ngram_heads_vocab_sizes", lambda value: value * 0, "lead out of the table"),
        ("layers.1.ple.key_proj.weight", lambda value: value[:-1], "of another shape"),
        ("layers.2.self_attn.indexer.k_layernorm.weight", lambda value: value[:-1], "of another shape"),
    ],
)
def test_tensors_that_can_not_be_are_refused_with_their_name(
    name: str, new: Callable[[torch.Tensor], torch.Tensor], said: str, copy4: Path, load4: Callable[..., Any]
) -> None:
    change(copy4, name, new)
    with pytest.raises(ModelError, match=said) as caught:
        load4(copy4)
    assert str(copy4) in str(caught.value)
    assert name.split(".")[-2 if name.endswith("weight") else -1] in str(caught.value)


def test_a_model_of_another_family_is_refused(copy4: Path, load4: Callable[..., Any]) -> None:
    config = json.loads((copy4 / "config.json").read_text())
    config["text_config"] |= {"model_type": "qwen3_5_text", "layer_types": ["full_attention"] * 4}
    config["text_config"]["output_gate_type"] = "silu"
    (copy4 / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="this is a qwen3_5 model"):
        load4(copy4)


def test_bfloat16_says_nearly_the_same(
    tiny4_folder: tuple[Path, Any], tiny4: Any, load4: Callable[..., Any], read4: Callable[..., torch.Tensor]
) -> None:
    """The paths of one number type and another meet: nothing is read in the wrong one. Rows that choose other tokens
    or other experts for the rounding differ by more, so it is the greater part that is compared."""
    model, tokens = load4(tiny4_folder[0], dtype="bfloat16"), text(60)
    got, want = (read4(each, each.new_sequence(60), tokens, 13) for each in (model, tiny4))
    assert got.dtype == torch.float32
    assert float((got - want).abs().median()) < 0.05 * float(want.std())


def test_several_layers_of_multi_token_prediction_are_left_out(tmp_path: Path, load4: Callable[..., Any]) -> None:
    make(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["text_config"]["mtp_num_hidden_layers"] = 2
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load4(tmp_path).head is None
    with pytest.raises(ModelError, match="mtp_num_hidden_layers is 2"):
        load4(tmp_path, mtp="on")
