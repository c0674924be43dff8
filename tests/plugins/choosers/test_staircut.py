from __future__ import annotations

import pytest

from tandem.core.plugin import DraftTree
from tandem.plugins.choosers.staircut.chooser import MAX_NODES, StairCut
from tandem.plugins.choosers.staircut.prices import Prices
from tandem.plugins.models.scripted import ScriptedModel


def chain(*q: float, source: str = "s") -> DraftTree:
    tree = DraftTree(source=source)
    for value in q:
        tree.add(1, len(tree) - 1, value)
    return tree


def test_the_chooser_takes_the_count_with_the_best_rate() -> None:
    prices = Prices({rows: 1.0 + 0.25 * (rows - 1) for rows in (1, 2, 4, 8, 16, 32)})
    chosen = StairCut(prices).choose([chain(0.9, 0.8, 0.3, 0.1)], 100, 0)
    assert chosen is not None
    # (1 + .9 + .8) / 1.5 = 1.8 beats (1 + .9) / 1.25 = 1.52 and (1 + .9 + .8 + .3) / 1.75 = 1.71
    assert len(chosen) == 2


def test_a_draft_that_costs_more_than_it_brings_is_not_verified() -> None:
    dear = Prices({1: 1.0, 2: 2.5, 4: 4.0, 8: 8.0})
    assert StairCut(dear).choose([chain(0.9, 0.8)], 100, 0) is None


def test_a_source_that_is_never_right_is_seldom_tried_but_never_forgotten() -> None:
    chooser = StairCut(Prices({1: 1.0, 2: 1.3, 4: 1.6, 8: 2.0}))
    tried = []
    for round_ in range(3000):
        chosen = chooser.choose([chain(0.6, 0.4)], 100, 0)
        if chosen is not None:
            chooser.learn(chosen, [])
            tried.append(round_)
    assert tried[0] == 0
    assert len(tried) < 150, "more than one round in twenty is wasted"
    assert tried[-1] > 2000, "it was given up for ever"


def test_evidence_is_kept_apart_by_source() -> None:
    chooser = StairCut(Prices({1: 1.0, 2: 1.3, 4: 1.6, 8: 2.0}))
    for _ in range(50):
        chooser.learn(chain(0.6, 0.4, source="wrong"), [])
    assert chooser.choose([chain(0.6, 0.4, source="wrong")], 100, 0) is None
    assert chooser.choose([chain(0.6, 0.4, source="fresh")], 100, 0) is not None


def test_no_more_than_the_verify_width_is_taken() -> None:
    free = Prices({1: 1.0, 32: 1.0})
    chosen = StairCut(free).choose([chain(*[0.99] * 80)], 100, 0)
    assert chosen is not None
    assert len(chosen) == MAX_NODES


def test_prices_are_measured_at_every_width_and_interpolated() -> None:
    prices = Prices.measured(ScriptedModel({"reply": "x", "tokens_per_s": 0, "prefill_per_s": 0}))
    assert set(prices.report()[1024]) == {1, 2, 4, 8, 16, 32}
    table = Prices({1: 1.0, 2: 2.0, 4: 3.0})
    assert table.price(3, 10) == pytest.approx(2.5)
    assert table.price(8, 10) == pytest.approx(6.0)


def test_prices_follow_the_machine_and_ignore_a_hiccup() -> None:
    prices = Prices({1: 1.0, 2: 1.0})
    for _ in range(100):
        prices.observe(1, 10, 2.0)
    assert prices.price(1, 10) == pytest.approx(2.0, rel=0.01)
    prices.observe(1, 10, 1000.0)
    assert prices.price(1, 10) < 2.5
    assert prices.price(1, 20_000) == pytest.approx(prices.price(1, 10)), "a new class starts from the nearest"
