"""The vision tower, against transformers' own on the same random weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from tandem.core.plugin import ModelError
from tandem.core.plugin.vision import ImageProcessor, Picture
from tandem.plugins.models._hf.folder import Folder
from tandem.plugins.models._hybrid.config import HybridConfig, read_config
from tandem.plugins.models._hybrid.vision import VisionTower
from tandem.plugins.models._hybrid.weights import Loader

VISION: dict[str, Any] = {
    "model_type": "qwen3_5",
    "depth": 3,
    "hidden_size": 32,
    "num_heads": 2,
    "intermediate_size": 40,
    "out_hidden_size": 24,
    "num_position_embeddings": 25,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "in_channels": 3,
    "deepstack_visual_indexes": [],
}
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "text_config": {"model_type": "qwen3_5_text", "hidden_size": 24, "num_hidden_layers": 1},
    "vision_config": VISION,
}
PROCESSOR = ImageProcessor(min_pixels=1024, max_pixels=1024 * 64)


@cache
def reference() -> Any:
    """transformers' tower; norms and biases are random too, so that none of them can be forgotten."""
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5VisionConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5VisionModel

    torch.manual_seed(5)
    tower = Qwen3_5VisionModel(Qwen3_5VisionConfig(**{k: v for k, v in VISION.items() if k != "model_type"})).eval()
    with torch.no_grad():
        for name, tensor in tower.named_parameters():
            noise = torch.randn_like(tensor)
            tensor.copy_(1 + 0.3 * noise if "norm" in name and name.endswith("weight") else 0.2 * noise)
    return tower


def write(path: Path, config: Mapping[str, Any] = CONFIG, without: str = "") -> tuple[Folder, HybridConfig]:
    path.mkdir(exist_ok=True)
    tensors = {f"model.visual.{name}": tensor for name, tensor in reference().state_dict().items()}
    tensors.pop(f"model.visual.{without}", None)
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))
    return Folder(path), read_config(config, path / "config.json")


def tower_of(path: Path, dtype: torch.dtype = torch.float32, **options: Any) -> VisionTower:
    folder, config = write(path)
    assert config.vision is not None
    return VisionTower(Loader(folder, config, (), "cpu", dtype), config.vision, PROCESSOR, **options)


@pytest.fixture(scope="module")
def tower(tmp_path_factory: pytest.TempPathFactory) -> VisionTower:
    torch.set_num_threads(1)
    return tower_of(tmp_path_factory.mktemp("tower"))


def picture(width: int, height: int, seed: int = 0) -> Picture:
    """Noise, at the size that it is read in."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return PROCESSOR.picture(Image.fromarray(pixels))


def expected(shown: Picture) -> torch.Tensor:
    pixels = torch.from_numpy(PROCESSOR.pixel_values(shown))
    with torch.no_grad():
        rows: torch.Tensor = reference()(pixels, grid_thw=torch.tensor([shown.grid])).pooler_output
    return rows


@pytest.mark.parametrize(
    "size", [(32, 32), (64, 64), (160, 160), (224, 352), (352, 224), (32, 480), (480, 32), (96, 64)], ids=str
)
def test_rows_are_those_of_transformers(tower: VisionTower, size: tuple[int, int]) -> None:
    shown = picture(*size)
    rows = tower.rows(shown)
    assert rows.shape == (shown.rows, 24)
    torch.testing.assert_close(rows, expected(shown), rtol=1e-4, atol=1e-4)


def test_a_larger_mlp_input_than_one_slice_changes_nothing(tower: VisionTower, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = picture(160, 128)
    whole = tower.rows(shown)
    tower.kept.clear()
    monkeypatch.setattr("tandem.plugins.models._hybrid.vision.SLICE", 7)
    torch.testing.assert_close(tower.rows(shown), whole, rtol=1e-5, atol=1e-5)


def test_low_precision_stays_near(tower: VisionTower, tmp_path: Path) -> None:
    shown = picture(128, 96)
    rows = tower_of(tmp_path, torch.bfloat16).rows(shown)
    exact = expected(shown)
    assert rows.dtype == torch.bfloat16
    assert ((rows.float() - exact).norm() / exact.norm()).item() < 0.03


def test_a_row_shows_its_own_place(tower: VisionTower) -> None:
    """With attention cut off, a row depends on the four patches of its own place alone."""
    shown = picture(96, 64)
    painted = np.array(shown.pixels)
    painted[32:64, 64:96] = 255  # row 1, column 2 of the merged grid
    other = PROCESSOR.picture(Image.fromarray(painted))
    assert shown.grid == (1, 4, 6)

    class Silent(VisionTower):
        def _attend(self, block: Any, x: torch.Tensor, *turns: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(x)

    silent = object.__new__(Silent)
    silent.__dict__ = dict(tower.__dict__)
    changed = (silent._compute(shown) != silent._compute(other)).any(1)
    assert changed.tolist() == [False, False, False, False, False, True]


# ------------------------------------------------------------------------------------------------------ what is kept


def counting(tower: VisionTower, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pictures that the tower really computes from here on."""
    computed: list[str] = []
    compute = tower._compute

    def counted(shown: Picture) -> torch.Tensor:
        computed.append(shown.id)
        return compute(shown)

    monkeypatch.setattr(tower, "_compute", counted)
    return computed


def test_a_picture_is_computed_once(tower: VisionTower, monkeypatch: pytest.MonkeyPatch) -> None:
    tower.kept.clear()
    computed = counting(tower, monkeypatch)
    first = tower.rows(picture(64, 64, 1))
    assert tower.rows(picture(64, 64, 1)) is first, "the same pixels again, sent in another request"
    tower.rows(picture(64, 64, 2))
    assert len(computed) == 2
    assert tower.kept.nbytes == 2 * first.nbytes


def test_the_least_lately_used_picture_goes_when_room_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = (picture(64, 64, seed) for seed in range(3))
    small = tower_of(tmp_path, kept_bytes=2 * a.rows * 24 * 4)
    computed = counting(small, monkeypatch)
    for shown in (a, b, a, c, a, b):
        small.rows(shown)
    assert computed == [a.id, b.id, c.id, b.id]
    assert small.kept.nbytes <= 2 * a.rows * 24 * 4


def test_a_picture_larger_than_the_room_is_kept_until_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt's chunks ask for it one after another."""
    small = tower_of(tmp_path, kept_bytes=0)
    computed = counting(small, monkeypatch)
    a, b = picture(64, 64, 0), picture(64, 64, 1)
    for shown in (a, a, a, b, b):
        small.rows(shown)
    assert computed == [a.id, b.id]


# ---------------------------------------------------------------------------------------------------- what is refused


def test_another_processor_is_refused_by_name(tmp_path: Path) -> None:
    folder, config = write(tmp_path)
    loader = Loader(folder, config, (), "cpu", torch.float32)
    assert config.vision is not None
    with pytest.raises(ModelError, match=r"patch_size 14 .*tower 16"):
        VisionTower(loader, config.vision, ImageProcessor(min_pixels=1024, max_pixels=4096, patch_size=14))


@pytest.mark.parametrize("name", ["pos_embed.weight", "blocks.2.attn.qkv.bias", "merger.linear_fc2.weight"])
def test_an_absent_tensor_is_named(tmp_path: Path, name: str) -> None:
    folder, config = write(tmp_path, without=name)
    assert config.vision is not None
    with pytest.raises(ModelError, match=rf"model\.visual\.{name}"):
        VisionTower(Loader(folder, config, (), "cpu", torch.float32), config.vision, PROCESSOR)
