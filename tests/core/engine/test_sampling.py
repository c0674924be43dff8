from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from tandem.core.engine.request import Sampling
from tandem.core.engine.sampling import NGRAM_PENALTY, Sampler, gumbel, kept_tokens

rows = st.lists(st.integers(-400, 400), min_size=2, max_size=40, unique=True).map(
    lambda values: torch.tensor([value / 50 for value in values])
)


def naive_kept(row: torch.Tensor, top_p: float, top_k: int, min_p: float) -> list[int]:
    """The filters one after the other, as they are described."""
    probabilities = torch.softmax(row.double(), -1).tolist()
    order = sorted(range(len(probabilities)), key=lambda i: -probabilities[i])
    kept, mass = [], 0.0
    for token in order:  # top_p
        if top_p < 1.0 and mass >= top_p:
            break
        kept.append(token)
        mass += probabilities[token]
    if top_k:
        kept = kept[:top_k]
    if min_p:
        kept = [token for token in kept if probabilities[token] >= min_p * probabilities[order[0]]]
    return kept or order[:1]


@settings(max_examples=300, deadline=None)
@given(rows, st.sampled_from([1.0, 0.95, 0.5, 0.1]), st.integers(0, 12), st.sampled_from([0.0, 0.05, 0.5]))
def test_the_filters_keep_what_the_naive_filters_keep(
    row: torch.Tensor, top_p: float, top_k: int, min_p: float
) -> None:
    ids, logits = kept_tokens(row, Sampling(top_p=top_p, top_k=top_k, min_p=min_p))
    kept = list(range(row.numel())) if ids is None else ids.tolist()
    assert sorted(kept) == sorted(naive_kept(row, top_p, top_k, min_p))
    assert torch.equal(logits, row[torch.tensor(kept)])


def test_a_flat_distribution_is_searched_past_the_first_candidates() -> None:
    row = torch.linspace(0, 0.001, 5000)
    ids, _ = kept_tokens(row, Sampling(top_p=0.9))
    assert ids is not None
    assert 4490 <= ids.numel() <= 4510


def test_noise_depends_on_seed_position_and_id_alone() -> None:
    whole = gumbel(7, 100, 1000)
    some = torch.tensor([999, 0, 512])
    assert torch.equal(gumbel(7, 100, some), whole[some])
    assert not torch.equal(gumbel(7, 101, 1000), whole)
    assert not torch.equal(gumbel(8, 100, 1000), whole)


def test_noise_is_gumbel_and_independent_across_positions() -> None:
    values = torch.cat([gumbel(3, position, 2000) for position in range(50)]).numpy()
    assert abs(values.mean() - 0.5772) < 0.02  # Euler's constant
    assert abs(values.var() - math.pi**2 / 6) < 0.05
    first, second = gumbel(3, 1, 20_000).numpy(), gumbel(3, 2, 20_000).numpy()
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03


def test_draws_follow_the_distribution() -> None:
    row = torch.tensor([2.0, 1.0, 0.0, -1.0])
    counts: Counter[int] = Counter()
    sampler = Sampler(Sampling(temperature=0.7, seed=11), [0], 4)
    for _ in range(6000):
        token = sampler.draw(row)
        counts[token] += 1
        sampler.push(token)
    expected = torch.softmax(row / 0.7, -1)
    for token in range(4):
        assert counts[token] / 6000 == pytest.approx(float(expected[token]), abs=0.02)


def test_drawing_twice_gives_the_same_token() -> None:
    sampler = Sampler(Sampling(temperature=1.0), [1, 2], 50)
    row = torch.randn(50)
    assert len({sampler.draw(row) for _ in range(5)}) == 1


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=12),
    st.lists(st.integers(0, 7), max_size=12),
    st.sampled_from([1.0, 1.3, 0.8]),
    st.sampled_from([0.0, 0.5, -1.0]),
    st.sampled_from([0.0, 0.25]),
    st.integers(0, 3),
    st.dictionaries(st.integers(0, 7), st.sampled_from([-100.0, 2.5, 0.0])),
)
def test_penalties_match_a_naive_twin(
    prompt: list[int],
    output: list[int],
    repetition: float,
    presence: float,
    frequency: float,
    order: int,
    bias: dict[int, float],
) -> None:
    row = torch.linspace(-2, 2, 8)
    sampler = Sampler(
        Sampling(
            repetition_penalty=repetition,
            presence_penalty=presence,
            frequency_penalty=frequency,
            no_repeat_ngram_size=order,
            logit_bias=bias,
        ),
        prompt,
        8,
    )
    for token in output:
        sampler.push(token)
    text = prompt + output
    expected = row.tolist()
    for token in range(8):
        if token in text:
            expected[token] = expected[token] / repetition if expected[token] > 0 else expected[token] * repetition
        expected[token] -= presence * (token in output) + frequency * output.count(token)
        grams = {tuple(text[i : i + order]) for i in range(len(text) - order + 1)} if order else set()
        tail = text[len(text) - (order - 1) :] if order > 1 else []
        if order and len(text) >= order - 1 and (*tail, token) in grams:
            expected[token] -= NGRAM_PENALTY
        expected[token] += bias.get(token, 0.0)
    assert sampler.adjusted(row).tolist() == pytest.approx(expected, abs=1e-5)
    assert torch.equal(row, torch.linspace(-2, 2, 8)), "the model's row was changed"


def test_logprobs_are_those_of_the_unfiltered_distribution() -> None:
    row = torch.tensor([1.0, 3.0, 2.0])
    sampler = Sampler(Sampling(temperature=0.3, top_k=1, logit_bias={1: -100.0}, logprobs=2), [0], 3)
    assert sampler.draw(row) == 2
    got = sampler.logprob(row, 2)
    assert got is not None
    expected = torch.log_softmax(row, -1)
    assert got.logprob == pytest.approx(float(expected[2]))
    assert [token for token, _ in got.top] == [1, 2]


def test_margin_is_the_lead_of_the_drawn_token() -> None:
    sampler = Sampler(Sampling(), [0], 3)
    assert sampler.margin(torch.tensor([0.0, 2.0, 1.5])) == pytest.approx(0.5)


def test_the_tiniest_temperature_is_greedy() -> None:
    assert Sampler(Sampling(temperature=1e-9), [0], 3).draw(torch.tensor([0.0, 5.0, 4.99])) == 1
