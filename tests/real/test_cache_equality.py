"""A turn that goes on from a cache is the turn that reads everything: each tier, on real and tiny models, in float32.

Two kinds of proof. A turn that is resumed on a line of the prefill grid runs the very passes that a cold one would run
there, over the same rows, so its logits are the cold ones to the bit. Anywhere else, and wherever an answer is part of
what was kept (it was read a row at a time), a product over another number of rows may add in another order: there the
logits are off by roundings, and an answer that parts must part at a near tie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cached_turns import Asked, Served, abandon, parts_by
from PIL import Image

from tandem.core.engine.request import Piece, PlacedPicture, PrefillProgress

CHUNK = 64
START = 2 * CHUNK
"""Tokens of the first prompt: it ends on the grid."""
ROUNDING = 1e-3
"""Nats. Other roundings move a logit by less: 2e-5 was the most that was seen of SmolLM2, 1e-5 of the hybrid."""

TIERS: dict[str, dict[str, dict[str, Any]]] = {
    "resident": {"resident": {"anchor_every": CHUNK}},
    "state_store": {"state_store": {"every": CHUNK}},
    "disk": {"disk": {"admit_after": 1, "min_tokens": 16}},
    "spill": {"resident": {"anchor_every": CHUNK}, "disk": {"admit_after": 99, "min_tokens": 16}},
}
AFTER_A_STOP = ("disk", "spill")
"""The engine is stopped, and another one goes on from the files."""


def text(count: int, seed: int) -> list[int]:
    """Tokens that every model here has, none of them a placeholder or an end."""
    return torch.randint(3, 259, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


class Cold:
    """The twin: an engine without caches, asked once for each prompt."""

    def __init__(self, model: Any) -> None:
        self.served = Served(model, {}, CHUNK)
        self._known: dict[Any, Asked] = {}

    def ask(self, prompt: list[int], images: tuple[PlacedPicture, ...] = ()) -> Asked:
        key = (*prompt, *(placed.picture.id for placed in images))
        if key not in self._known:
            self._known[key] = self.served.ask(prompt, images=images)
        assert self._known[key].stats.cached_tokens == 0
        return self._known[key]


@pytest.fixture(scope="module")
def cold(models: Callable[[str], Any]) -> Iterator[Callable[[str], Cold]]:
    twins: dict[str, Cold] = {}

    def cold(name: str) -> Cold:
        if name not in twins:
            twins[name] = Cold(models(name))
        return twins[name]

    yield cold
    for twin in twins.values():
        twin.served.stop()


@pytest.fixture
def serve(models: Callable[[str], Any], tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """`serve(model, tier)`; when the test is over, no tier has found anything wrong with itself."""
    running: list[Served] = []

    def serve(name: str, tier: str) -> Served:
        tiers = {part: dict(given) for part, given in TIERS[tier].items()}
        if "disk" in tiers:
            tiers["disk"] |= {"path": str(tmp_path / "states"), "leave_free_gib": 0}
        running.append(Served(models(name), tiers, CHUNK))
        return running[-1]

    yield serve
    for served in running:
        assert not served.problems()
        served.stop()


def resumed(served: Served, tier: str, prompt: list[int], images: tuple[PlacedPicture, ...] = ()) -> Asked:
    """The turn, which went on from this tier."""
    if tier in AFTER_A_STOP:
        served.stop()
        served.start()
    warm = served.ask(prompt, images=images)
    assert warm.stats.cache_source == ("disk" if tier in AFTER_A_STOP else tier)
    return warm


def same_to_the_bit(warm: Asked, cold: Asked) -> None:
    assert warm.stats.cached_tokens % CHUNK == 0
    assert warm.stats.cached_tokens > 0
    assert torch.equal(warm.row, cold.row)
    assert warm.output == cold.output


def same_but_for_rounding(warm: Asked, cold: Asked, model: Any) -> None:
    assert warm.stats.cached_tokens > 0
    assert float((warm.row - cold.row).abs().max()) < ROUNDING
    if warm.output != cold.output:
        parts = parts_by(model, warm.request, warm.output)
        assert parts is None or parts < ROUNDING


MODELS = ("smollm2", "hybrid", "tiny_llama", "sparse")


@pytest.mark.parametrize("tier", ["resident", "state_store", "disk"])
@pytest.mark.parametrize("model", MODELS)
def test_on_the_grid_a_resumed_turn_is_the_cold_one_to_the_bit(
    model: str, tier: str, serve: Callable[..., Served], cold: Callable[[str], Cold]
) -> None:
    served = serve(model, tier)
    served.ask(text(START, 1))
    prompt = [*text(START, 1), *text(40, 2)]
    warm = resumed(served, tier, prompt)
    assert warm.stats.cached_tokens == START
    same_to_the_bit(warm, cold(model).ask(prompt))


@pytest.mark.parametrize("model", MODELS)
def test_a_prompt_that_was_left_half_read_goes_on_after_a_restart(
    model: str, serve: Callable[..., Served], cold: Callable[[str], Cold], models: Callable[[str], Any]
) -> None:
    """What a client left behind is kept, spilled to a file when the engine stops, and read from there."""
    served = serve(model, "spill")
    prompt = [*text(START, 1), *text(40, 2)]
    abandon(served, prompt * 4, PrefillProgress)
    warm = resumed(served, "spill", prompt)
    if warm.stats.cached_tokens % CHUNK:  # it left late, and more was read than is asked for now
        same_but_for_rounding(warm, cold(model).ask(prompt), models(model))
    else:
        same_to_the_bit(warm, cold(model).ask(prompt))


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("model", MODELS[:3])
def test_a_next_turn_is_the_cold_one_but_for_rounding(
    model: str, tier: str, serve: Callable[..., Served], cold: Callable[[str], Cold], models: Callable[[str], Any]
) -> None:
    served = serve(model, tier)
    first = served.ask(text(START + 22, 3))
    prompt = [*first.text, *text(37, 4)]
    warm = resumed(served, tier, prompt)
    # Copies are made where a prompt ends; the sequence itself, and a file of one that can be cut back, has the answer.
    copied = tier == "state_store" or (tier == "disk" and not models(model).caps.trim)
    assert warm.stats.cached_tokens in ((START + 22,) if copied else (len(first.text) - 1, len(first.text)))
    same_but_for_rounding(warm, cold(model).ask(prompt), models(model))


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("model", ["smollm2", "tiny_llama"])
def test_the_same_prompt_again_is_the_cold_one_but_for_rounding(
    model: str, tier: str, serve: Callable[..., Served], cold: Callable[[str], Cold], models: Callable[[str], Any]
) -> None:
    served = serve(model, tier)
    prompt = text(START + 22, 3)
    served.ask(prompt)
    warm = resumed(served, tier, prompt)
    assert warm.read == models(model).caps.resume_rows
    same_but_for_rounding(warm, cold(model).ask(prompt), models(model))


@pytest.mark.parametrize("model", ["smollm2", "hybrid"])
def test_a_conversation_left_while_it_was_answered_goes_on_but_for_rounding(
    model: str, serve: Callable[..., Served], cold: Callable[[str], Cold], models: Callable[[str], Any]
) -> None:
    served = serve(model, "spill")
    prompt = text(START + 22, 3)
    job, _ = abandon(served, prompt, Piece)
    again = [*prompt, *job.generation.output, *text(20, 5)]
    warm = resumed(served, "spill", again)
    assert warm.stats.cached_tokens >= len(prompt)
    same_but_for_rounding(warm, cold(model).ask(again), models(model))


# --------------------------------------------------------------------------------------------------------- pictures


def shown(
    model: Any, seed: int, before: int = CHUNK - 8, after: int = 60
) -> tuple[list[int], tuple[PlacedPicture, ...]]:
    """Text with a picture in it that lies across a line of the grid: 96 by 160 pixels of noise, 15 rows."""
    pixels = np.random.default_rng(seed).integers(0, 256, (160, 96, 3), np.uint8)
    picture = model.vision.processor.picture(Image.fromarray(pixels))
    prompt = [*text(before, 6), *[model.vision.token] * picture.rows, *text(after, 7)]
    return prompt, (PlacedPicture(before, picture),)


@pytest.mark.parametrize("tier", ["resident", "state_store", "disk"])
@pytest.mark.parametrize("name", ["seeing", "sparse"])
def test_a_picture_that_was_read_is_not_read_again_and_another_one_is(
    name: str, tier: str, serve: Callable[..., Served], cold: Callable[[str], Cold], models: Callable[[str], Any]
) -> None:
    served, model = serve(name, tier), models(name)
    known, images = shown(model, 1)
    assert 0 < CHUNK - images[0].start < images[0].picture.rows, "the picture does not lie across the line"
    first = served.ask(known[:START], images=images)
    assert first.shown == images[0].picture.rows
    longer = [*known[:START], *text(30, 8)]
    warm = resumed(served, tier, longer, images)
    assert (warm.stats.cached_tokens, warm.shown) == (len(known[:START]), 0)
    same_but_for_rounding(warm, cold(name).ask(longer, images), model)
    # Of the same size, with the same text around: only the picture is another one.
    _, others = shown(model, 2)
    other = served.ask(longer, images=others)
    assert other.stats.cached_tokens <= others[0].start
    assert other.shown == others[0].picture.rows
    twin = cold(name).ask(longer, others)
    assert float((other.row - twin.row).abs().max()) < ROUNDING
    assert other.output == twin.output
    assert not torch.allclose(twin.row, cold(name).ask(longer, images).row), "the model does not look at the picture"


@pytest.mark.parametrize("name", ["seeing", "sparse"])
def test_within_a_picture_a_resumed_turn_is_the_cold_one_to_the_bit(
    name: str, serve: Callable[..., Served], cold: Callable[[str], Cold], models: Callable[[str], Any]
) -> None:
    """A state on a line of the grid that cuts the picture: its first rows are in the state, the others are read."""
    served, model = serve(name, "state_store"), models(name)
    known, images = shown(model, 1)
    served.ask(known, images=images)
    prompt = [*known[: CHUNK + 12], *text(30, 9)]
    warm = resumed(served, "state_store", prompt, images)
    assert warm.stats.cached_tokens == CHUNK
    assert warm.shown == images[0].start + images[0].picture.rows - CHUNK
    same_to_the_bit(warm, cold(name).ask(prompt, images))
