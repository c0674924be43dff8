"""Trees that are read, merged and cut."""

from __future__ import annotations

import itertools
from itertools import combinations

import pytest
from hypothesis import given, settings, strategies as st
from staircut_kit import PART, chain, linear, shared

from tandem.core.plugin import DraftTree
from tandem.plugins.choosers.staircut.calibration import Source, TextOdds
from tandem.plugins.choosers.staircut.trees import (
    Reading,
    Voice,
    best_cut,
    exclusive,
    first_nodes,
    in_order,
    merge,
    read,
)


def voice(drafter: str = "d") -> Voice:
    return Voice(drafter, Source(1000), TextOdds(doubt=0))


@st.composite
def trees(draw: st.DrawFn, most: int = 10) -> DraftTree:
    tree = DraftTree(source=draw(st.sampled_from("ab")))
    for i in range(draw(st.integers(1, most))):
        parent = draw(st.integers(-1, i - 1))
        taken = {t for t, p in zip(tree.tokens, tree.parents, strict=True) if p == parent}
        token = draw(st.sampled_from([token for token in range(11) if token not in taken]))
        tree.add(token, parent, draw(st.floats(0.01, 1.0)) * (tree.q[parent] if parent >= 0 else 1.0))
    return tree


def paths(tree: DraftTree | Reading) -> dict[tuple[int, ...], float]:
    known: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        known.append((*(known[parent] if parent >= 0 else ()), token))
    return dict(zip(known, tree.q, strict=True))


def closed(parents: list[int], nodes: set[int]) -> bool:
    return all(parents[node] in nodes or parents[node] < 0 for node in nodes)


@settings(max_examples=60)
@given(trees(8), st.lists(st.floats(0, 1), min_size=9, max_size=9), st.floats(0, 2), st.floats(1, 3))
def test_the_cut_is_the_best_of_all_sets_of_nodes_that_hold_their_ancestors(
    tree: DraftTree, steps: list[float], spent: float, tokens: float
) -> None:
    passes = list(itertools.accumulate(steps, initial=1.0))
    reading = read(tree, voice())
    cut = best_cut([reading.q[i] for i in reading.order], passes, tokens, spent)
    best = max(
        (tokens + sum(reading.q[i] for i in nodes)) / (passes[len(nodes)] + spent)
        for count in range(len(tree) + 1)
        for nodes in combinations(range(len(tree)), count)
        if closed(reading.parents, set(nodes))
    )
    assert cut.rate == pytest.approx(best)
    cut_tree, kept = first_nodes(reading, cut.count)
    assert closed(reading.parents, set(kept))
    assert len(cut_tree) == cut.count
    assert (tokens + sum(cut_tree.q)) / (passes[cut.count] + spent) == pytest.approx(best)
    assert paths(cut_tree).items() <= paths(reading).items()


@given(st.lists(trees(), min_size=1, max_size=3))
def test_a_merged_tree_holds_every_path_once_with_all_who_proposed_it(drafted: list[DraftTree]) -> None:
    readings = [read(tree, voice(str(i))) for i, tree in enumerate(drafted)]
    merged = merge(readings)
    whole = paths(merged)
    assert set(whole) == {path for reading in readings for path in paths(reading)}
    assert len(merged.tokens) == len(whole)
    for node, path in enumerate(whole):
        proposers = {str(i) for i, reading in enumerate(readings) if path in paths(reading)}
        assert {said[0].drafter for said in merged.said[node]} == proposers
        given_to_it = {r.said[0][0][0].drafter: paths(r)[path] for r in readings if path in paths(r)}
        first = merged.said[node][0][0].drafter
        assert given_to_it[first] == max(given_to_it.values())
        assert merged.q[node] <= max(given_to_it.values()) + 1e-9


@given(st.lists(trees(), min_size=1, max_size=3))
def test_children_are_together_no_likelier_than_their_parent(drafted: list[DraftTree]) -> None:
    merged = merge([read(tree, voice(str(i))) for i, tree in enumerate(drafted)])
    for parent in {-1, *merged.parents}:
        below = sum(q for q, above in zip(merged.q, merged.parents, strict=True) if above == parent)
        assert below <= (merged.q[parent] if parent >= 0 else 1.0) + 1e-9
    order = {node: at for at, node in enumerate(in_order(merged.q))}
    assert all(parent < 0 or order[parent] < order[node] for node, parent in enumerate(merged.parents))


def test_probabilities_that_can_be_are_left_as_they_are() -> None:
    assert exclusive([-1, -1, 0], [0.6, 0.4, 0.6]) == [0.6, 0.4, 0.6]
    assert exclusive([-1, -1, 0], [0.9, 0.9, 0.45]) == pytest.approx([0.5, 0.5, 0.25])


def test_a_node_likelier_than_its_parent_is_put_right() -> None:
    assert read(chain(0.5, 0.9, 0.2), voice()).q == pytest.approx([0.5, 0.5, 0.2 * 0.5 / 0.9], rel=0.01)


def test_the_count_with_the_best_rate_is_verified() -> None:
    chosen = shared(linear(0.25)).open().choose([chain(0.9, 0.8, 0.3, 0.1)], 100, 0)
    assert chosen is not None
    # (1 + .9 + .8) / 1.5 = 1.8 beats (1 + .9) / 1.25 = 1.52 and (1 + .9 + .8 + .3) / 1.75 = 1.71
    assert len(chosen) == 2


def test_a_draft_that_costs_more_than_it_brings_is_not_verified() -> None:
    assert shared(linear(1.5)).open().choose([chain(0.9, 0.8)], 100, 0) is None


def test_a_draft_must_be_better_than_a_plain_step_by_the_margin() -> None:
    tree = chain(0.5)  # believed to 0.3775 in a text that is new
    assert shared(linear(0.3), margin=0.05).open().choose([tree], 100, 0) is not None  # 1.3775 / 1.3 = 1.06
    assert shared(linear(0.3), margin=0.07).open().choose([tree], 100, 0) is None


def test_branches_of_two_drafters_are_verified_together() -> None:
    chooser = shared(linear(0.05)).open()
    chosen = chooser.choose([chain(0.6, 0.5, source="a"), chain(0.35, 0.3, source="b", start=50)], 100, 0)
    assert chosen is not None
    assert sorted(chosen.tokens) == [1, 2, 50, 51]
    assert sorted(parent for parent in chosen.parents if parent < 0) == [-1, -1]


def test_a_model_that_can_not_branch_gets_a_chain() -> None:
    chooser = shared(linear(0.01), branches=False).open()
    chosen = chooser.choose([chain(0.6, 0.5, source="a"), chain(0.35, 0.3, source="b", start=50)], 100, 0)
    assert chosen is not None
    assert (chosen.tokens, chosen.parents) == ([1, 2], [-1, 0])


def test_no_more_than_the_allowed_nodes_are_verified() -> None:
    for most in (1, 5, 31):
        chosen = shared(linear(0.0), max_nodes=most).open().choose([chain(*[0.99] * 80)], 100, 0)
        assert chosen is not None
        assert len(chosen) == most


def test_rows_of_others_are_paid_for_by_those_who_brought_them() -> None:
    """Where a pass is cheap up to eight rows and dear beyond, a full pass leaves no room for guesses."""

    def price(rows: int) -> float:
        return 1.0 if rows <= 8 else 1.0 + 0.25 * (rows - 8)

    tree = chain(0.6, 0.5, 0.4)
    alone = shared(price).open().choose([tree], 100, 0)
    joined = shared(price).open().choose([tree], 100, 16)
    assert alone is not None
    assert len(alone) == 3
    assert joined is None


def test_every_option_has_a_sentence_and_a_default() -> None:
    assert PART.name == "staircut"
    assert all(option["description"].endswith(".") and "default" in option for option in PART.options.values())
