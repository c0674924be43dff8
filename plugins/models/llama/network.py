"""The layers of a Llama model and one pass of rows through them."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn.functional import silu

from tandem.core.plugin import Progress
from tandem.plugins.models.llama import linear
from tandem.plugins.models.llama.attention import ONEDNN_ROWS, BlockAttention, onednn_products
from tandem.plugins.models.llama.linear import Kernel
from tandem.plugins.models.llama.rope import RotaryTable
from tandem.plugins.models.llama.sequence import KVSequence
from tandem.plugins.models.llama.source import Source
from tandem.plugins.models.llama.storage import FUSED, Storage


class Layer(NamedTuple):
    """One decoder layer: `x += out(attention(qkv(norm(x))))`, then `x += down(silu(gate(norm(x))) * up(norm(x)))`."""

    attn_norm: torch.Tensor
    qkv: Kernel
    """Rows of queries, keys and values, heads one after another."""
    out: Kernel
    mlp_norm: torch.Tensor
    gate_up: Kernel
    """Rows of gates, then of ups."""
    down: Kernel


TILE, ONEDNN_TILE = 32, 128
"""Rows of a chain whose attention is computed at once, by torch's own products and by oneDNN's: a later tile sees more
rows than an earlier one, and the scores of a tile stay near the processor."""


@dataclass(frozen=True, slots=True)
class Stack:
    """All layers in the kernels that suit one range of row counts, and the number type of the rows they take."""

    layers: list[Layer]
    dtype: torch.dtype


@dataclass(slots=True)
class Rows:
    """The rows of one block within a pass."""

    sequence: KVSequence
    start: int
    count: int
    parents: Seq[int] | None
    """None = a chain."""


class Network:
    """The loaded weights. The residual stream is float32 in every storage."""

    def __init__(self, storage: Storage, progress: Progress) -> None:
        source = storage.source
        config = source.config
        self._config = config
        self._exact = storage.exact
        self._dense_rows = storage.dense_rows
        embedding = source.tensor("model.embed_tokens.weight")
        head = {
            "float32": linear.float32_head,
            "bfloat16": linear.bfloat16_head,
            "int8": linear.int8_head,
        }[storage.head]
        self._head = head(embedding if config.tied else source.tensor("lm_head.weight"))
        self._embedding = embedding.to(storage.dtype)
        del embedding  # in float32 it is the biggest tensor of all: gone before the layers come
        self._few, self._many = _load_layers(storage, progress)
        self._root = math.sqrt(config.hidden_size * config.norm_eps)
        self._final_norm = _norm_weight(storage, "model.norm.weight")
        self._rotary = RotaryTable(config.rope.frequencies(config.head_dim, source.rope_divisors()), config.max_len)
        # The attention's scale goes into the turn of the queries: one factor a head, keys keep theirs.
        factors = [config.head_dim**-0.5] * config.heads + [1.0] * config.kv_heads
        self._head_scale = torch.tensor(factors).view(-1, 1, 1)

    def run(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        blocks: Seq[Rows],
        wanted: torch.Tensor,
        logits: torch.Tensor,
    ) -> None:
        """One pass.

        `tokens` and `positions` are `[R]` over the rows of all blocks, `wanted` holds the numbers of the rows whose
        logits are written to `logits` `[len(wanted), vocab]` float32. The rows' keys and values are left behind the
        committed ones of each sequence, which must have room for them.
        """
        config = self._config
        rows, size, width = len(tokens), config.head_dim, config.hidden_size
        turned = config.heads + config.kv_heads
        stack = self._many if 0 < self._dense_rows <= rows else self._few
        onednn = not self._exact and rows >= ONEDNN_ROWS

        # The residual stream, with a column more for the norm's epsilon: see `_norm`.
        stream = torch.empty(rows, width + 1)
        residual = stream[:, :width]
        residual.copy_(self._embedding.index_select(0, tokens))
        stream[:, width] = self._root
        normed = torch.empty(rows, width, dtype=stack.dtype)
        heads = torch.empty(turned + config.kv_heads, rows, size)  # queries, keys, values
        by_row = heads.transpose(0, 1)
        as_complex = torch.view_as_complex(heads[:turned].view(turned, rows, size // 2, 2))
        turns = self._rotary.upto(int(positions.max()) + 1).index_select(0, positions) * self._head_scale
        attended = torch.empty(rows, config.heads * size, dtype=stack.dtype)
        attentions = [
            BlockAttention(
                heads, attended, block.start, block.parents, block.count, block.sequence.rows, block.sequence.length,
                tile=ONEDNN_TILE if onednn else TILE,
            )
            for block in blocks
        ]  # fmt: skip

        norm = self._exact_norm if self._exact else self._norm
        last = config.layers - 1
        with onednn_products(onednn):
            for number, (attn_norm, qkv, out, mlp_norm, gate_up, down) in enumerate(stack.layers):
                norm(stream, residual, attn_norm, normed)
                by_row.copy_(qkv(normed).view(by_row.shape))
                as_complex.mul_(turns)
                for attention in attentions:
                    attention.store(number)
                if number == last and len(wanted) == 0:
                    return
                for attention in attentions:
                    attention.run(number)
                if number == last and len(wanted) < rows:  # nothing reads the other rows from here on
                    stream, attended = stream.index_select(0, wanted), attended.index_select(0, wanted)
                    residual, normed = stream[:, :width], normed[: len(wanted)]
                residual.add_(out(attended))
                norm(stream, residual, mlp_norm, normed)
                gate, up = gate_up(normed).chunk(2, 1)
                residual.add_(down(silu(gate).mul_(up)))
            final = torch.empty(len(wanted), width)
            norm(stream, residual, self._final_norm, final)
            self._head(final, logits)

    def _norm(self, stream: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        """RMS norm of `x` `[R, hidden]` into `out`: `weight * x / sqrt(mean(x^2) + eps)`, in the fewest operations.

        `stream` is x with a column more that holds sqrt(hidden * eps). Then its length is
        sqrt(hidden) * sqrt(mean(x^2) + eps), and `weight` carries the factor sqrt(hidden) since it was loaded.
        """
        torch.mul(x / torch.linalg.vector_norm(stream, 2, 1, True), weight, out=out)

    def _exact_norm(self, stream: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(torch.rms_norm(x, weight.shape, weight, self._config.norm_eps))


def _load_layers(storage: Storage, progress: Progress) -> tuple[Stack, Stack]:
    """The layers for passes of few rows and for passes of many."""
    source = storage.source
    few: list[Layer] = []
    many: list[Layer] = []
    for number in range(source.config.layers):
        progress("loading layers", number, source.config.layers)
        prefix = f"model.layers.{number}."
        attn_norm = _norm_weight(storage, prefix + "input_layernorm.weight")
        mlp_norm = _norm_weight(storage, prefix + "post_attention_layernorm.weight")
        kernels = [_kernels(storage, [prefix + name for name in names]) for names in FUSED.values()]
        for stack, (qkv, out, gate_up, down) in zip((few, many), zip(*kernels, strict=True), strict=True):
            stack.append(Layer(attn_norm, qkv, out, mlp_norm, gate_up, down))
    progress("loading layers", source.config.layers, source.config.layers)
    packed_dtype = storage.dtype if storage.weights == "dense" else torch.bfloat16
    return Stack(few, packed_dtype), Stack(many, storage.dtype)


def _norm_weight(storage: Storage, name: str) -> torch.Tensor:
    weight = storage.source.tensor(name).float()
    return weight if storage.exact else weight * math.sqrt(len(weight))


def _kernels(storage: Storage, names: list[str]) -> tuple[Kernel, Kernel]:
    """The kernels of the matrices `names`, one above another, for few rows and for many."""
    source = storage.source
    weight = torch.cat([source.tensor(name + ".weight").float() for name in names])
    biases = [source.tensor(name + ".bias").float() for name in names if name + ".bias" in source.config.shapes()]
    bias = torch.cat(biases) if biases else None

    packed = storage.packs(*weight.shape)
    dense = linear.dense(weight, bias, storage.dtype) if storage.dense_rows or not packed else None
    if not packed:
        assert dense is not None
        few = dense if storage.weights == "dense" else linear.as_bfloat16(dense, storage.dtype)
        return few, dense
    if storage.weights == "int8":
        few = linear.int8(weight, bias)
    else:
        few = linear.int4(_groups(source, names) or linear.quantise_groups(weight), bias)
    return few, dense if dense is not None else few


def _groups(source: Source, names: list[str]) -> linear.Groups | None:
    """The matrices as the checkpoint's own 4-bit groups, one above another, if all of them are stored so."""
    parts = [source.groups(name + ".weight") for name in names]
    stored = [part for part in parts if part is not None]
    if len(stored) < len(parts):
        return None
    return linear.Groups(
        torch.cat([part.codes for part in stored]),
        torch.cat([part.scale for part in stored]),
        torch.cat([part.zero for part in stored]),
    )
