"""The text decoder: residual streams, through layers of Gated DeltaNet or QSA, each followed by a sparse MLP."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import torch

from tandem.core.plugin import Progress
from tandem.plugins.models._hybrid import build
from tandem.plugins.models._hybrid.rows import Pass
from tandem.plugins.models._hybrid.sequence import LayerState
from tandem.plugins.models._hybrid.weights import Loader
from tandem.plugins.models.qwen4_exp.layer import Layer, load_layer, load_mixer
from tandem.plugins.models.qwen4_exp.lineage import Lineage


class Decoder:
    """See `_hybrid.model.Decoder`. The residual streams are float32, and all of them begin as the embedding."""

    def __init__(self, loader: Loader, progress: Progress) -> None:
        config = loader.config
        assert config.hyper is not None, "a Qwen4-Exp model has residual streams"
        self.device, self.dtype, self.vocab_size = loader.device, loader.dtype, config.vocab_size
        self._streams = config.hyper.count
        self._embedding = loader.tensor("embed_tokens.weight")
        rotary = build.rotary(loader)
        with_ple = config.ple.layers if config.ple else ()
        self._layers: list[Layer] = []
        for number, kind in enumerate(config.layer_types):
            progress("loading layers", number, config.layers)
            self._layers.append(load_layer(loader, f"layers.{number}", kind, rotary, number in with_ple))
        progress("loading layers", config.layers, config.layers)
        self._mixer = load_mixer(loader, "hyper_connection_mixer")
        self._head = build.output_head(loader, self._embedding)

    def states(self, max_len: int) -> list[LayerState]:
        return [state for layer in self._layers for state in layer.states(max_len)]

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self._embedding[tokens]

    def run(self, embedded: torch.Tensor, rows: Pass, states: Seq[Seq[Any]], keep: torch.Tensor | None) -> torch.Tensor:
        residual = embedded.float().repeat(1, self._streams)
        tokens = torch.tensor([token for part in rows.rows for token in part.tokens])
        lineages = [Lineage(part.ancestors, part.count, device=self.device) for part in rows.rows]
        first, last = 0, len(self._layers) - 1
        for number, layer in enumerate(self._layers):
            own = slice(first, first + layer.kept)
            first = own.stop
            residual = layer(
                residual, tokens, rows, lineages, [all_[own] for all_ in states], keep if number == last else None
            )
        return residual

    def finish(self, residual: torch.Tensor) -> torch.Tensor:
        return self._mixer.read(residual, self.dtype)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return self._head(x)
