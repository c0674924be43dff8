"""What the layers of their own keep of one sequence. Each is a `LayerState` of `_hybrid.sequence`."""

from __future__ import annotations

from collections.abc import Hashable, Sequence as Seq
from dataclasses import dataclass

import torch

from tandem.plugins._ops import gdn
from tandem.plugins.models._hybrid.sequence import Tensors

FIRST_BLOCKS = 64


class PleState:
    """What the layer keeps of one sequence: the last inputs of its convolution and the last token ids.

    What is committed is replaced, never written to.
    """

    def __init__(self, conv: torch.Tensor, tokens: torch.Tensor) -> None:
        self.conv = conv
        """`[(kernel - 1) * ngram, streams * H]` normed and gated values of the last committed rows, zeros before
        them."""
        self.tokens = tokens
        """`[ngram - 1]` int64 on the CPU, the end-of-text token before the start."""
        self._rows: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def layout(self) -> Hashable:
        return "ple", self.conv.shape, self.conv.dtype, len(self.tokens)

    @property
    def nbytes(self) -> int:
        waiting = sum(int(rows.nbytes) for rows in self._rows) if self._rows else 0
        return int(self.conv.nbytes + self.tokens.nbytes) + waiting

    @property
    def pending(self) -> int:
        return len(self._rows[1]) if self._rows else 0

    def hold(self, rows: torch.Tensor, tokens: torch.Tensor) -> None:
        """The block's conv inputs `[T, streams * H]` and tokens `[T]`, until `commit`."""
        self._rows = rows, tokens

    def commit(self, path: Seq[int]) -> None:
        waiting, self._rows = self._rows, None
        if waiting is not None:
            rows, tokens = waiting
            self.conv, self.tokens = gdn.conv_tail(rows, self.conv, path), gdn.conv_tail(tokens, self.tokens, path)

    def anchor(self) -> Tensors:
        return {"conv": self.conv, "tokens": self.tokens}

    def rewind(self, anchor: Tensors) -> None:
        self.conv, self.tokens = anchor["conv"], anchor["tokens"]

    def snapshot(self, anchor: Tensors | None = None) -> Tensors:
        kept = self.anchor() if anchor is None else anchor
        return {name: value.clone() for name, value in kept.items()}

    def fits(self, snapshot: Tensors) -> bool:
        return shapes_of(snapshot) == shapes_of(self.anchor())

    def restore(self, snapshot: Tensors) -> None:
        self.conv = snapshot["conv"].to(self.conv.device, copy=True)
        self.tokens = snapshot["tokens"].to("cpu", copy=True)

    def close(self) -> None:
        self.conv, self.tokens, self._rows = self.conv[:0].clone(), self.tokens[:0].clone(), None


@dataclass(slots=True)
class Waiting:
    """Pending rows; fields as in `IndexState`."""

    raw: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    ends: torch.Tensor
    """`[blocks]` int64: rows that complete a block, ascending."""
    members: torch.Tensor
    """`[blocks, R]` int64: those blocks' rows, counted as `Lineage.back` does."""
    keys: torch.Tensor
    """`[blocks, size]`: their keys."""

    @property
    def nbytes(self) -> int:
        held = (self.raw, self.cos, self.sin, self.ends, self.members, self.keys)
        return sum(int(tensor.nbytes) for tensor in held)


class IndexState:
    """What one layer's indexer keeps of one sequence: the keys of complete blocks, and the rows of the incomplete one.

    A block never changes once it is complete, so its tokens' raw keys are not kept.
    """

    def __init__(
        self, ratio: int, size: int, rotary: int, dtype: torch.dtype, device: torch.device | None = None
    ) -> None:
        self.length = 0
        """Committed rows."""
        self.ratio = ratio
        self._keys = torch.empty(0, size, dtype=dtype, device=device)
        # Of the last R - 1 rows, the very last at the end: raw keys, and the turns of their positions.
        self.raw = torch.zeros(ratio - 1, size, dtype=dtype, device=device)
        self.cos = torch.zeros(ratio - 1, rotary // 2, device=device)
        self.sin = torch.zeros(ratio - 1, rotary // 2, device=device)
        ends = torch.empty(0, dtype=torch.int64, device=device)
        self._none = Waiting(self.raw[:0], self.cos[:0], self.sin[:0], ends, ends.new_empty(0, ratio), self._keys)
        self._waiting = self._none

    @property
    def blocks(self) -> int:
        """Complete blocks of committed rows."""
        return self.length // self.ratio

    @property
    def keys(self) -> torch.Tensor:
        """`[blocks, size]`"""
        return self._keys[: self.blocks]

    @property
    def layout(self) -> Hashable:
        return "index", self.ratio, self.raw.shape[1], self.cos.shape[1], self.raw.dtype

    @property
    def nbytes(self) -> int:
        held = (self._keys, self.raw, self.cos, self.sin)
        return sum(int(tensor.nbytes) for tensor in held) + self._waiting.nbytes

    @property
    def pending(self) -> int:
        return len(self._waiting.raw)

    @property
    def waiting(self) -> Waiting:
        return self._waiting

    def append(self, raw: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Put rows behind the pending ones."""
        w = self._waiting
        self._waiting = Waiting(
            torch.cat([w.raw, raw]), torch.cat([w.cos, cos]), torch.cat([w.sin, sin]), w.ends, w.members, w.keys
        )

    def append_blocks(self, ends: torch.Tensor, members: torch.Tensor, keys: torch.Tensor) -> None:
        """Blocks that the last rows complete; see `Waiting`."""
        w = self._waiting
        w.ends, w.members = torch.cat([w.ends, ends]), torch.cat([w.members, members])
        w.keys = torch.cat([w.keys, keys])

    def commit(self, path: Seq[int]) -> None:
        waiting, self._waiting = self._waiting, self._none
        if not len(path):
            return
        place = {row: number for number, row in enumerate(waiting.ends.tolist())}
        completed = [place[row] for row in path if row in place]
        blocks = self.blocks
        self._reserve(blocks + len(completed))
        self._keys[blocks : blocks + len(completed)] = waiting.keys[completed]
        self.raw = gdn.conv_tail(waiting.raw, self.raw, path)
        self.cos = gdn.conv_tail(waiting.cos, self.cos, path)
        self.sin = gdn.conv_tail(waiting.sin, self.sin, path)
        self.length += len(path)

    def anchor(self) -> Tensors:
        # Keys are only added to, the others replaced.
        return {"length": torch.tensor(self.length), "raw": self.raw, "cos": self.cos, "sin": self.sin}

    def rewind(self, anchor: Tensors) -> None:
        self.length = int(anchor["length"])
        self.raw, self.cos, self.sin = anchor["raw"], anchor["cos"], anchor["sin"]

    def snapshot(self, anchor: Tensors | None = None) -> Tensors:
        kept = self.anchor() if anchor is None else anchor
        keys = self._keys[: int(kept["length"]) // self.ratio]
        return {name: value.clone() for name, value in {**kept, "keys": keys}.items()}

    def fits(self, snapshot: Tensors) -> bool:
        length, keys = snapshot.get("length"), snapshot.get("keys")
        if length is None or keys is None or length.shape or length.dtype != torch.int64 or int(length) < 0:
            return False
        wanted = {**self.anchor(), "keys": self._keys.new_empty(int(length) // self.ratio, self._keys.shape[1])}
        return shapes_of(snapshot) == shapes_of(wanted)

    def restore(self, snapshot: Tensors) -> None:
        self.length = int(snapshot["length"])
        self._keys, self.raw, self.cos, self.sin = (
            snapshot[name].to(self._keys.device, copy=True) for name in ("keys", "raw", "cos", "sin")
        )

    def close(self) -> None:
        self.length, self._keys, self._waiting = 0, self._keys[:0].clone(), self._none

    def _reserve(self, needed: int) -> None:
        capacity = len(self._keys)
        if needed > capacity:
            grown = self._keys.new_empty(max(needed, 2 * capacity, FIRST_BLOCKS), self._keys.shape[1])
            grown[: self.blocks] = self.keys
            self._keys = grown


def shapes_of(tensors: Tensors) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and number type of each."""
    return {name: (tuple(value.shape), value.dtype) for name, value in tensors.items()}
