"""The numbers: equal to transformers on random checkpoints of every shape that loads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

IDS = [3 + (7 * i * i + 5 * i) % 300 for i in range(100)]
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

SHAPES: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tie_word_embeddings": False},
    "one_kv_head": {"num_key_value_heads": 1},
    "a_kv_head_each": {"num_key_value_heads": 4},
    "own_head_dim": {"head_dim": 24},
    "attention_biases": {"attention_bias": True},
    "mlp_biases": {"mlp_bias": True},
    "other_theta_and_eps": {"rope_parameters": {"rope_type": "default", "rope_theta": 200.0}, "rms_norm_eps": 0.01},
    "linear_rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0}},
    "llama3_rope": {"rope_parameters": LLAMA3},
    "everything": {
        "head_dim": 8, "num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True,
        "tie_word_embeddings": False, "rope_parameters": LLAMA3, "vocab_size": 333,
    },
}  # fmt: skip


def reference(model: Any, ids: list[int] = IDS) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([ids])).logits[0].float()
    return logits


def near(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-4) -> None:
    assert found.shape == expected.shape
    assert found.dtype == torch.float32
    difference = (found - expected).abs().max().item()
    assert difference <= tolerance * max(1.0, expected.abs().max().item())


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_equal_transformers(shape: str, make_tiny: Any, load: Any, logits_of: Any) -> None:
    path, model = make_tiny(**SHAPES[shape])
    near(logits_of(load(path, dtype="float32"), IDS), reference(model))


def test_the_older_spelling_of_rope_loads_the_same(make_tiny: Any, load: Any, logits_of: Any, tmp_path: Path) -> None:
    path, model = make_tiny(rope_parameters=LLAMA3)
    copy = shutil.copytree(path, tmp_path / "older")
    config = json.loads((copy / "config.json").read_text())
    scaling = dict(config.pop("rope_parameters"))
    config["rope_theta"] = scaling.pop("rope_theta")
    config["rope_scaling"] = scaling
    (copy / "config.json").write_text(json.dumps(config))
    near(logits_of(load(copy, dtype="float32"), IDS), reference(model))


def test_a_mistral_without_a_window_loads(make_tokenizer: Any, load: Any, logits_of: Any, tmp_path: Path) -> None:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(3)
    model = MistralForCausalLM(
        MistralConfig(
            vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, sliding_window=None, max_position_embeddings=256, initializer_range=0.2,
        )
    ).eval()  # fmt: skip
    model.save_pretrained(tmp_path)
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    near(logits_of(load(tmp_path, dtype="float32"), IDS), reference(model))


def test_shards_load_as_one_file_does(make_tiny: Any, load: Any, logits_of: Any, tmp_path: Path) -> None:
    path, model = make_tiny()
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    shutil.copy(path / "tokenizer.json", tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    near(logits_of(load(tmp_path, dtype="float32"), IDS), reference(model))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_files_compute_in_float32_when_asked(
    dtype: str, make_tiny: Any, load: Any, logits_of: Any, tmp_path: Path
) -> None:
    path, model = make_tiny()
    for value in model.parameters():
        value.copy_(value.to(getattr(torch, dtype)))
    copy = shutil.copytree(path, tmp_path / "half")
    model.save_pretrained(copy, state_dict={k: v.to(getattr(torch, dtype)) for k, v in model.state_dict().items()})
    stored = b'"F16"' if dtype == "float16" else b'"BF16"'
    assert stored in (copy / "model.safetensors").read_bytes()[:2000]
    near(logits_of(load(copy, dtype="float32"), IDS), reference(model))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("weights", ["dense", "int8", "int4"])
@pytest.mark.parametrize("shape", ["tied", "everything", "not_packable"])
def test_rounded_weights_stay_near_the_exact_ones(
    dtype: str, weights: str, shape: str, make_tiny: Any, load: Any, logits_of: Any
) -> None:
    path, model = make_tiny(**SHAPES.get(shape, {"intermediate_size": 72}))  # a matrix of 72 columns stays dense
    expected = reference(model)
    rounded = load(path, dtype=dtype, weights=weights)
    allowed = {"dense": 0.03, "int8": 0.05, "int4": 0.45}[weights]
    for chunk in (1, 100):  # the packed kernels, then the dense ones
        assert (logits_of(rounded, IDS, chunk) - expected).norm() < allowed * expected.norm()


# ------------------------------------------------------------------------------------------------------------- GGUF


@pytest.fixture
def write_gguf(tmp_path: Path, make_tokenizer: Callable[[], Any]) -> Callable[..., Path]:
    """Write transformers' model as a GGUF of the architecture `llama`, in one quantisation for all matrices.

    The model's own weights become what the file says after rounding, so that it stays the reference.
    """

    def write_gguf(model: Any, kind: str = "F32", divisors: torch.Tensor | None = None, **fields: Any) -> Path:
        config = model.config
        path = tmp_path / "tiny.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_name("Tiny")
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_block_count(config.num_hidden_layers)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        if config.rope_parameters["rope_type"] == "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(config.rope_parameters["factor"])
        tokenizer = make_tokenizer()
        tokens = [tokenizer.id_to_token(number) for number in range(tokenizer.get_vocab_size())]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokens)
        types = {"<think>": gguf.TokenType.USER_DEFINED, **dict.fromkeys(tokens[:3], gguf.TokenType.CONTROL)}
        writer.add_token_types([types.get(token, gguf.TokenType.NORMAL) for token in tokens])
        writer.add_token_merges(["t h"])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)

        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
        for name, value in model.named_parameters():
            array = value.numpy().astype("float32")
            heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
            for projection, count in heads.items():
                if projection in name:  # to interleaved pairs, as converters write this architecture
                    array = array.reshape(count, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
            quantisation = gguf.GGMLQuantizationType[kind if value.ndim == 2 else "F32"]
            data = gguf.quantize(array, quantisation)
            writer.add_tensor(names.get_name(name, (".weight", ".bias")), data, raw_dtype=quantisation)
            array = gguf.dequantize(data, quantisation)
            for projection, count in heads.items():
                if projection in name:
                    array = array.reshape(count, -1, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
            value.copy_(torch.from_numpy(array.copy()))
        if divisors is not None:
            writer.add_tensor("rope_freqs.weight", divisors.numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write_gguf


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_a_gguf_is_read_in_every_quantisation(
    kind: str, make_tiny: Any, write_gguf: Any, load: Any, logits_of: Any
) -> None:
    _, model = make_tiny()
    path = write_gguf(model, kind)
    near(logits_of(load(path, dtype="float32"), IDS), reference(model))


@pytest.mark.parametrize("shape", ["untied", "own_head_dim", "attention_biases", "mlp_biases", "linear_rope"])
def test_a_gguf_gives_the_logits_of_the_folder_it_was_made_from(
    shape: str, make_tiny: Any, write_gguf: Any, load: Any, logits_of: Any
) -> None:
    _, model = make_tiny(**SHAPES[shape])
    path = write_gguf(model)
    near(logits_of(load(path, dtype="float32"), IDS), reference(model))


def test_a_gguf_scales_its_rotary_positions_by_the_divisors_in_it(
    make_tiny: Any, write_gguf: Any, load: Any, logits_of: Any
) -> None:
    _, scaled = make_tiny(rope_parameters=LLAMA3)
    _, plain = make_tiny(rope_parameters={"rope_type": "default", "rope_theta": LLAMA3["rope_theta"]})
    divisors = plain.model.rotary_emb.inv_freq / scaled.model.rotary_emb.inv_freq
    path = write_gguf(scaled, divisors=divisors)
    near(logits_of(load(path, dtype="float32"), IDS), reference(scaled))
    assert (reference(scaled) - reference(plain)).abs().max() > 0.1


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_a_four_bit_gguf_is_packed_without_being_rounded_again(
    kind: str, make_tiny: Any, write_gguf: Any, load: Any, logits_of: Any
) -> None:
    _, model = make_tiny(intermediate_size=128)
    path = write_gguf(model, kind)
    expected = reference(model)
    packed = load(path, weights="int4")
    found = logits_of(packed, IDS, chunk=1)
    assert (found - expected).norm() < 0.03 * expected.norm()  # four bits chosen anew would be some 0.1 away


@pytest.mark.parametrize(("kind", "weights"), [("F32", "dense"), ("Q4_1", "int4"), ("Q5_1", "int8"), ("Q8_0", "int8")])
def test_weights_are_held_as_they_are_stored_when_nothing_is_said(
    kind: str, weights: str, make_tiny: Any, write_gguf: Any, load: Any
) -> None:
    from tandem.plugins.models.llama import cpu

    if not cpu.unpacks_fast():
        weights = "dense"
    _, model = make_tiny()
    assert load(write_gguf(model, kind)).facts["weights"] == weights
