"""The text decoder: pre-norm layers of Gated DeltaNet or gated attention, each followed by an MLP."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import torch

from tandem.core.plugin import Progress
from tandem.plugins.models._hybrid import build
from tandem.plugins.models._hybrid.attention_layer import AttentionLayer
from tandem.plugins.models._hybrid.config import FULL
from tandem.plugins.models._hybrid.gdn_layer import GdnLayer, GdnState
from tandem.plugins.models._hybrid.kv import KvState
from tandem.plugins.models._hybrid.mlp import Mlp
from tandem.plugins.models._hybrid.moe import SparseMoe
from tandem.plugins.models._hybrid.norms import Norm
from tandem.plugins.models._hybrid.rows import Pass
from tandem.plugins.models._hybrid.sequence import LayerState
from tandem.plugins.models._hybrid.weights import Loader


class DecoderLayer:
    """`x += mixer(norm(x)); x += mlp(norm(x))`."""

    def __init__(self, before: Norm, mixer: AttentionLayer | GdnLayer, between: Norm, mlp: Mlp | SparseMoe) -> None:
        self.before, self.mixer, self.between, self.mlp = before, mixer, between, mlp

    def __call__(self, x: torch.Tensor, rows: Pass, states: Seq[Any], keep: torch.Tensor | None = None) -> torch.Tensor:
        """The residual `[R, hidden]` float32; behind the mixer the rows `keep` alone go on."""
        normed = self.before(x)
        if keep is not None and len(keep) == 0 and isinstance(self.mixer, AttentionLayer):
            self.mixer.store(normed, rows, states)
            return x[:0]
        mixed = self.mixer(normed, rows, states)
        if keep is not None and len(keep) < len(x):
            mixed, x = mixed[keep], x[keep]
            if len(x) == 0:
                return x
        normed, x = self.between.add(mixed, x)
        return x + self.mlp(normed)


def decoder_layer(loader: Loader, name: str, mixer: AttentionLayer | GdnLayer) -> DecoderLayer:
    """The layer whose tensors are under `name`, around a mixer that is loaded already."""
    return DecoderLayer(
        build.norm(loader, f"{name}.input_layernorm"),
        mixer,
        build.norm(loader, f"{name}.post_attention_layernorm"),
        build.any_mlp(loader, f"{name}.mlp"),
    )


class Decoder:
    """See `_hybrid.model.Decoder`. The residual stream is float32."""

    def __init__(self, loader: Loader, progress: Progress) -> None:
        config = loader.config
        self._config = config
        self.device, self.dtype, self.vocab_size = loader.device, loader.dtype, config.vocab_size
        self._embedding = loader.tensor("embed_tokens.weight")
        rotary = build.rotary(loader)
        self._layers: list[DecoderLayer] = []
        for number, kind in enumerate(config.layer_types):
            progress("loading layers", number, config.layers)
            name = f"layers.{number}"
            mixer: AttentionLayer | GdnLayer
            if kind == FULL:
                mixer = build.attention_layer(loader, f"{name}.self_attn", rotary)
            else:
                mixer = build.gdn_layer(loader, f"{name}.linear_attn")
            self._layers.append(decoder_layer(loader, name, mixer))
        progress("loading layers", config.layers, config.layers)
        self._norm = build.norm(loader, "norm")
        self._head = build.output_head(loader, self._embedding)

    def states(self, max_len: int) -> list[LayerState]:
        return [
            KvState(self._config.kv_heads, self._config.head_dim, self.dtype, self.device, max_len)
            if kind == FULL
            else GdnState(self._config.gdn, self.dtype, self.device)
            for kind in self._config.layer_types
        ]

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self._embedding[tokens]

    def run(self, embedded: torch.Tensor, rows: Pass, states: Seq[Seq[Any]], keep: torch.Tensor | None) -> torch.Tensor:
        x = embedded.float()
        last = len(self._layers) - 1
        for number, layer in enumerate(self._layers):
            x = layer(x, rows, [own[number] for own in states], keep if number == last else None)
        return x

    def finish(self, residual: torch.Tensor) -> torch.Tensor:
        return self._norm(residual)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return self._head(x)
