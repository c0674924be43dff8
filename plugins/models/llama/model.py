"""The `Model` that the engine drives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from tandem.core.plugin import Block, Caps, Checkpoint, DraftHead, DraftSession, Options, Progress, Vision
from tandem.plugins.models._hf.tokenizer import TextTokenizer
from tandem.plugins.models.llama.attention import ONEDNN_ROWS, depths
from tandem.plugins.models.llama.network import Network, Rows
from tandem.plugins.models.llama.sequence import KVSequence, Snapshot
from tandem.plugins.models.llama.source import Source, open_source
from tandem.plugins.models.llama.storage import Storage


def load(checkpoint: Checkpoint, options: Options, progress: Progress) -> LlamaModel:
    """Read the checkpoint whole. Raises ModelError with what is wrong with it."""
    return from_source(open_source(checkpoint), options, progress)


def from_source(source: Source, options: Options, progress: Progress) -> LlamaModel:
    """Load in a thread that ends with it; `progress` is called there.

    Each thread that computes keeps OpenMP helpers of its own for good. As soon as the process has more of them than
    cores, all of them sleep between two operations instead of waiting awake, and to wake them takes longer than one
    operation of a decode step: SmolLM2's took 13 ms instead of 5 where the main thread had loaded the model and another
    one ran it (2 cores). So nothing of the loading stays behind, and one thread should do all the computing.
    """

    def work() -> LlamaModel:
        storage = Storage.choose(source, options)
        tokenizer = source.tokenizer()
        with torch.inference_mode():
            network = Network(storage, progress)
        return LlamaModel(source, storage, tokenizer, network)

    with ThreadPoolExecutor(1, "tandem-llama-load") as loader:
        return loader.submit(work).result()


class LlamaModel:
    """See the contract `tandem.core.plugin.Model`."""

    def __init__(self, source: Source, storage: Storage, tokenizer: TextTokenizer, network: Network) -> None:
        self._config = source.config
        self._network: Network | None = network
        self.name = source.name
        self.caps = Caps(max_len=source.config.max_len, resume_rows=_resume_rows(storage))
        self.tokenizer = tokenizer
        self.vision: Vision | None = None
        self.head: DraftHead | None = None
        self.template: str | None = source.template
        self.template_vars: Mapping[str, Any] = source.template_vars
        self.facts: Mapping[str, Any] = storage.facts()
        self.fingerprint: str | None = source.fingerprint(f"llama 1 {sorted(self.facts.items())}")
        if source.recommended_sampling:
            self.facts = {**self.facts, "recommended_sampling": dict(source.recommended_sampling)}

    def snapshot_of(self, tensors: Mapping[str, torch.Tensor]) -> Snapshot:
        config = self._config
        rows = tensors.get("rows")
        shape = (config.layers, 2 * config.kv_heads, config.head_dim)
        if rows is None or rows.dtype != torch.float32 or (*rows.shape[:2], *rows.shape[3:]) != shape:
            raise ValueError("these tensors are no snapshot of this model")
        return Snapshot(rows)

    def new_sequence(self, max_len: int) -> KVSequence:
        if not 0 < max_len <= self.caps.max_len:
            raise ValueError(f"max_len is {max_len}; this model's sequences have 1 to {self.caps.max_len} rows")
        config = self._config
        return KVSequence(config.layers, config.kv_heads, config.head_dim, max_len)

    def forward(self, blocks: Seq[Block]) -> list[torch.Tensor]:
        """Raises ValueError, with nothing changed, for a block that can't be run."""
        if self._network is None:
            raise ValueError("this model is closed")
        for block in blocks:
            self._check(block)
        if len({id(block.sequence) for block in blocks}) < len(blocks):
            raise ValueError("two blocks extend one sequence; a pass takes one block of each sequence")
        if not blocks:
            return []

        tokens: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        rows: list[Rows] = []
        for block in blocks:
            start, count = len(tokens), len(block.tokens)
            parents = None if block.parents is None or _is_chain(block.parents) else block.parents
            first = block.sequence.length
            tokens.extend(block.tokens)
            positions.extend(
                range(first, first + count) if parents is None else (first + depth for depth in depths(parents))
            )
            wanted.extend(start + row for row in block.logits)
            rows.append(Rows(block.sequence, start, count, parents))

        # Made outside of inference mode, so that the engine may change it in place.
        logits = torch.empty(len(wanted), self._config.vocab_size)
        for part in rows:
            part.sequence.reserve(part.count)
        with torch.inference_mode():
            self._network.run(torch.tensor(tokens), torch.tensor(positions), rows, torch.tensor(wanted), logits)
        for block in blocks:
            count = len(block.tokens)
            block.sequence.set_pending(range(-1, count - 1) if block.parents is None else list(block.parents))
        return list(logits.split([len(block.logits) for block in blocks]))

    def drafter(self) -> DraftSession | None:
        return None

    def close(self) -> None:
        self._network = None

    def _check(self, block: Block) -> None:
        count, vocab = len(block.tokens), self._config.vocab_size
        if not isinstance(block.sequence, KVSequence):
            raise ValueError("the block's sequence was not made by this model")
        if count == 0:
            raise ValueError("a block needs at least one token")
        block.sequence.check_room(count)
        if min(block.tokens) < 0 or max(block.tokens) >= vocab:
            wrong = next(token for token in block.tokens if not 0 <= token < vocab)
            raise ValueError(f"token {wrong} is outside the vocabulary; the ids are 0 to {vocab - 1}")
        if block.parents is not None:
            _check_tree(block.parents, count)
        if any(not 0 <= row < count for row in block.logits):
            raise ValueError(f"logits are wanted of rows {list(block.logits)}; the block has rows 0 to {count - 1}")


def _resume_rows(storage: Storage) -> int:
    """Rows from which on the layers and the attention are computed as in a long prompt, to the bit."""
    return 1 if storage.exact else max(ONEDNN_ROWS, storage.dense_rows)


def _check_tree(parents: Seq[int], count: int) -> None:
    if len(parents) != count:
        raise ValueError(f"the block has {count} tokens and {len(parents)} parents; it needs one parent a token")
    for row, parent in enumerate(parents):
        if not -1 <= parent < row:
            raise ValueError(f"row {row} hangs on row {parent}; a parent is -1 or a row before its child")


def _is_chain(parents: Seq[int]) -> bool:
    return all(parent == row - 1 for row, parent in enumerate(parents))
