"""Budgets and constraints hold whatever is drafted, and give the text of plain decoding."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings, strategies as st
from toy import RandomDrafter, ToyModel, drafts

from tandem.core.engine.constraint import Grammars, regex_grammar
from tandem.core.engine.drafting import FixedCut
from tandem.core.engine.generation import Generation, Phase
from tandem.core.engine.request import Channel, Finished, Generate, Piece, Sampling, Thinking
from tandem.core.engine.round import run_round

CLOSING = (5, 11, 11)  # "e", then the closing tag "kk"
TAGS = ("jj", "kk")
PATTERN = "(ab|c[d-f]{2}){2,5}"
SAMPLINGS = [Sampling(), Sampling(temperature=1.0, seed=9), Sampling(repetition_penalty=1.2, logprobs=1)]


def run(request: Generate, drafter: RandomDrafter | None = None, model: ToyModel | None = None) -> Generation:
    generation = Generation(
        request, model or ToyModel(eos_bias=-6.0), drafts=drafts(drafter) if drafter else None, chooser=FixedCut()
    )
    while generation.phase is not Phase.DONE:
        run_round(generation.model, [generation])
    return generation


def text(generation: Generation, channel: Channel) -> str:
    return "".join(e.text for e in generation.events if isinstance(e, Piece) and e.channel is channel)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(1, 11), min_size=1, max_size=8),
    st.integers(0, 12),
    st.integers(1, 40),
    st.sampled_from(SAMPLINGS),
    st.integers(0, 1000),
)
def test_a_thinking_budget_is_kept_under_any_drafts(
    prompt: list[int], budget: int, max_tokens: int, sampling: Sampling, seed: int
) -> None:
    request = Generate(prompt, max_tokens, sampling, thinking=Thinking(TAGS, True, budget, CLOSING))
    plain = run(request)
    drafted = run(request, RandomDrafter(seed, plain.output, 0.7))
    assert drafted.output == plain.output
    last = drafted.events[-1]
    assert isinstance(last, Finished)
    assert last.stats.reasoning_tokens <= budget + len(CLOSING)
    assert len(drafted.output) <= max_tokens
    if len(plain.output) > budget + len(CLOSING):
        whole = "".join(chr(96 + token) for token in plain.output)
        assert "kk" in whole[: budget + len(CLOSING)]


def test_the_closing_phrase_is_written_once_and_the_answer_follows() -> None:
    model = ToyModel(eos_bias=-100.0)
    request = Generate([1, 2], 30, thinking=Thinking(("jj", "zz"), True, 6, CLOSING))  # the toy never writes "zz"
    generation = run(request, model=model)
    assert generation.output[6:9] == list(CLOSING)
    assert generation.output.count(5) >= 1
    assert len(generation.output) == 30


def test_reasoning_and_answer_go_out_apart() -> None:
    generation = run(Generate([3, 4], 30, thinking=Thinking(TAGS, True, 5, CLOSING)), model=ToyModel(eos_bias=-100.0))
    assert text(generation, Channel.OPEN) == "jj\n"
    assert len(text(generation, Channel.REASONING)) <= 6
    assert text(generation, Channel.CLOSE) == "kk"
    assert text(generation, Channel.CONTENT)
    whole = "".join(chr(96 + token) for token in generation.output)
    joined = text(generation, Channel.REASONING) + "kk" + text(generation, Channel.CONTENT)
    assert joined == whole


def test_a_stop_string_in_the_reasoning_does_not_end_the_answer() -> None:
    model = ToyModel(eos_bias=-100.0)
    thinking = Thinking(TAGS, True, 8, CLOSING)
    free = run(Generate([7, 8], 40, thinking=thinking), model=model)
    stop = text(free, Channel.REASONING)[1:3]
    stopped = run(Generate([7, 8], 40, thinking=thinking, stop=(stop,)), model=model)
    assert text(stopped, Channel.REASONING) == text(free, Channel.REASONING)
    answer = text(free, Channel.CONTENT)
    assert text(stopped, Channel.CONTENT) == (answer[: answer.index(stop)] if stop in answer else answer)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 11), min_size=1, max_size=8),
    st.sampled_from(SAMPLINGS),
    st.integers(0, 1000),
    st.booleans(),
)
def test_constrained_text_under_drafts_is_that_of_plain_decoding(
    prompt: list[int], sampling: Sampling, seed: int, thinks: bool
) -> None:
    model = ToyModel()
    grammars = Grammars(model.tokenizer)
    thinking = Thinking(TAGS, True, 4, CLOSING) if thinks else None
    request = Generate(
        prompt,
        60,
        sampling,
        thinking=thinking,
        constraint=lambda: grammars.single(regex_grammar(PATTERN)),
    )
    plain = run(request)
    drafted = run(request, RandomDrafter(seed, plain.output, 0.7))
    assert drafted.output == plain.output
    assert re.fullmatch(PATTERN, text(drafted, Channel.CONTENT))
    last = drafted.events[-1]
    assert isinstance(last, Finished)
    assert last.reason == "stop"


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_the_token_limit_also_ends_a_forced_phrase(limit: int) -> None:
    generation = run(Generate([1], limit, thinking=Thinking(TAGS, True, 0, CLOSING)))
    assert generation.output == list(CLOSING[:limit]) or generation.output[:3] == list(CLOSING)
    assert len(generation.output) <= limit
