"""A whole model out of packed weights computes what the dense model of the weights they stand for computes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from stored_weights import (
    CONFIG,
    ENABLED,
    MOE,
    Store,
    Tensors,
    dense_tensors,
    fp8_blocks,
    nvfp4_compressed,
    nvfp4_modelopt,
    write,
)
from tokenizers import Tokenizer, models

from tandem.core.plugin import Block, Checkpoint, Model
from tandem.core.plugin.part import with_defaults
from tandem.plugins.models import qwen3_5

TOKENS = [3, 14, 15, 9, 2, 6, 5, 35, 8, 9, 7, 9]

FP8 = {
    "quant_method": "fp8",
    "weight_block_size": [32, 16],
    "modules_to_not_convert": ["lm_head", "in_proj_a", "in_proj_b"],
}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}}
    },
    "ignore": ["lm_head", "re:.*in_proj_[ab]$"],
}
MODELOPT = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "exclude_modules": ["lm_head", "*in_proj_a", "*in_proj_b"],
}


def build(folder: Path, quantized: bool) -> Model:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.save(str(folder / "tokenizer.json"))
    parts = {"quantizations": ENABLED if quantized else ()}
    options = with_defaults(qwen3_5.OPTIONS, {"device": "cpu", "dtype": "float32"})
    return qwen3_5.build(Checkpoint(folder, str(folder), parts), options, lambda what, done, total: None)


def logits(model: Model) -> torch.Tensor:
    """All rows of a prompt read in two chunks, `[rows, vocab]`."""
    sequence, found = model.new_sequence(64), []
    for chunk in (TOKENS[:7], TOKENS[7:]):
        found += model.forward([Block(sequence, chunk, logits=range(len(chunk)))])
        sequence.commit(range(len(chunk)))
    return torch.cat(found)


def natural(tensors: Tensors) -> None:
    """Numbers of a size that a model would have, so that no activation runs away."""
    for name, value in tensors.items():
        if name.endswith(".weight") and value.dtype == torch.bfloat16 and value.ndim > 1:
            value.mul_(0.2)


@pytest.mark.parametrize(
    ("quantization", "store"),
    [(FP8, fp8_blocks((32, 16))), (COMPRESSED, nvfp4_compressed), (MODELOPT, nvfp4_modelopt)],
    ids=["fp8", "compressed-tensors", "modelopt"],
)
@pytest.mark.parametrize("config", [CONFIG, MOE], ids=["dense", "sparse"])
def test_a_packed_model_is_the_dense_one_of_its_weights(
    config: Mapping[str, Any], quantization: Mapping[str, Any], store: Store, tmp_path: Path
) -> None:
    (packed_folder := tmp_path / "packed").mkdir()
    (dense_folder := tmp_path / "dense").mkdir()

    def store_of(layer: str) -> Store | None:
        return None if layer.endswith(("lm_head", "in_proj_a", "in_proj_b")) else store

    plain: Tensors = {}
    expected = write(
        packed_folder, config, quantization, store_of, spoil=lambda found: (natural(found), plain.update(found))
    )
    dense: Tensors = {}
    for name in dense_tensors(config):
        stored = plain.get(name)
        if stored is not None and stored.dtype == torch.bfloat16:
            dense[name] = stored.float()
        else:
            dense[name] = torch.from_numpy(expected[name.removesuffix(".weight")].astype(np.float32))
    save_file(dense, dense_folder / "model.safetensors")
    (dense_folder / "config.json").write_text(
        (packed_folder / "config.json").read_text().replace("quantization_", "no_")
    )

    ours, theirs = build(packed_folder, True), build(dense_folder, False)
    assert ours.facts["weights"] in ("fp8_block", "nvfp4")
    assert theirs.facts["weights"] == "dense"
    assert ours.facts["weight_bytes"] < 0.75 * theirs.facts["weight_bytes"]
    wanted = logits(theirs)
    assert wanted.isfinite().all()
    assert wanted.std() > 0.1
    torch.testing.assert_close(logits(ours), wanted, rtol=1e-3, atol=1e-3)
