"""A sequence's states: whatever is done to it, it continues like one that was told its tokens plainly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tandem.core.plugin import Block

LIMIT = 200


@pytest.fixture
def sequence(tiny: Any) -> Any:
    sequence = tiny.new_sequence(LIMIT)
    tiny.forward([Block(sequence, [5, 6, 7])])
    sequence.commit([0, 1, 2])
    return sequence


def next_logits(model: Any, sequence: Any, token: int = 9) -> torch.Tensor:
    [logits] = model.forward([Block(sequence, [token], None, [0])])
    sequence.commit([])
    return logits


def told(model: Any, tokens: list[int]) -> Any:
    """The naive twin: a fresh sequence that reads the tokens."""
    sequence = model.new_sequence(LIMIT)
    if tokens:
        model.forward([Block(sequence, tokens)])
        sequence.commit(range(len(tokens)))
    return sequence


def test_a_sequence_lives_like_its_naive_twin(tiny: Any) -> None:
    """Random blocks, commits, trims, snapshots and restores, against the list of tokens they leave."""

    class Life(RuleBasedStateMachine):
        @initialize()
        def begin(self) -> None:
            self.sequence = tiny.new_sequence(LIMIT)
            self.tokens: list[int] = []
            self.kept: list[tuple[Any, list[int]]] = []

        @rule(data=st.data())
        def extend(self, data: st.DataObject) -> None:
            n = data.draw(st.integers(1, min(9, LIMIT - 1 - len(self.tokens))))
            tokens = data.draw(st.lists(st.integers(0, 319), min_size=n, max_size=n))
            parents = [data.draw(st.integers(-1, row - 1)) for row in range(n)]
            tiny.forward([Block(self.sequence, tokens, parents)])
            row, path = data.draw(st.integers(-1, n - 1)), []
            while row >= 0:
                path.insert(0, row)
                row = parents[row]
            self.sequence.commit(path)
            self.tokens += [tokens[row] for row in path]

        @rule(cut=st.integers(0, 20))
        def trim(self, cut: int) -> None:
            del self.tokens[max(0, len(self.tokens) - cut) :]
            self.sequence.trim(len(self.tokens))

        @rule()
        def snapshot(self) -> None:
            self.kept.append((self.sequence.snapshot(), list(self.tokens)))

        @precondition(lambda self: self.kept)
        @rule(which=st.integers(0, 99), fresh=st.booleans())
        def restore(self, which: int, fresh: bool) -> None:
            snapshot, tokens = self.kept[which % len(self.kept)]
            if fresh:
                self.sequence.close()
                self.sequence = tiny.new_sequence(LIMIT)
            self.sequence.restore(snapshot)
            self.tokens = list(tokens)

        @invariant()
        def continues_like_the_twin(self) -> None:
            if not hasattr(self, "sequence"):
                return
            assert self.sequence.length == len(self.tokens)
            found, expected = next_logits(tiny, self.sequence), next_logits(tiny, told(tiny, self.tokens))
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)

    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(Life, settings=settings(max_examples=15, stateful_step_count=12, deadline=None))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ([1], "no path: row 1 hangs on row 0, not on the last committed row"),
        ([0, 2, 3], "no path: row 3 hangs on row 1, not on row 2"),
        ([0, 1, 4], "row 4 is not in the pending block; its rows are 0 to 3"),
        ([-1], "row -1 is not in the pending block"),
        ([0, 0], "no path: row 0 hangs on the last committed row, not on row 0"),
    ],
)
def test_a_commit_of_no_path_is_refused_and_leaves_the_block_pending(
    path: list[int], words: str, tiny: Any, sequence: Any
) -> None:
    tiny.forward([Block(sequence, [1, 2, 3, 4], [-1, 0, 0, 1])])
    with pytest.raises(ValueError, match=words):
        sequence.commit(path)
    sequence.commit([0, 1, 3])
    torch.testing.assert_close(
        next_logits(tiny, sequence), next_logits(tiny, told(tiny, [5, 6, 7, 1, 2, 4])), rtol=1e-4, atol=1e-4
    )


def test_a_block_is_committed_once(sequence: Any) -> None:
    with pytest.raises(ValueError, match="no pending block"):
        sequence.commit([])


@pytest.mark.parametrize("act", ["trim", "snapshot", "restore"])
def test_a_pending_block_must_be_settled_first(act: str, tiny: Any, sequence: Any) -> None:
    snapshot = sequence.snapshot()
    tiny.forward([Block(sequence, [1])])
    arguments = {"trim": [1], "snapshot": [], "restore": [snapshot]}[act]
    with pytest.raises(ValueError, match=f"can't {act} a sequence while a block is pending"):
        getattr(sequence, act)(*arguments)


@pytest.mark.parametrize("length", [4, -1])
def test_a_trim_to_a_length_that_is_not_there_is_refused(length: int, sequence: Any) -> None:
    with pytest.raises(ValueError, match=f"of 3 rows can't be trimmed to {length}"):
        sequence.trim(length)


def test_a_snapshot_keeps_its_rows_whatever_happens_to_the_sequence(tiny: Any, sequence: Any) -> None:
    expected = next_logits(tiny, sequence)
    snapshot = sequence.snapshot()
    assert snapshot.nbytes == 3 * tiny.facts["kv_bytes_per_token"]
    sequence.trim(0)
    tiny.forward([Block(sequence, [90, 91, 92, 93])])
    sequence.commit(range(4))
    sequence.restore(snapshot)
    torch.testing.assert_close(next_logits(tiny, sequence), expected, rtol=0, atol=0)
    sequence.close()
    other = tiny.new_sequence(3)
    other.restore(snapshot)
    assert other.length == 3


def test_a_snapshot_goes_only_where_it_fits(tiny: Any, sequence: Any, make_tiny: Any, load: Any) -> None:
    snapshot = sequence.snapshot()
    with pytest.raises(ValueError, match=r"3 rows is longer than this sequence may be \(2\)"):
        tiny.new_sequence(2).restore(snapshot)
    other = load(make_tiny(num_hidden_layers=1)[0])
    with pytest.raises(ValueError, match="of another model"):
        other.new_sequence(10).restore(snapshot)


def test_a_sequence_filled_under_inference_mode_is_used_outside_of_it_too(tiny: Any) -> None:
    with torch.inference_mode():
        sequence = told(tiny, list(range(60)))
    tiny.forward([Block(sequence, [1, 2, 3], [-1, -1, 1])])
    sequence.commit([1, 2])
    snapshot = sequence.snapshot()
    with torch.inference_mode():
        tiny.forward([Block(sequence, [4, 5, 6], [-1, -1, 1])])
        sequence.commit([1, 2])
        sequence.restore(snapshot)
    tokens = [*range(60), 2, 3]
    torch.testing.assert_close(next_logits(tiny, sequence), next_logits(tiny, told(tiny, tokens)), rtol=1e-4, atol=1e-4)


def test_room_grows_with_the_sequence_and_goes_when_it_is_closed(tiny: Any) -> None:
    per_row = tiny.facts["kv_bytes_per_token"]
    sequence = tiny.new_sequence(LIMIT)
    assert sequence.nbytes == 0
    sizes = []
    for token in range(LIMIT):
        tiny.forward([Block(sequence, [token])])
        sequence.commit([0])
        assert sequence.length * per_row <= sequence.nbytes <= LIMIT * per_row
        sizes.append(sequence.nbytes)
    assert sizes[0] < LIMIT * per_row / 2
    assert len(set(sizes)) < 8
    sequence.close()
    sequence.close()
    assert sequence.nbytes == 0
    with pytest.raises(ValueError, match="closed"):
        tiny.forward([Block(sequence, [1])])
