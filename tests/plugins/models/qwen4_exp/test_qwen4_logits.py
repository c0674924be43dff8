"""The whole model beside transformers, in float32, on tiny checkpoints whose every tensor is random."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from qwen4_tiny import IMAGE, TEXT, make, text

from tandem.core.plugin import Block, ImageRows

CLOSE = 2e-4


def oracle(model: Any, tokens: list[int], **more: Any) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=torch.tensor([tokens]), **more).logits[0]
    return logits


@pytest.mark.parametrize("chunk", [1, 7, 16, 100])
def test_logits_in_chunks_are_those_of_the_reference(
    chunk: int, tiny4: Any, tiny4_folder: tuple[Path, Any], read4: Callable[..., torch.Tensor]
) -> None:
    tokens = text(80)
    want = oracle(tiny4_folder[1], tokens)
    assert float(want.std()) > 1.5, "logits of a natural size: the bound below means something"
    torch.testing.assert_close(read4(tiny4, tiny4.new_sequence(80), tokens, chunk), want, atol=CLOSE, rtol=0)


def test_the_choice_of_tokens_decides_the_logits(
    tmp_path: Path, load4: Callable[..., Any], read4: Callable[..., torch.Tensor], tiny4: Any
) -> None:
    """Without this, the comparison above would hold for an indexer that chooses everything."""
    make(tmp_path, indexer_budget=4096)
    dense, tokens = load4(tmp_path), text(40)
    apart = (read4(dense, dense.new_sequence(40), tokens) - read4(tiny4, tiny4.new_sequence(40), tokens)).abs()
    assert float(apart[:11].max()) < CLOSE, "eleven tokens are two blocks and a tail: nothing to choose"
    assert float(apart[11:].max()) > 0.1


def test_greedy_answers_are_those_of_the_reference(
    tiny4: Any, tiny4_folder: tuple[Path, Any], read4: Callable[..., torch.Tensor]
) -> None:
    prompt = text(30, seed=4)
    want = tiny4_folder[1].generate(
        torch.tensor([prompt]), max_new_tokens=24, min_new_tokens=24, do_sample=False, eos_token_id=None
    )[0, len(prompt) :]
    sequence, answer = tiny4.new_sequence(60), []
    row = read4(tiny4, sequence, prompt)[-1]
    for _ in range(24):
        answer.append(int(row.argmax()))
        row = read4(tiny4, sequence, answer[-1:])[-1]
    assert answer == want.tolist()


def test_a_text_of_more_than_the_real_budget_is_read_as_by_the_reference(
    tmp_path: Path, load4: Callable[..., Any], read4: Callable[..., torch.Tensor]
) -> None:
    """2,048 tokens in blocks of 4: choosing begins with token 2,052."""
    layers = ["linear_attention", "full_attention"]
    # With 24 heads no block scores 0: of such, as many as there are, the reference takes any.
    small = {"num_hidden_layers": 2, "layer_types": layers, "ple_layer_ids": [1], "indexer_n_heads": 24}
    oracle_model = make(tmp_path, indexer_budget=2048, **small)
    tokens = text(2070, seed=5)
    model = load4(tmp_path, vision="off")
    got = read4(model, model.new_sequence(2070), tokens, 500)
    torch.testing.assert_close(got, oracle(oracle_model, tokens), atol=CLOSE, rtol=0)
    make(tmp_path, indexer_budget=4096, **small)
    dense = load4(tmp_path, vision="off")
    apart = (read4(dense, dense.new_sequence(2070), tokens, 500) - got).abs().amax(1)
    assert float(apart[:2051].max()) < CLOSE
    assert float(apart[2051:].max()) > 1e-3


@pytest.mark.parametrize(
    "change",
    [
        {"output_gate_type": None},
        {"norm_topk_prob": False},
        {"hc_count": 2},
        {"ple_layer_ids": None},
        {"ple_layer_ids": [1, 2]},
        {"ngram_size": 4, "ple_embed_dim": 48},
        {"indexer_compress_ratio": 2, "indexer_budget": 6},
        {"tie_word_embeddings": True},
        {"eos_token_id": [2, 5]},
    ],
    ids=str,
)
def test_other_shapes_of_the_model_are_read_as_by_the_reference(
    change: dict[str, Any], tmp_path: Path, load4: Callable[..., Any], read4: Callable[..., torch.Tensor]
) -> None:
    oracle_model, tokens = make(tmp_path, **change), text(40, seed=6)
    model = load4(tmp_path)
    got = read4(model, model.new_sequence(40), tokens, 11)
    torch.testing.assert_close(got, oracle(oracle_model, tokens), atol=CLOSE, rtol=0)


def test_a_checkpoint_of_the_text_model_alone_loads(
    tmp_path: Path, load4: Callable[..., Any], read4: Callable[..., torch.Tensor]
) -> None:
    from qwen4_tiny import randomise, tokenizer
    from transformers import Qwen4ExpForCausalLM, Qwen4ExpTextConfig

    config = Qwen4ExpTextConfig(**TEXT)
    config._attn_implementation = "eager"
    oracle_model = Qwen4ExpForCausalLM(config).eval().requires_grad_(False)
    for name, value in oracle_model.named_parameters():
        randomise(name, value)
    oracle_model.save_pretrained(tmp_path)
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    model, tokens = load4(tmp_path), text(30)
    assert model.vision is None
    got = read4(model, model.new_sequence(30), tokens)
    torch.testing.assert_close(got, oracle(oracle_model, tokens), atol=CLOSE, rtol=0)


@pytest.mark.parametrize("chunk", [9, 64])
def test_pictures_are_read_as_by_the_reference(chunk: int, tiny4: Any, tiny4_folder: tuple[Path, Any]) -> None:
    """Their rows stand on three axes, hash the placeholder's id, and may be cut between two chunks."""
    pixels = np.random.default_rng(3).integers(0, 256, (130, 200, 3), dtype=np.uint8)
    picture = tiny4.vision.processor.picture(Image.fromarray(pixels))
    before, after = text(9, seed=7), text(25, seed=8)
    tokens = [*before, *[IMAGE] * picture.rows, *after]
    start, end = len(before), len(before) + picture.rows
    assert 9 < picture.rows < 64 - start, "the short chunks cut the picture, the long ones don't"

    kinds = torch.zeros(1, len(tokens), dtype=torch.int64)
    kinds[0, start:end] = 1
    want = oracle(
        tiny4_folder[1],
        tokens,
        pixel_values=torch.from_numpy(tiny4.vision.processor.pixel_values(picture)),
        image_grid_thw=torch.tensor([picture.grid]),
        mm_token_type_ids=kinds,
    )
    blind = oracle(tiny4_folder[1], tokens)
    assert float((want - blind)[end:].abs().max()) > 0.1

    sequence, got = tiny4.new_sequence(100), []
    for at in range(0, len(tokens), chunk):
        part = tokens[at : at + chunk]
        first, last = max(at, start), min(at + chunk, end)
        images = (ImageRows(picture, first - at, first - start, last - first),) if first < last else ()
        got += tiny4.forward([Block(sequence, part, None, range(len(part)), images)])
        sequence.commit(range(len(part)))
    torch.testing.assert_close(torch.cat(got), want, atol=CLOSE, rtol=0)
