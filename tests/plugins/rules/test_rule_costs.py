"""What the rules about reasoning cost a block does not grow with the reasoning."""

from __future__ import annotations

import time

import pytest

from tandem.core.plugin import BlockEvent
from tandem.plugins.rules import reasoning_history, reasoning_length, reasoning_loop
from tandem.testing.rules import Stand, request

WORDS = " ".join(f"w{place * 7919 % 1_000_003:x}" for place in range(12_000))


@pytest.mark.parametrize("module", [reasoning_history, reasoning_length, reasoning_loop], ids=lambda m: m.__name__)
def test_a_block_costs_the_same_wherever_it_stands(module: object) -> None:
    """If anything read the reasoning from its beginning, the second half would take three times as long as the first,
    and all of it minutes."""
    stand = Stand(module.tandem_rules()[0], event=request("so " * 1000))  # type: ignore[attr-defined]
    spent = [0.0, 0.0]
    for start in range(0, len(WORDS), 8):
        event = BlockEvent(
            inside=True,
            new_ids=[start * 7919 % 50_000, start % 49_999],
            new_reasoning=WORDS[start : start + 8],
            reasoning_tokens=start // 4,
        )
        began = time.thread_time()
        assert stand.check(event) is None
        spent[2 * start > len(WORDS)] += time.thread_time() - began
    assert spent[1] < 2 * spent[0] + 0.1
