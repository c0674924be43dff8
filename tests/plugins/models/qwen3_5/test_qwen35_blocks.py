"""One joint pass: chunks, trees and blocks of several sequences give what plain rows give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from qwen35_tiny import Tiny, load, logits_of, path_to, started, text

from tandem.core.plugin import Block

TOLERANCE = 2e-4

token = st.integers(3, 258)


@st.composite
def trees(draw: st.DrawFn, most: int = 12) -> tuple[list[int], list[int]]:
    """Tokens and parents of a block with at least one row."""
    n = draw(st.integers(1, most))
    return draw(st.lists(token, min_size=n, max_size=n)), [draw(st.integers(-1, row - 1)) for row in range(n)]


def plain(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """The logits of the last of `ids`, `[vocab]`, every row run alone."""
    row: torch.Tensor = logits_of(model, ids, 1)[-1]
    return row


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


@settings(max_examples=15, deadline=None)
@given(count=st.integers(1, 200), cuts=st.lists(st.integers(1, 90), max_size=6), seed=st.integers(0, 99))
@example(count=200, cuts=[32, 65, 33, 63], seed=0)
def test_a_prompt_read_in_any_chunks_gives_what_it_gives_whole(
    model: Any, count: int, cuts: list[int], seed: int
) -> None:
    ids = text(count, seed)
    whole = model.forward([Block(model.new_sequence(count), ids, None, range(count))])[0]
    sequence, parts, start = model.new_sequence(count), [], 0
    for size in [*cuts, count]:
        if chunk := ids[start : start + size]:
            parts += model.forward([Block(sequence, chunk, None, range(len(chunk)))])
            sequence.commit(range(len(chunk)))
            start += len(chunk)
    same(torch.cat(parts), whole)


@settings(max_examples=15, deadline=None)
@given(prefix=st.lists(token, max_size=6), tree=trees())
def test_every_row_of_a_tree_gives_what_its_path_gives_alone(
    model: Any, prefix: list[int], tree: tuple[list[int], list[int]]
) -> None:
    tokens, parents = tree
    [logits] = model.forward([Block(started(model, prefix), tokens, parents, range(len(tokens)))])
    for row in range(len(tokens)):
        same(logits[row], plain(model, [*prefix, *(tokens[step] for step in path_to(row, parents))]))


@settings(max_examples=15, deadline=None)
@given(prefix=st.lists(token, max_size=6), tree=trees(), chosen=st.integers(0, 11), after=st.lists(token, min_size=3))
def test_what_follows_a_committed_path_sees_that_path_alone(
    model: Any, prefix: list[int], tree: tuple[list[int], list[int]], chosen: int, after: list[int]
) -> None:
    tokens, parents = tree
    path = path_to(chosen % len(tokens), parents)
    sequence = started(model, prefix)
    model.forward([Block(sequence, tokens, parents)])
    sequence.commit(path)
    assert sequence.length == len(prefix) + len(path)
    [logits] = model.forward([Block(sequence, after, None, range(len(after)))])
    whole = [*prefix, *(tokens[step] for step in path), *after]
    same(logits, logits_of(model, whole)[-len(after) :])


@pytest.mark.parametrize("taken", [0, 1, 31, 33, 64, 149, 150])
def test_any_part_of_a_long_chain_can_be_committed(model: Any, taken: int) -> None:
    ids, prefix, after = text(150, 3), text(5, 4), text(4, 5)
    sequence = started(model, prefix)
    model.forward([Block(sequence, ids)])
    sequence.commit(range(taken))
    assert sequence.length == 5 + taken
    [logits] = model.forward([Block(sequence, after, None, range(4))])
    same(logits, logits_of(model, [*prefix, *ids[:taken], *after])[-4:])


@settings(max_examples=8, deadline=None)
@given(
    parts=st.lists(
        st.tuples(st.lists(token, max_size=5), st.one_of(trees(6), st.tuples(st.lists(token, min_size=1), st.none()))),
        min_size=2,
        max_size=4,
    )
)
def test_joint_blocks_give_what_each_gives_alone(model: Any, parts: list[Any]) -> None:
    def blocks() -> list[Block]:
        return [
            Block(started(model, prefix), tokens, parents, range(0, len(tokens), 2))
            for prefix, (tokens, parents) in parts
        ]

    joint = model.forward(blocks())
    for together, alone in zip(joint, (model.forward([block])[0] for block in blocks()), strict=True):
        same(together, alone)


@pytest.mark.parametrize("kind", ["text", "moe"])
def test_long_prompts_and_wide_trees_join_in_one_pass(kind: str, tiny_of: Callable[..., Tiny]) -> None:
    model = load(tiny_of(kind).path)
    ids, wide, parents = text(150), text(40, 2), [-1, *([0] * 19), *range(20)]

    def blocks() -> list[Block]:
        return [
            Block(started(model, ids[:60]), ids[60:], None, [0, 30, 89]),
            Block(started(model, ids[:3]), wide, parents, range(40)),
            Block(started(model, []), ids, None, [149]),
        ]

    paths = (range(90), [0, 1, 21], range(150))
    together = blocks()
    joint = model.forward(together)
    for block, path in zip(together, paths, strict=True):
        block.sequence.commit(path)
    later = model.forward([Block(block.sequence, [9], None, [0]) for block in together])
    for number, block in enumerate(blocks()):
        [first] = model.forward([block])
        block.sequence.commit(paths[number])
        [second] = model.forward([Block(block.sequence, [9], None, [0])])
        same(joint[number], first)
        same(later[number], second)
    same(joint[0][2], joint[2][0])


# ------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"tokens": []}, "at least one token"),
        ({"tokens": [1, 300]}, "token 300 is outside the vocabulary; the ids are 0 to 299"),
        ({"tokens": [-1]}, "token -1 is outside"),
        ({"tokens": [1, 2, 3], "parents": [-1, 0]}, "3 tokens and 2 parents"),
        ({"tokens": [1, 2], "parents": [-1, 1]}, "row 1 hangs on row 1"),
        ({"tokens": [1, 2], "parents": [-2, 0]}, "row 0 hangs on row -2"),
        ({"tokens": [1, 2], "logits": [2]}, "the block has rows 0 to 1"),
        ({"tokens": [1] * 9}, "9 more rows after 2 pass this sequence's limit of 10 rows"),
    ],
)
def test_a_block_that_cannot_run_is_refused_in_words_and_changes_nothing(
    block: dict[str, Any], words: str, model: Any
) -> None:
    sequence, other = started(model, [4, 5], 10), model.new_sequence(10)
    with pytest.raises(ValueError, match=words):
        model.forward([Block(other, [3]), Block(sequence, **block)])
    model.forward([Block(sequence, [6]), Block(other, [3])])  # neither has a block pending
    assert (sequence.length, other.length) == (2, 0)


def test_a_sequence_takes_one_block_at_a_time(model: Any) -> None:
    sequence = model.new_sequence(10)
    with pytest.raises(ValueError, match="two blocks extend one sequence"):
        model.forward([Block(sequence, [1]), Block(sequence, [2])])
    model.forward([Block(sequence, [1])])
    with pytest.raises(ValueError, match="while a block is pending; commit it first"):
        model.forward([Block(sequence, [2])])


def test_a_pass_that_breaks_off_leaves_the_sequences_as_they_were(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sequence, expected = started(model, text(9)), logits_of(model, [*text(9), 7])[-1]
    last = model._decoder._layers[-1]

    def broken(x: torch.Tensor) -> torch.Tensor:
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(last, "mlp", broken)
        with pytest.raises(MemoryError):
            model.forward([Block(sequence, text(5, 2), None, [4])])
    [logits] = model.forward([Block(sequence, [7], None, [0])])
    same(logits[0], expected)


def test_foreign_sequences_and_closed_models_are_refused(folder: Any, model: Any) -> None:
    closed = load(folder, mtp="off")
    for foreign in (object(), closed.new_sequence(10)):
        with pytest.raises(ValueError, match="not made by this model"):
            model.forward([Block(foreign, [1])])
    sequence = closed.new_sequence(10)
    closed.close()
    with pytest.raises(ValueError, match="closed"):
        closed.forward([Block(sequence, [1])])
    with pytest.raises(ValueError, match="1 to 1024 rows"):
        model.new_sequence(1025)
