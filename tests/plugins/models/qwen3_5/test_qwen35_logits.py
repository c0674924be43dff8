"""Logits and greedy tokens are those of transformers, for every kind of checkpoint of the family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from qwen35_tiny import VOCAB, Tiny, load, logits_of, text

from tandem.core.plugin import Block
from tandem.plugins.models._hybrid.head import OutputHead
from tandem.plugins.models._hybrid.weights import DenseLinear

TOLERANCE = 2e-4

KINDS = [
    ("text", {}),
    ("text", {"tied": True}),
    ("moe", {}),
    ("moe", {"fused": True}),
    ("moe", {"tied": True}),
    ("picture", {}),
    ("picture", {"tied": True}),
    ("moe_picture", {"fused": True}),
]


@pytest.fixture(params=KINDS, ids=str)
def tiny(request: pytest.FixtureRequest, tiny_of: Callable[..., Tiny]) -> Tiny:
    kind, config = request.param
    return tiny_of(kind, **config)


def test_logits_are_those_of_transformers(tiny: Tiny) -> None:
    ids = text(150)
    expected = tiny.reference(torch.tensor([ids])).logits[0]
    model = load(tiny.path)
    for chunk in (150, 64, 7):
        assert (logits_of(model, ids, chunk) - expected).abs().max() < TOLERANCE
    assert expected.std() > 0.5  # the comparison is of logits that say something


def test_greedy_tokens_are_those_of_transformers(tiny: Tiny) -> None:
    ids, model = text(70, seed=5), load(tiny.path)
    expected = tiny.reference.generate(
        torch.tensor([ids]), do_sample=False, max_new_tokens=24, eos_token_id=None, pad_token_id=0
    )[0, len(ids) :].tolist()
    sequence = model.new_sequence(200)
    [row] = model.forward([Block(sequence, ids, None, [len(ids) - 1])])
    sequence.commit(range(len(ids)))
    found = []
    for _ in range(24):
        found.append(int(row[0].argmax()))
        [row] = model.forward([Block(sequence, [found[-1]], None, [0])])
        sequence.commit([0])
    assert found == expected


@pytest.mark.parametrize("last", ["linear_attention", "full_attention"])
@pytest.mark.parametrize("mtp", ["on", "off"])
def test_rows_without_logits_leave_what_rows_with_them_leave(last: str, mtp: str, tiny_of: Callable[..., Tiny]) -> None:
    """The last layer computes no more than is wanted of it."""
    tiny = tiny_of("text", last=last)
    ids, model = text(60), load(tiny.path, mtp=mtp)
    expected = tiny.reference(torch.tensor([ids])).logits[0]
    sequence = model.new_sequence(100)
    for start, stop, wanted in ((0, 40, []), (40, 45, []), (45, 50, [0, 4]), (50, 60, range(10))):
        [found] = model.forward([Block(sequence, ids[start:stop], None, wanted)])
        sequence.commit(range(stop - start))
        assert found.shape == (len(wanted), VOCAB)
        torch.testing.assert_close(found, expected[start:stop][list(wanted)], rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("kind", ["text", "moe"])
def test_bfloat16_stays_near(kind: str, tiny_of: Callable[..., Tiny]) -> None:
    tiny, ids = tiny_of(kind), text(90)
    exact = logits_of(load(tiny.path), ids)
    model = load(tiny.path, dtype="bfloat16")
    rough = logits_of(model, ids, 16)
    assert rough.dtype == torch.float32
    # A router that falls the other way changes a row of a sparse model more than rounding does.
    errors = (rough - exact).norm(dim=1) / exact.norm(dim=1)
    assert errors.median() < 0.03
    assert (rough != rough.bfloat16()).any()  # the head does not round


@pytest.mark.parametrize("rows", [1, 5])
def test_a_bfloat16_head_sums_in_float32_and_does_not_round(rows: int) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = (torch.randn(700, 256, generator=generator) / 16).bfloat16()
    x = (8 * torch.randn(rows, 256, generator=generator)).bfloat16()
    exact = x.double() @ weight.double().t()
    found = OutputHead(DenseLinear(weight))(x)
    assert found.dtype == torch.float32
    assert (found - exact).abs().max() < 1e-3
    assert (exact.bfloat16() - exact).abs().max() > 0.03  # what rounding would have cost


def test_logits_are_the_callers_to_change(model: Any) -> None:
    ids = text(9)
    whole = logits_of(model, ids)
    first, second = model.forward(
        [Block(model.new_sequence(20), ids, None, [1, 4]), Block(model.new_sequence(20), ids)]
    )
    assert second.shape == (0, VOCAB)
    assert (first - whole[[1, 4]]).abs().max() < 1e-5
    first[0, 3] = float("-inf")
    assert first.device.type == "cpu"
