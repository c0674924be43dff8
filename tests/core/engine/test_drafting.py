from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from toy import ToyModel

from tandem.core.engine.drafting import MAX_NODES, PricedChooser, Prices, cut, merge
from tandem.core.plugin import DraftTree


@st.composite
def trees(draw: st.DrawFn, nodes: int = 12) -> DraftTree:
    """Trees without twin children, q falling from parent to child."""
    tree = DraftTree(source=draw(st.sampled_from(["a", "b"])))
    for _ in range(draw(st.integers(1, nodes))):
        parent = draw(st.integers(-1, len(tree) - 1))
        token = draw(st.integers(0, 5))
        if any(t == token and p == parent for t, p in zip(tree.tokens, tree.parents, strict=True)):
            continue
        above = tree.q[parent] if parent >= 0 else 1.0
        tree.add(token, parent, above * draw(st.sampled_from([1.0, 0.5, 0.1])))
    return tree


def paths(tree: DraftTree) -> dict[tuple[int, ...], float]:
    """Each node as the tokens from the root down to it, with its q."""
    known: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        known.append((*(known[parent] if parent >= 0 else ()), token))
    return dict(zip(known, tree.q, strict=True))


@given(st.lists(trees(), min_size=1, max_size=3))
def test_a_merged_tree_has_every_path_once_with_its_best_q(several: list[DraftTree]) -> None:
    merged = merge(several)
    expected: dict[tuple[int, ...], float] = {}
    for tree in several:
        for path, q in paths(tree).items():
            expected[path] = max(q, expected.get(path, 0.0))
    assert len(merged) == len(expected), "a path stands twice"
    assert paths(merged) == expected


@given(trees(), st.integers(0, 12))
def test_a_cut_keeps_the_likeliest_nodes_with_their_parents(tree: DraftTree, count: int) -> None:
    small = cut(tree, count)
    assert len(small) == min(count, len(tree))
    assert set(paths(small)) <= set(paths(tree))
    assert all(parent < i for i, parent in enumerate(small.parents))
    if len(small) < len(tree):
        assert sum(small.q) == pytest.approx(sum(sorted(tree.q, reverse=True)[:count]))


def chain(*q: float, source: str = "s") -> DraftTree:
    tree = DraftTree(source=source)
    for value in q:
        tree.add(1, len(tree) - 1, value)
    return tree


def test_the_chooser_takes_the_count_with_the_best_rate() -> None:
    prices = Prices({rows: 1.0 + 0.25 * (rows - 1) for rows in (1, 2, 4, 8, 16, 32)})
    chosen = PricedChooser(prices).choose([chain(0.9, 0.8, 0.3, 0.1)], 100, 0)
    assert chosen is not None
    # (1 + .9 + .8) / 1.5 = 1.8 beats (1 + .9) / 1.25 = 1.52 and (1 + .9 + .8 + .3) / 1.75 = 1.71
    assert len(chosen) == 2


def test_a_draft_that_costs_more_than_it_brings_is_not_verified() -> None:
    dear = Prices({1: 1.0, 2: 2.5, 4: 4.0, 8: 8.0})
    assert PricedChooser(dear).choose([chain(0.9, 0.8)], 100, 0) is None


def test_a_source_that_is_never_right_is_seldom_tried_but_never_forgotten() -> None:
    chooser = PricedChooser(Prices({1: 1.0, 2: 1.3, 4: 1.6, 8: 2.0}))
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
    chooser = PricedChooser(Prices({1: 1.0, 2: 1.3, 4: 1.6, 8: 2.0}))
    for _ in range(50):
        chooser.learn(chain(0.6, 0.4, source="wrong"), [])
    assert chooser.choose([chain(0.6, 0.4, source="wrong")], 100, 0) is None
    assert chooser.choose([chain(0.6, 0.4, source="fresh")], 100, 0) is not None


def test_no_more_than_the_verify_width_is_taken() -> None:
    free = Prices({1: 1.0, 32: 1.0})
    chosen = PricedChooser(free).choose([chain(*[0.99] * 80)], 100, 0)
    assert chosen is not None
    assert len(chosen) == MAX_NODES


def test_prices_are_measured_at_every_width_and_interpolated() -> None:
    prices = Prices.measured(ToyModel())
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
