"""One decoder layer: two sub-blocks between gated residual streams, and what it keeps of a sequence."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch

from tandem.plugins._ops.rope import Rotary
from tandem.plugins.models._hybrid import build
from tandem.plugins.models._hybrid.config import LINEAR, HybridConfig
from tandem.plugins.models._hybrid.gdn_layer import GdnLayer, GdnState
from tandem.plugins.models._hybrid.kv import KvState
from tandem.plugins.models._hybrid.moe import SparseMoe
from tandem.plugins.models._hybrid.rows import Pass
from tandem.plugins.models._hybrid.sequence import LayerState
from tandem.plugins.models._hybrid.weights import Loader
from tandem.plugins.models.qwen4_exp.hyper import HyperConnection, Mixer
from tandem.plugins.models.qwen4_exp.indexer import Indexer
from tandem.plugins.models.qwen4_exp.lineage import Lineage
from tandem.plugins.models.qwen4_exp.ple import Ple, load_hash
from tandem.plugins.models.qwen4_exp.qsa import QsaLayer

States = Seq[Seq[Any]]
"""For each block of a pass, what one layer keeps of its sequence, in the order of `Layer.states`."""


@dataclass(frozen=True, slots=True)
class Layer:
    """`X += ple(X)` where it has one; then `X += w (x) mixer(read(X))` and `X += w (x) moe(read(X))`, see `hyper`."""

    config: HybridConfig
    dtype: torch.dtype
    device: torch.device
    ple: Ple | None
    before_mixer: HyperConnection
    mixer: GdnLayer | QsaLayer
    before_moe: HyperConnection
    moe: SparseMoe

    @property
    def kept(self) -> int:
        """How many states it keeps of a sequence."""
        return (self.ple is not None) + (1 if isinstance(self.mixer, GdnLayer) else 2)

    def states(self, max_len: int) -> list[LayerState]:
        """What it keeps of a new sequence."""
        config, kept = self.config, list[LayerState]()
        if self.ple is not None:
            kept.append(self.ple.new_state())
        if isinstance(self.mixer, GdnLayer):
            return [*kept, GdnState(config.gdn, self.dtype, self.device)]
        keys = KvState(config.kv_heads, config.head_dim, self.dtype, self.device, max_len)
        return [*kept, keys, self.mixer.indexer.new_state(config.rotary_dim, self.dtype)]

    def __call__(
        self,
        residual: torch.Tensor,
        tokens: torch.Tensor,
        rows: Pass,
        lineages: Seq[Lineage],
        states: States,
        keep: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The streams `[R, streams * H]` float32 behind the layer; what is given is written to.

        `tokens` `[R]` int64 are on the CPU, as the n-gram table is. The rows are left pending in `states`. Behind the
        mixer the rows `keep` alone go on.
        """
        if self.ple is not None:
            residual += self.ple(residual, tokens, [(kept[0], lin) for kept, lin in zip(states, lineages, strict=True)])
            states = [kept[1:] for kept in states]
        x, weights = self.before_mixer.open(residual, self.dtype)
        if isinstance(self.mixer, GdnLayer):
            mixed = self.mixer(x, rows, [kept[0] for kept in states])
        else:
            mixed = self.mixer(x, rows, lineages, [kept[0] for kept in states], [kept[1] for kept in states])
        if keep is not None and len(keep) < len(residual):
            residual, mixed, weights = residual[keep], mixed[keep], weights[keep]
        if len(residual) == 0:
            return residual
        self.before_mixer.close(residual, mixed, weights)
        x, weights = self.before_moe.open(residual, self.dtype)
        self.before_moe.close(residual, self.moe(x), weights)
        return residual


# ------------------------------------------------------------------------------------------------------------ loading


def load_layer(loader: Loader, name: str, kind: str, rotary: Rotary, ple: bool = False) -> Layer:
    """The layer under `name`, such as `layers.3`; `kind` is that of its mixer."""
    linear = kind == LINEAR
    return Layer(
        config=loader.config,
        dtype=loader.dtype,
        device=loader.device,
        ple=_ple(loader, f"{name}.ple") if ple else None,
        before_mixer=_connection(loader, f"{name}.attn_hyper_connection"),
        mixer=build.gdn_layer(loader, f"{name}.linear_attn") if linear else _qsa(loader, f"{name}.self_attn", rotary),
        before_moe=_connection(loader, f"{name}.mlp_hyper_connection"),
        moe=build.sparse_moe(loader, f"{name}.mlp"),
    )


def load_mixer(loader: Loader, name: str) -> Mixer:
    """A way out of the streams that leads into no layer."""
    config, hyper = loader.config, loader.config.hyper
    assert hyper is not None, "a Qwen4-Exp model has residual streams"
    return Mixer(
        norm=loader.tensor(f"{name}.hc_norm.weight", torch.float32),
        down=loader.linear(f"{name}.input_mix_weight_down", (hyper.low_rank, config.width)),
        up=loader.linear(f"{name}.input_mix_weight_up", (config.width, hyper.low_rank)),
        streams=hyper.count,
        eps=config.norm_eps,
    )


def _connection(loader: Loader, name: str) -> HyperConnection:
    mixer = load_mixer(loader, name)
    injection = loader.linear(f"{name}.block_inject_weight", (mixer.streams, loader.config.width))
    return HyperConnection(mixer.norm, mixer.down, mixer.up, mixer.streams, mixer.eps, injection)


def _qsa(loader: Loader, name: str, rotary: Rotary) -> QsaLayer:
    config, index = loader.config, loader.config.indexer
    assert index is not None, "the full attention of a Qwen4-Exp model has an indexer"
    hidden, size = config.hidden_size, config.head_dim
    indexer = Indexer(
        project=loader.linear(f"{name}.indexer.index_qk_proj", ((index.heads + 1) * index.dim, hidden)),
        norm_query=loader.tensor(f"{name}.indexer.q_layernorm.weight", torch.float32),
        norm_key=loader.tensor(f"{name}.indexer.k_layernorm.weight", torch.float32),
        heads=index.heads,
        ratio=index.block,
        budget=index.budget,
        eps=config.norm_eps,
    )
    return QsaLayer(
        q=loader.linear(f"{name}.q_proj", (2 * config.heads * size, hidden)),
        k=loader.linear(f"{name}.k_proj", (config.kv_heads * size, hidden)),
        v=loader.linear(f"{name}.v_proj", (config.kv_heads * size, hidden)),
        out=loader.linear(f"{name}.o_proj", (hidden, config.heads * size)),
        q_norm=loader.tensor(f"{name}.q_norm.weight", torch.float32),
        k_norm=loader.tensor(f"{name}.k_norm.weight", torch.float32),
        heads=config.heads,
        kv_heads=config.kv_heads,
        rotary=rotary,
        eps=config.norm_eps,
        indexer=indexer,
    )


def _ple(loader: Loader, name: str) -> Ple:
    config, ple, hyper = loader.config, loader.config.ple, loader.config.hyper
    assert ple is not None, "the config has no n-gram embedding"
    assert hyper is not None, "a Qwen4-Exp model has residual streams"
    table = loader.table(f"{name}.ple_embedding.ngram_embedding")
    return Ple(
        hash=load_hash(loader, f"{name}.ple_embedding", table.rows),
        table=table,
        key=loader.linear(f"{name}.key_proj", (config.width, ple.embed_dim)),
        value=loader.linear(f"{name}.value_proj", (config.hidden_size, ple.embed_dim)),
        norm_key=loader.tensor(f"{name}.norm_key.weight", torch.float32),
        norm_query=loader.tensor(f"{name}.norm_query.weight", torch.float32),
        norm_conv=loader.tensor(f"{name}.norm_conv.weight", torch.float32),
        conv=loader.tensor(f"{name}.conv1d.weight").squeeze(1),
        streams=hyper.count,
        eps=config.norm_eps,
    )
