"""One token sequence of a hybrid decoder: per-layer states that are committed, copied and restored together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence as Seq
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from tandem.core.plugin.model import Anchor

Tensors = Mapping[str, torch.Tensor]
"""A part of a snapshot or of an anchor: everything in it, by name."""


class Path(list[int]):
    """The rows to commit. Each row's parent stands before it."""

    def __init__(self, rows: Seq[int]) -> None:
        super().__init__(rows)
        self._on: dict[torch.device, torch.Tensor] = {}

    def on(self, device: torch.device) -> torch.Tensor:
        """`[n]` int64 on a device: copied there once, not once for each layer."""
        if device not in self._on:
            self._on[device] = torch.tensor(self, dtype=torch.int64, device=device)
        return self._on[device]


NO_PATH = Path(())


class LayerState(Protocol):
    """What one layer keeps of one sequence: the committed part, and what a pass has left for `commit`.

    All but `commit` and `close` are asked while nothing is pending.
    """

    @property
    def layout(self) -> Hashable:
        """Kind and shapes of what is kept, lengths left out: snapshots go between states of one layout."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes held, spare room and pending rows included."""
        ...

    @property
    def pending(self) -> int:
        """Rows that wait for `commit`."""
        ...

    def commit(self, path: Path) -> None:
        """Keep the pending rows `path` (a valid one), drop the others. Nothing pending and an empty path is fine."""
        ...

    def anchor(self) -> Tensors:
        """What `rewind` and `snapshot` need to come back to the committed part of now, once more has been committed.

        Rows that are only added to are left out. What is replaced and never written to may be shared, not copied.
        """
        ...

    def rewind(self, anchor: Tensors) -> None:
        """Come back to an anchor that this state gave. The anchor stays usable."""
        ...

    def snapshot(self, anchor: Tensors | None = None) -> Tensors:
        """A copy of the committed part, of now or as it was at an anchor that this state gave."""
        ...

    def fits(self, snapshot: Tensors) -> bool:
        """Whether `restore` can take these tensors: their names, shapes and number types."""
        ...

    def restore(self, snapshot: Tensors) -> None:
        """Become a copy of the snapshot, on the state's own device."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sequence stands on the position axes."""

    position: int = 0
    """The position of the next text row; while a picture is cut, the position where that picture began."""
    picture: str | None = None
    """The id of the picture that the committed rows end within."""
    rows: int = 0
    """How many of that picture's rows are committed."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """See the contract `tandem.core.plugin.Snapshot`."""

    length: int
    place: Place
    parts: tuple[Tensors, ...]
    """One for each state of the sequence."""
    layouts: tuple[Hashable, ...]

    @property
    def nbytes(self) -> int:
        return sum(_nbytes(part) for part in self.parts)

    def tensors(self) -> Tensors:
        picture = (self.place.picture or "").encode()
        return {
            "place": torch.tensor([self.length, self.place.position, self.place.rows]),
            "picture": torch.frombuffer(bytearray(picture), dtype=torch.uint8) if picture else torch.zeros(0).byte(),
            **{f"{number}.{name}": value for number, part in enumerate(self.parts) for name, value in part.items()},
        }


def snapshot_of(tensors: Tensors, states: Seq[LayerState]) -> Snapshot:
    """The snapshot that `tensors` came from, for sequences of such states. Raises ValueError when it is of others."""
    error = ValueError("these tensors are no snapshot of this model")
    place, picture = tensors.get("place"), tensors.get("picture")
    if place is None or place.shape != (3,) or place.dtype != torch.int64:
        raise error
    if picture is None or picture.dtype != torch.uint8:
        raise error
    parts: list[dict[str, torch.Tensor]] = [{} for _ in states]
    for full, value in tensors.items():
        number, dot, name = full.partition(".")
        if dot:
            if not number.isdecimal() or int(number) >= len(parts):
                raise error
            parts[int(number)][name] = value
    if not all(state.fits(part) for state, part in zip(states, parts, strict=True)):
        raise error
    length, position, rows = place.tolist()
    where = Place(position, bytes(picture.tolist()).decode(errors="replace") or None, rows)
    return Snapshot(length, where, tuple(parts), tuple(state.layout for state in states))


@dataclass(frozen=True, slots=True)
class _Anchored:
    """The state of an `Anchor`."""

    place: Place
    parts: tuple[Tensors, ...]


class HybridSequence:
    """See the contract `tandem.core.plugin.Sequence`. `trim` needs an anchor."""

    def __init__(self, states: Seq[LayerState], max_len: int, owner: object = None) -> None:
        """`owner` stands for the model that made it, and alone may extend it."""
        self.owner = owner
        self.states = states
        self.max_len = max_len
        self.place = Place()
        self._length = 0
        self._pending: _Pending | None = None
        self._closed = False

    # ------------------------------------------------------------------------------------------ the contract

    @property
    def length(self) -> int:
        return self._length

    @property
    def nbytes(self) -> int:
        return sum(state.nbytes for state in self.states)

    @torch.inference_mode()
    def commit(self, path: Seq[int]) -> None:
        """Keep the pending rows `path`. Raises ValueError, changing nothing, when they are no path of the block.

        A part of a long chain is run again: its layers have kept the state after the last row only.
        """
        pending = self._pending
        if pending is None:
            raise ValueError("there is no pending block to commit; `forward` makes one, and it is committed once")
        check_path(path, pending.parents)
        path = Path(path)
        if pending.replay is not None and 0 < len(path) < len(pending.parents):
            self.drop()
            pending.replay(len(path))
            self.commit(path)
            return
        for state in self.states:
            state.commit(path)
        if path:
            self.place = pending.places[path[-1]]
        self._length += len(path)
        self._pending = None

    def anchor(self) -> Anchor:
        self._settled("anchor")
        parts = tuple(state.anchor() for state in self.states)
        return Anchor(self._length, sum(map(_nbytes, parts)), _Anchored(self.place, parts))

    @torch.inference_mode()
    def trim(self, length: int, anchor: Anchor | None = None) -> None:
        self._settled("trim")
        if length == self._length:
            return
        if not 0 <= length < self._length:
            raise ValueError(f"a sequence of {self._length} rows can't be trimmed to {length}")
        if anchor is None or anchor.length != length or not isinstance(anchor.state, _Anchored):
            raise ValueError(
                f"a sequence of {self._length} rows can't be trimmed to {length} without the anchor that was taken "
                "there: the model's recurrent state can't be cut back"
            )
        for state, part in zip(self.states, anchor.state.parts, strict=True):
            state.rewind(part)
        self._length, self.place = length, anchor.state.place

    @torch.inference_mode()
    def snapshot(self, anchor: Anchor | None = None) -> Snapshot:
        self._settled("snapshot")
        layouts = tuple(state.layout for state in self.states)
        if anchor is None or anchor.length == self._length:
            return Snapshot(self._length, self.place, tuple(state.snapshot() for state in self.states), layouts)
        if not 0 <= anchor.length < self._length or not isinstance(anchor.state, _Anchored):
            raise ValueError(
                f"the state of {anchor.length} rows can't be had from a sequence of {self._length} rows without the "
                "anchor that was taken there"
            )
        kept = anchor.state
        parts = (state.snapshot(part) for state, part in zip(self.states, kept.parts, strict=True))
        return Snapshot(anchor.length, kept.place, tuple(parts), layouts)

    @torch.inference_mode()
    def restore(self, snapshot: Any) -> None:
        self._settled("restore")
        if not isinstance(snapshot, Snapshot) or snapshot.layouts != tuple(state.layout for state in self.states):
            raise ValueError("the snapshot is of another model")
        if snapshot.length > self.max_len:
            raise ValueError(
                f"a snapshot of {snapshot.length} rows is longer than this sequence may be ({self.max_len})"
            )
        for state, part in zip(self.states, snapshot.parts, strict=True):
            state.restore(part)
        self._length, self.place = snapshot.length, snapshot.place

    def close(self) -> None:
        for state in self.states:
            state.close()
        self._length, self.place, self._pending, self._closed = 0, Place(), None, True

    # ------------------------------------------------------------------------------------ for the model only

    def check_room(self, rows: int) -> None:
        """Raise ValueError unless a block of `rows` may be appended now."""
        self._settled("extend")
        if self._length + rows > self.max_len:
            raise ValueError(f"{rows} more rows after {self._length} pass this sequence's limit of {self.max_len} rows")

    def check_open(self) -> None:
        """Raise ValueError while a block is pending, or when the sequence is closed."""
        self._settled("draft behind")

    def set_pending(self, parents: Seq[int], places: Seq[Place], replay: Callable[[int], None] | None = None) -> None:
        """The states hold a block's rows. `places` says where the sequence stands after each of them; `replay(n)`
        runs the first n rows again, for a chain of which the states have kept the end only."""
        self._pending = _Pending(parents, places, replay)

    @torch.inference_mode()
    def drop(self) -> None:
        """Forget what a pass has left in the states, whole or not."""
        for state in self.states:
            state.commit(NO_PATH)
        self._pending = None

    def _settled(self, verb: str) -> None:
        if self._closed:
            raise ValueError(f"can't {verb} a sequence that is closed")
        if self._pending is not None:
            raise ValueError(f"can't {verb} a sequence while a block is pending; commit it first")


@dataclass(frozen=True, slots=True)
class _Pending:
    parents: Seq[int]
    places: Seq[Place]
    replay: Callable[[int], None] | None


def check_path(path: Seq[int], parents: Seq[int]) -> None:
    """Raise ValueError unless each of the rows `path` hangs on the one before it, the first on the committed rows."""
    before = -1
    for row in path:
        if not 0 <= row < len(parents):
            raise ValueError(f"row {row} is not in the pending block; its rows are 0 to {len(parents) - 1}")
        if parents[row] != before:
            raise ValueError(
                f"the rows {list(path)} are no path: row {row} hangs on {_named(parents[row])}, not on {_named(before)}"
            )
        before = row


def _named(row: int) -> str:
    return "the last committed row" if row < 0 else f"row {row}"


def _nbytes(part: Tensors) -> int:
    return sum(int(tensor.nbytes) for tensor in part.values())
