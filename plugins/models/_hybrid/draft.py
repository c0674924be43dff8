"""Multi-token prediction: what the head keeps of a sequence, and the trees that it reads."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol

import torch

from tandem.core.plugin import Sequence
from tandem.plugins._ops import tree
from tandem.plugins.models._hybrid.blocks import check_parents, check_tokens
from tandem.plugins.models._hybrid.rows import Pass, Rows
from tandem.plugins.models._hybrid.sequence import NO_PATH, HybridSequence, LayerState, Path, Tensors

CATCH_UP_ROWS = 512
"""Committed rows that wait for the head at most, outside of a pass, and how many it reads at a time."""


class DraftNet(Protocol):
    """The weights of a head. What it takes and gives as "hidden" is `[n, width]`."""

    @property
    def width(self) -> int: ...

    def states(self, max_len: int) -> list[LayerState]:
        """The caches of one sequence."""
        ...

    def absorb(self, embedded: torch.Tensor, hidden: torch.Tensor, rows: Pass, states: Seq[LayerState]) -> None:
        """Read rows for what they leave in the caches alone."""
        ...

    def read(self, embedded: torch.Tensor, hidden: torch.Tensor, rows: Pass, states: Seq[LayerState]) -> torch.Tensor:
        """Each row is the embedding `[n, hidden]` of a token and the hidden row of the place before it; returns its
        own hidden rows, which the rows after it take."""
        ...

    def finish(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden rows to rows of the output head, `[n, hidden_size]`."""
        ...


@dataclass(frozen=True, slots=True)
class ReadRows:
    """Rows that the trunk has read: what the head needs of them."""

    tokens: list[int]
    positions: torch.Tensor
    """`[n, 3]`"""
    hidden: torch.Tensor
    """`[n, width]`"""
    embedded: torch.Tensor | None = None
    """`[n, hidden]` where some of them show a picture; else the tokens say it."""

    @property
    def nbytes(self) -> int:
        return _nbytes(self.positions, self.hidden, self.embedded)

    def tensors(self) -> dict[str, torch.Tensor]:
        found = {"tokens": torch.tensor(self.tokens), "positions": self.positions, "hidden": self.hidden}
        return found if self.embedded is None else {**found, "embedded": self.embedded}

    def take(self, rows: Seq[int]) -> ReadRows:
        """A copy of some of them."""
        index = Path(rows).on(self.hidden.device)
        embedded = None if self.embedded is None else self.embedded[index]
        return ReadRows([self.tokens[row] for row in rows], self.positions[index], self.hidden[index], embedded)


@dataclass(slots=True)
class _Tree:
    """The rows since `start`, in the order in which they went into the caches."""

    places: dict[int, int] = field(default_factory=dict)
    """Row of the tree, as the caller counts -> its place in that order."""
    parents: list[int] = field(default_factory=list)
    """Of each place, the place of its parent; -1 = the committed rows."""
    hidden: torch.Tensor | None = None
    """`[rows, width]`"""


class DraftState:
    """The head's part of a sequence: its own caches, and the committed rows that it has not read yet.

    The head reads token j with the hidden row of place j - 1, so the last hidden row is carried over.
    """

    def __init__(self, states: Seq[LayerState], width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.states = states
        self.length = 0
        """Rows in the caches; one less than the committed rows once all are read."""
        self.carry: torch.Tensor | None = None
        """The hidden row `[1, width]` of the last committed row that the head knows; None = it knows none."""
        self.unread: list[ReadRows] = []
        self.tree = _Tree()
        self._waiting: ReadRows | None = None
        self._kind = width, dtype
        self._device = device

    @property
    def layout(self) -> Hashable:
        return "draft", *self._kind, *(state.layout for state in self.states)

    @property
    def nbytes(self) -> int:
        waiting = self._waiting.nbytes if self._waiting else 0
        held = sum(state.nbytes for state in self.states) + sum(rows.nbytes for rows in self.unread)
        return held + waiting + _nbytes(self.carry, self.tree.hidden)

    @property
    def pending(self) -> int:
        return len(self._waiting.tokens) if self._waiting else 0

    @property
    def unread_rows(self) -> int:
        return sum(len(rows.tokens) for rows in self.unread)

    def hold(self, waiting: ReadRows) -> None:
        """The rows of the trunk's last block."""
        self._waiting = waiting

    def commit(self, path: Path) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and len(path):
            self.unread.append(waiting.take(path))

    def drop_tree(self) -> None:
        for state in self.states:
            state.commit(NO_PATH)
        self.tree = _Tree()

    def anchor(self) -> Tensors:
        return {**_named(state.anchor() for state in self.states), **self._own()}

    def rewind(self, anchor: Tensors) -> None:
        self.drop_tree()
        for number, state in enumerate(self.states):
            state.rewind(_numbered(anchor, number))
        self._take(anchor)

    def snapshot(self, anchor: Tensors | None = None) -> Tensors:
        if anchor is None:
            parts = _named(state.snapshot() for state in self.states)
        else:
            parts = _named(state.snapshot(_numbered(anchor, number)) for number, state in enumerate(self.states))
        own = self._own() if anchor is None else _without_states(anchor)
        return {**parts, **{name: value.clone() for name, value in own.items()}}

    def fits(self, snapshot: Tensors) -> bool:
        own = _without_states(snapshot)
        length, carry = own.pop("length", None), own.pop("carry", None)
        if length is None or length.shape != () or length.dtype != torch.int64:
            return False
        if int(length) if carry is None else not self._is_hidden(carry, 1):
            return False
        for number in range(len(own)):
            start = f"unread{number}."
            part = {name.removeprefix(start): own.pop(name) for name in list(own) if name.startswith(start)}
            if part and not self._is_read_rows(part):
                return False
        parts = (state.fits(_numbered(snapshot, number)) for number, state in enumerate(self.states))
        return not own and all(parts)

    def _is_read_rows(self, part: Tensors) -> bool:
        if not {"tokens", "positions", "hidden"} <= part.keys() <= {"tokens", "positions", "hidden", "embedded"}:
            return False
        count = len(part["tokens"])
        whole = part["tokens"].dtype == part["positions"].dtype == torch.int64
        shaped = part["positions"].shape == (count, 3) and part.get("embedded", part["tokens"]).shape[0] == count
        return whole and shaped and self._is_hidden(part["hidden"], count)

    def _is_hidden(self, rows: torch.Tensor, count: int) -> bool:
        width, dtype = self._kind
        return rows.shape == (count, width) and rows.dtype == dtype

    def restore(self, snapshot: Tensors) -> None:
        self.drop_tree()
        for number, state in enumerate(self.states):
            state.restore(_numbered(snapshot, number))
        self._take({name: value.to(self._device, copy=True) for name, value in _without_states(snapshot).items()})

    def _own(self) -> Tensors:
        """All but the caches. None of it is ever written to, so it can be shared."""
        found = {"length": torch.tensor(self.length)}
        if self.carry is not None:
            found["carry"] = self.carry
        for number, rows in enumerate(self.unread):
            found.update({f"unread{number}.{name}": value for name, value in rows.tensors().items()})
        return found

    def _take(self, kept: Tensors) -> None:
        self.length = int(kept["length"])
        self.carry = kept.get("carry")
        self.unread = []
        while f"unread{len(self.unread)}.tokens" in kept:
            start = f"unread{len(self.unread)}."
            rows = {name.removeprefix(start): kept[name] for name in kept if name.startswith(start)}
            self.unread.append(
                ReadRows(rows["tokens"].tolist(), rows["positions"], rows["hidden"], rows.get("embedded"))
            )
        self._waiting = None

    def close(self) -> None:
        for state in self.states:
            state.close()
        self.length, self.carry, self.unread, self.tree, self._waiting = 0, None, [], _Tree(), None


class TreeHead:
    """See the contract `tandem.core.plugin.DraftHead`."""

    def __init__(
        self,
        net: DraftNet,
        owner: object,
        embed: Callable[[torch.Tensor], torch.Tensor],
        logits: Callable[[torch.Tensor], torch.Tensor],
        vocab_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """`owner` is that of the model's sequences; `embed` and `logits` are the trunk's: tokens `[n]`
        to rows, rows to float32 logits."""
        self._net = net
        self._owner = owner
        self._embed = embed
        self._logits = logits
        self._vocab_size = vocab_size
        self._dtype = dtype
        self._device = device

    def new_state(self, max_len: int) -> DraftState:
        return DraftState(self._net.states(max_len), self._net.width, self._dtype, self._device)

    @torch.inference_mode()
    def start(self, sequence: Sequence) -> None:
        """Begin a new tree. Raises ValueError where nothing was committed yet, or a block is pending."""
        _, state = self._own(sequence)
        if sequence.length == 0:
            raise ValueError("the head guesses behind committed rows; this sequence has none yet")
        self._catch_up(state)

    def extend(self, sequence: Sequence, tokens: Seq[int], parents: Seq[int]) -> torch.Tensor:
        """Read more rows; the logits `[n, vocab_size]` float32, on the CPU, of what follows each."""
        ours, state = self._own(sequence)
        first = len(state.tree.places)
        if len(tokens) != len(parents) or not len(tokens):
            raise ValueError(f"there are {len(tokens)} tokens and {len(parents)} parents; each row needs one of both")
        check_tokens(tokens, self._vocab_size)
        check_parents(parents, first)
        if state.carry is None or state.unread:
            raise ValueError("there is no tree to extend; `start` begins one behind the committed rows")
        logits = torch.empty(len(tokens), self._vocab_size)  # outside of inference mode: the caller may change it
        with torch.inference_mode():
            for level in levels(parents, first):
                hidden = self._read_level(ours.place.position, state, level, tokens, parents, first)
                logits[level] = self._logits(self._net.finish(hidden)).cpu()
        return logits

    @torch.inference_mode()
    def settle(self, sequence: HybridSequence) -> None:
        """Read what waits, if it is much. Called before a pass brings more."""
        _, state = self._own(sequence)
        if state.unread_rows >= CATCH_UP_ROWS:
            self._catch_up(state)

    def _own(self, sequence: Sequence) -> tuple[HybridSequence, DraftState]:
        if not isinstance(sequence, HybridSequence) or sequence.owner is not self._owner:
            raise ValueError("the sequence was not made by this model")
        sequence.check_open()
        state = sequence.states[-1]
        assert isinstance(state, DraftState), "a model with a head gives its sequences a part for it"
        return sequence, state

    def _catch_up(self, state: DraftState) -> None:
        """Read all committed rows, `CATCH_UP_ROWS` at a time."""
        state.drop_tree()
        for part in state.unread:
            for start in range(0, len(part.tokens), CATCH_UP_ROWS):
                self._absorb(state, part.take(range(start, min(start + CATCH_UP_ROWS, len(part.tokens)))))
        state.unread = []

    def _absorb(self, state: DraftState, part: ReadRows) -> None:
        embedded = self._embed(self._tensor(part.tokens)) if part.embedded is None else part.embedded
        before = part.hidden[:-1] if state.carry is None else torch.cat([state.carry, part.hidden[:-1]])
        state.carry = part.hidden[-1:].clone()
        count = len(before)  # one less than the part where nothing stands before its first row
        if count == 0:
            return
        rows = Rows(0, part.tokens[-count:], None, state.length)
        self._net.absorb(embedded[-count:], before, Pass([rows], part.positions[-count:]), state.states)
        for each in state.states:
            each.commit(Path(range(count)))
        state.length += count

    def _read_level(
        self,
        position: int,
        state: DraftState,
        level: Seq[int],
        tokens: Seq[int],
        parents: Seq[int],
        first: int,
    ) -> torch.Tensor:
        """Rows whose parents were all read before; `level` numbers them within the call, `position` is that of
        the tree's root. Returns their hidden rows."""
        grown = state.tree
        start = len(grown.parents)
        above = [grown.places.get(parents[row], -1) for row in level]
        for place, row in enumerate(level, start):
            grown.places[first + row] = place
        grown.parents += above
        depths = tree.depths(grown.parents)[start:]
        ancestors = tree.ancestors(grown.parents)[start:].to(self._device)

        assert state.carry is not None, "`start` has read a row at least"
        known = state.carry if grown.hidden is None else torch.cat([state.carry, grown.hidden])
        before = known[self._tensor([place + 1 for place in above])]
        ids = [tokens[row] for row in level]
        positions = self._tensor([position + depth for depth in depths])[:, None].expand(-1, 3)
        rows = Rows(0, ids, above, state.length, ancestors)
        hidden = self._net.read(self._embed(self._tensor(ids)), before, Pass([rows], positions), state.states)
        grown.hidden = hidden if grown.hidden is None else torch.cat([grown.hidden, hidden])
        return hidden

    def _tensor(self, numbers: Seq[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)


def levels(parents: Seq[int], first: int) -> list[list[int]]:
    """The rows of a call by how many rows of the same call lie above each; `first` rows were read before."""
    found: list[list[int]] = []
    level_of: list[int] = []
    for row, parent in enumerate(parents):
        level = level_of[parent - first] + 1 if parent >= first else 0
        level_of.append(level)
        if level == len(found):
            found.append([])
        found[level].append(row)
    return found


def _named(parts: Iterable[Tensors]) -> dict[str, torch.Tensor]:
    """The tensors of several states under one roof."""
    return {f"{number}.{name}": value for number, part in enumerate(parts) for name, value in part.items()}


def _numbered(tensors: Tensors, number: int) -> Tensors:
    """Those of one of them."""
    start = f"{number}."
    return {name.removeprefix(start): tensors[name] for name in tensors if name.startswith(start)}


def _without_states(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Those that are under none of the states."""
    return {name: value for name, value in tensors.items() if not name[0].isdecimal()}


def _nbytes(*tensors: torch.Tensor | None) -> int:
    return sum(int(tensor.nbytes) for tensor in tensors if tensor is not None)
