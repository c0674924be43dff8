"""How the weights of a checkpoint will be held in memory on this machine."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from tandem.core.plugin import Options
from tandem.plugins.models.llama import cpu
from tandem.plugins.models.llama.config import LlamaConfig
from tandem.plugins.models.llama.linear import GROUP, packable
from tandem.plugins.models.llama.source import FLOAT_FORMATS, Source

FUSED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""The matrices of a layer as they are multiplied: those that read the same rows are one."""


@dataclass(frozen=True, slots=True)
class Storage:
    """The choice, and what it comes to in bytes."""

    source: Source
    dtype: torch.dtype
    """Type of dense matrices and of the embedding, float32 or bfloat16."""
    weights: str
    """`dense`, `int8` or `int4`: the matrices that passes of few rows read."""
    dense_rows: int
    """Passes of this many rows or more read the dense matrices; 0 = there are none beside the packed ones."""

    @classmethod
    def choose(cls, source: Source, options: Options) -> Storage:
        """Fill in what the options leave to `auto`. An explicit float32 asks for exact weights: they stay dense."""
        wanted, weights = options["dtype"], options["weights"]
        if weights == "auto":
            weights = "dense" if wanted == "float32" or not cpu.unpacks_fast() else _as_stored(source)
        if wanted == "auto":
            wanted = "bfloat16" if cpu.multiplies_bfloat16() else "float32"
        dense_rows = 1 if weights == "dense" else options["dense_rows"]
        return cls(source, getattr(torch, wanted), weights, dense_rows)

    @property
    def exact(self) -> bool:
        """Nothing is rounded below float32."""
        return self.weights == "dense" and self.dtype == torch.float32

    @property
    def head(self) -> str:
        """How the output head is held: `float32`, `bfloat16` or `int8`."""
        if self.weights != "dense" and cpu.multiplies_int8():
            return "int8"
        return "bfloat16" if self.dtype == torch.bfloat16 else "float32"

    def packs(self, rows: int, columns: int) -> bool:
        """Whether a matrix of this shape is held packed."""
        return self.weights != "dense" and packable(rows, columns)

    def facts(self) -> dict[str, Any]:
        """What there is to say about the loaded model, sizes in bytes."""
        config = self.source.config
        return {
            "architecture": config.architecture,
            "parameters": sum(prod(shape) for shape in config.shapes().values()),
            "dtype": str(self.dtype).removeprefix("torch."),
            "weights": self.weights,
            "weight_bytes": self._bytes(),
            "kv_bytes_per_token": kv_bytes_per_token(config),
            "context_length": config.max_len,
        }

    def _bytes(self) -> int:
        config, number = self.source.config, self.dtype.itemsize
        shapes = config.shapes()
        vocab, hidden = shapes["model.embed_tokens.weight"]
        total = vocab * hidden * number
        head_row = {"float32": 4 * hidden, "bfloat16": 2 * hidden, "int8": hidden + 4 + 8}  # int8: scale, zero point
        total += vocab * head_row[self.head]
        total += sum(4 * prod(shape) for name, shape in shapes.items() if name.endswith("norm.weight"))
        total += sum(number * prod(shape) for name, shape in shapes.items() if name.endswith(".bias"))
        for names in FUSED.values():
            parts = [shapes[f"model.layers.0.{name}.weight"] for name in names]
            total += config.layers * self._matrix_bytes(sum(rows for rows, _ in parts), parts[0][1])
        return total

    def _matrix_bytes(self, rows: int, columns: int) -> int:
        dense = rows * columns * self.dtype.itemsize
        if not self.packs(rows, columns):
            return dense
        packed = rows * columns // 2 + rows * columns // GROUP * 4 if self.weights == "int4" else rows * (columns + 2)
        return packed + (dense if self.dense_rows else 0)


def kv_bytes_per_token(config: LlamaConfig) -> int:
    """Keys and values of one row, held as float32."""
    return config.layers * 2 * config.kv_heads * config.head_dim * 4


def _as_stored(source: Source) -> str:
    """The way to hold the layers' matrices that comes closest to how most of them are stored."""
    numbers: Counter[str] = Counter()
    for name, shape in source.config.shapes().items():
        if len(shape) == 2 and ".layers." in name:
            numbers[source.format(name)] += prod(shape)
    kind = numbers.most_common(1)[0][0]
    if kind in FLOAT_FORMATS:
        return "dense"
    return "int4" if kind in ("Q4_0", "Q4_1") else "int8"
