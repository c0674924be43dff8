"""One joint pass: chunks, trees and blocks of several sequences give what plain rows give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from tandem.core.plugin import Block

TOLERANCE = 1e-4

token = st.integers(0, 319)


@st.composite
def trees(draw: st.DrawFn, most: int = 12) -> tuple[list[int], list[int]]:
    """Tokens and parents of a block with at least one row."""
    n = draw(st.integers(1, most))
    return draw(st.lists(token, min_size=n, max_size=n)), [draw(st.integers(-1, row - 1)) for row in range(n)]


def plain(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """The logits of the last of `ids`, `[vocab]`, every row run alone."""
    sequence = model.new_sequence(model.caps.max_len)
    for number in ids:
        [logits] = model.forward([Block(sequence, [number], None, [0])])
        sequence.commit([0])
    row: torch.Tensor = logits[0]
    return row


def started(model: Any, prefix: Sequence[int]) -> Any:
    sequence = model.new_sequence(model.caps.max_len)
    if prefix:
        model.forward([Block(sequence, list(prefix))])
        sequence.commit(range(len(prefix)))
    return sequence


def path_to(row: int, parents: Sequence[int]) -> list[int]:
    path = []
    while row >= 0:
        path.append(row)
        row = parents[row]
    return path[::-1]


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


@settings(max_examples=25, deadline=None)
@given(ids=st.lists(token, min_size=1, max_size=80), cuts=st.lists(st.integers(1, 40), max_size=8))
def test_a_prompt_read_in_any_chunks_gives_what_it_gives_whole(tiny: Any, ids: list[int], cuts: list[int]) -> None:
    whole = tiny.forward([Block(tiny.new_sequence(len(ids)), ids, None, range(len(ids)))])[0]
    sequence, parts, start = tiny.new_sequence(len(ids)), [], 0
    for size in [*cuts, len(ids)]:
        chunk = ids[start : start + size]
        if chunk:
            parts += tiny.forward([Block(sequence, chunk, None, range(len(chunk)))])
            sequence.commit(range(len(chunk)))
            start += len(chunk)
    same(torch.cat(parts), whole)


@settings(max_examples=25, deadline=None)
@given(prefix=st.lists(token, max_size=6), tree=trees())
def test_every_row_of_a_tree_gives_what_its_path_gives_alone(
    tiny: Any, prefix: list[int], tree: tuple[list[int], list[int]]
) -> None:
    tokens, parents = tree
    [logits] = tiny.forward([Block(started(tiny, prefix), tokens, parents, range(len(tokens)))])
    for row in range(len(tokens)):
        path = path_to(row, parents)
        same(logits[row], plain(tiny, [*prefix, *(tokens[step] for step in path)]))


@settings(max_examples=25, deadline=None)
@given(prefix=st.lists(token, max_size=6), tree=trees(), chosen=st.integers(0, 11), after=token)
def test_what_follows_a_committed_path_sees_that_path_alone(
    tiny: Any, prefix: list[int], tree: tuple[list[int], list[int]], chosen: int, after: int
) -> None:
    tokens, parents = tree
    path = path_to(chosen % len(tokens), parents)
    sequence = started(tiny, prefix)
    tiny.forward([Block(sequence, tokens, parents)])
    sequence.commit(path)
    assert sequence.length == len(prefix) + len(path)
    [logits] = tiny.forward([Block(sequence, [after], None, [0])])
    same(logits[0], plain(tiny, [*prefix, *(tokens[step] for step in path), after]))


@settings(max_examples=15, deadline=None)
@given(
    parts=st.lists(
        st.tuples(st.lists(token, max_size=5), st.one_of(trees(6), st.tuples(st.lists(token, min_size=1), st.none()))),
        min_size=2,
        max_size=4,
    )
)
def test_joint_blocks_give_what_each_gives_alone(tiny: Any, parts: list[Any]) -> None:
    def blocks() -> list[Block]:
        return [
            Block(started(tiny, prefix), tokens, parents, range(0, len(tokens), 2))
            for prefix, (tokens, parents) in parts
        ]

    joint = tiny.forward(blocks())
    for together, alone in zip(joint, (tiny.forward([block])[0] for block in blocks()), strict=True):
        same(together, alone)


def test_long_prompts_and_wide_trees_join_in_one_pass(tiny: Any) -> None:
    ids = [(11 * i) % 320 for i in range(150)]
    parents = [-1, *([0] * 19), *range(20)]
    wide = [(7 * i) % 320 for i in range(40)]

    def blocks() -> list[Block]:
        return [
            Block(started(tiny, ids[:90]), ids[90:], None, [0, 30, 59]),
            Block(started(tiny, ids[:3]), wide, parents, range(40)),
            Block(started(tiny, []), ids, None, [149]),
        ]

    joint = tiny.forward(blocks())
    for together, alone in zip(joint, (tiny.forward([block])[0] for block in blocks()), strict=True):
        same(together, alone)
    same(joint[0][2], joint[2][0])


def test_only_the_wanted_rows_come_back_and_the_engine_may_change_them(tiny: Any) -> None:
    ids = [5, 6, 7, 8, 9]
    whole = tiny.forward([Block(tiny.new_sequence(8), ids, None, range(5))])[0]
    first, second = tiny.forward([Block(tiny.new_sequence(8), ids, None, [1, 4]), Block(tiny.new_sequence(8), ids)])
    assert second.shape == (0, 320)
    same(first, whole[[1, 4]])
    first[0, 3] = float("-inf")
    assert first[0].argmax() != 3


def test_a_packed_model_joins_and_branches_too(make_tiny: Any, load: Any) -> None:
    model = load(make_tiny()[0], weights="int4", dtype="bfloat16", dense_rows=9)
    tokens, parents = [7, 8, 9, 10, 11, 12], [-1, 0, 0, 1, 2, -1]
    few = model.forward([Block(started(model, [3, 4]), tokens, parents, range(6))])[0]
    rows = [model.forward([Block(started(model, [3, 4]), [tokens[s] for s in path_to(r, parents)], None,
                                 [len(path_to(r, parents)) - 1])])[0][0] for r in range(6)]  # fmt: skip
    assert (few - torch.stack(rows)).norm() < 0.02 * few.norm()


# ------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"tokens": []}, "at least one token"),
        ({"tokens": [1, 320]}, "token 320 is outside the vocabulary; the ids are 0 to 319"),
        ({"tokens": [-1]}, "token -1 is outside"),
        ({"tokens": [1, 2, 3], "parents": [-1, 0]}, "3 tokens and 2 parents"),
        ({"tokens": [1, 2], "parents": [-1, 1]}, "row 1 hangs on row 1"),
        ({"tokens": [1, 2], "parents": [-2, 0]}, "row 0 hangs on row -2"),
        ({"tokens": [1, 2], "logits": [2]}, "the block has rows 0 to 1"),
        ({"tokens": [1] * 9}, "9 more rows after 2 pass this sequence's limit of 10 rows"),
    ],
)
def test_a_block_that_cannot_run_is_refused_in_words_and_changes_nothing(
    block: dict[str, Any], words: str, tiny: Any
) -> None:
    sequence, other = tiny.new_sequence(10), tiny.new_sequence(10)
    tiny.forward([Block(sequence, [4, 5])])
    sequence.commit([0, 1])
    with pytest.raises(ValueError, match=words):
        tiny.forward([Block(other, [3]), Block(sequence, **block)])
    tiny.forward([Block(sequence, [6]), Block(other, [3])])  # neither has a block pending
    assert (sequence.length, other.length) == (2, 0)


def test_a_sequence_takes_one_block_at_a_time(tiny: Any) -> None:
    sequence = tiny.new_sequence(10)
    with pytest.raises(ValueError, match="two blocks extend one sequence"):
        tiny.forward([Block(sequence, [1]), Block(sequence, [2])])
    tiny.forward([Block(sequence, [1])])
    with pytest.raises(ValueError, match="while a block is pending; commit it first"):
        tiny.forward([Block(sequence, [2])])


def test_foreign_sequences_and_closed_models_are_refused(make_tiny: Any, load: Any, tiny: Any) -> None:
    with pytest.raises(ValueError, match="not made by this model"):
        tiny.forward([Block(object(), [1])])
    model = load(make_tiny()[0])
    sequence = model.new_sequence(10)
    model.close()
    with pytest.raises(ValueError, match="closed"):
        model.forward([Block(sequence, [1])])
    with pytest.raises(ValueError, match="1 to 256 rows"):
        tiny.new_sequence(257)
