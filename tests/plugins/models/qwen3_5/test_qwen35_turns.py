"""A conversation through the resident cache: every turn is what it would be without one, and reads less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from qwen35_tiny import load, text

from tandem.core.engine.caches import CacheStack
from tandem.core.engine.generation import Generation, Phase
from tandem.core.engine.request import Generate
from tandem.core.engine.round import run_round
from tandem.plugins.caches.resident.tier import Resident


def answer(model: Any, prompt: list[int], caches: CacheStack | None) -> Generation:
    generation = Generation(Generate(prompt, 12), model, prefill_chunk=40, caches=caches)
    while generation.phase is not Phase.DONE:
        run_round(model, [generation])
    return generation


@pytest.mark.parametrize("mtp", ["off", "on"])
def test_turns_through_the_resident_tier_are_those_of_a_cold_start(folder: Path, mtp: str) -> None:
    model = load(folder, mtp=mtp)
    tier = Resident(budget=2**30, anchor_budget=2**26, conversations=4, anchor_every=16, trim=model.caps.trim)
    faults: list[str] = []
    caches = CacheStack([("resident", tier)], lambda name, reason: faults.append(reason))
    prompt = text(90)
    read = []
    for turn in range(4):
        cached, cold = answer(model, prompt, caches), answer(model, prompt, None)
        assert cached.output == cold.output
        read.append(cached.stats.cached_tokens)
        # The next turn goes on, but once from the middle of the prompt: a changed question.
        prompt = prompt[:70] + text(30, 50) if turn == 1 else [*prompt, *cold.output, *text(25, turn)]
    assert faults == []
    assert tier.check() == []
    assert read[0] == 0
    assert read[1] > 90
    assert 0 < read[2] <= 70  # back at an anchor within the shared beginning
    assert read[3] > 90


@pytest.mark.parametrize("mtp", ["off", "on"])
def test_who_goes_on_with_a_conversation_in_use_writes_what_a_cold_start_writes(folder: Path, mtp: str) -> None:
    model = load(folder, mtp=mtp)
    tier = Resident(budget=2**30, anchor_budget=2**26, conversations=4, anchor_every=16, trim=model.caps.trim)
    faults: list[str] = []
    caches = CacheStack([("resident", tier)], lambda name, reason: faults.append(reason))
    common = text(90)
    prompts = [[*common, *text(20, 1)], [*common, *text(20, 2)]]
    first = Generation(Generate(prompts[0], 12), model, prefill_chunk=40, caches=caches)
    while first.phase is Phase.PREFILL:
        run_round(model, [first])
    second = Generation(Generate(prompts[1], 12), model, prefill_chunk=40, caches=caches)
    assert second.stats.cached_tokens == 80, "the last line of the grid within what both share"
    while any(one.phase is not Phase.DONE for one in (first, second)):
        run_round(model, [one for one in (first, second) if one.phase is not Phase.DONE])
    assert [first.output, second.output] == [answer(model, prompt, None).output for prompt in prompts]
    assert faults == []
    assert tier.check() == []
