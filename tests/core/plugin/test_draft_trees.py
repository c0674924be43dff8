from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from tandem.core.plugin import DraftTree, cut, merge


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
