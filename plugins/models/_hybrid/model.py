"""The `Model` that the engine drives: blocks in, logits out, over the decoder of any hybrid family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from tandem.core.plugin import Block, Caps, DraftHead, DraftSession, Tokenizer, Vision
from tandem.core.plugin.vision import Picture
from tandem.plugins._ops import tree
from tandem.plugins.models._hybrid.blocks import Position, check, cut, positions
from tandem.plugins.models._hybrid.draft import DraftNet, DraftState, ReadRows, TreeHead
from tandem.plugins.models._hybrid.rows import Pass, Rows, block_rows
from tandem.plugins.models._hybrid.sequence import HybridSequence, LayerState, Place, Snapshot, snapshot_of


class Decoder(Protocol):
    """The loaded weights of the trunk. What it calls the residual is `[R, width]`."""

    device: torch.device
    dtype: torch.dtype
    """Of the rows that its layers take."""
    vocab_size: int

    def states(self, max_len: int) -> list[LayerState]:
        """What its layers keep of one sequence, fresh."""
        ...

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """`[R]` int64 to `[R, hidden]`."""
        ...

    def run(self, embedded: torch.Tensor, rows: Pass, states: Seq[Seq[Any]], keep: torch.Tensor | None) -> torch.Tensor:
        """All layers: the residual behind the last one, of the rows `keep` (their numbers, ascending) or of all.

        `states` are those of each block's sequence, as `states()` made them; the rows are left pending in them.
        """
        ...

    def finish(self, residual: torch.Tensor) -> torch.Tensor:
        """The residual to rows of the output head, `[n, hidden]`."""
        ...

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Rows of the output head to `[n, vocab]` float32."""
        ...


class Tower(Protocol):
    """What reads pictures."""

    def rows(self, picture: Picture) -> torch.Tensor:
        """`[picture.rows, hidden]`"""
        ...


@dataclass(frozen=True, slots=True)
class Drafting:
    """The weights of multi-token prediction, and what it reads of the trunk."""

    net: DraftNet
    post_norm: bool
    """It reads `finish(residual)`; without, the residual itself."""


@dataclass(frozen=True, slots=True)
class Sight:
    """The vision tower and how pictures come to it."""

    tower: Tower
    vision: Vision
    merge: int
    """Patches along each side of what becomes one row."""


@dataclass(frozen=True, slots=True)
class About:
    """What a model says about itself."""

    name: str
    max_len: int
    tokenizer: Tokenizer
    template: str | None
    template_vars: Mapping[str, Any]
    facts: Mapping[str, Any]
    fingerprint: str | None = None


class HybridModel:
    """See the contract `tandem.core.plugin.Model`."""

    def __init__(
        self, decoder: Decoder, about: About, drafting: Drafting | None = None, sight: Sight | None = None
    ) -> None:
        self.name = about.name
        self.caps = Caps(max_len=about.max_len, trim=False)
        self.tokenizer = about.tokenizer
        self.template = about.template
        self.template_vars = about.template_vars
        self.facts = about.facts
        self.fingerprint = about.fingerprint
        self._decoder: Decoder | None = decoder
        self._owner = object()  # sequences must not hold the model itself: who keeps one would keep the weights
        self._drafting = drafting
        self._sight = sight
        self._head = (
            TreeHead(
                drafting.net,
                self._owner,
                decoder.embed,
                decoder.logits,
                decoder.vocab_size,
                decoder.dtype,
                decoder.device,
            )
            if drafting
            else None
        )

    @property
    def head(self) -> DraftHead | None:
        return self._head

    @property
    def vision(self) -> Vision | None:
        return self._sight.vision if self._sight else None

    def snapshot_of(self, tensors: Mapping[str, torch.Tensor]) -> Snapshot:
        return snapshot_of(tensors, self._states(self.caps.max_len))

    def new_sequence(self, max_len: int) -> HybridSequence:
        if not 0 < max_len <= self.caps.max_len:
            raise ValueError(f"max_len is {max_len}; this model's sequences have 1 to {self.caps.max_len} rows")
        return HybridSequence(self._states(max_len), max_len, self._owner)

    def forward(self, blocks: Seq[Block]) -> list[torch.Tensor]:
        """Raises ValueError, with nothing changed, for a block that can't be run."""
        decoder = self._open()
        check(blocks, self._owner, decoder.vocab_size, self._sight.vision.token if self._sight else None)
        if not blocks:
            return []
        # Made outside of inference mode, so that the engine may change it in place.
        logits = torch.empty(sum(len(block.logits) for block in blocks), decoder.vocab_size)
        try:
            with torch.inference_mode():
                self._run(decoder, blocks, logits)
        except BaseException:
            for block in blocks:
                block.sequence.drop()
            raise
        return list(logits.split([len(block.logits) for block in blocks]))

    def drafter(self) -> DraftSession | None:
        return None

    def close(self) -> None:
        self._decoder = self._head = self._drafting = self._sight = None

    # ------------------------------------------------------------------------------------------------- the pass

    def _run(self, decoder: Decoder, blocks: Seq[Block], logits: torch.Tensor) -> None:
        """One pass: the wanted logits into `logits`, the rows pending in their sequences."""
        tokens: list[int] = []
        where: list[Position] = []
        wanted: list[int] = []
        parts: list[Rows] = []
        places: list[list[Place]] = []
        for block in blocks:
            if self._head:
                self._head.settle(block.sequence)
            part = block_rows(len(tokens), block.tokens, block.parents, block.sequence.length, decoder.device)
            depths = None if part.parents is None else tree.depths(part.parents)
            found, after = positions(block, depths, self._sight.merge if self._sight else 1)
            wanted.extend(len(tokens) + row for row in block.logits)
            tokens.extend(block.tokens)
            where.extend(found)
            parts.append(part)
            places.append(after)

        rows = Pass(parts, torch.tensor(where, device=decoder.device))
        embedded = decoder.embed(torch.tensor(tokens, device=decoder.device))
        for block, part in zip(blocks, parts, strict=True):
            self._show(block, embedded[part.here])
        chosen = torch.tensor(wanted, dtype=torch.int64, device=decoder.device)
        keep = None if self._head else chosen
        residual = decoder.run(embedded, rows, [block.sequence.states for block in blocks], keep)
        finished = decoder.finish(residual) if len(residual) else residual
        if len(wanted):
            logits.copy_(decoder.logits(finished if keep is not None else finished[chosen]))
        if self._drafting:
            hidden = finished if self._drafting.post_norm else residual.to(decoder.dtype)
            self._hold_for_head(blocks, rows, hidden, embedded)
        for block, part, after in zip(blocks, parts, places, strict=True):
            parents = range(-1, part.count - 1) if part.parents is None else list(part.parents)
            replay = None if part.kept else partial(self._again, block)
            block.sequence.set_pending(parents, after, replay)

    def _show(self, block: Block, embedded: torch.Tensor) -> None:
        """Put the rows of the block's pictures in the place of their tokens'."""
        for image in block.images:
            assert self._sight is not None
            shown = self._sight.tower.rows(image.picture)[image.first : image.first + image.count]
            embedded[image.row : image.row + image.count] = shown.to(embedded)

    def _hold_for_head(self, blocks: Seq[Block], rows: Pass, hidden: torch.Tensor, embedded: torch.Tensor) -> None:
        for block, part in zip(blocks, rows.rows, strict=True):
            state = block.sequence.states[-1]
            assert isinstance(state, DraftState)
            shown = embedded[part.here].clone() if block.images else None
            # Copies: a view would keep the rows of all blocks.
            state.hold(
                ReadRows(list(block.tokens), rows.positions[part.here].clone(), hidden[part.here].clone(), shown)
            )

    def _again(self, block: Block, count: int) -> None:
        """Run the first rows of a chain again, after its sequence has dropped it."""
        self.forward([Block(block.sequence, block.tokens[:count], None, (), cut(block.images, count))])

    def _states(self, max_len: int) -> list[LayerState]:
        states = self._open().states(max_len)
        return [*states, self._head.new_state(max_len)] if self._head else states

    def _open(self) -> Decoder:
        if self._decoder is None:
            raise ValueError("this model is closed")
        return self._decoder
