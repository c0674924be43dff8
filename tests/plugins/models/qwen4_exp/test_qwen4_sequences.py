"""What a sequence keeps: chunks, trees, partial accepts, snapshots and joint passes against plain reading."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from qwen4_tiny import text

from tandem.core.plugin import Block

CLOSE = {"atol": 1e-4, "rtol": 0.0}
LENGTH = 60
TOKENS = text(LENGTH, seed=11)

trees = st.integers(1, 10).flatmap(lambda n: st.tuples(*(st.integers(-1, row - 1) for row in range(n))))


def paths(parents: Sequence[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for row, parent in enumerate(parents):
        found.append([*(found[parent] if parent >= 0 else []), row])
    return found


@pytest.fixture(scope="module")
def plain(tiny4: Any, read4: Callable[..., torch.Tensor]) -> torch.Tensor:
    """The logits of `TOKENS`, read one by one."""
    return read4(tiny4, tiny4.new_sequence(LENGTH), TOKENS, 1)


@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(1, LENGTH - 1), max_size=6))
def test_any_chunks_are_the_plain_sequence(cuts: list[int], tiny4: Any, plain: torch.Tensor) -> None:
    sequence, got = tiny4.new_sequence(LENGTH), []
    edges = sorted({0, *cuts, LENGTH})
    for start, end in itertools.pairwise(edges):
        got += tiny4.forward([Block(sequence, TOKENS[start:end], None, range(end - start))])
        sequence.commit(range(end - start))
    torch.testing.assert_close(torch.cat(got), plain, **CLOSE)


@settings(max_examples=25, deadline=None)
@given(length=st.integers(1, 40), parents=trees, seed=st.integers(0, 99), accept=st.integers(0, 9))
def test_each_path_of_a_tree_is_a_plain_sequence_and_can_be_gone_on_from(
    length: int, parents: tuple[int, ...], seed: int, accept: int, tiny4: Any, read4: Callable[..., torch.Tensor]
) -> None:
    drafted = text(len(parents), seed=100 + seed)
    sequence = tiny4.new_sequence(100)
    read4(tiny4, sequence, TOKENS[:length])
    (got,) = tiny4.forward([Block(sequence, drafted, parents, range(len(parents)))])
    for row, path in enumerate(paths(parents)):
        straight = read4(tiny4, tiny4.new_sequence(100), [*TOKENS[:length], *(drafted[node] for node in path)])
        torch.testing.assert_close(got[row], straight[-1], **CLOSE)
    accepted = max(paths(parents), key=len)[:accept]
    sequence.commit(accepted)
    assert sequence.length == length + len(accepted)
    rest = text(20, seed=seed)
    straight = read4(tiny4, tiny4.new_sequence(100), [*TOKENS[:length], *(drafted[n] for n in accepted), *rest])
    torch.testing.assert_close(read4(tiny4, sequence, rest, 3), straight[-20:], **CLOSE)


def test_a_long_chunk_can_be_accepted_in_part(tiny4: Any, read4: Callable[..., torch.Tensor]) -> None:
    tokens = text(150, seed=12)
    want = read4(tiny4, tiny4.new_sequence(200), tokens)
    sequence = tiny4.new_sequence(200)
    read4(tiny4, sequence, tokens[:20])
    tiny4.forward([Block(sequence, tokens[20:140], None, (119,))])
    sequence.commit(range(77))
    torch.testing.assert_close(read4(tiny4, sequence, tokens[97:]), want[97:], **CLOSE)


def test_blocks_of_several_sequences_share_a_pass(tiny4: Any, read4: Callable[..., torch.Tensor]) -> None:
    parents = (-1, 0, 0, 2, -1)
    sizes, alone, together = (3, 0, 33), [], []
    blocks = []
    for number, size in enumerate(sizes):
        tokens, drafted = text(max(size, 1), seed=number), text(5, seed=50 + number)
        for into in (alone, together):
            sequence = tiny4.new_sequence(80)
            if size:
                read4(tiny4, sequence, tokens)
            into.append(Block(sequence, drafted, parents if number != 1 else None, range(5)))
        blocks.append(tiny4.forward([alone[-1]])[0])
    for got, want in zip(tiny4.forward(together), blocks, strict=True):
        torch.testing.assert_close(got, want, **CLOSE)
    for one, other in zip(alone, together, strict=True):
        path = (0, 1) if one.parents is None else (0, 2, 3)
        one.sequence.commit(path)
        other.sequence.commit(path)
        torch.testing.assert_close(
            read4(tiny4, one.sequence, TOKENS[:9]), read4(tiny4, other.sequence, TOKENS[:9]), **CLOSE
        )


def test_a_snapshot_goes_on_as_its_sequence_did(tiny4: Any, plain: torch.Tensor, read4: Any) -> None:
    for length in (1, 2, 9, 13, 30):
        sequence, other = tiny4.new_sequence(LENGTH), tiny4.new_sequence(LENGTH)
        read4(tiny4, sequence, TOKENS[:length])
        kept = sequence.snapshot()
        assert kept.nbytes > 0
        read4(tiny4, sequence, text(15, seed=3))
        read4(tiny4, other, text(5, seed=4))
        for user in (sequence, other, other):
            user.restore(kept)
            assert user.length == length
            torch.testing.assert_close(read4(tiny4, user, TOKENS[length:], 7), plain[length:], **CLOSE)


def test_a_dropped_block_leaves_nothing_behind(tiny4: Any, plain: torch.Tensor, read4: Any) -> None:
    sequence = tiny4.new_sequence(LENGTH)
    for start in range(0, LENGTH, 10):
        tiny4.forward([Block(sequence, text(6, seed=start), (-1, 0, 1, 1, 0, -1))])
        sequence.commit(())
        got = read4(tiny4, sequence, TOKENS[start : start + 10])
        torch.testing.assert_close(got, plain[start : start + 10], **CLOSE)


def test_a_sequence_keeps_little_for_each_token(tiny4: Any, read4: Any) -> None:
    """Of committed tokens: keys and values of two layers, a block key of each for four tokens."""
    sequence = tiny4.new_sequence(1024)
    read4(tiny4, sequence, text(256))
    before = sequence.nbytes
    read4(tiny4, sequence, text(256))
    keys_and_values = 2 * 2 * 2 * 16 * 4 * 256
    assert sequence.nbytes - before == keys_and_values + 2 * 64 * 8 * 4
    sequence.close()
    sequence.close()
    assert sequence.nbytes < before


@pytest.mark.parametrize("length", [1, 7, 8, 14, 31])
def test_a_sequence_comes_back_to_an_anchor(length: int, tiny4: Any, plain: torch.Tensor, read4: Any) -> None:
    sequence = tiny4.new_sequence(LENGTH)
    read4(tiny4, sequence, TOKENS[:length])
    anchor = sequence.anchor()
    for seed in range(2):
        read4(tiny4, sequence, text(17, seed=seed), 5)
        sequence.trim(length, anchor)
    read4(tiny4, sequence, text(17, seed=5))
    other = tiny4.new_sequence(LENGTH)
    other.restore(sequence.snapshot(anchor))
    sequence.trim(length, anchor)
    for user in (sequence, other):
        torch.testing.assert_close(read4(tiny4, user, TOKENS[length:]), plain[length:], **CLOSE)


def test_a_snapshot_can_leave_the_process(tiny4: Any, plain: torch.Tensor, read4: Any) -> None:
    sequence = tiny4.new_sequence(LENGTH)
    read4(tiny4, sequence, TOKENS[:23])
    tensors = {name: value.clone() for name, value in sequence.snapshot().tensors().items()}
    other = tiny4.new_sequence(LENGTH)
    other.restore(tiny4.snapshot_of(tensors))
    torch.testing.assert_close(read4(tiny4, other, TOKENS[23:]), plain[23:], **CLOSE)


def test_tensors_of_another_layout_are_refused(tiny4: Any, read4: Any) -> None:
    sequence = tiny4.new_sequence(LENGTH)
    read4(tiny4, sequence, TOKENS[:23])
    whole = dict(sequence.snapshot().tensors())
    for name in whole:
        if name.partition(".")[2] in ("conv", "tokens", "keys", "raw", "cos", "sin", "length"):
            with pytest.raises(ValueError, match="no snapshot of this model"):
                tiny4.snapshot_of({key: value for key, value in whole.items() if key != name})
            with pytest.raises(ValueError, match="no snapshot of this model"):
                tiny4.snapshot_of({**whole, name: torch.zeros(7, 7, 7)})
    for length in {name for name in whole if name.endswith(".length")}:
        with pytest.raises(ValueError, match="no snapshot of this model"):
            tiny4.snapshot_of({**whole, length: torch.tensor(-4)})
