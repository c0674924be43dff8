"""Multi-token prediction: one more layer of full attention behind the trunk."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import torch

from tandem.plugins.models._hybrid import build
from tandem.plugins.models._hybrid.kv import KvState
from tandem.plugins.models._hybrid.rows import Pass
from tandem.plugins.models._hybrid.sequence import LayerState
from tandem.plugins.models._hybrid.weights import Loader
from tandem.plugins.models.qwen3_5.decoder import decoder_layer


class MtpNet:
    """See `_hybrid.draft.DraftNet`: `layer(fc([norm(embedding), norm(hidden)]))`, then a norm of its own.

    The hidden row that the next row takes is the one behind that norm, or before it where the trunk's hidden rows are
    those before the trunk's last norm.
    """

    def __init__(self, loader: Loader, post_norm: bool) -> None:
        config = loader.config
        assert config.mtp is not None, "the config has no multi-token prediction"
        hidden = config.hidden_size
        self.width = hidden
        self._config, self._device, self._dtype = config, loader.device, loader.dtype
        self._post_norm = post_norm
        self._embedding_norm = build.norm(loader, "mtp.pre_fc_norm_embedding")
        self._hidden_norm = build.norm(loader, "mtp.pre_fc_norm_hidden")
        self._join = loader.linear("mtp.fc", (hidden, 2 * hidden))
        rotary = build.rotary(loader, config.mtp.rope_theta)
        self._attention = build.attention_layer(loader, "mtp.layers.0.self_attn", rotary)
        self._layer = decoder_layer(loader, "mtp.layers.0", self._attention)
        self._norm = build.norm(loader, "mtp.norm")

    def states(self, max_len: int) -> list[LayerState]:
        config = self._config
        return [KvState(config.kv_heads, config.head_dim, self._dtype, self._device, max_len)]

    def absorb(self, embedded: torch.Tensor, hidden: torch.Tensor, rows: Pass, states: Seq[Any]) -> None:
        self._attention.store(self._layer.before(self._joined(embedded, hidden)), rows, states)

    def read(self, embedded: torch.Tensor, hidden: torch.Tensor, rows: Pass, states: Seq[Any]) -> torch.Tensor:
        x = self._layer(self._joined(embedded, hidden), rows, states)
        return self._norm(x) if self._post_norm else x.to(self._dtype)

    def finish(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden if self._post_norm else self._norm(hidden)

    def _joined(self, embedded: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """The residual, `[n, hidden]` float32."""
        return self._join(torch.cat([self._embedding_norm(embedded), self._hidden_norm(hidden)], -1)).float()
