"""Multi-token prediction: the logits of transformers' own head, along every path of every tree."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from qwen35_tiny import Tiny, load, make, path_to, rewrite, started, text

from tandem.core.plugin import Block, ModelError
from tandem.plugins.models._hybrid import draft

TOLERANCE = 2e-4


class Oracle:
    """transformers' trunk and head over one path, every row of the head after the rows before it."""

    def __init__(self, path: Path, kind: str) -> None:
        import transformers
        from transformers.modeling_layers import MtpModel

        cls = transformers.Qwen3_5ForCausalLM if kind == "text" else transformers.Qwen3_5MoeForCausalLM
        config = cls.config_class.from_pretrained(path)
        config.num_mtp_layers, config.mtp_layer_types = 1, ["full_attention"]
        self.trunk = cls.from_pretrained(path, config=config, attn_implementation="eager").eval()
        self.head = MtpModel.from_pretrained(self.trunk).eval()

    @torch.no_grad()
    def logits(self, ids: Sequence[int], drafts: Sequence[int]) -> torch.Tensor:
        """What follows each of `drafts` (the root first), read one below the other behind `ids`: `[n, vocab]`."""
        from transformers.cache_utils import MtpCache

        cache = MtpCache(config=self.head.config)
        hidden = self.trunk(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1]
        tokens = [*ids[1:], drafts[0]]
        found = []
        for step in range(len(drafts)):
            last = len(ids) + step
            positions = torch.arange(last - len(tokens) + 1, last + 1)[None]
            hidden = self.head.forward_layer(0, hidden, positions, cache, input_ids=torch.tensor([tokens]))[:, -1:]
            found.append(self.head._project_to_logits(hidden)[0, 0])
            tokens = [drafts[step + 1]] if step + 1 < len(drafts) else []
        return torch.stack(found)


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Oracle:
    return Oracle(folder, "text")


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


def drafted(model: Any, sequence: Any, tokens: Sequence[int], parents: Sequence[int]) -> torch.Tensor:
    """The whole tree in one call, its root first."""
    model.head.start(sequence)
    found: torch.Tensor = model.head.extend(sequence, list(tokens), list(parents))
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 40, 130])
def test_a_chain_of_guesses_is_that_of_transformers(drafting: Any, oracle: Oracle, count: int) -> None:
    ids, drafts = text(count), text(4, 3)
    sequence = started(drafting, ids)
    drafting.head.start(sequence)
    found = [drafting.head.extend(sequence, [token], [row - 1]) for row, token in enumerate(drafts)]
    same(torch.cat(found), oracle.logits(ids, drafts))


@pytest.mark.parametrize("fused", [True, False])
def test_a_sparse_head_is_that_of_transformers(tiny_of: Callable[..., Tiny], fused: bool) -> None:
    path = tiny_of("moe", fused=fused).path
    model, ids, drafts = load(path, mtp="on"), text(20), text(3, 3)
    same(drafted(model, started(model, ids), drafts, [-1, 0, 1]), Oracle(path, "moe").logits(ids, drafts))


@settings(max_examples=12, deadline=None)
@given(count=st.integers(1, 30), data=st.data())
def test_every_row_of_a_tree_sees_the_committed_rows_and_its_ancestors(
    drafting: Any, oracle: Oracle, count: int, data: st.DataObject
) -> None:
    """Read in calls of any size, which may hold parents and children together, in any topological order."""
    n = data.draw(st.integers(1, 8))
    tokens = data.draw(st.lists(st.integers(3, 258), min_size=n, max_size=n))
    parents = [-1, *(data.draw(st.integers(-1, row - 1)) for row in range(1, n))]
    ids = text(count)
    sequence = started(drafting, ids)
    drafting.head.start(sequence)
    parts, start = [], 0
    while start < n:
        stop = data.draw(st.integers(start + 1, n))
        parts.append(drafting.head.extend(sequence, tokens[start:stop], parents[start:stop]))
        start = stop
    found = torch.cat(parts)
    for row in range(n):
        path = path_to(row, parents)
        same(found[row], oracle.logits(ids, [tokens[step] for step in path])[-1])


def test_the_head_follows_the_text_through_commits_and_drops_its_trees(drafting: Any, oracle: Oracle) -> None:
    model, ids = drafting, text(7)
    sequence = started(model, ids)
    for step in range(6):
        drafted(model, sequence, text(5, step), [-1, 0, 0, 1, 2])  # a tree that comes to nothing
        tokens, parents = text(4, 20 + step), [-1, 0, 0, 2]
        path = [0, 2, 3][: step % 4]
        model.forward([Block(sequence, tokens, parents)])
        sequence.commit(path)
        ids += [tokens[row] for row in path]
        if step % 2:  # the head need not be asked in every round
            same(drafted(model, sequence, [9, 8], [-1, 0]), oracle.logits(ids, [9, 8]))


def test_waiting_rows_are_read_in_bounded_parts(drafting: Any, oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft, "CATCH_UP_ROWS", 16)
    model, ids = drafting, text(150)
    read: list[int] = []
    absorb = type(model._drafting.net).absorb

    def counted(self: Any, embedded: torch.Tensor, *rest: Any) -> None:
        read.append(len(embedded))
        absorb(self, embedded, *rest)

    monkeypatch.setattr(type(model._drafting.net), "absorb", counted)
    sequence = model.new_sequence(400)
    for start in range(0, 150, 10):
        model.forward([Block(sequence, ids[start : start + 10])])
        sequence.commit(range(10))
        assert sequence.states[-1].unread_rows < 16 + 10
    same(drafted(model, sequence, [9, 8], [-1, 0]), oracle.logits(ids, [9, 8]))
    assert max(read) <= 16
    assert sum(read) == 149
    whole = started(model, ids)  # one chunk leaves more than is read at a time
    same(drafted(model, whole, [9, 8], [-1, 0]), oracle.logits(ids, [9, 8]))
    assert max(read) <= 16


def test_a_snapshot_holds_what_the_head_knows(drafting: Any) -> None:
    model, ids = drafting, text(50)
    sequence = started(model, ids)
    waiting = sequence.snapshot()
    expected = drafted(model, sequence, [9, 8, 7], [-1, 0, 0])
    read = sequence.snapshot()
    assert read.nbytes < waiting.nbytes + 50 * model.facts["mtp_kv_bytes_per_token"]
    for snapshot in (waiting, read, model.snapshot_of(read.tensors()), model.snapshot_of(waiting.tensors())):
        other = model.new_sequence(100)
        other.restore(snapshot)
        same(drafted(model, other, [9, 8, 7], [-1, 0, 0]), expected)
        same(drafted(model, other, [9, 8, 7], [-1, 0, 0]), expected)  # the snapshot's tensors are its own


def test_tensors_that_are_no_snapshot_of_the_head_are_refused(drafting: Any) -> None:
    sequence = started(drafting, text(50))
    for act in (lambda: None, lambda: drafted(drafting, sequence, [9], [-1])):
        act()
        tensors = sequence.snapshot().tensors()
        head = [name for name in tensors if name.startswith("5.")]
        assert len(head) > 2
        for name in head:
            for wrong in (None, tensors[name][..., :-1] if tensors[name].dim() > 1 else tensors[name].float()):
                changed = (
                    {**tensors, name: wrong} if wrong is not None else {k: v for k, v in tensors.items() if k != name}
                )
                with pytest.raises(ValueError, match="no snapshot of this model"):
                    drafting.snapshot_of(changed)
        with pytest.raises(ValueError, match="no snapshot of this model"):
            drafting.snapshot_of({**tensors, "5.more": torch.zeros(1)})


def test_the_head_changes_no_logits_and_asks_for_its_caches(drafting: Any, model: Any) -> None:
    ids = text(30)
    with_head, without = started(drafting, ids), started(model, ids)
    before = with_head.nbytes
    drafted(drafting, with_head, text(6, 2), [-1, 0, 1, 2, 3, 4])
    assert with_head.nbytes > before > without.nbytes
    rows = [each.forward([Block(sequence, [7], None, [0])])[0] for each, sequence in
            ((drafting, with_head), (model, without))]  # fmt: skip
    assert torch.equal(*rows)


def test_a_tree_may_pass_the_end_of_the_sequence(drafting: Any, oracle: Oracle) -> None:
    ids, drafts = text(70), text(5, 3)
    sequence = started(drafting, ids, max_len=70)
    same(drafted(drafting, sequence, drafts, [-1, 0, 1, 2, 3]), oracle.logits(ids, drafts))


def test_the_logits_are_the_callers_to_change(drafting: Any) -> None:
    found = drafted(drafting, started(drafting, text(4)), [9], [-1])
    found[0, 3] = float("-inf")
    assert found.dtype == torch.float32


def test_hidden_rows_before_the_last_norm_are_another_choice(folder: Path, drafting: Any) -> None:
    """With it the head reads, and hands on, rows that no last norm has seen; the trunk is the same."""
    other, ids = load(folder, mtp_hidden="pre_norm"), text(20)
    one, two = (drafted(model, started(model, ids), [9, 8], [-1, 0]) for model in (drafting, other))
    assert (one - two).abs().max() > 0.1
    net, decoder = other._drafting.net, other._decoder
    sequence = started(other, [5])
    with torch.inference_mode():
        residual = sequence.states[-1].unread[0].hidden
        expected = decoder.finish(residual)
        [row] = started_row(other, [5])
        same(decoder.logits(expected)[0], row)
        assert torch.equal(net.finish(residual), net._norm(residual))


def started_row(model: Any, ids: list[int]) -> torch.Tensor:
    [logits] = model.forward([Block(model.new_sequence(10), ids, None, [len(ids) - 1])])
    found: torch.Tensor = logits
    return found


# ----------------------------------------------------------------------------------------------- on, off, refused


def test_the_option_switches_it_off(model: Any) -> None:
    assert model.head is None
    assert model.facts["mtp"] is False


def test_a_checkpoint_without_the_tensors_goes_without_unless_told_otherwise(tmp_path: Path, folder: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    rewrite(tmp_path / "copy", drop="mtp.")
    assert load(tmp_path / "copy").head is None
    with pytest.raises(ModelError, match="mtp: on"):
        load(tmp_path / "copy", mtp="on")
    rewrite(tmp_path / "copy", drop="mtp.", add={"mtp.norm.weight": torch.zeros(48)})
    with pytest.raises(ModelError, match=r"14 missing: .*mtp\.fc\.weight"):
        load(tmp_path / "copy")


def test_a_head_of_several_layers_is_left_out_or_refused(tmp_path: Path) -> None:
    path = make(tmp_path).path
    config = (path / "config.json").read_text()
    (path / "config.json").write_text(config.replace('"mtp_num_hidden_layers": 1', '"mtp_num_hidden_layers": 2'))
    assert load(path).head is None
    with pytest.raises(ModelError, match="has 2 layers; the draft head has one"):
        load(path, mtp="on")


@pytest.mark.parametrize(
    ("tokens", "parents", "words"),
    [
        ([], [], "0 tokens and 0 parents"),
        ([1, 2], [-1], "2 tokens and 1 parents"),
        ([300], [-1], "token 300 is outside the vocabulary"),
        ([1], [0], "row 0 hangs on row 0"),
        ([1, 2], [-1, 1], "row 1 hangs on row 1"),
    ],
)
def test_rows_that_make_no_tree_are_refused(tokens: list[int], parents: list[int], words: str, drafting: Any) -> None:
    sequence = started(drafting, text(5))
    drafting.head.start(sequence)
    with pytest.raises(ValueError, match=words):
        drafting.head.extend(sequence, tokens, parents)
    assert drafting.head.extend(sequence, [1], [-1]).shape == (1, 300)


def test_a_tree_begins_behind_committed_rows_only(drafting: Any, model: Any) -> None:
    head = drafting.head
    with pytest.raises(ValueError, match="this sequence has none yet"):
        head.start(drafting.new_sequence(10))
    sequence = started(drafting, text(5))
    with pytest.raises(ValueError, match="`start` begins one"):
        head.extend(sequence, [1], [-1])
    drafting.forward([Block(sequence, [6])])
    with pytest.raises(ValueError, match="while a block is pending"):
        head.start(sequence)
    with pytest.raises(ValueError, match="not made by this model"):
        head.start(started(model, text(5)))
