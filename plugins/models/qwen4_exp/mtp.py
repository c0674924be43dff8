"""Multi-token prediction: one more QSA layer between streams of its own, behind the trunk.

Written from the published description of the checkpoint's tensors: no reference implementation of this head can be run
beside it. A mistake here costs accepted drafts, never a token.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import torch

from tandem.plugins._ops.norm import rms_norm
from tandem.plugins.models._hybrid import build
from tandem.plugins.models._hybrid.config import FULL
from tandem.plugins.models._hybrid.rows import Pass
from tandem.plugins.models._hybrid.sequence import LayerState
from tandem.plugins.models._hybrid.weights import Loader
from tandem.plugins.models.qwen4_exp.layer import load_layer, load_mixer
from tandem.plugins.models.qwen4_exp.lineage import Lineage
from tandem.plugins.models.qwen4_exp.qsa import QsaLayer


class MtpNet:
    """See `_hybrid.draft.DraftNet`. A hidden row is all streams of the residual, `[streams * H]`: the trunk's before
    its last mixer, or this layer's own.

    Each stream starts as `fc_hidden(stream of norm(hidden)) + fc_embedding(norm(embedding))`, where the hidden row is
    normed as a whole; a layer of QSA and experts follows, then a mixer of its own leads to the model's output head.
    """

    def __init__(self, loader: Loader) -> None:
        config = loader.config
        assert config.mtp is not None, "the config has no multi-token prediction"
        assert config.hyper is not None, "a Qwen4-Exp model has residual streams"
        hidden = config.hidden_size
        self.width = config.width
        self._streams, self._eps, self._dtype = config.hyper.count, config.norm_eps, loader.dtype
        self._device = loader.device
        self._embedding_norm = loader.tensor("mtp.pre_fc_norm_embedding.weight", torch.float32)
        self._hidden_norm = loader.tensor("mtp.pre_fc_norm_hidden.weight", torch.float32)
        self._from_embedding = loader.linear("mtp.fc_embedding", (hidden, hidden))
        self._from_hidden = loader.linear("mtp.fc_hidden", (hidden, hidden))
        self._layer = load_layer(loader, "mtp.layers.0", FULL, build.rotary(loader, config.mtp.rope_theta))
        self._mixer = load_mixer(loader, "mtp.hyper_connection_mixer")

    def states(self, max_len: int) -> list[LayerState]:
        return self._layer.states(max_len)

    def absorb(self, embedded: torch.Tensor, hidden: torch.Tensor, rows: Pass, states: Seq[Any]) -> None:
        x, _ = self._layer.before_mixer.open(self._joined(embedded, hidden), self._dtype)
        assert isinstance(self._layer.mixer, QsaLayer)
        self._layer.mixer.store(x, rows, self._lineages(rows, states), [states[0]], [states[1]])

    def read(self, embedded: torch.Tensor, hidden: torch.Tensor, rows: Pass, states: Seq[Any]) -> torch.Tensor:
        nothing = torch.empty(0, dtype=torch.int64)  # the layer reads no n-grams
        residual = self._joined(embedded, hidden)
        return self._layer(residual, nothing, rows, self._lineages(rows, states), [states]).to(self._dtype)

    def finish(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._mixer.read(hidden, self._dtype)

    def _lineages(self, rows: Pass, states: Seq[Any]) -> list[Lineage]:
        """A head reads the rows of one sequence, some of a tree's at a time."""
        (part,) = rows.rows
        return [Lineage(part.ancestors, part.count, states[0].pending, self._device)]

    def _joined(self, embedded: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """The streams, `[n, streams * H]` float32."""
        token = self._from_embedding(rms_norm(embedded, self._embedding_norm, self._eps, True, self._dtype))
        normed = rms_norm(hidden, self._hidden_norm, self._eps, True, self._dtype)
        streams = self._from_hidden(normed.unflatten(1, (self._streams, -1)).flatten(0, 1))
        return (streams.view(len(hidden), self._streams, -1).float() + token.float()[:, None]).flatten(1)
