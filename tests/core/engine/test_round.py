"""Drafts change no token: whatever a drafter proposes, the text is that of plain decoding."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st
from toy import RandomDrafter, ToyModel, drafts

from tandem.core.engine.drafting import FixedCut
from tandem.core.engine.generation import Generation, Phase
from tandem.core.engine.request import Finished, Generate, Piece, PrefillProgress, Sampling
from tandem.core.engine.round import run_round
from tandem.core.engine.sampling import Sampler
from tandem.core.plugin import Caps, DraftTree

PROMPTS = st.lists(st.integers(1, 11), min_size=1, max_size=9)
SAMPLINGS = [
    Sampling(),
    Sampling(temperature=1.0, seed=5),
    Sampling(temperature=0.8, seed=6, top_p=0.9, top_k=5, min_p=0.02),
    Sampling(repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.3),
    Sampling(temperature=1.2, seed=1, no_repeat_ngram_size=2, logit_bias={3: -100.0, 4: 2.0}, logprobs=3),
]


def run(*generations: Generation) -> None:
    model = generations[0].model
    while any(g.phase is not Phase.DONE for g in generations):
        run_round(model, [g for g in generations if g.phase is not Phase.DONE])


def naive(model: ToyModel, request: Generate) -> list[int]:
    """Plain decoding, written down directly."""
    sampler = Sampler(request.sampling, request.prompt, model.tokenizer.vocab_size)
    text, output = list(request.prompt), []
    while len(output) < request.max_tokens:
        token = sampler.draw(model.logits_after(text))
        if token in model.tokenizer.eos_ids:
            break
        sampler.push(token)
        text.append(token)
        output.append(token)
    return output


@settings(max_examples=120, deadline=None)
@given(
    prompt=st.lists(st.integers(1, 11), min_size=1, max_size=20),
    sampling=st.sampled_from(SAMPLINGS),
    max_tokens=st.integers(1, 40),
    chunk=st.integers(1, 8),
    seed=st.integers(0, 1000),
    share_right=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_any_drafts_give_the_text_of_plain_decoding(
    prompt: list[int], sampling: Sampling, max_tokens: int, chunk: int, seed: int, share_right: float
) -> None:
    model = ToyModel()
    request = Generate(prompt, max_tokens, sampling)
    expected = naive(model, request)
    drafter = RandomDrafter(seed, expected, share_right)
    generation = Generation(request, model, prefill_chunk=chunk, drafts=drafts(drafter), chooser=FixedCut())
    run(generation)
    assert generation.output == expected
    events = generation.collect()
    assert "".join(e.text for e in events if isinstance(e, Piece)) == "".join(chr(96 + t) for t in expected)
    assert sum(e.tokens for e in events if isinstance(e, Piece)) == len(expected)
    last = events[-1]
    assert isinstance(last, Finished)
    assert last.reason == ("length" if len(expected) == max_tokens else "stop")
    assert last.stats.completion_tokens == len(expected)
    if sampling.logprobs:
        infos = [info for e in events if isinstance(e, Piece) for info in e.logprobs]
        assert [info.token for info in infos] == expected
        assert all(len(info.top) == sampling.logprobs for info in infos)


def test_perfect_drafts_save_passes() -> None:
    model = ToyModel(eos_bias=-100.0)
    request = Generate([1, 2, 3], 60)
    expected = naive(model, request)

    class Oracle:
        at = -3

        def extend(self, tokens: object) -> None:
            self.at += len(tokens)  # type: ignore[arg-type]

        def close(self) -> None:
            return

        def propose(self, root: int, limit: int) -> DraftTree:
            tree = DraftTree(source="oracle")
            for token in expected[self.at + 1 : self.at + 1 + min(limit, 7)]:
                tree.add(token, len(tree) - 1, 1.0)
            return tree

    generation = Generation(request, model, drafts=drafts(Oracle()), chooser=FixedCut())
    run(generation)
    assert generation.output == expected
    assert model.passes <= 1 + 1 + 60 // 8 + 1  # the prompt, the first token alone, then eight or nine tokens a pass


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(1, 11), min_size=1, max_size=9), st.integers(0, 4)), min_size=2, max_size=4)
)
def test_joint_passes_give_each_sequence_its_lone_text(requests: list[tuple[list[int], int]]) -> None:
    model = ToyModel()
    wanted = [Generate(prompt, 15, SAMPLINGS[which]) for prompt, which in requests]
    expected = [naive(model, request) for request in wanted]
    together = [
        Generation(request, model, prefill_chunk=3, drafts=drafts(RandomDrafter(i, expected[i])), chooser=FixedCut())
        for i, request in enumerate(wanted)
    ]
    run(*together)
    assert [g.output for g in together] == expected


def test_a_model_that_cannot_join_is_given_one_block_at_a_time() -> None:
    model = ToyModel(caps=Caps(max_len=64, joint=False))
    forward = model.forward
    sizes: list[int] = []

    def counting(blocks):  # type: ignore[no-untyped-def]
        sizes.append(len(blocks))
        return forward(blocks)

    model.forward = counting  # type: ignore[method-assign]
    run(*(Generation(Generate([1, i + 1], 5), model) for i in range(3)))
    assert set(sizes) == {1}


def test_progress_is_told_for_each_chunk() -> None:
    generation = Generation(Generate([1] * 10, 1), ToyModel(), prefill_chunk=4)
    run(generation)
    told = [(e.done, e.total) for e in generation.collect() if isinstance(e, PrefillProgress)]
    assert told == [(4, 10), (8, 10), (10, 10)]


def test_a_stop_string_ends_the_text_inside_a_drafted_block() -> None:
    model = ToyModel(eos_bias=-100.0)
    plain = naive(model, Generate([1, 2], 30))
    text = "".join(chr(96 + t) for t in plain)
    stop = text[7:10]
    drafter = RandomDrafter(1, plain, 1.0)
    generation = Generation(Generate([1, 2], 30, stop=(stop,)), model, drafts=drafts(drafter), chooser=FixedCut())
    run(generation)
    events = generation.collect()
    got = "".join(e.text for e in events if isinstance(e, Piece))
    assert got == text[: text.index(stop)]
    assert isinstance(events[-1], Finished)
    assert (events[-1].reason, events[-1].detail) == ("stop", "stop_string")


def test_the_sequence_never_grows_past_the_limit() -> None:
    model = ToyModel(eos_bias=-100.0, caps=Caps(max_len=20))
    request = Generate([1] * 10, 100)
    generation = Generation(
        request, model, max_len=20, drafts=drafts(RandomDrafter(0, naive(model, request), 1.0)), chooser=FixedCut()
    )
    run(generation)
    last = generation.collect()[-1]
    assert isinstance(last, Finished)
    assert last.reason == "length"
    assert len(generation.output) in (10, 11)  # the last token needs no row of its own


@pytest.mark.parametrize("how", ["abandoned", "timeout"])
def test_ending_from_outside_closes_the_sequence(how: str) -> None:
    generation = Generation(Generate([1, 2, 3], 50), ToyModel(eos_bias=-100.0))
    for _ in range(4):
        run_round(generation.model, [generation])
    generation.end(how)
    last = generation.collect()[-1]
    assert isinstance(last, Finished)
    assert last.reason == how
    assert generation.sequence.closed  # type: ignore[attr-defined]
