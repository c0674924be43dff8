"""Checkpoints that load, that say what they are, and that are refused in words."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from qwen35_tiny import OPTIONS, Tiny, load, logits_of, rewrite, started, text
from safetensors.torch import load_file, save_file

from tandem.core.plugin import Checkpoint, ModelError, Quantization
from tandem.core.plugin.part import with_defaults
from tandem.plugins.models.qwen3_5 import build, describe, tandem_models


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A checkpoint of the test's own."""
    shutil.copytree(folder, tmp_path / "copy")
    return tmp_path / "copy"


def edit(path: Path, **changes: Any) -> None:
    """Change fields of a config.json."""
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, **changes}))


def test_the_part_describes_itself() -> None:
    [part] = tandem_models()
    assert part.name == "qwen3_5"
    assert "Qwen3_5ForConditionalGeneration" in part.architectures
    assert all(option["description"].endswith(".") and "default" in option for option in part.options.values())
    assert len(part.summary) <= 120


@pytest.mark.parametrize("kind", ["text", "moe", "picture"])
def test_what_is_described_is_what_is_loaded(kind: str, tiny_of: Callable[..., Tiny]) -> None:
    tiny = tiny_of(kind)
    told: list[tuple[str, int, int]] = []
    chosen = with_defaults(OPTIONS, {"dtype": "float32", "device": "cpu"})
    checkpoint = Checkpoint(tiny.path, str(tiny.path))
    model = build(checkpoint, chosen, lambda *progress: told.append(progress))
    facts = describe(checkpoint, chosen)
    assert dict(model.facts) == dict(facts)
    own = sum(value.numel() for value in tiny.reference.parameters())
    assert facts["parameters"] > own  # and multi-token prediction
    assert facts["parameters"] - own < own
    assert facts["mtp"] is True
    assert facts["vision"] is (kind == "picture")
    assert told[-1][1] == told[-1][2] == 5
    assert model.caps.max_len == 1024
    assert model.caps.tree
    assert model.caps.joint
    assert not model.caps.trim
    assert model.tokenizer.eos_ids == {2}
    assert model.tokenizer.encode("hi")


@pytest.mark.parametrize(("options", "held"), [({"dtype": "bfloat16"}, "bfloat16"), ({"dtype": "float32"}, "float32")])
def test_the_number_type_is_as_told_and_the_state_is_float32(options: dict[str, Any], held: str, folder: Path) -> None:
    model = load(folder, **options)
    assert model.facts["dtype"] == held
    sequence = model.new_sequence(10)
    tensors = sequence.snapshot().tensors()
    assert {str(value.dtype) for name, value in tensors.items() if name.endswith("rows")} == {f"torch.{held}"}
    assert {value.dtype for name, value in tensors.items() if name.endswith("matrix")} == {torch.float32}


def test_a_gpu_that_is_not_there_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelError, match="device: cuda"):
        load(folder, device="cuda")
    assert load(folder, device="auto").facts["dtype"] == "float32"


def test_shards_and_wrapped_names_load_alike(tiny_of: Callable[..., Tiny], tmp_path: Path) -> None:
    tiny = tiny_of("picture")
    tiny.reference.save_pretrained(tmp_path, max_shard_size="100KB")
    for name in ("tokenizer.json", "preprocessor_config.json"):
        shutil.copy(tiny.path / name, tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    model = load(tmp_path)
    assert model.head is None  # transformers does not save it
    assert torch.equal(logits_of(model, text(20)), logits_of(load(tiny.path), text(20)))


def test_a_fingerprint_changes_with_the_files_and_with_how_they_are_held(copy: Path) -> None:
    first = load(copy).fingerprint
    assert load(copy).fingerprint == first
    assert load(copy, mtp="off").fingerprint != first
    assert load(copy, dtype="bfloat16").fingerprint != first
    rewrite(copy, add={"model.norm.weight": torch.ones(48)})
    assert load(copy).fingerprint != first


# -------------------------------------------------------------------------------------------------- packed weights


@dataclass(frozen=True)
class Halves:
    """A matrix held as half of itself."""

    half: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.half.shape[0], self.half.shape[1]

    @property
    def nbytes(self) -> int:
        return self.half.nbytes

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return rows @ (2 * self.half.to(rows.dtype)).t()

    def dense(self) -> torch.Tensor:
        return 2 * self.half.float()


class HalvesScheme:
    """Stores every MLP, the draft head's included, and the output head as `NAME.half`; 0.5 W is exact in any type."""

    def tensors(self, name: str, shape: tuple[int, int]) -> Mapping[str, tuple[int, ...]] | None:
        return {f"{name}.half": shape} if ".mlp." in name or name == "lm_head" else None

    def nbytes(self, name: str, shape: tuple[int, int]) -> int:
        return 4 * shape[0] * shape[1]

    def pack(
        self, name: str, shape: tuple[int, int], tensor: Callable[[str], torch.Tensor], device: torch.device
    ) -> Halves:
        return Halves(tensor(f"{name}.half").to(device))


HALVES = Quantization(name="halves", open=lambda options, config: HalvesScheme() if config == {"a": 1} else None)


def test_packed_matrices_come_through_the_enabled_quantizations(copy: Path, folder: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    packed = {
        name.replace(".weight", ".half"): 0.5 * value
        for name, value in weights.items()
        if ".mlp." in name or name == "lm_head.weight"
    }
    kept = {name: value for name, value in weights.items() if name.replace(".weight", ".half") not in packed}
    save_file({**kept, **packed}, copy / "model.safetensors")
    edit(copy / "config.json", quantization_config={"a": 1})
    chosen = with_defaults(OPTIONS, {"dtype": "float32", "device": "cpu"})
    checkpoint = Checkpoint(copy, str(copy), {"quantizations": ((HALVES, {}),)})
    model = build(checkpoint, chosen, lambda *progress: None)
    plain = load(folder)
    assert model.facts["weights"] != "dense"
    torch.testing.assert_close(logits_of(model, text(40)), logits_of(plain, text(40)), rtol=1e-4, atol=1e-4)
    drafts = []
    for each in (model, plain):
        sequence = started(each, text(9))
        each.head.start(sequence)
        drafts.append(each.head.extend(sequence, [5], [-1]))
    torch.testing.assert_close(*drafts, rtol=1e-4, atol=1e-4)
    with pytest.raises(ModelError, match="quantization"):
        load(copy)


# ------------------------------------------------------------------------------------------------------- refusals


def refused(path: Path, words: str, **options: Any) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        load(path, **options)
    assert str(path) in str(caught.value)
    with pytest.raises(ModelError, match=words):
        describe(Checkpoint(path, str(path)), with_defaults(OPTIONS, {"device": "cpu", **options}))


def test_a_file_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    refused(tmp_path / "model.gguf", "this is a file; the builder reads a Hugging Face directory")


def test_a_directory_without_a_config_is_no_checkpoint(tmp_path: Path) -> None:
    refused(tmp_path, r"no config\.json")


def test_a_model_of_another_family_is_refused(copy: Path) -> None:
    edit(copy / "config.json", model_type="llama")
    refused(copy, "model_type is 'llama'")


def test_missing_and_misshapen_tensors_are_named_together(copy: Path) -> None:
    rewrite(copy, drop="model.layers.1.linear_attn.A_log", add={"model.norm.weight": torch.ones(47)})
    refused(copy, r"1 missing: model\.layers\.1\.linear_attn\.A_log; 1 of another shape: model\.norm\.weight")


def test_a_config_of_another_size_is_refused(copy: Path) -> None:
    edit(copy / "config.json", num_attention_heads=2, num_key_value_heads=2)
    refused(copy, r"of another shape: .*self_attn\.q_proj\.weight")


def test_a_checkpoint_without_a_tokenizer_is_refused(copy: Path) -> None:
    (copy / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"there is no tokenizer\.json"):
        load(copy)
