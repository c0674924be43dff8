"""Per-layer embedding: hashed n-grams of the text's tokens, looked up in a big table and gated into the streams.

For each row, with its token t0 and the tokens before it on its path t1, t2, ...:

    h_n = t0*m0 ^ ... ^ t(n-1)*m(n-1)  for n = 2 .. ngram;  row of head j = offset_j + h_n mod size_j
    e = the heads' rows side by side
    s = (norm(key(e)) . norm(stream)) / sqrt(H);  g = sigmoid(sign(s) * sqrt(max(|s|, 1e-6))) * value(e), each stream
    out = g + silu(conv(norm(g)))   depthwise and causal, `ngram` rows from tap to tap

A token before the text's start, and every token at or before the last end-of-text token in front of the row, counts
as the end-of-text token. Multipliers, sizes and offsets are the checkpoint's own int64 tensors; multipliers are so
small that no product of a token passes 63 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass

import torch
from torch.nn.functional import silu

from tandem.core.plugin import ModelError
from tandem.plugins._ops import gdn
from tandem.plugins.models._hybrid.weights import Linear, Loader
from tandem.plugins.models.qwen4_exp.hyper import stream_norm
from tandem.plugins.models.qwen4_exp.lineage import Lineage
from tandem.plugins.models.qwen4_exp.states import PleState

Table = Callable[[torch.Tensor], torch.Tensor]
"""Rows of a table that is far too big to be held: indices `[T, heads]` int64 to `[T, heads, width]`, on the CPU."""


@dataclass(frozen=True, slots=True)
class NGramHash:
    """From tokens to rows of the table."""

    multipliers: torch.Tensor
    """`[ngram]` int64"""
    sizes: torch.Tensor
    """`[(ngram - 1) * heads]` int64: rows of each head, bigram heads first."""
    offsets: torch.Tensor
    """`[(ngram - 1) * heads]` int64: the first row of each head."""
    eos: int

    @property
    def reach(self) -> int:
        """How many tokens before a row its n-grams read."""
        return len(self.multipliers) - 1

    def rows(self, window: torch.Tensor) -> torch.Tensor:
        """`window` `[T, ngram]` int64, each row's token after those before it, to `[T, heads in all]` int64."""
        mixed = window[:, -1] * self.multipliers[0]
        ended = torch.zeros(len(window), dtype=torch.bool)
        hashes = []
        for back in range(1, window.shape[1]):
            before = window[:, -1 - back]
            ended = ended | (before == self.eos)
            token = torch.where(ended, self.eos, before)
            mixed = mixed ^ (token * self.multipliers[back])
            hashes.append(mixed)
        heads = len(self.sizes) // self.reach
        spread = torch.stack(hashes, 1).repeat_interleave(heads, 1)  # [T, heads in all]
        return torch.remainder(spread, self.sizes) + self.offsets


@dataclass(frozen=True, slots=True)
class Ple:
    """The layer. Computes in the number type of its matrices; gates and norms in float32."""

    hash: NGramHash
    table: Table
    key: Linear
    """`[streams * H, width of all heads]`"""
    value: Linear
    """`[H, width of all heads]`"""
    norm_key: torch.Tensor
    """`[streams * H]`, as the two others"""
    norm_query: torch.Tensor
    norm_conv: torch.Tensor
    conv: torch.Tensor
    """`[streams * H, kernel]`, the last tap is the row's own."""
    streams: int
    eps: float

    @property
    def reach(self) -> int:
        """How many rows back the convolution reads."""
        return (self.conv.shape[1] - 1) * len(self.hash.multipliers)

    def new_state(self) -> PleState:
        conv = torch.zeros(self.reach, len(self.conv), dtype=self.conv.dtype, device=self.conv.device)
        return PleState(conv, torch.full((self.hash.reach,), self.hash.eos))

    def table_rows(self, tokens: torch.Tensor, state: PleState, lineage: Lineage) -> torch.Tensor:
        """The rows of the table that the block reads, `[T, heads in all]` int64. `tokens` `[T]` int64."""
        window = torch.cat([state.tokens, tokens])[lineage.back(self.hash.reach).cpu()]
        return self.hash.rows(window)

    def __call__(
        self, residual: torch.Tensor, tokens: torch.Tensor, blocks: Seq[tuple[PleState, Lineage]]
    ) -> torch.Tensor:
        """What is added to the streams.

        `residual` `[R, streams * H]` and `tokens` `[R]` int64 hold the rows of all blocks, one block after another; the
        result is `[R, streams * H]` float32. Each block's rows pend in its state.
        """
        counts = [lineage.fresh for _, lineage in blocks]
        split = tokens.split(counts)
        wanted = [self.table_rows(ids, *block) for ids, block in zip(split, blocks, strict=True)]
        embedded = self._embed(torch.cat(wanted))
        gated = self._gate(residual, embedded)
        inputs = stream_norm(gated.flatten(1), self.norm_conv, self.streams, self.eps).flatten(1).to(self.conv.dtype)
        out = gated.flatten(1)
        parts = zip(split, inputs.split(counts), out.split(counts), blocks, strict=True)
        for ids, rows, into, (state, lineage) in parts:
            back = None if lineage.chain else lineage.back(self.reach)
            into.add_(silu(gdn.conv(rows, state.conv, self.conv, back, len(self.hash.multipliers))))
            state.hold(rows, ids)
        return out

    def _embed(self, rows: torch.Tensor) -> torch.Tensor:
        """`[R, heads in all]` to `[R, width of all heads]`."""
        return self.table(rows).flatten(1).to(device=self.conv.device, dtype=self.conv.dtype)

    def _gate(self, residual: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """The gated values of every stream, `[R, streams, H]` float32."""
        key = stream_norm(self.key(embedded), self.norm_key, self.streams, self.eps)
        query = stream_norm(residual, self.norm_query, self.streams, self.eps)
        score = (key * query).sum(-1, keepdim=True) / math.sqrt(key.shape[-1])
        gate = torch.sigmoid(score.abs().clamp_min(1e-6).sqrt() * score.sign())
        return gate * self.value(embedded).float()[:, None]


def load_hash(loader: Loader, name: str, rows: int) -> NGramHash:
    """The hashes under `name`, for a table of `rows` rows. Raises ModelError for numbers that lead out of it."""
    multipliers, sizes, offsets = (
        loader.tensor(f"{name}.{part}").cpu().long()
        for part in ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")
    )
    vocab = loader.config.vocab_size
    wrong = None
    if int(multipliers.min()) < 1 or int(multipliers.max()) * (vocab - 1) >= 2**63:
        wrong = f"layer_multipliers are {multipliers.tolist()}; a token's product with one must be below 2^63"
    elif int(sizes.min()) < 1 or int(offsets.min()) < 0 or int((sizes + offsets).max()) > rows:
        wrong = f"ngram_heads_vocab_sizes and ngram_heads_offsets lead out of the table, which has {rows} rows"
    if wrong:
        raise ModelError(f"{loader.folder.path}: {loader.names.full(name)}: {wrong}")
    return NGramHash(multipliers, sizes, offsets, loader.config.eos[0])
