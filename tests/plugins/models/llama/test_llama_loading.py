"""What can't be loaded is refused with the file, what is wrong and what would be right."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem.core.plugin import Checkpoint, ModelError
from tandem.core.plugin.part import options_schema, with_defaults
from tandem.plugins.models.llama import OPTIONS, build, describe, tandem_models

DEFAULTS = with_defaults(OPTIONS, {})


def refusal(path: Path) -> str:
    """The message of build's ModelError; describe must refuse with the same one."""
    checkpoint = Checkpoint(path, str(path))
    with pytest.raises(ModelError) as error:
        build(checkpoint, DEFAULTS, lambda what, done, total: None)
    message = str(error.value)
    if "the tokenizer" not in message and "tokenizer.json" not in message.partition(";")[0]:  # not in the headers
        with pytest.raises(ModelError) as described:
            describe(checkpoint, DEFAULTS)
        assert str(described.value) == message
    return message


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    """A checkpoint to break."""
    return shutil.copytree(tiny_folder, tmp_path / "broken")


@pytest.fixture
def change(folder: Path) -> Callable[..., Path]:
    """`change(key=value)` edits config.json; a value of None takes the key out."""

    def change(**fields: Any) -> Path:
        config = json.loads((folder / "config.json").read_text())
        config.update(fields)
        config = {key: value for key, value in config.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return change


# -------------------------------------------------------------------------------------------------------- directories


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    message = refusal(tmp_path / "nowhere")
    assert str(tmp_path / "nowhere") in message
    assert "must be a GGUF file or a Hugging Face directory" in message


def test_a_directory_without_config_is_told_what_a_checkpoint_has(tmp_path: Path) -> None:
    message = refusal(tmp_path)
    assert "has no config.json" in message
    assert "model.safetensors" in message


def test_a_config_that_is_no_json_is_named(folder: Path) -> None:
    (folder / "config.json").write_text('{"architectures": [')
    assert f"{folder / 'config.json'}: this is no readable JSON" in refusal(folder)
    (folder / "config.json").write_text("[]")
    assert "it must be an object" in refusal(folder)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"architectures": ["Qwen2ForCausalLM"]}, "Qwen2ForCausalLM; this builder loads LlamaForCausalLM, Mistral"),
        ({"architectures": None}, "the architecture is not named"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope type is 'yarn'; supported are default, linear, llama3"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope type 'linear' needs numbers for factor"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; only `silu`"),
        ({"sliding_window": 32}, "sliding_window is 32"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised by 'gptq'"),
        ({"num_hidden_layers": None}, "num_hidden_layers is missing; it must be a whole number"),
        ({"hidden_size": "64"}, "hidden_size is '64'; it must be a whole number"),
        ({"num_key_value_heads": 3}, "4 attention heads can't share 3 key-value heads"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"vocab_size": 0}, "vocab_size is 0"),
    ],
)
def test_a_config_that_asks_for_something_else_is_refused(
    fields: dict[str, Any], words: str, change: Callable[..., Path]
) -> None:
    message = refusal(change(**fields))
    assert words in message
    assert "config.json" in message


def test_every_missing_extra_and_misshapen_tensor_is_named(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    for name in ("model.norm.weight", "model.layers.1.mlp.up_proj.weight"):
        del tensors[name]
    for name in ("model.layers.0.self_attn.q_norm.weight", "extra"):
        tensors[name] = torch.zeros(4)
    for name in ("model.layers.0.self_attn.k_proj.weight", "model.layers.1.input_layernorm.weight"):
        tensors[name] = tensors[name][:5].clone()
    save_file(tensors, folder / "model.safetensors")
    message = refusal(folder)
    assert "missing: model.layers.1.mlp.up_proj.weight, model.norm.weight" in message
    assert "not known: extra, model.layers.0.self_attn.q_norm.weight" in message
    assert "model.layers.0.self_attn.k_proj.weight is 5x64 instead of 32x64" in message
    assert "model.layers.1.input_layernorm.weight is 5 instead of 64" in message


def test_tensors_that_older_files_carry_along_are_no_reason_to_refuse(folder: Path, load: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors")
    assert load(folder).facts["parameters"] > 0


def test_numbers_that_are_no_floats_are_named(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)
    save_file(tensors, folder / "model.safetensors")
    assert "model.norm.weight (I8); supported are F64, F32, F16, BF16" in refusal(folder)


@pytest.mark.parametrize("keep", [0, 5, 300, -10])
def test_a_torn_safetensors_file_is_refused_with_its_name(keep: int, folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    message = refusal(folder)
    assert f"{file}: this is no whole safetensors file" in message
    assert "copy or download it again" in message


def test_a_directory_without_safetensors_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "no model.safetensors and no model.safetensors.index.json" in refusal(folder)


def test_a_shard_that_is_not_there_is_named(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "files that are not here: model-00002-of-00002.safetensors" in refusal(folder)
    (folder / "model.safetensors.index.json").write_text("{}")
    assert "there is no weight_map" in refusal(folder)


def test_a_missing_or_foreign_tokenizer_is_refused(folder: Path, change: Callable[..., Path]) -> None:
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text("{}")
    assert f"{folder / 'tokenizer.json'}: this is no readable tokenizer.json" in refusal(folder)
    (folder / "tokenizer.json").unlink()
    assert "there is no tokenizer.json" in refusal(folder)

    (folder / "tokenizer.json").write_text(text)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"][:100].clone()
    save_file(tensors, folder / "model.safetensors")
    assert "the tokenizer has ids up to 260, but the model has logits for 100 tokens" in refusal(change(vocab_size=100))


# --------------------------------------------------------------------------------------------------------------- GGUF


def small_gguf(path: Path, architecture: str = "llama", **fields: Any) -> Path:
    """A GGUF of one layer with zero weights; `fields` replace metadata, None takes a key out."""
    writer = gguf.GGUFWriter(path, architecture)
    values = {
        "context_length": 64, "embedding_length": 32, "block_count": 1, "feed_forward_length": 32,
        "attention.head_count": 2, "rope.freq_base": 1e4, "attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.tokens": ["a", "b", "ab", "<e>"], "tokenizer.ggml.token_type": [1, 1, 1, 3],
        "tokenizer.ggml.eos_token_id": 3, **fields,
    }  # fmt: skip
    for key, value in values.items():
        name = key if key.startswith("tokenizer.") else f"{architecture}.{key}"
        if isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif value is not None:
            writer.add_uint32(name, value)
    shapes = {"token_embd": (4, 32), "output_norm": (32,), "blk.0.attn_norm": (32,), "blk.0.ffn_norm": (32,)}
    for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        shapes[f"blk.0.{part}"] = (32, 32)
    for tensor, shape in shapes.items():
        writer.add_tensor(f"{tensor}.weight", np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_small_gguf_itself_loads(tmp_path: Path, load: Any) -> None:
    assert load(small_gguf(tmp_path / "small.gguf")).tokenizer.eos_ids == {3}


def test_every_torn_gguf_is_refused_with_its_name(tmp_path: Path) -> None:
    whole = small_gguf(tmp_path / "small.gguf").read_bytes()
    torn = tmp_path / "torn.gguf"
    for size in [4, 10, *range(24, len(whole), 397), len(whole) - 100]:
        torn.write_bytes(whole[:size])
        message = refusal(torn)
        assert f"{torn}: this GGUF file is torn or damaged" in message, size
        assert "copy or download it again" in message


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04 something else entirely"])
def test_a_file_that_is_no_gguf_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(content)
    assert "this is no GGUF file" in refusal(tmp_path / "weights.bin")


def test_a_gguf_of_another_architecture_is_named(tmp_path: Path) -> None:
    message = refusal(small_gguf(tmp_path / "other.gguf", architecture="gemma3"))
    assert "the GGUF architecture is gemma3; this builder loads llama" in message


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rope.scaling.type": "yarn"}, "the rope type is 'yarn'"),
        ({"expert_count": 8}, "mixture of experts"),
        ({"rope.dimension_count": 8}, "rope.dimension_count differs from the head size 16"),
        ({"attention.key_length": 16, "attention.value_length": 8}, "keys and values of different sizes"),
        ({"block_count": None}, "llama.block_count is missing"),
        ({"attention.layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon is missing; it must be a number"),
        ({"embedding_length": 64, "attention.key_length": 16}, "model.embed_tokens.weight is 4x32 instead of 4x64"),
        ({"block_count": 2}, "missing: model.layers.1.input_layernorm.weight, model.layers.1.post_attention"),
        ({"block_count": 0}, "layers is 0"),
        ({"tokenizer.ggml.model": "llama"}, "the tokenizer is of the kind 'llama'; supported is 'gpt2'"),
        ({"tokenizer.ggml.pre": "tekken"}, "splits words as 'tekken'; supported are gpt-2, smollm, llama-bpe, qwen2"),
        ({"tokenizer.ggml.merges": None}, "lacks the tokenizer's tokens or merges"),
        ({"tokenizer.ggml.merges": ["ab"]}, "merge 'ab' is not two tokens"),
        ({"tokenizer.ggml.tokens": ["a", "b", "ab", "<e>", "one"]}, "ids up to 4, but the model has logits for 4"),
    ],
)
def test_a_gguf_that_asks_for_something_else_is_refused(fields: dict[str, Any], words: str, tmp_path: Path) -> None:
    message = refusal(small_gguf(tmp_path / "small.gguf", **fields))
    assert words in message
    assert "small.gguf" in message


# ------------------------------------------------------------------------------------------------------- the builder


def test_making_the_builder_imports_nothing_heavy() -> None:
    code = (
        "import sys; from tandem.plugins.models import llama; parts = llama.tandem_models(); "
        "print(*({'torch', 'gguf', 'tokenizers', 'numpy', 'safetensors'} & set(sys.modules)), parts[0].name)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.split() == ["llama"]


def test_the_builder_names_its_architectures_and_explains_its_options() -> None:
    [builder] = tandem_models()
    assert builder.name == "llama"
    assert builder.needs_checkpoint
    assert set(builder.architectures) == {"LlamaForCausalLM", "MistralForCausalLM", "llama"}
    assert options_schema(builder.options)["required"] == []
    assert all(len(option["description"]) > 20 for option in builder.options.values())
    assert builder.summary


def test_describe_says_beforehand_what_the_model_says_afterwards(tiny_folder: Path, load: Any) -> None:
    for options in ({}, {"dtype": "float32"}, {"weights": "int4"}, {"weights": "int8", "dense_rows": 0}):
        described = describe(Checkpoint(tiny_folder, "x"), with_defaults(OPTIONS, options))
        assert described == load(tiny_folder, **options).facts
    exact = describe(Checkpoint(tiny_folder, "x"), with_defaults(OPTIONS, {"dtype": "float32"}))
    parameters = 320 * 64 + 2 * (64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 64 * 96 + 2 * 64) + 64
    assert exact == {
        "architecture": "LlamaForCausalLM",
        "parameters": parameters,
        "dtype": "float32",
        "weights": "dense",
        "weight_bytes": 4 * (parameters + 320 * 64),  # the head has its own layout of the tied embedding
        "kv_bytes_per_token": 2 * 2 * 2 * 16 * 4,
        "context_length": 256,
    }


def test_loading_reports_its_progress(tiny_folder: Path) -> None:
    told: list[tuple[str, int, int]] = []
    build(Checkpoint(tiny_folder, "x"), DEFAULTS, lambda what, done, total: told.append((what, done, total)))
    assert told[0][1] == 0
    assert told[-1][1] == told[-1][2] == 2


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_loading_leaves_no_thread_behind(tiny_folder: Path) -> None:
    """Helpers that the loading thread kept would slow down every pass that another thread runs."""
    code = (
        "import os, sys, time, torch; from pathlib import Path; from tandem.core.plugin import Checkpoint\n"
        "from tandem.core.plugin.part import with_defaults; from tandem.plugins.models.llama import OPTIONS, build\n"
        "def threads(): return len(os.listdir('/proc/self/task'))\n"
        "torch.set_num_threads(2); before = threads()\n"
        "model = build(Checkpoint(Path(sys.argv[1]), ''), with_defaults(OPTIONS, {}), lambda *told: None)\n"
        "until = time.monotonic() + 10\n"  # a helper ends a moment after its thread
        "while threads() > before and time.monotonic() < until: time.sleep(0.01)\n"
        "print(before, threads()); torch.ones(10**7).sum(); print(threads())"
    )
    command = [sys.executable, "-c", code, str(tiny_folder)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    before, after, computed_here = map(int, found)
    assert before == after < computed_here


def test_the_chat_template_and_its_tokens_come_from_the_folder(folder: Path, load: Any) -> None:
    assert load(folder).template is None
    config = {
        "bos_token": {"content": "<|start|>"},
        "eos_token": "<|stop|>",
        "chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "listed"}],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    model = load(folder)
    assert model.template == "listed"
    assert model.template_vars == {"bos_token": "<|start|>", "eos_token": "<|stop|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": "written"}))
    assert load(folder).template == "written"
    (folder / "chat_template.jinja").write_text("own file: {{ messages }}")
    assert load(folder).template == "own file: {{ messages }}"


def test_the_ends_are_those_of_the_generation_config_and_the_tokenizer(
    folder: Path, change: Callable[..., Path], load: Any
) -> None:
    (folder / "generation_config.json").unlink(missing_ok=True)
    assert load(change(eos_token_id=None)).tokenizer.eos_ids == set()
    assert load(change(eos_token_id=0)).tokenizer.eos_ids == {0}
    assert load(change(eos_token_id=[2, 3])).tokenizer.eos_ids == {2, 3}
    (folder / "generation_config.json").write_text('{"eos_token_id": [0, 5, 9999]}')
    assert load(folder).tokenizer.eos_ids == {0, 5}
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|start|>"}')
    assert load(folder).tokenizer.eos_ids == {0, 1, 5}
