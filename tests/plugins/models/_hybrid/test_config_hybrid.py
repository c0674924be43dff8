"""Reading a hybrid model's config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hybrid_tiny import DENSE, KINDS, QWEN4, TEXT, VISION, model, real_config
from hypothesis import given, settings, strategies as st

from tandem.core.plugin import ModelError
from tandem.plugins.models._hybrid.config import HybridConfig, read_config

WHERE = Path("folder") / "config.json"


def read(**changes: Any) -> HybridConfig:
    return read_config({"model_type": "qwen3_5_text", **TEXT, **DENSE, **changes}, WHERE)


def read_qwen4(**changes: Any) -> HybridConfig:
    return read_config({"model_type": "qwen4_exp_text", **TEXT, **QWEN4, **changes}, WHERE)


def test_the_dense_model_of_27_billion_parameters_is_read_as_published() -> None:
    config = read_config(real_config("qwen3_8_27b"), WHERE)
    assert (config.family, config.hidden_size, config.layers, config.intermediate_size) == ("qwen3_5", 5120, 64, 17408)
    assert config.full_layers == tuple(range(3, 64, 4))
    assert len(config.linear_layers) == 48
    assert (config.heads, config.kv_heads, config.head_dim, config.rotary_dim) == (24, 4, 256, 64)
    assert (config.rope_theta, config.mrope_section) == (1e7, (11, 11, 10))
    gdn = config.gdn
    assert (gdn.key_heads, gdn.value_heads, gdn.key_dim, gdn.value_dim, gdn.conv_kernel) == (16, 48, 128, 128, 4)
    assert (gdn.output_gate, gdn.channels, gdn.values) == ("silu", 10240, 6144)
    assert (config.vocab_size, config.max_len, config.tied, config.eos) == (248320, 262144, False, (248044,))
    assert config.mtp is not None
    assert (config.mtp.layers, config.mtp.rope_theta) == (1, 1e7)
    vision = config.vision
    assert vision is not None
    assert (vision.depth, vision.hidden, vision.heads, vision.mlp) == (27, 1152, 16, 4304)
    assert (vision.patch_numbers, vision.merge, vision.out_hidden, vision.positions) == (1536, 2, 5120, 2304)
    assert (config.image_token, config.video_token, config.vision_start, config.vision_end) == (
        248056, 248057, 248053, 248054,
    )  # fmt: skip
    assert config.moe is config.hyper is config.indexer is config.ple is None


def test_the_sparse_model_with_hyper_connections_is_read_as_published() -> None:
    config = read_config(real_config("qwen3_8_flash_next"), WHERE)
    assert (config.family, config.layers, config.width, config.intermediate_size) == ("qwen4_exp", 48, 10240, 0)
    assert config.gdn.output_gate == "sigmoid"
    moe, index, ple = config.moe, config.indexer, config.ple
    assert moe is not None
    assert index is not None
    assert ple is not None
    assert config.hyper is not None
    assert (moe.experts, moe.top_k, moe.expert_size, moe.shared_size, moe.normalise) == (512, 10, 640, 640, True)
    assert (config.hyper.count, config.hyper.low_rank) == (4, 320)
    assert (index.heads, index.kv_heads, index.dim, index.budget, index.block) == (4, 1, 128, 2048, 4)
    assert ple.layers == (1,)  # the file says 2 and counts from 1
    assert (ple.embed_dim, ple.row, ple.all_heads, ple.parts, ple.conv_kernel) == (2560, 160, 16, 128, 4)


def test_the_rows_of_the_n_gram_table_are_primes_from_the_base_on() -> None:
    ple = read_config(real_config("qwen3_8_flash_next"), WHERE).ple
    assert ple is not None
    sizes = ple.vocab_sizes(0)
    assert (sizes[0], sizes[-1], len(sizes)) == (20000003, 20000171, 16)
    assert ple.rows(0) == 320_001_536
    assert ple.vocab_sizes(1)[0] > sizes[-1]  # another layer's heads go on with the next primes


@pytest.mark.parametrize("kind", KINDS)
def test_what_transformers_writes_is_read_the_same(kind: str) -> None:
    """A file from `save_pretrained` has every default filled in, so it must give what the short one gave."""
    import torch

    with torch.device("meta"):
        written = model(kind).config.to_dict()
    config = read_config(written, WHERE)
    nested = not kind.endswith("_text")
    assert config.layer_types == tuple(TEXT["layer_types"])
    assert config.heads == 4
    assert config.kv_heads == 2
    assert (config.vision is not None) == nested
    assert config.rotary_dim == (16 if kind.startswith("qwen4") else 4)  # a quarter, but for Qwen4-Exp the whole head
    assert config.rope_theta == 10_000.0
    assert (config.moe is None) == (kind.startswith("qwen3_5") and "moe" not in kind)


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_are_those_of_transformers(kind: str) -> None:
    import transformers

    name = {"qwen3_5": "Qwen3_5", "qwen3_5_moe": "Qwen3_5Moe", "qwen4_exp": "Qwen4Exp"}[kind.removesuffix("_text")]
    theirs = getattr(transformers, f"{name}TextConfig")()
    needed = {key: value for key, value in QWEN4.items() if key.startswith("indexer") or key == "indexer_head_dim"}
    needed["indexer_head_dim"] = 256  # as large as the rotary part, which is the whole head where nothing is said
    data = {"model_type": f"{kind.removesuffix('_text')}_text", **(needed if kind.startswith("qwen4") else {})}
    ours = read_config(data, WHERE)
    assert ours.hidden_size == theirs.hidden_size
    assert ours.layers == theirs.num_hidden_layers
    assert [kind.replace("indexed", "full") for kind in theirs.layer_types] == list(ours.layer_types)
    assert (ours.heads, ours.kv_heads, ours.head_dim) == (
        theirs.num_attention_heads, theirs.num_key_value_heads, theirs.head_dim,
    )  # fmt: skip
    assert (ours.gdn.key_heads, ours.gdn.value_heads) == (theirs.linear_num_key_heads, theirs.linear_num_value_heads)
    assert (ours.vocab_size, ours.max_len, ours.norm_eps) == (
        theirs.vocab_size, theirs.max_position_embeddings, theirs.rms_norm_eps,
    )  # fmt: skip
    if ours.moe is None:
        assert ours.intermediate_size == theirs.intermediate_size
    else:
        assert (ours.moe.experts, ours.moe.top_k) == (theirs.num_experts, theirs.num_experts_per_tok)
        assert (ours.moe.expert_size, ours.moe.shared_size) == (
            theirs.moe_intermediate_size, theirs.shared_expert_intermediate_size,
        )  # fmt: skip


def test_fields_that_may_stand_in_two_places_are_found_in_both() -> None:
    inside = {"rope_theta": 5e6, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}
    config = read(rope_parameters=inside, rope_theta=1.0, partial_rotary_factor=0.25)
    assert (config.rope_theta, config.rotary_dim, config.mrope_section) == (5e6, 8, (2, 1, 1))
    config = read(rope_theta=7e5, partial_rotary_factor=0.5)
    assert (config.rope_theta, config.rotary_dim) == (7e5, 8)


def test_a_wrapper_that_says_text_only_has_no_tower() -> None:
    data = {"model_type": "qwen3_5", "text_config": {**TEXT, **DENSE, "model_type": "qwen3_5_text"}}
    with_tower = {**data, "vision_config": VISION}
    assert read_config(with_tower, WHERE).vision is not None
    assert read_config({**with_tower, "language_model_only": True}, WHERE).vision is None
    assert read_config(data, WHERE).vision is None


def test_several_end_tokens_are_kept_in_order() -> None:
    assert read(eos_token_id=[7, 3]).eos == (7, 3)
    assert read(eos_token_id=None).eos == ()


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"model_type": "llama"}, "model_type is 'llama'", "qwen3_5"),
    ({"hidden_act": "gelu"}, "hidden_act is 'gelu'", "'silu'"),
    ({"attention_bias": True}, "attention_bias is True", "False"),
    ({"hidden_size": 0}, "hidden_size is 0", "at least 1"),
    ({"hidden_size": "32"}, "hidden_size is '32'", "whole number"),
    ({"num_attention_heads": 5}, "num_attention_heads is 5", "multiple of num_key_value_heads, 2"),
    ({"linear_num_value_heads": 3}, "linear_num_value_heads is 3", "multiple of linear_num_key_heads, 2"),
    ({"layer_types": ["linear_attention"] * 3 + ["mamba"]}, "layer_types[3] is 'mamba'", "'full_attention'"),
    ({"layer_types": ["linear_attention"] * 3 + ["indexed_attention"]}, "layer_types[3]", "'full_attention'"),
    ({"layer_types": ["full_attention"]}, "layer_types is", "a list of 4 types"),
    ({"output_gate_type": "sigmoid"}, "output_gate_type is 'sigmoid'", "'silu'"),
    ({"partial_rotary_factor": 0.2}, "partial_rotary_factor is 0.2", "even"),
    ({"partial_rotary_factor": 2.0}, "partial_rotary_factor is 2.0", "head_dim 16"),
    ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters.rope_type is 'yarn'", "'default'"),
    ({"rope_parameters": {"mrope_interleaved": False}}, "mrope_interleaved is False", "true"),
    ({"rope_parameters": {"mrope_section": [1, 2]}}, "rope_parameters.mrope_section is [1, 2]", "three"),
    ({"rope_parameters": 3}, "rope_parameters is 3", "an object"),
    ({"rms_norm_eps": -1}, "rms_norm_eps is -1", "above 0"),
    ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'", "whole number"),
    ({"mtp_num_hidden_layers": 1, "mtp_layer_types": ["linear_attention"]}, "['linear_attention']", "'full_attention'"),
]


@pytest.mark.parametrize(("changes", "wrong", "right"), WRONG, ids=[wrong for _, wrong, _ in WRONG])
def test_what_can_not_be_computed_is_refused_with_the_field_and_what_is_right(
    changes: dict[str, Any], wrong: str, right: str
) -> None:
    with pytest.raises(ModelError) as caught:
        read(**changes)
    assert str(WHERE) in str(caught.value)
    assert wrong in str(caught.value)
    assert right in str(caught.value)


WRONG_QWEN4: list[tuple[dict[str, Any], str, str]] = [
    ({"output_gate_type": "tanh"}, "output_gate_type is 'tanh'", "'sigmoid'"),
    ({"num_experts_per_tok": 9}, "num_experts_per_tok is 9", "at most num_experts, 4"),
    ({"hc_count": 1}, "hc_count is 1", "at least 2"),
    ({"indexer_n_heads": None}, "indexer_n_heads is None", "whole number"),
    ({"indexer_kv_heads": 2}, "indexer_kv_heads is 2", "must be 1"),
    ({"indexer_budget": 6}, "indexer_budget is 6", "multiple of indexer_compress_ratio, 4"),
    ({"indexer_head_dim": 8}, "indexer_head_dim is 8", "at least the rotary size of attention, 16"),
    ({"ple_layer_ids": [0]}, "ple_layer_ids is 0", "from 1 to 4"),
    ({"ple_layer_ids": [4]}, "ple_layer_ids is 4", "linear_attention"),
    ({"ple_embed_dim": 22}, "ple_embed_dim is 22", "multiple of"),
    ({"eos_token_id": None}, "eos_token_id is None", "a token"),
]


@pytest.mark.parametrize(("changes", "wrong", "right"), WRONG_QWEN4, ids=[wrong for _, wrong, _ in WRONG_QWEN4])
def test_the_same_for_what_only_qwen4_has(changes: dict[str, Any], wrong: str, right: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_qwen4(**changes)
    assert str(WHERE) in str(caught.value)
    assert wrong in str(caught.value)
    assert right in str(caught.value)


WRONG_VISION: list[tuple[dict[str, Any], str, str]] = [
    ({"hidden_act": "relu"}, "vision_config.hidden_act is 'relu'", "'gelu_pytorch_tanh'"),
    ({"deepstack_visual_indexes": [1]}, "vision_config.deepstack_visual_indexes is [1]", "empty"),
    ({"num_heads": 3}, "vision_config.hidden_size is 16", "multiple of num_heads, 3"),
    ({"num_heads": 8}, "vision_config.num_heads is 8", "multiple of 4"),
    ({"num_position_embeddings": 15}, "num_position_embeddings is 15", "square"),
    ({"out_hidden_size": 40}, "vision_config.out_hidden_size is 40", "hidden_size, 32"),
    ({"patch_size": [4, 8]}, "vision_config.patch_size is [4, 8]", "whole number"),
]


@pytest.mark.parametrize(("changes", "wrong", "right"), WRONG_VISION, ids=[wrong for _, wrong, _ in WRONG_VISION])
def test_the_same_for_the_tower(changes: dict[str, Any], wrong: str, right: str) -> None:
    data = {
        "model_type": "qwen3_5",
        "text_config": {**TEXT, **DENSE, "model_type": "qwen3_5_text"},
        "vision_config": {**VISION, **changes},
    }
    with pytest.raises(ModelError) as caught:
        read_config(data, WHERE)
    assert str(WHERE) in str(caught.value)
    assert wrong in str(caught.value)
    assert right in str(caught.value)


def test_a_side_may_be_written_as_a_list_of_equal_numbers() -> None:
    data = {
        "model_type": "qwen3_5",
        "text_config": {**TEXT, **DENSE, "model_type": "qwen3_5_text"},
        "vision_config": {**VISION, "patch_size": [4, 4], "temporal_patch_size": [2]},
    }
    vision = read_config(data, WHERE).vision
    assert vision is not None
    assert (vision.patch, vision.temporal) == (4, 2)


@settings(max_examples=500)
@given(
    field=st.sampled_from(
        [
            *TEXT, *DENSE, *QWEN4,
            "rope_parameters", "partial_rotary_factor", "mtp", "rms_norm_eps", "text_config", "model_type",
        ]
    ),
    value=st.one_of(
        st.none(), st.booleans(), st.integers(-2, 40), st.floats(allow_nan=True), st.text(max_size=3),
        st.lists(st.integers(-1, 9), max_size=3), st.dictionaries(st.sampled_from(["a", "rope_theta"]), st.integers()),
    ),
)  # fmt: skip
def test_whatever_stands_in_a_field_is_read_or_refused_in_words(field: str, value: Any) -> None:
    for base in ({"model_type": "qwen3_5_text", **TEXT, **DENSE}, {"model_type": "qwen4_exp_text", **TEXT, **QWEN4}):
        said = None
        try:
            config = read_config({**base, field: value}, WHERE)
        except ModelError as error:
            said = str(error)
        assert said is None or said.startswith(str(WHERE))
        assert said is not None or config.heads % config.kv_heads == 0
