"""Prompts that show pictures: transformers' logits, whole or cut anywhere, and three-axis positions."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from PIL import Image
from qwen35_tiny import IMAGE, VISION_END, VISION_START, Tiny, load, rewrite, started, text

from tandem.core.plugin import Block, ImageRows, ModelError
from tandem.core.plugin.vision import Picture

TOLERANCE = 2e-4


@pytest.fixture(scope="module")
def tiny(tiny_of: Callable[..., Tiny]) -> Tiny:
    return tiny_of("picture")


@pytest.fixture(scope="module")
def model(tiny: Tiny) -> Any:
    return load(tiny.path, vision="on")


def picture(model: Any, width: int, height: int, seed: int = 0) -> Picture:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    shown: Picture = model.vision.processor.picture(Image.fromarray(pixels))
    return shown


class Prompt:
    """Text and pictures in a row, as the engine lays them out: one placeholder for each of a picture's rows."""

    def __init__(self, *parts: list[int] | Picture) -> None:
        self.tokens: list[int] = []
        self.placed: list[tuple[int, Picture]] = []
        for part in parts:
            if isinstance(part, Picture):
                self.tokens.append(VISION_START)
                self.placed.append((len(self.tokens), part))
                self.tokens += [IMAGE] * part.rows
                self.tokens.append(VISION_END)
            else:
                self.tokens += part

    def block(self, sequence: Any, start: int, stop: int, logits: Any = ()) -> Block:
        images = []
        for at, shown in self.placed:
            first, last = max(start, at), min(stop, at + shown.rows)
            if first < last:
                images.append(ImageRows(shown, first - start, first - at, last - first))
        return Block(sequence, self.tokens[start:stop], None, logits, images)

    def read(self, model: Any, cuts: list[int], sequence: Any = None) -> torch.Tensor:
        """The logits of all rows, read in chunks that end at `cuts`."""
        sequence = sequence or model.new_sequence(1000)
        parts, start = [], 0
        for stop in [*cuts, len(self.tokens)]:
            if start < stop:
                parts += model.forward([self.block(sequence, start, stop, range(stop - start))])
                sequence.commit(range(stop - start))
                start = stop
        return torch.cat(parts)

    def expected(self, tiny: Tiny, model: Any, after: list[int] = []) -> torch.Tensor:  # noqa: B006
        processor = model.vision.processor
        ids = torch.tensor([[*self.tokens, *after]])
        shown = [shown for _, shown in self.placed]
        with torch.no_grad():
            logits: torch.Tensor = tiny.reference(
                input_ids=ids,
                pixel_values=torch.cat([torch.from_numpy(processor.pixel_values(each)) for each in shown]),
                image_grid_thw=torch.tensor([each.grid for each in shown]),
                mm_token_type_ids=(ids == IMAGE).int(),
            ).logits[0]
        return logits


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Row by row: the norm of the difference, as a part of the row's."""
    assert found.shape == expected.shape
    assert ((found - expected).norm(dim=-1) / expected.norm(dim=-1)).max() < TOLERANCE


@pytest.mark.parametrize("sizes", [[(64, 64)], [(160, 96)], [(96, 160), (64, 128)], [(64, 64), (64, 64)]], ids=str)
def test_logits_are_those_of_transformers(tiny: Tiny, model: Any, sizes: list[tuple[int, int]]) -> None:
    shown = [picture(model, *size, seed) for seed, size in enumerate(sizes)]
    prompt = Prompt(text(6), *(part for each in shown for part in (each, text(5, 2))))
    expected = prompt.expected(tiny, model, text(8, 3))
    sequence = model.new_sequence(1000)
    found = prompt.read(model, [], sequence)
    later = model.forward([Block(sequence, text(8, 3), None, range(8))])
    same(torch.cat([found, *later]), expected)


@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(1, 70), max_size=5).map(sorted))
def test_a_picture_may_be_cut_anywhere(tiny: Tiny, model: Any, cuts: list[int]) -> None:
    prompt = Prompt(text(4), picture(model, 160, 96), text(3, 2), picture(model, 64, 256, 1), text(40, 3))
    same(prompt.read(model, cuts), whole(tiny, model, prompt))


_WHOLE: dict[tuple[int, ...], torch.Tensor] = {}


def whole(tiny: Tiny, model: Any, prompt: Prompt) -> torch.Tensor:
    key = tuple(prompt.tokens)
    if key not in _WHOLE:
        _WHOLE[key] = prompt.expected(tiny, model)
    return _WHOLE[key]


def test_trees_and_drafts_go_on_behind_a_picture(tiny: Tiny, model: Any) -> None:
    prompt = Prompt(text(4), picture(model, 160, 96), text(3, 2))
    sequence = model.new_sequence(1000)
    prompt.read(model, [10], sequence)
    whole_row = model.new_sequence(1000)
    prompt.read(model, [], whole_row)
    tokens, parents = [7, 8, 9, 10], [-1, 0, 0, 2]
    drafts = []
    for each in (sequence, whole_row):
        model.head.start(each)
        drafts.append(model.head.extend(each, tokens, parents))
    same(*drafts)
    [logits] = model.forward([Block(sequence, tokens, parents, range(4))])
    same(logits[[0, 2, 3]], prompt.expected(tiny, model, [7, 9, 10])[-3:])
    sequence.commit([0, 2])
    [row] = model.forward([Block(sequence, [10], None, [0])])
    same(row[0], logits[3])


def test_the_head_reads_pictures_not_placeholders(model: Any) -> None:
    """Two prompts that differ in a picture alone, far behind: the head's caches must differ."""
    found = []
    for seed in (0, 1):
        sequence = model.new_sequence(1000)
        Prompt(text(4), picture(model, 64, 64, seed), text(3, 2)).read(model, [], sequence)
        model.head.start(sequence)
        state = sequence.states[-1]
        found.append(state.states[0].snapshot()["rows"][:, 3:8])
    assert (found[0] - found[1]).abs().max() > 1e-3


def test_a_snapshot_within_a_picture_goes_on_with_it(tiny: Tiny, model: Any) -> None:
    prompt = Prompt(text(4), picture(model, 160, 96), text(3, 2))
    sequence = model.new_sequence(1000)
    model.forward([prompt.block(sequence, 0, 12)])
    sequence.commit(range(9))  # four of the picture's rows, though more were run
    anchor, snapshot = sequence.anchor(), sequence.snapshot()
    rest = len(prompt.tokens) - 9
    other = model.new_sequence(1000)
    for each in (sequence, other):
        if each is other:
            each.restore(model.snapshot_of(snapshot.tensors()))
        [logits] = model.forward([prompt.block(each, 9, len(prompt.tokens), range(rest))])
        each.commit(range(rest))
        same(logits, prompt.expected(tiny, model)[9:])
    sequence.trim(9, anchor)
    [logits] = model.forward([prompt.block(sequence, 9, len(prompt.tokens), [rest - 1])])
    same(logits[0], prompt.expected(tiny, model)[-1])


def test_a_long_chunk_with_a_picture_may_be_committed_in_part(tiny: Tiny, model: Any) -> None:
    prompt = Prompt(text(50), picture(model, 160, 96), text(30, 2))
    sequence = model.new_sequence(1000)
    model.forward([prompt.block(sequence, 0, len(prompt.tokens))])
    sequence.commit(range(55))
    [logits] = model.forward([prompt.block(sequence, 55, len(prompt.tokens), [len(prompt.tokens) - 56])])
    same(logits[0], prompt.expected(tiny, model)[-1])


# ------------------------------------------------------------------------------------------------------- refusals


def test_blocks_that_show_pictures_wrongly_are_refused(model: Any) -> None:
    shown = picture(model, 64, 64)
    assert shown.rows == 4
    pads = [IMAGE] * 4

    def refused(words: str, sequence: Any, tokens: list[int], images: list[ImageRows], parents: Any = None) -> None:
        with pytest.raises(ValueError, match=words):
            model.forward([Block(sequence, tokens, parents, (), images)])

    sequence = model.new_sequence(100)
    refused("must be the placeholder", sequence, [5] * 4, [ImageRows(shown, 0, 0, 4)])
    refused("branches", sequence, pads, [ImageRows(shown, 0, 0, 4)], [-1, 0, 0, 1])
    refused("not in order within the block", sequence, pads, [ImageRows(shown, 1, 0, 4)])
    refused("it has 4", sequence, [IMAGE] * 5, [ImageRows(shown, 0, 0, 5)])
    refused("without the first ones", sequence, pads[:2], [ImageRows(shown, 0, 2, 2)])
    refused("ends before its last row", sequence, [IMAGE, IMAGE, 5], [ImageRows(shown, 0, 0, 2)])
    model.forward([Block(sequence, pads[:2], None, (), [ImageRows(shown, 0, 0, 2)])])
    sequence.commit([0, 1])
    refused("ends within a picture; its next row must be row 2", sequence, [5], [])
    refused("its next row must be row 2", sequence, pads[:1], [ImageRows(shown, 0, 3, 1)])
    model.forward([Block(sequence, [*pads[:2], 5], None, (), [ImageRows(shown, 0, 2, 2)])])


def test_a_model_without_its_tower_reads_text_only(tmp_path: Path, tiny: Tiny, model: Any) -> None:
    blind = load(tiny.path, vision="off")
    assert blind.vision is None
    prompt = Prompt(picture(model, 64, 64))
    with pytest.raises(ValueError, match="reads text only"):
        blind.forward([prompt.block(blind.new_sequence(20), 0, 6)])
    same(started_row(blind), started_row(model))
    shutil.copytree(tiny.path, tmp_path / "copy")
    (tmp_path / "copy" / "preprocessor_config.json").unlink()
    with pytest.raises(ModelError, match=r"preprocessor_config\.json: there is no such file"):
        load(tmp_path / "copy")
    rewrite(tmp_path / "copy", drop="model.visual.")
    assert load(tmp_path / "copy").vision is None
    with pytest.raises(ModelError, match="vision: on"):
        load(tmp_path / "copy", vision="on")


def started_row(model: Any) -> torch.Tensor:
    [logits] = model.forward([Block(started(model, text(9)), [7], None, [0])])
    found: torch.Tensor = logits
    return found
