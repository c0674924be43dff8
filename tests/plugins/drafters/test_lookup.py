from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

from tandem.core.plugin import DraftTree
from tandem.plugins.drafters.lookup import LONGEST_ORDER, Continuation, LookupSession, TextRates, tandem_drafters


def session(min_order: int = 3, max_depth: int = 16, branch_top_k: int = 3, max_places: int = 16) -> LookupSession:
    return LookupSession(min_order, max_depth, branch_top_k, max_places)


def naive_places(text: list[int], root: int, order: int, max_places: int) -> tuple[int, list[int]]:
    """The longest common ending found by comparing everywhere, and the places that have it."""
    whole = [*text, root]
    ends = [end for end in range(order, len(text) + 1) if text[end - order : end] == whole[-order:]][-max_places:]
    best, places = 0, []
    for end in ends:
        length = 0
        while length < min(LONGEST_ORDER, end) and text[end - 1 - length] == whole[-1 - length]:
            length += 1
        if length > best:
            best, places = length, []
        if length == best:
            places.append(end)
    return best, places


@settings(max_examples=300)
@given(
    st.lists(st.integers(0, 3), max_size=60),
    st.integers(0, 3),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(1, 3),
    st.lists(st.integers(1, 60), max_size=4),
)
def test_every_branch_follows_a_longest_match(
    text: list[int], root: int, order: int, depth: int, branches: int, cuts: list[int]
) -> None:
    drafts = session(order, depth, branches)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    for start, end in itertools.pairwise(places):
        drafts.extend(text[start:end])  # in any pieces
    tree = drafts.propose(root, 31)
    _, found = naive_places(text, root, order, 16)
    followed = [place for place in found if place < len(text)]
    if not followed:
        assert tree is None
        return
    assert tree is not None
    continuations = [text[place : place + depth] for place in followed]
    known: list[list[int]] = []
    for token, parent, q in zip(tree.tokens, tree.parents, tree.q, strict=True):
        path = [*(known[parent] if parent >= 0 else []), token]
        known.append(path)
        assert any(c[: len(path)] == path for c in continuations), "a branch that nothing in the text followed"
        assert 0 < q <= (tree.q[parent] if parent >= 0 else 1.0)
    assert len({tuple(path) for path in known}) == len(known), "a path stands twice"
    roots = [path for path in known if len(path) == 1]
    assert len(roots) == min(branches, len({c[0] for c in continuations}))


def test_a_copy_is_drafted_to_the_full_depth() -> None:
    drafts = session()
    drafts.extend([*range(100), 200, 201, 10, 11, 12])
    tree = drafts.propose(13, 31)
    assert tree is not None
    assert tree.tokens == list(range(14, 30))
    assert tree.parents == list(range(-1, 15))


def test_the_longest_match_wins_over_later_shorter_ones() -> None:
    drafts = session()
    drafts.extend([9, 1, 2, 3, 50, 60, 8, 1, 2, 3, 70, 80, 9, 1, 2])
    tree = drafts.propose(3, 31)
    assert tree is not None
    assert tree.tokens[0] == 50


def test_two_continuations_become_two_branches_weighted_by_votes() -> None:
    drafts = session(max_depth=2)
    drafts.extend([0, 1, 2, 3, 7, 0, 1, 2, 3, 7, 0, 1, 2, 3, 8, 0, 1, 2])
    tree = drafts.propose(3, 31)
    assert tree is not None
    first = {tree.tokens[i]: tree.q[i] for i in range(len(tree)) if tree.parents[i] == -1}
    assert first[7] > first[8] > 0


def test_no_match_below_the_least_order() -> None:
    drafts = session(min_order=3)
    drafts.extend([1, 2, 3, 4, 9, 2])
    assert drafts.propose(3, 31) is None
    assert drafts.propose(99, 31) is None


def test_the_limit_is_kept() -> None:
    drafts = session()
    drafts.extend([*range(50), 1, 2])
    tree = drafts.propose(3, 5)
    assert tree is not None
    assert len(tree) == 5
    assert session().propose(1, 31) is None


def test_the_part_has_a_default_and_a_sentence_for_each_option() -> None:
    (part,) = tandem_drafters()
    assert part.name == "lookup"
    assert all(option["description"].endswith(".") and "default" in option for option in part.options.values())


# ------------------------------------------------------------------------------------------------- the deep chain


def follow(drafts: LookupSession, text: Sequence[int], at: int, limit: int = 31, width: int = 31) -> list[DraftTree]:
    """Write `text` from `at` on in rounds, as a model would that copies it, `width` nodes of each tree verified."""
    trees: list[DraftTree] = []
    while at < len(text):
        tree = drafts.propose(text[at], limit)
        run = [text[at]]
        if tree is not None:
            trees.append(tree)
            node = -1
            child = {(p, t): i for i, (p, t) in enumerate(zip(tree.parents, tree.tokens, strict=True)) if i < width}
            while at + len(run) < len(text) and (node := child.get((node, text[at + len(run)]), -2)) >= 0:
                run.append(tree.tokens[node])
        drafts.extend(run)
        at += len(run)
    return trees


def is_chain(tree: DraftTree) -> bool:
    return tree.parents == list(range(-1, len(tree) - 1))


def test_after_two_proposals_that_were_followed_the_next_is_a_chain_as_deep_as_allowed() -> None:
    drafts = session()
    drafts.extend(range(200))
    trees = follow(drafts, range(200), at=10)
    assert [tree.source for tree in trees[:3]] == ["lookup:short", "lookup:long", "lookup:deep"]
    assert [len(tree) for tree in trees[:3]] == [16, 16, 31]
    assert is_chain(trees[2])
    assert trees[2].tokens == list(range(trees[2].tokens[0], trees[2].tokens[0] + 31))


def test_the_deep_chain_ends_with_the_first_that_fails_and_begins_again_after_two() -> None:
    source = list(range(300))
    copy = [*source[10:150], 999, *source[151:290]]
    drafts = session()
    drafts.extend(source)
    sources = [tree.source.partition(":")[2] for tree in follow(drafts, copy, at=0)]
    fails = sources.index("deep") + 3  # the first chain holds 31, so the third one or so meets the change
    after = [at for at in range(fails, len(sources)) if sources[at] != "deep"]
    assert len(after) >= 2
    assert sources[after[-1] + 1] == "deep"


def test_a_wrong_branch_is_no_success() -> None:
    drafts = session(max_depth=4)
    drafts.extend([*range(20), *range(20)])
    for root, next_ in ((3, 77), (4, 77), (5, 77)):  # the text never goes on as before
        drafts.extend([1, 2])
        tree = drafts.propose(root, 31)
        drafts.extend([root, next_])
        assert tree is None or tree.source != "lookup:deep"


@settings(max_examples=100)
@given(st.lists(st.integers(0, 2), min_size=4, max_size=40), st.integers(1, 31), st.integers(1, 31))
def test_a_deep_chain_is_the_exact_continuation_of_an_earlier_place(text: list[int], limit: int, width: int) -> None:
    drafts = session(min_order=2, max_depth=3)
    whole = [*text, *text, *text]
    drafts.extend(text)
    at = len(text)
    while at < len(whole):
        root = whole[at]
        tree = drafts.propose(root, limit)
        before = [*whole[:at], root]
        if tree is not None and tree.source == "lookup:deep":
            assert is_chain(tree)
            assert len(tree) == limit
            written = [*before, *tree.tokens]
            assert any(
                written[place - 2 : place] == before[-2:] and written[place : place + limit] == tree.tokens
                for place in range(2, len(before))
            )
        run = [root]
        if tree is not None and is_chain(tree):
            while at + len(run) < len(whole) and len(run) <= min(len(tree), width):
                if tree.tokens[len(run) - 1] != whole[at + len(run)]:
                    break
                run.append(whole[at + len(run)])
        drafts.extend(run)
        at += len(run)


def test_a_loop_is_drafted_beyond_the_end_of_the_text() -> None:
    drafts = session()
    drafts.extend([7, 8, 9] * 6)
    trees = follow(drafts, [7, 8, 9] * 40, at=18)
    assert trees[-1].source == "lookup:deep"
    assert len(trees[2]) == 31
    assert trees[2].tokens[:3] in ([7, 8, 9], [8, 9, 7], [9, 7, 8])


def test_a_deep_chain_follows_the_copy_and_not_a_later_place_that_looks_the_same() -> None:
    shared = list(range(100, 140))
    first, second = [*shared, *range(200, 260)], [*shared, *range(300, 360)]
    drafts = session()
    drafts.extend([*first, 1, *second, 2])
    trees = follow(drafts, first, at=0, limit=31)
    deep = [tree for tree in trees if tree.source == "lookup:deep"]
    assert deep[-1].tokens[0] in range(200, 260)


def test_the_chain_can_be_switched_off() -> None:
    drafts = LookupSession(3, 16, 3, 16, deep=False)
    drafts.extend(range(200))
    assert all(tree.source != "lookup:deep" for tree in follow(drafts, range(200), at=10))


# ------------------------------------------------------------------------------------------------------ honest q


def copies(right: float, seed: int, length: int = 3000) -> list[int]:
    """Three-token phrases that come back; what follows one is the same as before with probability `right`."""
    noise = random.Random(seed)
    follower: dict[int, int] = {}
    text: list[int] = []
    while len(text) < length:
        phrase = noise.randrange(30)
        text += [1000 + phrase, 2000 + phrase, 3000 + phrase]
        same = follower.get(phrase) if noise.random() < right else None
        follower[phrase] = same if same is not None else noise.randrange(10**6, 10**9)
        text.append(follower[phrase])
    return text


@pytest.mark.parametrize("right", [0.1, 0.5, 0.9])
def test_what_is_said_comes_true_as_often_in_the_long_run(right: float) -> None:
    drafts = session()
    text = copies(right, seed=3)
    said, came = [], []
    for at, token in enumerate(text):
        tree = drafts.propose(token, 31)
        if tree is not None and token // 1000 == 3 and at > 1000:
            said.append(sum(q for q, parent in zip(tree.q, tree.parents, strict=True) if parent < 0))
            first = {t for t, parent in zip(tree.tokens, tree.parents, strict=True) if parent < 0}
            came.append(at + 1 < len(text) and text[at + 1] in first)
        drafts.extend([token])
    assert len(said) > 300
    assert sum(said) / len(said) == pytest.approx(sum(came) / len(came), abs=0.1)


def test_a_text_is_known_after_a_few_proposals_that_nobody_verified() -> None:
    rates = Continuation()
    drafts = LookupSession(3, 16, 3, 16, rates=rates)
    text = copies(0.0, seed=4, length=600)
    first = last = 0.0
    for token in text:
        tree = drafts.propose(token, 31)
        drafts.extend([token])
        if tree is not None and token // 1000 == 3:
            last = tree.q[0]
            first = first or last
    assert last < 0.15 < first


def test_other_texts_start_from_what_was_learned_and_not_with_this_texts_own_odds() -> None:
    rates = Continuation()
    before = rates.rate(1, False)
    drafts = LookupSession(3, 16, 3, 16, rates=rates)
    for token in copies(0.0, seed=5, length=400):
        drafts.propose(token, 31)
        drafts.extend([token])
    here, elsewhere = drafts._rates.rates(False)[1], TextRates(rates).rates(False)[1]
    assert here < elsewhere < before


def test_counts_are_halved_so_that_the_old_weighs_less() -> None:
    rates = Continuation()
    for _ in range(20_000):
        rates.learn(5, False, True)
    for _ in range(6000):
        rates.learn(5, False, False)
    assert rates.rate(3, False) < 0.3


@given(st.lists(st.integers(0, 3), max_size=120), st.lists(st.integers(1, 9), max_size=60))
def test_whatever_is_written_q_falls_along_paths_and_stays_a_probability(text: list[int], runs: list[int]) -> None:
    drafts, at = session(min_order=2), 0
    for run in runs:
        if at >= len(text):
            break
        tree = drafts.propose(text[at], 31)
        if tree is not None:
            assert all(
                0 < q <= (tree.q[parent] if parent >= 0 else 1.0)
                for q, parent in zip(tree.q, tree.parents, strict=True)
            )
        drafts.extend(text[at : at + run])
        at += run
