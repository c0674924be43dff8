from __future__ import annotations

import itertools

from hypothesis import given, settings, strategies as st

from tandem.plugins.drafters.lookup import LONGEST_ORDER, LookupSession, tandem_drafters


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
