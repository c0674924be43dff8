"""A sequence's states: whatever is done to it, it continues like one that was told its tokens plainly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from qwen35_tiny import Tiny, load, logits_of, path_to, started, text

from tandem.core.plugin import Block
from tandem.plugins.models._hybrid.gdn_layer import GdnState
from tandem.plugins.models._hybrid.kv import KvState

LIMIT = 400


@pytest.fixture
def sequence(model: Any) -> Any:
    return started(model, [5, 6, 7], LIMIT)


def next_logits(model: Any, sequence: Any, token: int = 9) -> torch.Tensor:
    [logits] = model.forward([Block(sequence, [token], None, [0])])
    sequence.commit([])
    return logits


def drafted(model: Any, sequence: Any) -> torch.Tensor:
    """What the draft head says of one token and one below it."""
    model.head.start(sequence)
    first = model.head.extend(sequence, [11], [-1])
    return torch.cat([first, model.head.extend(sequence, [12], [0])])


def same(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 2e-4) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_a_sequence_lives_like_its_naive_twin(drafting: Any) -> None:
    """Random blocks, commits, anchors, trims, snapshots and restores, against the list of tokens they leave."""
    model = drafting

    class Life(RuleBasedStateMachine):
        @initialize()
        def begin(self) -> None:
            self.sequence = model.new_sequence(LIMIT)
            self.tokens: list[int] = []
            self.kept: list[tuple[Any, list[int]]] = []
            self.anchors: list[Any] = []

        @rule(data=st.data())
        def extend(self, data: st.DataObject) -> None:
            n = data.draw(st.integers(1, 9))
            tokens = data.draw(st.lists(st.integers(3, 258), min_size=n, max_size=n))
            parents = [data.draw(st.integers(-1, row - 1)) for row in range(n)]
            model.forward([Block(self.sequence, tokens, parents)])
            path = path_to(data.draw(st.integers(-1, n - 1)), parents)
            self.sequence.commit(path)
            self.tokens += [tokens[row] for row in path]

        @precondition(lambda self: len(self.tokens) < 150)
        @rule(seed=st.integers(0, 9), part=st.booleans())
        def read_a_chunk(self, seed: int, part: bool) -> None:
            tokens = text(70, seed)
            model.forward([Block(self.sequence, tokens)])
            self.sequence.commit(range(66 if part else 70))
            self.tokens += tokens[: 66 if part else 70]

        @rule()
        def anchor(self) -> None:
            self.anchors.append(self.sequence.anchor())

        @precondition(lambda self: self.anchors)
        @rule(which=st.integers(0, 99))
        def trim(self, which: int) -> None:
            anchor = self.anchors[which % len(self.anchors)]
            self.sequence.trim(anchor.length, anchor)
            del self.tokens[anchor.length :]
            self.anchors = [known for known in self.anchors if known.length <= anchor.length]

        @rule()
        def snapshot(self) -> None:
            self.kept.append((self.sequence.snapshot(), list(self.tokens)))

        @precondition(lambda self: self.anchors)
        @rule(which=st.integers(0, 99))
        def snapshot_at_an_anchor(self, which: int) -> None:
            anchor = self.anchors[which % len(self.anchors)]
            self.kept.append((self.sequence.snapshot(anchor), self.tokens[: anchor.length]))

        @precondition(lambda self: self.kept)
        @rule(which=st.integers(0, 99), fresh=st.booleans(), outside=st.booleans())
        def restore(self, which: int, fresh: bool, outside: bool) -> None:
            snapshot, tokens = self.kept[which % len(self.kept)]
            if fresh:
                self.sequence.close()
                self.sequence = model.new_sequence(LIMIT)
            self.sequence.restore(model.snapshot_of(snapshot.tensors()) if outside else snapshot)
            self.tokens, self.anchors = list(tokens), []

        @precondition(lambda self: self.tokens)
        @rule()
        def draft(self) -> None:
            same(drafted(model, self.sequence), drafted(model, started(model, self.tokens)))

        @invariant()
        def continues_like_the_twin(self) -> None:
            if not hasattr(self, "sequence"):
                return
            assert self.sequence.length == len(self.tokens)
            same(next_logits(model, self.sequence), next_logits(model, started(model, self.tokens)))

    run_state_machine_as_test(Life, settings=settings(max_examples=12, stateful_step_count=12, deadline=None))


# --------------------------------------------------------------------------------------------------------- commits


def states(sequence: Any, kind: type) -> list[Any]:
    return [state for state in sequence.states if isinstance(state, kind)]


def test_a_commit_moves_keys_and_values_bit_for_bit(model: Any, sequence: Any) -> None:
    tokens, parents = [1, 2, 3, 4, 5], [-1, 0, 0, 2, 3]
    model.forward([Block(sequence, tokens, parents)])
    pending = [state._rows[:, 3:8].clone() for state in states(sequence, KvState)]
    sequence.commit([0, 2, 3, 4])
    for state, rows in zip(states(sequence, KvState), pending, strict=True):
        assert state.length == 7
        assert torch.equal(state._rows[:, 3:7], rows[:, [0, 2, 3, 4]])


def test_a_committed_path_leaves_what_reading_it_row_by_row_leaves(model: Any) -> None:
    """The convolution's columns to float32's rounding of the layers below; the recurrent state to that of its sums."""
    prefix, tokens = text(30), text(6, 2)
    branched, plain = started(model, prefix), started(model, prefix)
    model.forward([Block(branched, [*tokens[:3], 99, *tokens[3:], 98], [-1, 0, 1, 1, 2, 4, 5, 0])])
    branched.commit([0, 1, 2, 4, 5, 6])
    for token in tokens:
        model.forward([Block(plain, [token])])
        plain.commit([0])
    for ours, theirs in zip(states(branched, GdnState), states(plain, GdnState), strict=True):
        same(ours.matrix, theirs.matrix, 2e-5)
        same(ours.tail, theirs.tail, 2e-5)
    for ours, theirs in zip(states(branched, KvState), states(plain, KvState), strict=True):
        same(ours._rows[:, :36], theirs._rows[:, :36], 2e-5)
    # The first layer's columns come from the embedding alone: nothing is summed on their way.
    same(states(branched, GdnState)[0].tail, states(plain, GdnState)[0].tail, 1e-6)


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
    path: list[int], words: str, model: Any, sequence: Any
) -> None:
    model.forward([Block(sequence, [1, 2, 3, 4], [-1, 0, 0, 1])])
    with pytest.raises(ValueError, match=words):
        sequence.commit(path)
    sequence.commit([0, 1, 3])
    same(next_logits(model, sequence), next_logits(model, started(model, [5, 6, 7, 1, 2, 4])))


def test_a_block_is_committed_once(sequence: Any) -> None:
    with pytest.raises(ValueError, match="no pending block"):
        sequence.commit([])


@pytest.mark.parametrize("act", ["trim", "anchor", "snapshot", "restore"])
def test_a_pending_block_must_be_settled_first(act: str, model: Any, sequence: Any) -> None:
    snapshot = sequence.snapshot()
    model.forward([Block(sequence, [1])])
    arguments = {"trim": [1], "anchor": [], "snapshot": [], "restore": [snapshot]}[act]
    with pytest.raises(ValueError, match=f"can't {act} a sequence while a block is pending"):
        getattr(sequence, act)(*arguments)


# ------------------------------------------------------------------------------------------- trims and snapshots


def test_a_trim_needs_the_anchor_of_its_length(model: Any, sequence: Any) -> None:
    assert not model.caps.trim
    anchor = sequence.anchor()
    model.forward([Block(sequence, [8, 9])])
    sequence.commit([0, 1])
    expected = next_logits(model, sequence)
    for length, given in ((3, None), (4, anchor), (6, anchor), (-1, None)):
        with pytest.raises(ValueError, match="can't be trimmed"):
            sequence.trim(length, given)
    sequence.trim(5)  # it is that long
    assert torch.equal(next_logits(model, sequence), expected)
    sequence.trim(3, anchor)
    same(next_logits(model, sequence), next_logits(model, started(model, [5, 6, 7])))


def test_a_snapshot_keeps_its_state_whatever_happens_to_the_sequence(model: Any, sequence: Any) -> None:
    expected = next_logits(model, sequence)
    snapshot = sequence.snapshot()
    model.forward([Block(sequence, [90, 91, 92, 93])])
    sequence.commit(range(4))
    sequence.restore(snapshot)
    assert torch.equal(next_logits(model, sequence), expected)
    sequence.close()
    other = model.new_sequence(3)
    other.restore(snapshot)
    assert other.length == 3
    with pytest.raises(ValueError, match=r"3 rows is longer than this sequence may be \(2\)"):
        model.new_sequence(2).restore(snapshot)


def test_a_snapshot_of_another_model_is_refused(
    model: Any, drafting: Any, sequence: Any, folder: Any, tiny_of: Callable[..., Tiny]
) -> None:
    snapshot = sequence.snapshot()
    with pytest.raises(ValueError, match="of another model"):
        drafting.new_sequence(10).restore(snapshot)
    with pytest.raises(ValueError, match="no snapshot of this model"):
        drafting.snapshot_of(snapshot.tensors())
    low = load(folder, dtype="bfloat16", mtp="off")
    with pytest.raises(ValueError, match="of another model"):
        low.new_sequence(10).restore(snapshot)
    for missing in snapshot.tensors():
        tensors = {name: value for name, value in snapshot.tensors().items() if name != missing}
        with pytest.raises(ValueError, match="no snapshot of this model"):
            model.snapshot_of(tensors)


def test_bytes_are_those_of_the_tensors(model: Any) -> None:
    facts = model.facts
    sequence = model.new_sequence(LIMIT)
    assert sequence.nbytes == 0
    ids = text(100)
    model.forward([Block(sequence, ids)])
    sequence.commit(range(100))
    fixed, per_row = facts["state_bytes"] + facts["conv_bytes"], facts["kv_bytes_per_token"]
    room = sum(state._rows.shape[1] for state in states(sequence, KvState)) // len(states(sequence, KvState))
    assert sequence.nbytes == fixed + room * per_row
    assert 100 <= room <= 200
    snapshot = sequence.snapshot()
    assert snapshot.length == 100
    assert snapshot.nbytes == fixed + 100 * per_row
    assert sequence.anchor().nbytes == fixed + 8 * len(states(sequence, KvState))
    sequence.close()
    sequence.close()
    assert sequence.nbytes == 0
    with pytest.raises(ValueError, match="closed"):
        model.forward([Block(sequence, [1])])


def test_a_sequence_filled_under_inference_mode_is_used_outside_of_it_too(drafting: Any) -> None:
    model, ids = drafting, text(60)
    with torch.inference_mode():
        sequence = started(model, ids)
        drafted(model, sequence)
    model.forward([Block(sequence, [1, 2, 3], [-1, -1, 1])])
    sequence.commit([1, 2])
    drafted(model, sequence)
    snapshot = sequence.snapshot()
    with torch.inference_mode():
        model.forward([Block(sequence, [4, 5, 6], [-1, -1, 1])])
        sequence.commit([1, 2])
        sequence.restore(snapshot)
    same(next_logits(model, sequence)[0], logits_of(model, [*ids, 2, 3, 9])[-1])
