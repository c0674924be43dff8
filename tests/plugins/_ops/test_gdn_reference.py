"""The gated delta rule: every fast form of it gives what the row-by-row recurrence gives."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import example, given, settings, strategies as st

from tandem.plugins._ops import gdn, tree

TOLERANCE = 2e-5


@dataclass(frozen=True)
class Case:
    """Random rows and a random state, of natural sizes."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    state: torch.Tensor

    def rows(self, rows: list[int] | range) -> tuple[torch.Tensor, ...]:
        return tuple(x[list(rows)] for x in (self.q, self.k, self.v, self.g, self.beta))


def case(count: int, seed: int, key_heads: int = 2, value_heads: int = 6, decay: float = 1.0) -> Case:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    return Case(
        q=gdn.l2_norm(normal(count, key_heads, 8)) * 8**-0.5,
        k=gdn.l2_norm(normal(count, key_heads, 8)),
        v=normal(count, value_heads, 12),
        g=-decay * torch.rand(count, value_heads, generator=generator),
        beta=torch.rand(count, value_heads, generator=generator),
        state=normal(value_heads, 8, 12),
    )


@st.composite
def parents(draw: st.DrawFn, most: int = 24) -> list[int]:
    return [draw(st.integers(-1, row - 1)) for row in range(draw(st.integers(1, most)))]


def path_to(row: int, above: list[int]) -> list[int]:
    path = []
    while row >= 0:
        path.append(row)
        row = above[row]
    return path[::-1]


seeds = st.integers(0, 2**31)


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_the_recurrence_is_the_rule_written_with_matrices() -> None:
    """One head, in float64, with the matrices of the textbook: S <- exp(g) (I - beta k k^T) S + beta k v^T."""
    rows = case(9, 3, 1, 1)
    out, state = gdn.recurrence(*rows.rows(range(9)), rows.state)
    expected = rows.state[0].double()
    for row in range(9):
        q, k, v = (x[row, 0].double() for x in (rows.q, rows.k, rows.v))
        decay, beta = rows.g[row, 0].double().exp(), rows.beta[row, 0].double()
        expected = decay * (torch.eye(8).double() - beta * torch.outer(k, k)) @ expected + beta * torch.outer(k, v)
        same(out[row, 0], (q @ expected).float())
    same(state[0], expected.float())


@settings(max_examples=40, deadline=None)
@given(count=st.integers(1, 150), chunk=st.integers(1, 64), seed=seeds, decay=st.sampled_from([0.01, 1.0, 30.0]))
@example(count=128, chunk=64, seed=0, decay=1.0)
@example(count=129, chunk=64, seed=0, decay=1.0)
def test_any_chunks_give_what_the_recurrence_gives(count: int, chunk: int, seed: int, decay: float) -> None:
    rows = case(count, seed, decay=decay)
    out, state = gdn.chunked(*rows.rows(range(count)), rows.state, chunk)
    expected, after = gdn.recurrence(*rows.rows(range(count)), rows.state)
    same(out, expected)
    same(state, after)


@settings(max_examples=40, deadline=None)
@given(above=parents(), seed=seeds, heads=st.sampled_from([(1, 1), (2, 2), (2, 6)]))
def test_every_row_of_a_tree_gives_what_the_recurrence_gives_along_its_path(
    above: list[int], seed: int, heads: tuple[int, int]
) -> None:
    rows = case(len(above), seed, *heads)
    before = rows.state.clone()
    out, u, decay = gdn.tree(*rows.rows(range(len(above))), rows.state, tree.ancestors(above))
    assert torch.equal(rows.state, before)
    for row in range(len(above)):
        path = path_to(row, above)
        expected, after = gdn.recurrence(*rows.rows(path), rows.state)
        same(out[row], expected[-1])
        same(gdn.commit(rows.state, rows.k, u, decay, path), after)
        same(decay[row], rows.g[path].sum(0))


def test_an_empty_path_commits_nothing() -> None:
    rows = case(3, 1)
    _, u, decay = gdn.tree(*rows.rows(range(3)), rows.state, tree.chain(3))
    assert torch.equal(gdn.commit(rows.state, rows.k, u, decay, ()), rows.state)


def test_a_decay_to_nothing_leaves_numbers() -> None:
    """Decays of e^-1000 and less underflow; the quotient of two of them must not."""
    rows = case(70, 5, decay=1000.0)
    out, state = gdn.chunked(*rows.rows(range(70)), rows.state)
    expected, after = gdn.recurrence(*rows.rows(range(70)), rows.state)
    same(out, expected)
    same(state, after)


def test_results_are_float32_whatever_comes_in() -> None:
    rows = case(5, 2)
    q, k, v, g, beta = rows.rows(range(5))
    out, state = gdn.chunked(q, k, v.bfloat16(), g, beta, rows.state)
    assert out.dtype == state.dtype == torch.float32
    expected, _ = gdn.recurrence(q, k, v.bfloat16().float(), g, beta, rows.state)
    same(out, expected)


def test_l2_norm_keeps_zeros_and_gives_unit_length() -> None:
    x = torch.randn(4, 2, 8)
    same(gdn.l2_norm(x).norm(dim=-1), torch.ones(4, 2))
    assert torch.equal(gdn.l2_norm(torch.zeros(1, 8)), torch.zeros(1, 8))
    assert gdn.l2_norm(x.bfloat16()).dtype == torch.float32


# ------------------------------------------------------------------------------------------------------ convolution


def conv_oracle(x: torch.Tensor, weight: torch.Tensor, dilation: int) -> torch.Tensor:
    """torch's own, over rows with nothing before them."""
    left = (weight.shape[1] - 1) * dilation
    padded = torch.nn.functional.pad(x.t()[None], (left, 0))
    return torch.nn.functional.conv1d(padded, weight[:, None], groups=len(weight), dilation=dilation)[0].t()


@settings(max_examples=40, deadline=None)
@given(count=st.integers(0, 20), above=parents(12), kernel=st.integers(2, 5), dilation=st.integers(1, 3), seed=seeds)
def test_a_tree_is_convolved_along_its_paths_and_its_tail_is_the_paths(
    count: int, above: list[int], kernel: int, dilation: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    committed = torch.randn(count, 3, generator=generator)
    new = torch.randn(len(above), 3, generator=generator)
    weight = torch.randn(3, kernel, generator=generator)
    span = (kernel - 1) * dilation
    tail = gdn.conv_tail(committed, torch.zeros(span, 3), range(count))
    out = gdn.conv(new, tail, weight, tree.lineage(above, span), dilation)
    for row in range(len(above)):
        path = path_to(row, above)
        whole = torch.cat([committed, new[path]])
        same(out[row], conv_oracle(whole, weight, dilation)[-1])
        padded = torch.cat([torch.zeros(span, 3), whole])
        assert torch.equal(gdn.conv_tail(new, tail, path), padded[len(padded) - span :])


@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(1, 9), min_size=1, max_size=6), seed=seeds, dilation=st.integers(1, 3))
def test_a_chain_is_convolved_alike_in_any_chunks(cuts: list[int], seed: int, dilation: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, weight = torch.randn(sum(cuts), 5, generator=generator), torch.randn(5, 4, generator=generator)
    tail, parts = torch.zeros(3 * dilation, 5), []
    for part in x.split(cuts):
        parts.append(gdn.conv(part, tail, weight, dilation=dilation))
        tail = gdn.conv_tail(part, tail, range(len(part)))
    same(torch.cat(parts), conv_oracle(x, weight, dilation))


def test_a_convolution_keeps_the_number_type_and_sums_in_float32() -> None:
    x, weight = torch.randn(6, 3).bfloat16(), torch.randn(3, 4).bfloat16()
    out = gdn.conv(x, torch.zeros(3, 3).bfloat16(), weight)
    assert torch.equal(out, conv_oracle(x.float(), weight.float(), 1).bfloat16())


# ------------------------------------------------------------------------------------------------------------ trees


@settings(max_examples=50, deadline=None)
@given(above=parents(), span=st.integers(1, 6))
def test_what_a_row_sees_is_what_its_path_says(above: list[int], span: int) -> None:
    seen, line = tree.ancestors(above), tree.lineage(above, span)
    for row in range(len(above)):
        path = path_to(row, above)
        assert seen[row].nonzero().flatten().tolist() == path[:-1]
        assert tree.depths(above)[row] == len(path) - 1
        whole = [*range(span), *(span + step for step in path)]
        assert line[row].tolist() == whole[-span - 1 :]


@pytest.mark.parametrize(
    ("above", "chain"), [(None, True), ([-1, 0, 1], True), ([-1], True), ([-1, -1], False), ([-1, 0, 0], False)]
)
def test_a_chain_is_told_from_a_tree(above: list[int] | None, chain: bool) -> None:
    assert tree.is_chain(above) is chain
    if above and chain:
        assert torch.equal(tree.ancestors(above), tree.chain(len(above)))
