"""Reading tensors, layers, experts and tables out of a checkpoint's files."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from hybrid_tiny import KINDS, saved
from hypothesis import given, strategies as st
from safetensors.torch import load_file, save_file

from tandem.core.plugin import ModelError
from tandem.plugins.models._hf.folder import Folder
from tandem.plugins.models._hybrid.config import read_config
from tandem.plugins.models._hybrid.plan import check, entries
from tandem.plugins.models._hybrid.weights import BiasedLinear, DenseLinear, Experts, Loader, short

THIRDPARTY = Path(__file__).parents[3] / "thirdparty"
TABLE = "layers.1.ple.ple_embedding.ngram_embedding"


def loader(folder: Path, dtype: torch.dtype = torch.float32, quantizations: Any = ()) -> Loader:
    opened = Folder(folder)
    return Loader(opened, read_config(opened.config, folder / "config.json"), quantizations, "cpu", dtype)


def all_tensors(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    return found


def replace_all(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    save_file(tensors, folder / "model.safetensors")


# --------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("full", "wanted"),
    [
        ("model.language_model.layers.3.mlp.up_proj.weight", "layers.3.mlp.up_proj.weight"),
        ("language_model.model.layers.3.mlp.up_proj.weight", "layers.3.mlp.up_proj.weight"),
        ("model.layers.3.mlp.up_proj.weight", "layers.3.mlp.up_proj.weight"),
        ("layers.3.mlp.up_proj.weight", "layers.3.mlp.up_proj.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("model.visual.pos_embed.weight", "visual.pos_embed.weight"),
        ("mtp.layers.0.mlp.up_proj.weight", "mtp.layers.0.mlp.up_proj.weight"),
        ("model.mtp.fc.weight", "mtp.fc.weight"),
    ],
)
def test_a_short_name_is_the_same_in_every_wrapper(full: str, wanted: str) -> None:
    assert short(full) == wanted


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model.", "model.", ""])
def test_a_checkpoint_may_be_wrapped_in_any_way(prefix: str, tmp_path: Path) -> None:
    saved("qwen3_5_text", tmp_path)
    tensors = all_tensors(tmp_path)
    plain = check(loader(tmp_path))
    replace_all(tmp_path, {name.replace("model.", prefix, 1): value for name, value in tensors.items()})
    opened = loader(tmp_path)
    assert check(opened) == plain
    wanted = tensors["model.layers.3.self_attn.o_proj.weight"]
    assert torch.equal(opened.linear("layers.3.self_attn.o_proj", (32, 64)).dense(), wanted)
    with pytest.raises(ModelError, match=f"there is no tensor {re.escape(prefix)}layers"):
        opened.tensor("layers.9.A_log")


def test_the_same_tensor_twice_is_refused_with_both_names(tmp_path: Path) -> None:
    saved("qwen3_5_text", tmp_path)
    tensors = all_tensors(tmp_path)
    replace_all(tmp_path, {**tensors, "model.language_model.norm.weight": tensors["model.norm.weight"].clone()})
    with pytest.raises(
        ModelError, match=r"model\.language_model\.norm\.weight.*model\.norm\.weight|model\.norm\.weight"
    ):
        loader(tmp_path)


# ------------------------------------------------------------------------------------------------------------- tensors


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_is_the_librarys_own(kind: str, tmp_path: Path) -> None:
    theirs = {short(name): value for name, value in saved(kind, tmp_path).state_dict().items()}
    opened = loader(tmp_path)
    for entry in entries(opened.config):
        if entry.part == "table":
            found = opened.table(entry.layer)(torch.arange(entry.shape[0]))
        elif entry.part == "experts":
            experts = opened.experts(entry.name.rpartition(".")[0])
            both = {"gate_up_proj": experts.gate_up, "down_proj": experts.down}
            found = both[entry.name.rpartition(".")[2]]
        elif entry.linear:
            found = opened.linear(entry.layer, (entry.shape[0], entry.shape[1])).dense()
        else:
            found = opened.tensor(entry.name)
        assert found.dtype == theirs[entry.name].dtype
        assert torch.equal(found, theirs[entry.name])


def test_whole_numbers_stay_whole_and_others_become_what_is_asked(tmp_path: Path) -> None:
    saved("qwen4_exp_text", tmp_path)
    opened = loader(tmp_path, torch.bfloat16)
    hashes = opened.tensor("layers.1.ple.ple_embedding.layer_multipliers")
    assert hashes.dtype == torch.int64
    assert hashes.max() > 2**53  # more than a float could keep
    assert opened.tensor("layers.0.linear_attn.A_log").dtype == torch.bfloat16
    assert opened.tensor("layers.0.linear_attn.A_log", torch.float32).dtype == torch.float32


def test_tensors_outlive_their_files(tmp_path: Path) -> None:
    saved("qwen3_5_text", tmp_path)
    opened = loader(tmp_path)
    before = opened.tensor("norm.weight")
    wanted = before.clone()
    for path in tmp_path.glob("*.safetensors"):  # as an update of the checkpoint in place would
        path.write_bytes(bytes(path.stat().st_size))
    assert torch.equal(before, wanted)


def test_a_matrix_of_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    saved("qwen3_5_text", tmp_path)
    with pytest.raises(
        ModelError, match=r"model\.layers\.0\.mlp\.up_proj\.weight has the shape \[48, 32\]; .* \[32, 48\]"
    ):
        loader(tmp_path).linear("layers.0.mlp.up_proj", (32, 48))


def test_a_layer_may_have_a_bias(tmp_path: Path) -> None:
    theirs = saved("qwen3_5", tmp_path).model.visual.blocks[1].attn.qkv
    ours = loader(tmp_path).linear("visual.blocks.1.attn.qkv", (48, 16), bias=True)
    rows = torch.randn(3, 16)
    assert isinstance(ours, BiasedLinear)
    assert ours.shape == (48, 16)
    torch.testing.assert_close(ours(rows), theirs(rows))


def test_a_loader_knows_what_is_there(tmp_path: Path) -> None:
    saved("qwen3_5_text", tmp_path)
    opened = loader(tmp_path)
    assert "layers.0.mlp.up_proj" in opened
    assert "model.layers.0.mlp.up_proj.weight" in opened
    assert "mtp.fc" not in opened


# ------------------------------------------------------------------------------------------------------------- experts


def fuse(tensors: dict[str, torch.Tensor], layers: int, experts: int) -> dict[str, torch.Tensor]:
    """The files of the library with the experts of a layer in two tensors, as the published ones have them."""
    found = dict(tensors)
    for layer in range(layers):
        at = f"model.language_model.layers.{layer}.mlp.experts"
        parts = {
            part: torch.stack([found.pop(f"{at}.{expert}.{part}_proj.weight") for expert in range(experts)])
            for part in ("gate", "up", "down")
        }
        found[f"{at}.gate_up_proj"] = torch.cat([parts["gate"], parts["up"]], 1)
        found[f"{at}.down_proj"] = parts["down"]
    return found


@pytest.mark.parametrize("kind", ["qwen3_5_moe", "qwen4_exp"])
def test_fused_experts_and_single_ones_load_the_same(kind: str, tmp_path: Path) -> None:
    saved(kind, tmp_path)
    single = loader(tmp_path)
    plan, before = check(single), single.experts("layers.2.mlp.experts")
    replace_all(tmp_path, fuse(all_tensors(tmp_path), 4, 4))
    fused = loader(tmp_path)
    assert check(fused) == plan
    after = fused.experts("layers.2.mlp.experts")
    assert before.gate_up is not None
    assert after.gate_up is not None
    assert torch.equal(before.gate_up, after.gate_up)
    assert torch.equal(before.down, after.down)
    assert (len(after), after.nbytes) == (4, 4 * 3 * 16 * 32 * 4)
    rows = torch.randn(3, 32)
    gate, up = after.read(1, rows)
    torch.testing.assert_close(after[1](rows), after.write(1, torch.nn.functional.silu(gate) * up))


def test_both_forms_of_experts_compute_the_same() -> None:
    generator = torch.Generator().manual_seed(0)
    gate_up, down = torch.randn(3, 10, 8, generator=generator), torch.randn(3, 8, 5, generator=generator)
    dense = Experts(gate_up, down)
    parts = ((both[:5], both[5:], out) for both, out in zip(gate_up, down, strict=True))
    packed = Experts(None, None, tuple(tuple(map(DenseLinear, expert)) for expert in parts))
    rows = torch.randn(4, 8, generator=generator)
    assert (len(packed), packed.nbytes) == (len(dense), dense.nbytes)
    for expert in range(3):
        torch.testing.assert_close(packed[expert](rows), dense[expert](rows))


# -------------------------------------------------------------------------------------------------------------- tables


@given(data=st.data())
def test_a_table_gives_the_rows_that_are_asked_for_across_its_shards(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    width = data.draw(st.integers(1, 3))
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    whole = torch.randn(sum(sizes), width).to(dtype)
    folder = tmp_path_factory.mktemp("table")
    shards = {f"model.{TABLE}.shard_{place}.weight": part.clone() for place, part in enumerate(whole.split(sizes))}
    names = sorted(shards)  # the order in a file is not that of the rows
    half = len(names) // 2
    files = {"a.safetensors": names[:half], "b.safetensors": names[half:]}
    for file, mine in files.items():
        save_file({name: shards[name] for name in mine}, folder / file)
    index = {name: file for file, mine in files.items() for name in mine}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (folder / "config.json").write_text('{"model_type": "qwen3_5_text"}')
    table = loader(folder).table(TABLE)
    assert (table.rows, table.width, table.nbytes) == (*whole.shape, whole.nbytes)
    ids = torch.tensor(data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=6)), dtype=torch.int64)
    assert torch.equal(table(ids), whole[ids])
    if len(ids) % 2 == 0:
        assert torch.equal(table(ids.view(2, -1)), whole[ids.view(2, -1)])


def test_a_table_is_not_read_into_memory(tmp_path: Path) -> None:
    """A table of a GiB (a sparse file, as large as it says) is opened and asked for rows all over it."""
    rows, width = 1 << 19, 512
    header = json.dumps(
        {f"{TABLE}.weight": {"dtype": "F32", "shape": [rows, width], "data_offsets": [0, rows * width * 4]}}
    )
    start = len(header).to_bytes(8, "little") + header.encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(start)
        file.truncate(len(start) + rows * width * 4)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_5_text"}')
    process = psutil.Process()
    before = process.memory_info().rss
    table = loader(tmp_path).table(TABLE)
    found = table(torch.arange(0, rows, 4096))
    assert found.shape == (128, width)
    assert process.memory_info().rss - before < 64 << 20
    assert table.nbytes == 1 << 30


def test_a_table_of_codes_is_refused(tmp_path: Path) -> None:
    saved("qwen4_exp_text", tmp_path)
    tensors = all_tensors(tmp_path)
    name = f"model.{TABLE}.shard_1.weight"
    replace_all(tmp_path, {**tensors, name: tensors[name].to(torch.float8_e4m3fn)})
    with pytest.raises(ModelError, match=r"is stored as F32, F8_E4M3; all of a table must be stored as one of"):
        loader(tmp_path).table(TABLE)


# ------------------------------------------------------------------------------------------ a quantization from outside


def test_a_quantization_from_outside_reads_its_checkpoints(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location(
        "row_int8_here", THIRDPARTY / "tandem-row-int8" / "tandem_row_int8.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (part,) = module.tandem_quantizations()
    saved("qwen3_5_text", tmp_path)
    tensors, expected = {}, {}
    for name, value in all_tensors(tmp_path).items():
        tensors[name] = value
        if name.endswith("_proj.weight") and ".mlp." in name:
            scales = value.abs().amax(1) / 127
            tensors[name] = (value / scales[:, None]).round().to(torch.int8)
            tensors[name.replace(".weight", ".weight_scale")] = scales
            expected[short(name).removesuffix(".weight")] = tensors[name].float() * scales[:, None]
    replace_all(tmp_path, tensors)
    config = json.loads((tmp_path / "config.json").read_text())
    said = {**config, "quantization_config": {"quant_method": "row_int8"}}
    (tmp_path / "config.json").write_text(json.dumps(said))
    opened = loader(tmp_path, quantizations=((part, {}),))
    plan = check(opened)
    assert opened.quantized_by == "row_int8"
    assert plan.held["mlp"] == sum(matrix.numel() + 4 * len(matrix) for matrix in expected.values())
    for name, matrix in expected.items():
        linear = opened.linear(name, (matrix.shape[0], matrix.shape[1]))
        assert isinstance(linear, module.Matrix)
        assert torch.equal(linear.dense(), matrix)
