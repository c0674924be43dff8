"""The tensors that a hybrid model needs, against transformers' own models and against what files hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hybrid_tiny import KINDS, TEXT, model, mtp_tensors, real_config, saved
from safetensors.torch import load_file, save_file

from tandem.core.plugin import ModelError
from tandem.plugins.models._hf.folder import Folder
from tandem.plugins.models._hybrid.config import HybridConfig, read_config
from tandem.plugins.models._hybrid.plan import Plan, check, describe, entries, parameters
from tandem.plugins.models._hybrid.weights import Loader, short


def config_of(folder: Path) -> HybridConfig:
    return read_config(json.loads((folder / "config.json").read_text()), folder / "config.json")


def look(folder: Path, **options: Any) -> Plan:
    return check(Loader(Folder(folder), config_of(folder), (), "cpu", torch.bfloat16), options)


def rewrite(folder: Path, change: Any) -> None:
    """Read all tensors of a checkpoint, let `change` edit the mapping, and write them as one file."""
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
        path.unlink()
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


# ------------------------------------------------------------------------------------------------------- the real ones


def test_the_dense_model_has_as_many_tensors_and_parameters_as_published() -> None:
    config = read_config(real_config("qwen3_8_27b"), Path("config.json"))
    found = entries(config)
    counts = {part: sum(entry.part == part for entry in found) for part in ("vision", "mtp")}
    assert counts == {"vision": 333, "mtp": 15}
    assert len(found) == 851 + 333 + 15
    sizes = parameters(config)
    assert sum(sizes.values()) - sizes["mtp"] == 27_356_728_560
    assert sizes["vision"] == 460_730_096
    assert round(sizes["mtp"] / 1e6, 1) == 424.7
    shapes = {entry.name: entry.shape for entry in found}
    assert shapes["layers.3.self_attn.q_proj.weight"] == (12288, 5120)  # each head's query and gate
    assert shapes["layers.0.linear_attn.in_proj_qkv.weight"] == (10240, 5120)
    assert shapes["layers.0.linear_attn.conv1d.weight"] == (10240, 1, 4)


def test_the_sparse_model_has_as_many_parameters_as_published() -> None:
    sizes = parameters(read_config(real_config("qwen3_8_flash_next"), Path("config.json")))
    rest = sum(sizes.values()) - sum(sizes[part] for part in ("experts", "table", "vision", "mtp"))
    assert round(sizes["experts"] / 1e9, 2) == 120.80
    assert round(sizes["table"] / 1e9, 2) == 51.20
    assert round(rest / 1e9, 2) == 4.95
    assert round(sizes["vision"] / 1e9, 3) == 0.449
    assert round((sum(sizes.values()) - sizes["mtp"]) / 1e9, 2) == 177.39
    assert round(sizes["mtp"] / 1e9, 2) == 2.61
    assert 2 * sum(sizes.values()) + 8 * (3 + 16 + 16) == 359_999_963_128  # all of the files, the hashes' int64 too


# ------------------------------------------------------------------------------------------------- against the library


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tied", [False, True])
def test_names_and_shapes_are_those_of_the_library(kind: str, tied: bool) -> None:
    with torch.device("meta"):
        theirs = model(kind, tie_word_embeddings=tied)
    config = read_config(theirs.config.to_dict(), Path("config.json"))
    wanted = {short(name): tuple(value.shape) for name, value in theirs.state_dict().items()}
    if tied:
        del wanted["lm_head.weight"]  # the same tensor as the embedding
    assert config.tied == tied
    assert {entry.name: entry.shape for entry in entries(config)} == wanted
    ours = {entry.name for entry in entries(config) if entry.whole}
    assert ours == {short(name) for name, value in theirs.state_dict().items() if value.dtype == torch.int64}


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_library_writes_fits(kind: str, tmp_path: Path) -> None:
    theirs = saved(kind, tmp_path)
    plan = look(tmp_path)
    assert plan.parameters == sum(value.numel() for value in theirs.parameters())
    assert plan.vision == (not kind.endswith("_text"))
    assert not plan.mtp


def test_a_tied_head_may_be_in_the_files_too(tmp_path: Path) -> None:
    saved("qwen3_5_text", tmp_path, tie_word_embeddings=True)
    bare = look(tmp_path)
    rewrite(tmp_path, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(96, 32)}))
    assert look(tmp_path) == bare


# --------------------------------------------------------------------------------------------------- what can be wrong


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    saved("qwen3_5_text", tmp_path)

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.norm.weight"]
        del tensors["model.layers.2.linear_attn.A_log"]
        tensors["model.layers.3.self_attn.q_proj.weight"] = torch.zeros(64, 32)
        tensors["model.layers.1.mlp.up_proj.weight"] = torch.zeros(48, 33)
        tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(128)

    rewrite(tmp_path, spoil)
    with pytest.raises(ModelError) as caught:
        look(tmp_path)
    said = str(caught.value)
    assert str(tmp_path) in said
    assert "2 missing: " in said
    assert "model.norm.weight" in said
    assert "model.layers.2.linear_attn.A_log" in said
    assert "2 of another shape: " in said
    assert "model.layers.3.self_attn.q_proj.weight is [64, 32] and must be [128, 32]" in said
    assert "model.layers.1.mlp.up_proj.weight is [48, 33] and must be [48, 32]" in said
    assert "1 that this model does not have: model.layers.0.self_attn.q_proj.bias" in said


def test_codes_where_numbers_are_wanted_are_named_before_anything_is_loaded(tmp_path: Path) -> None:
    saved("qwen4_exp_text", tmp_path)
    at = "model.layers.1.ple.ple_embedding"
    spoiled = {
        f"{at}.ngram_embedding.shard_2.weight": torch.float8_e4m3fn,
        f"{at}.layer_multipliers": torch.float32,
        "model.embed_tokens.weight": torch.int8,
    }
    rewrite(tmp_path, lambda all_: all_.update({name: all_[name].to(dtype) for name, dtype in spoiled.items()}))
    with pytest.raises(ModelError) as caught:
        look(tmp_path)
    said = str(caught.value)
    assert "3 of another number type: " in said
    assert f"{at}.ngram_embedding.shard_2.weight is F8_E4M3 and must be one of F64, F32, F16, BF16" in said
    assert f"{at}.layer_multipliers is F32 and must be whole numbers" in said
    assert "model.embed_tokens.weight is I8 and must be one of" in said


def test_a_missing_kind_of_tensor_is_counted_instead_of_listed(tmp_path: Path) -> None:
    saved("qwen3_5_moe_text", tmp_path)

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if name.endswith("up_proj.weight") and ".experts." in name]:
            del tensors[name]

    rewrite(tmp_path, spoil)
    with pytest.raises(
        ModelError, match=r"16 missing: model\.layers\.N\.mlp\.experts\.N\.up_proj\.weight \(16, the first"
    ):
        look(tmp_path)


@pytest.mark.parametrize("lost", [0, 2])
def test_a_missing_shard_of_a_table_is_named(lost: int, tmp_path: Path) -> None:
    saved("qwen4_exp_text", tmp_path)
    name = f"model.layers.1.ple.ple_embedding.ngram_embedding.shard_{lost}.weight"
    rewrite(tmp_path, lambda tensors: tensors.pop(name))
    with pytest.raises(ModelError, match=f"1 missing: {name}"):
        look(tmp_path)


def test_a_table_with_too_few_rows_is_named(tmp_path: Path) -> None:
    saved("qwen4_exp_text", tmp_path)
    name = "model.layers.1.ple.ple_embedding.ngram_embedding.shard_3.weight"
    rewrite(tmp_path, lambda tensors: tensors.update({name: tensors[name][:-1].clone()}))
    with pytest.raises(
        ModelError, match=r"shard_0\.weight to .*shard_3\.weight are \d+ rows of 6 and must be \[\d+, 6\]"
    ):
        look(tmp_path)


def test_buffers_of_old_checkpoints_are_no_fault(tmp_path: Path) -> None:
    saved("qwen3_5_text", tmp_path)
    before = look(tmp_path)
    rewrite(tmp_path, lambda tensors: tensors.update({"model.rotary_emb.inv_freq": torch.zeros(2)}))
    assert look(tmp_path) == before


# -------------------------------------------------------------------------------------------- parts that may be absent


def with_mtp(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """A checkpoint that says it has multi-token prediction, with these tensors of it."""
    saved("qwen3_5_text", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "mtp_num_hidden_layers": 1}))
    rewrite(folder, lambda all_tensors: all_tensors.update(tensors))


def test_multi_token_prediction_is_taken_where_its_tensors_are(tmp_path: Path) -> None:
    tensors = mtp_tensors(TEXT["hidden_size"])
    with_mtp(tmp_path, tensors)
    plan = look(tmp_path)
    assert plan.mtp
    assert plan.held["mtp"] == 2 * sum(value.numel() for value in tensors.values())
    without = look(tmp_path, mtp="off")
    assert not without.mtp
    assert without.parameters == plan.parameters - sum(value.numel() for value in tensors.values())


def test_multi_token_prediction_without_tensors_is_off_or_refused(tmp_path: Path) -> None:
    with_mtp(tmp_path, {})
    assert not look(tmp_path).mtp
    assert not look(tmp_path, mtp="off").mtp
    with pytest.raises(ModelError, match=r"`mtp: on` can't be met: .* the files hold no mtp\.\* tensors"):
        look(tmp_path, mtp="on")


def test_half_of_multi_token_prediction_is_a_fault(tmp_path: Path) -> None:
    tensors = mtp_tensors(TEXT["hidden_size"])
    del tensors["mtp.fc.weight"], tensors["mtp.layers.0.mlp.up_proj.weight"]
    with_mtp(tmp_path, tensors)
    with pytest.raises(ModelError, match=r"2 missing: mtp\.fc\.weight, mtp\.layers\.0\.mlp\.up_proj\.weight"):
        look(tmp_path)
    assert not look(tmp_path, mtp="off").mtp


def test_multi_token_prediction_with_its_own_embedding_is_refused_by_name(tmp_path: Path) -> None:
    with_mtp(tmp_path, mtp_tensors(TEXT["hidden_size"]))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "mtp_use_dedicated_embeddings": True}))
    assert not look(tmp_path).mtp
    with pytest.raises(ModelError, match="mtp_use_dedicated_embeddings"):
        look(tmp_path, mtp="on")


def test_the_tower_is_taken_where_its_tensors_are(tmp_path: Path) -> None:
    saved("qwen3_5", tmp_path)
    assert look(tmp_path).vision
    assert not look(tmp_path, vision="off").vision

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if ".visual." in name]:
            del tensors[name]

    rewrite(tmp_path, spoil)
    assert not look(tmp_path).vision
    with pytest.raises(ModelError, match=r"`vision: on` can't be met: .* the files hold no visual\.\* tensors"):
        look(tmp_path, vision="on")


def test_a_text_model_can_not_be_asked_for_a_tower(tmp_path: Path) -> None:
    saved("qwen3_5_text", tmp_path)
    with pytest.raises(ModelError, match="has no vision_config"):
        look(tmp_path, vision="on")


# --------------------------------------------------------------------------------------------------------- what is told


def test_a_description_says_what_would_be_held(tmp_path: Path) -> None:
    theirs = saved("qwen4_exp", tmp_path)
    told = describe(Folder(tmp_path), config_of(tmp_path), {}, dtype=torch.bfloat16)
    numbers = sum(value.numel() for value in theirs.parameters())
    table = theirs.model.language_model.layers[1].ple.ple_embedding.ngram_embedding.weight.numel()
    whole = sum(value.numel() for value in theirs.buffers() if value.dtype == torch.int64)
    assert told["parameters"] == numbers
    assert told["weight_bytes"] == 2 * (numbers - table) + 8 * whole
    assert told["weight_bytes"] == sum(told["bytes_by_part"].values())
    assert told["mapped_bytes"] == 4 * table  # as it is stored, float32 here
    assert told["kv_bytes_per_token"] == (2 * 2 * 16 + 16) * 2  # one layer: keys, values, index keys
    assert told["state_bytes"] == 3 * 4 * 8 * 16 * 4
    assert told["context_length"] == 512
    assert (told["mtp"], told["vision"], told["weights"]) == (False, True, "dense")


def test_what_a_sequence_of_the_real_models_takes() -> None:
    from tandem.plugins.models._hybrid.plan import conv_bytes, kv_bytes_per_token, state_bytes

    dense = read_config(real_config("qwen3_8_27b"), Path("config.json"))
    assert kv_bytes_per_token(dense, 2) == 65_536
    assert state_bytes(dense) == 150_994_944  # 144 MiB
    assert conv_bytes(dense, 2) == 2_949_120
    sparse = read_config(real_config("qwen3_8_flash_next"), Path("config.json"))
    assert kv_bytes_per_token(sparse, 2) == 12 * (2 * 2 * 256 + 128) * 2
    assert state_bytes(sparse) == 36 * 48 * 128 * 128 * 4
