"""What the memory gate counts for a request against what torch's allocator records while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from qwen35_tiny import IMAGE, PREPROCESSOR, Tiny, load, text

from tandem.core.engine.generation import Generation, Phase
from tandem.core.engine.request import Generate, PlacedPicture, SharedPrompt
from tandem.core.engine.round import run_round
from tandem.core.engine.sizes import Sizes
from tandem.core.plugin.vision import ImageProcessor, Picture
from tandem.testing.measure import peak_bytes

PROCESSOR = ImageProcessor.from_config(PREPROCESSOR)
KINDS = [(kind, dtype, mtp) for kind in ("text", "moe") for dtype in ("float32", "bfloat16") for mtp in ("off", "on")]


def served(model: Any, request: Generate, chunk: int = 512) -> Generation:
    """The request from its prompt to its end."""
    generation = Generation(request, model, prefill_chunk=chunk)
    while generation.phase is not Phase.DONE:
        run_round(model, [generation])
    return generation


def sizes(model: Any, chunk: int = 512) -> Sizes:
    return Sizes.of(model.facts, chunk, model.tokenizer.vocab_size)


def picture(width: int, height: int, seed: int = 0) -> Picture:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return PROCESSOR.picture(Image.fromarray(pixels))


@pytest.mark.parametrize(("kind", "dtype", "mtp"), KINDS)
def test_no_request_takes_more_than_was_counted(tiny_of: Callable[..., Tiny], kind: str, dtype: str, mtp: str) -> None:
    model = load(tiny_of(kind).path, dtype=dtype, mtp=mtp)
    for rows, chunk in ((40, 512), (900, 512), (1000, 64)):
        request = Generate(text(rows), 8)
        counted = sizes(model, chunk).of_request(request).total
        taken = peak_bytes(lambda: served(model, request, chunk))  # noqa: B023
        assert taken <= counted
        assert rows < 900 or counted < 4 * taken, "a count that is far too high refuses what would fit"


def test_every_part_of_the_count_is_needed(tiny_of: Callable[..., Tiny]) -> None:
    """Without what a pass looks back to, the count would be too low: the tiny model is mostly attention."""
    model = load(tiny_of("text").path, mtp="off")
    request = Generate(text(900), 8)
    need = sizes(model).of_request(request)
    assert peak_bytes(lambda: served(model, request)) > need.total - need.look


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_picture_takes_no_more_than_was_counted(tiny_of: Callable[..., Tiny], dtype: str) -> None:
    model = load(tiny_of("picture").path, dtype=dtype)
    for size in ((64, 64), (256, 256)):
        shown = picture(*size)
        request = Generate([5, *[IMAGE] * shown.rows, 7], 8, images=(PlacedPicture(1, shown),))
        need = sizes(model).of_request(request)
        assert peak_bytes(lambda: served(model, request)) <= need.total  # noqa: B023
        assert (
            model.vision.store.stats()["bytes"] == need.pictures == shown.rows * 48 * (2 if dtype != "float32" else 4)
        )
        model.vision.store.clear()
        tower = model._sight.tower
        taken = peak_bytes(lambda: tower.rows(shown))  # noqa: B023
        assert taken <= sizes(model).image_workspace_per_row * shown.rows
        model.vision.store.clear()


def test_the_option_bounds_what_is_kept_of_pictures(tiny_of: Callable[..., Tiny]) -> None:
    room = 40 * 48 * 4
    model = load(tiny_of("picture").path, image_rows_mib=room / 2**20)
    assert model.facts["image_kept_bytes"] == room
    for seed in range(4):
        model._sight.tower.rows(picture(128, 128, seed))  # 16 rows
    told = model.vision.store.stats()
    assert (told["entries"], told["bytes"], told["evictions"]) == (2, 2 * 16 * 48 * 4, 2)
    assert model.vision.store.check() == []
    assert sizes(model).need(100, 0, pictures=(16, 16, 16)).pictures == room


def test_the_copy_for_other_choices_is_as_large_as_was_counted(tiny_of: Callable[..., Tiny]) -> None:
    model = load(tiny_of("text").path, mtp="on")
    shared = SharedPrompt()
    request = Generate(text(600), 8, shared=shared)
    counted = sizes(model).of_request(request)
    served(model, request)
    snapshot, _ = shared.state
    waiting = sum(value.nbytes for name, value in snapshot.tensors().items() if "unread" in name)
    assert snapshot.nbytes - waiting <= counted.shared <= 2 * snapshot.nbytes


def test_a_cleared_store_gives_its_rows_back(tiny_of: Callable[..., Tiny]) -> None:
    store = load(tiny_of("picture").path).vision.store
    store.put("a", torch.zeros(100))
    store.put("b", torch.zeros(100))
    assert store.shed(1) == 400
    assert store.stats()["bytes"] == 400
    assert store.get("a") is None
    store.clear()
    assert (store.stats()["bytes"], store.stats()["entries"], store.check()) == (0, 0, [])
    store.nbytes = 7
    assert store.check() == ["7 bytes are counted, 0 are held"]
