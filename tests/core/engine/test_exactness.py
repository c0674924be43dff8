from __future__ import annotations

import torch
from toy import ToyModel

from tandem.core.engine.exactness import SAMPLINGS, plain_run, verify
from tandem.core.engine.request import Generate
from tandem.core.plugin import Block

PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]


def test_a_correct_model_passes_every_way() -> None:
    outcomes = list(verify(ToyModel(), PROMPTS, max_tokens=20))
    assert {outcome.way for outcome in outcomes} == {"plain round", "always wrong", "half right", "two at once"}
    assert {outcome.sampling for outcome in outcomes} == set(SAMPLINGS)
    assert all(outcome.identical == outcome.prompts == len(PROMPTS) for outcome in outcomes)
    half = next(o for o in outcomes if o.way == "half right")
    assert half.tokens > half.rounds, "no draft was accepted, so nothing was proven"


class SiblingsLeak(ToyModel):
    """Rows of a tree see their sibling's token instead of their own parent: the classic wrong mask."""

    def forward(self, blocks):  # type: ignore[no-untyped-def]
        if any(len(block.tokens) > 2 and block.parents is not None for block in blocks):
            blocks = [Block(b.sequence, b.tokens, None, b.logits) for b in blocks]
            return super().forward(blocks)
        return super().forward(blocks)


def test_a_wrong_tree_mask_is_found() -> None:
    model = SiblingsLeak()
    sequences = model.new_sequence

    def lenient(max_len: int):  # type: ignore[no-untyped-def]
        sequence = sequences(max_len)

        def commit(path):  # type: ignore[no-untyped-def]
            block, sequence.pending = sequence.pending, None
            sequence.tokens.extend(block.tokens[row] for row in path)

        sequence.commit = commit  # type: ignore[method-assign]
        return sequence

    model.new_sequence = lenient  # type: ignore[method-assign]
    outcomes = {(o.way, o.sampling): o for o in verify(model, PROMPTS, max_tokens=20)}
    assert outcomes["half right", "greedy"].failures(0.01)
    assert not outcomes["plain round", "greedy"].differences


class Nudged(ToyModel):
    """Adds a little to rows run beside others, as a different summation order does."""

    def forward(self, blocks):  # type: ignore[no-untyped-def]
        out = super().forward(blocks)
        for block, rows in zip(blocks, out, strict=True):
            if len(block.tokens) > 1 and block.sequence.length > 4:
                rows += 0.02 * torch.sin(torch.arange(rows.numel()).view_as(rows) * 1.7)
        return out

    def logits_after(self, tokens):  # type: ignore[no-untyped-def]
        return (super().logits_after(tokens) * 10).round() / 10  # many exact and near ties


def test_a_near_tie_is_told_apart_from_a_fault() -> None:
    prompts = [[1 + i % 11, 1 + (i * 5) % 11, 1 + i // 3] for i in range(24)]
    outcomes = list(verify(Nudged(scale=0.5), prompts, max_tokens=30))
    differences = [d for outcome in outcomes for d in outcome.differences]
    assert differences, "the nudge moved no tie, so nothing was proven"
    assert not [d for outcome in outcomes for d in outcome.failures(0.05)]


def test_the_reference_records_a_lead_for_each_draw() -> None:
    reference = plain_run(ToyModel(eos_bias=2.0), Generate([1, 2], 50))
    assert len(reference.leads) == len(reference.tokens) + 1, "the end token's draw has its lead too"
    assert all(lead >= 0 for lead in reference.leads)


def test_a_models_own_drafts_are_proven_as_well() -> None:
    from tandem.plugins.models.scripted import ScriptedModel

    model = ScriptedModel({"reply": "one two three", "tokens_per_s": 0, "prefill_per_s": 0})
    outcomes = {o.way: o for o in verify(model, [model.tokenizer.encode("hi")], max_tokens=20)}
    assert outcomes["the model's own"].identical == 1
    assert outcomes["always wrong"].rounds > outcomes["the model's own"].rounds, "wrong drafts were not run"
