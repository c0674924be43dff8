"""The image processor, against the one that the checkpoint names."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from PIL import Image

from tandem.core.plugin.vision import ImageProcessor, Picture, smart_resize

CONFIG: dict[str, Any] = {
    "size": {"longest_edge": 16777216, "shortest_edge": 65536},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "processor_class": "Qwen3VLProcessor",
    "image_processor_type": "Qwen2VLImageProcessorFast",
}
QWEN = ImageProcessor.from_config(CONFIG)
SMALL = {**CONFIG, "size": {"longest_edge": 256 * 1024, "shortest_edge": 65536}}
"""Shrinks images that are quick to make."""
UNEVEN = {
    **SMALL,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "patch_size": 14,
}


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """Noise with some large shapes in it, so that resampling has edges of both kinds."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (5, 5, 3), np.uint8)).resize((width, height))
    return Image.blend(coarse, Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8)), 0.3)


@cache
def reference(name: str = "qwen") -> Any:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    config = {"qwen": CONFIG, "small": SMALL, "uneven": UNEVEN}[name]
    return Qwen2VLImageProcessorPil(**{key: value for key, value in config.items() if not isinstance(value, str)})


@pytest.mark.parametrize(
    ("size", "grid", "rows"),
    [
        ((640, 480), (1, 30, 40), 300),
        ((100, 60), (1, 14, 22), 77),
        ((5000, 4000), (1, 228, 286), 16302),
        ((1, 1), (1, 16, 16), 64),
        ((4096, 4096), (1, 256, 256), 16384),
    ],
)
def test_the_rows_of_a_picture_are_known_from_its_size(
    size: tuple[int, int], grid: tuple[int, int, int], rows: int
) -> None:
    assert QWEN.grid(*size) == grid
    assert QWEN.rows(*size) == rows


def test_a_tie_rounds_to_the_even_multiple() -> None:
    assert smart_resize(1008, 1040, 32, 65536, 16777216) == (1024, 1024)


@settings(max_examples=300)
@given(st.integers(1, 20000), st.integers(1, 20000))
@example(200, 1)
@example(6400, 32)
@example(20000, 100)
def test_sizes_and_rows_are_the_references(width: int, height: int) -> None:
    if max(width, height) > 200 * min(width, height):
        with pytest.raises(ValueError, match=f"is {width} by {height} pixels; one side may be at most 200 times"):
            QWEN.grid(width, height)
        return
    assert 4 * QWEN.rows(width, height) == reference().get_number_of_image_patches(height, width)
    assert 64 <= QWEN.rows(width, height) <= QWEN.max_rows == 16384
    resized = smart_resize(width, height, 32, 65536, 16777216)
    assert all(side % 32 == 0 for side in resized)


@settings(max_examples=25)
@given(st.integers(1, 700), st.integers(1, 700), st.integers(0, 1000), st.sampled_from(["qwen", "small", "uneven"]))
@example(640, 480, 0, "qwen")
@example(100, 60, 0, "qwen")
@example(1, 150, 0, "qwen")
@example(700, 690, 0, "small")
def test_pixel_values_are_the_references_to_the_last_bit(width: int, height: int, seed: int, name: str) -> None:
    if max(width, height) > 200 * min(width, height):
        return
    image = noise(width, height, seed)
    config = {"qwen": CONFIG, "small": SMALL, "uneven": UNEVEN}[name]
    processor = ImageProcessor.from_config(config)
    picture = processor.picture(image)
    values = processor.pixel_values(picture)
    wanted = reference(name)(image, return_tensors="np")
    assert values.dtype == np.float32
    assert [list(picture.grid)] == wanted["image_grid_thw"].tolist()
    np.testing.assert_array_equal(values, wanted["pixel_values"])
    assert picture.rows * 4 == len(values)


def test_the_patches_of_one_prompt_row_lie_side_by_side() -> None:
    pixels = np.zeros((64, 96, 3), np.uint8)
    pixels[32:, 64:] = 255  # the last merged patch of two rows of three
    values = QWEN.pixel_values(Picture("", (96, 64), pixels, (1, 4, 6), 6))
    assert values.shape == (24, 3 * 2 * 16 * 16)
    assert (values[:20] == -1).all()
    assert (values[20:] == 1).all()


def test_a_patch_is_channel_then_frame_then_pixel_and_both_frames_are_the_picture() -> None:
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[0, 1] = 255, 0, 51  # red and a fifth of blue, at the second pixel
    patch = QWEN.pixel_values(Picture("", (32, 32), pixels, (1, 2, 2), 1))[0].reshape(3, 2, 16, 16)
    assert patch[:, 0, 0, 1].tolist() == pytest.approx([1, -1, -0.6])
    np.testing.assert_array_equal(patch[:, 0], patch[:, 1])


def test_the_id_is_the_contents_and_the_size() -> None:
    image = noise(60, 40)
    turned = Image.frombytes("RGB", (40, 60), image.tobytes())
    changed = image.copy()
    changed.putpixel((59, 39), (1, 2, 3))
    ids = {QWEN.picture(each).id for each in (image, turned, changed)}
    assert len(ids) == 3
    assert QWEN.picture(image.copy()).id in ids


def test_a_picture_keeps_three_bytes_a_pixel_and_nobody_can_change_them() -> None:
    picture = QWEN.picture(noise(640, 480))
    assert picture.size == (640, 480)
    assert picture.pixels.nbytes == picture.rows * 3 * 32 * 32
    assert not picture.pixels.flags.writeable


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_processor_type": "SiglipImageProcessor"}, "image_processor_type is 'SiglipImageProcessor'"),
        ({"resample": 2}, "resample is 2; this processor needs 3"),
        ({"do_resize": False}, "do_resize is False"),
        ({"size": {"height": 3}}, "the key 'shortest_edge' is missing"),
        ({"size": {"shortest_edge": 5, "longest_edge": 3}}, "size must hold 1024 <= shortest_edge <= longest_edge"),
        ({"image_mean": [0.5]}, "image_mean and image_std must hold three numbers each"),
    ],
)
def test_a_config_of_another_processor_is_refused_by_its_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImageProcessor.from_config({**CONFIG, **change})
