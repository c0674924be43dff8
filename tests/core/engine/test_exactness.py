"""The proof finds what it should find, and excuses a near tie only."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from toy import EOS, RandomDrafter, ToyModel

from tandem.core.engine.constraint import regex_grammar
from tandem.core.engine.drafting import FixedCutting
from tandem.core.engine.exactness import Case, Difference, Outcome, default_cases, verify
from tandem.core.engine.plain import PlainRun
from tandem.core.engine.request import Generate, Sampling, Thinking, TokenLogprob
from tandem.core.engine.sampling import Sampler
from tandem.core.plugin import Block, DraftTree

PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
TAGS = ("jj", "kk")
SEEDED = Sampling(temperature=0.8, top_p=0.9, top_k=8, min_p=0.01, seed=5, logprobs=2)
TOUCHED = Sampling(repetition_penalty=1.2, presence_penalty=0.3, logit_bias={3: 1.0, 7: -2.0}, logprobs=3)
PATTERN = regex_grammar("(ab|c[d-f]{2}){2,5}")
CASES = (
    Case("greedy"),
    Case("touched", TOUCHED),
    Case("seeded", SEEDED),
    Case("pattern", grammar=PATTERN),
    Case("pattern, seeded", SEEDED, PATTERN),
    Case("budget", budget=3),
    Case("budget, then pattern", TOUCHED, PATTERN, 3),
)


def outcomes(model: ToyModel, prompts: Seq[Seq[int]] = PROMPTS, **more: Any) -> dict[tuple[str, str], Outcome]:
    found = verify(model, prompts, **{"max_tokens": 20, "cases": CASES, "tags": TAGS, **more})
    return {(outcome.way, outcome.case): outcome for outcome in found}


def test_a_correct_model_passes_every_way() -> None:
    drafters = [("one", lambda start: RandomDrafter(1)), ("two", lambda start: RandomDrafter(2))]
    found = outcomes(ToyModel(), drafters=drafters, choosing=FixedCutting())
    ways = {"no drafter", "always wrong", "half right", "one", "two", "all drafters", "as served", "two at once"}
    assert set(found) == {(way, case.name) for way in ways for case in CASES}
    for outcome in found.values():
        assert outcome.passed(0.0), outcome
        assert outcome.identical == outcome.prompts == len(PROMPTS)
    assert found["half right", "greedy"].accepted > 0, "no draft was accepted, so nothing was proven"
    assert found["always wrong", "greedy"].drafted > 0
    assert found["always wrong", "greedy"].accepted == 0
    assert found["half right", "greedy"].drift is None
    assert found["half right", "touched"].drift == 0.0


def test_only_the_ways_that_are_named_are_run() -> None:
    found = outcomes(ToyModel(), only=["half right", "two at once"], cases=CASES[:1])
    assert [way for way, _ in found] == ["half right", "two at once"]


def test_a_case_may_ask_a_part_of_the_prompts() -> None:
    found = outcomes(ToyModel(), only=["no drafter"], cases=[Case("some", every=2)])
    assert found["no drafter", "some"].prompts == 2


class Leaking(ToyModel):
    """Rows of a tree see their neighbour's token instead of their own parent: the classic wrong mask."""

    def forward(self, blocks):  # type: ignore[no-untyped-def]
        if any(len(block.tokens) > 2 and block.parents is not None for block in blocks):
            blocks = [Block(b.sequence, b.tokens, None, b.logits) for b in blocks]
        return super().forward(blocks)

    def new_sequence(self, max_len: int):  # type: ignore[no-untyped-def]
        sequence = super().new_sequence(max_len)

        def commit(path: Seq[int]) -> None:
            block, sequence.pending = sequence.pending, None
            assert block is not None
            sequence.tokens.extend(block.tokens[row] for row in path)

        sequence.commit = commit  # type: ignore[method-assign]
        return sequence


def test_a_wrong_tree_mask_is_found() -> None:
    found = outcomes(Leaking())
    assert found["half right", "greedy"].failures(0.01)
    assert not found["half right", "greedy"].passed(0.01)
    assert not found["no drafter", "greedy"].differences


class Forgetful(ToyModel):
    """Keeps a rejected row: what a recurrent state looks like that was not put back."""

    def new_sequence(self, max_len: int):  # type: ignore[no-untyped-def]
        sequence = super().new_sequence(2 * max_len)
        commit = sequence.commit

        def keep_one_more(path: Seq[int]) -> None:
            block = sequence.pending
            assert block is not None
            commit(path)
            if block.parents is not None and len(path) < len(block.tokens):
                sequence.tokens.insert(len(sequence.tokens) - len(path), block.tokens[-1])

        sequence.commit = keep_one_more  # type: ignore[method-assign]
        return sequence


def test_a_state_that_keeps_a_rejected_row_is_found() -> None:
    found = outcomes(Forgetful(memory=6), cases=CASES[:1])
    assert found["always wrong", "greedy"].failures(0.01)
    assert found["no drafter", "greedy"].passed(0.0)


class Nudged(ToyModel):
    """Adds a little to rows run beside others, as a different summation order does."""

    by = 0.02

    def forward(self, blocks):  # type: ignore[no-untyped-def]
        out = super().forward(blocks)
        for block, rows in zip(blocks, out, strict=True):
            if len(block.tokens) > 1 and block.sequence.length > 4:
                rows += self.by * torch.sin(torch.arange(rows.numel()).view_as(rows) * 1.7)
        return out

    def logits_after(self, tokens):  # type: ignore[no-untyped-def]
        return (super().logits_after(tokens) * 10).round() / 10  # many exact and near ties


MANY = [[1 + i % 11, 1 + (i * 5) % 11, 1 + i // 3] for i in range(24)]


def test_a_near_tie_is_told_apart_from_a_fault() -> None:
    cases = [
        Case("greedy"),
        Case("seeded", Sampling(temperature=0.7, top_p=0.8, top_k=6, min_p=0.05, seed=3)),
        Case("hot", Sampling(temperature=1.5, top_p=0.6, seed=4)),
        Case("touched", Sampling(repetition_penalty=1.1, presence_penalty=0.1)),
    ]
    found = outcomes(Nudged(scale=0.5), MANY, max_tokens=30, cases=cases)
    for case in cases:
        differences = [d for (_, name), outcome in found.items() if name == case.name for d in outcome.differences]
        assert differences, f"{case.name}: the nudge moved no tie, so nothing was proven"
        assert all(d.nats <= 0.06 for d in differences), "the rows moved by 0.02 up or down"


def test_a_difference_is_measured_by_the_token_that_was_drawn() -> None:
    """A near tie between two tokens is no excuse for a third."""

    class Third(ToyModel):
        """First and second are nearly tied; after a tree the third is written."""

        def logits_after(self, tokens):  # type: ignore[no-untyped-def]
            return torch.tensor([-9.0, 5.0, 4.99, 1.0, *[0.0] * 8])

        def forward(self, blocks):  # type: ignore[no-untyped-def]
            out = super().forward(blocks)
            for block, rows in zip(blocks, out, strict=True):
                if block.parents is not None:
                    rows[:, 3] += 6
            return out

    (difference,) = outcomes(Third(), [[1]], cases=CASES[:1])["always wrong", "greedy"].failures(0.1)
    assert difference.nats == pytest.approx(4.0, abs=0.01)


def test_drifting_log_probabilities_are_found_though_no_token_changes() -> None:
    class Sure(Nudged):
        by = 0.3

        def logits_after(self, tokens):  # type: ignore[no-untyped-def]
            row = ToyModel.logits_after(self, tokens)
            row[row.argmax()] += 3
            return row

    case = Case("logprobs", Sampling(logprobs=2))
    outcome = outcomes(Sure(), MANY, cases=[case], only=["half right"])["half right", "logprobs"]
    assert not outcome.differences
    assert outcome.drift is not None
    assert 0.05 < outcome.drift < 1.0
    assert not outcome.passed(0.05)
    assert not outcome.passed(1.0, 0.05)
    assert outcome.passed(0.05, 1.0)


def test_a_drafter_or_a_pass_that_fails_is_a_fault_and_no_end_of_the_proof() -> None:
    class Broken:
        def extend(self, tokens: Seq[int]) -> None:
            return

        def propose(self, root: int, limit: int) -> DraftTree | None:
            raise KeyError("page")

        def close(self) -> None:
            return

    found = outcomes(ToyModel(), drafters=[("broken", lambda start: Broken())], cases=CASES[:1])
    assert "the drafter broken failed: KeyError: 'page'" in found["broken", "greedy"].faults[0]
    assert not found["broken", "greedy"].passed(9.0)
    assert found["half right", "greedy"].passed(0.0)

    class NoTrees(ToyModel):
        def forward(self, blocks):  # type: ignore[no-untyped-def]
            if any(block.parents is not None for block in blocks):
                raise RuntimeError("no trees here")
            return super().forward(blocks)

    found = outcomes(NoTrees(), cases=CASES[:1])
    assert found["always wrong", "greedy"].faults[0] == "prompt 0: a pass failed: no trees here"
    assert found["no drafter", "greedy"].passed(0.0)


def test_a_models_own_drafts_are_proven_as_well() -> None:
    from tandem.plugins.models.scripted import ScriptedModel

    model = ScriptedModel({"reply": "one two three", "tokens_per_s": 0, "prefill_per_s": 0})
    found = {o.way: o for o in verify(model, [model.tokenizer.encode("hi")], max_tokens=20, cases=[Case("greedy")])}
    assert found["the model's own"].identical == 1
    assert found["always wrong"].rounds > found["the model's own"].rounds, "wrong drafts were not run"


def test_a_prompt_without_room_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="a prompt has 0 tokens; it must have some, and fewer than 512"):
        outcomes(ToyModel(), [[]], cases=CASES[:1])


def test_the_default_cases_cover_all_that_touches_a_row() -> None:
    cases = default_cases(ToyModel().tokenizer)
    samplings = [case.sampling for case in cases]
    assert any(s.repetition_penalty != 1 and s.presence_penalty and s.frequency_penalty for s in samplings)
    assert any(s.no_repeat_ngram_size and s.logit_bias and s.logprobs for s in samplings)
    assert any(s.temperature and s.top_p < 1 and s.top_k and s.min_p and s.seed for s in samplings)
    assert any(case.grammar and not case.budget for case in cases)
    assert any(case.grammar and case.budget and case.sampling.temperature for case in cases)


def test_nan_passes_nothing() -> None:
    assert Outcome("a", "b", differences=[Difference(0, 0, math.nan)]).failures(1.0)
    assert not Outcome("a", "b", drift=math.inf).passed(1.0)


# ----------------------------------------------------------------------------------------------- the plain run itself


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-4, 4, width=32), min_size=12, max_size=12),
    st.sampled_from([Sampling(), Sampling(temperature=0.6, seed=2), Sampling(repetition_penalty=1.4)]),
    st.integers(1, 11),
)
def test_a_nudge_is_enough_and_half_of_it_is_not(row: list[float], sampling: Sampling, token: int) -> None:
    """Without borders the smallest move is that of one logit alone, so it can be tried by hand."""

    class Fixed(ToyModel):
        def logits_after(self, tokens):  # type: ignore[no-untyped-def]
            return torch.tensor(row)

    run = PlainRun(Fixed(), Generate([1, 2], 4, sampling))
    nats = run.nudge([token])
    sampler = Sampler(sampling, [1, 2], 12)

    def drawn(by: float) -> set[int]:
        raised, lowered = torch.tensor(row), torch.tensor(row)
        first = sampler.draw(raised)
        raised[token] += by
        lowered[first] -= by
        return {sampler.draw(raised), sampler.draw(lowered)}

    assert token in drawn(nats * 1.001 + 1e-3)
    assert nats < 1e-3 or token not in drawn(nats * 0.5)


def test_a_token_that_the_grammar_forbids_is_infinitely_far() -> None:
    from tandem.core.engine.constraint import Grammars

    model = ToyModel()
    grammars = Grammars(model.tokenizer)
    run = PlainRun(model, Generate([1, 2], 9, constraint=lambda: grammars.single(PATTERN)))
    assert run.nudge([2]) == math.inf, "`b` begins nothing"
    assert min(run.nudge([1]), run.nudge([3])) == 0.0, "`a` or `c` is what is written"


def test_a_phrase_that_must_come_is_infinitely_far_from_anything_else() -> None:
    run = PlainRun(ToyModel(), Generate([1], 9, thinking=Thinking(TAGS, True, 0, (5, 11, 11))))
    assert run.nudge([1]) == math.inf
    assert run.finish().tokens[:3] == [5, 11, 11]


def test_the_plain_run_keeps_the_log_probabilities_of_drawn_tokens_only() -> None:
    thinking = Thinking(TAGS, True, 2, (5, 11, 11))
    request = Generate([1], 9, Sampling(logprobs=1), thinking=thinking)
    reference = PlainRun(ToyModel(eos_bias=-100.0), request).finish()
    assert len(reference.tokens) == 9
    assert len(reference.logprobs) == 6
    assert all(isinstance(each, TokenLogprob) and each.top[0][0] == each.token for each in reference.logprobs)


def test_the_plain_run_ends_at_the_end_token() -> None:
    assert PlainRun(ToyModel(eos_bias=100.0), Generate([1, 2], 50)).finish().tokens == []
    assert EOS not in PlainRun(ToyModel(eos_bias=2.0), Generate([1, 2], 50)).finish().tokens


@pytest.mark.parametrize(
    "request_", [Generate([1], 3, thinking=Thinking(TAGS, False)), Generate([1], 3, images=(object(),))]
)  # type: ignore[arg-type]
def test_what_the_plain_run_cannot_follow_is_refused(request_: Generate) -> None:
    with pytest.raises(ValueError, match="plain decoding follows no pictures"):
        PlainRun(ToyModel(), request_)
