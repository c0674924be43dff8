"""Layers out of a checkpoint's tensors, by the names that both hybrid families give them."""

from __future__ import annotations

import torch

from tandem.plugins._ops.rope import Rotary
from tandem.plugins.models._hybrid.attention_layer import AttentionLayer
from tandem.plugins.models._hybrid.gdn_layer import GdnLayer
from tandem.plugins.models._hybrid.head import OutputHead
from tandem.plugins.models._hybrid.mlp import Mlp
from tandem.plugins.models._hybrid.moe import SparseMoe
from tandem.plugins.models._hybrid.norms import Norm
from tandem.plugins.models._hybrid.weights import DenseLinear, Linear, Loader

# Every function takes the name under which the layer's tensors are, such as `layers.3.self_attn`.


def gdn_layer(loader: Loader, name: str) -> GdnLayer:
    config, gdn = loader.config, loader.config.gdn
    hidden = config.hidden_size
    return GdnLayer(
        gdn,
        qkv=loader.linear(f"{name}.in_proj_qkv", (gdn.channels, hidden)),
        z=loader.linear(f"{name}.in_proj_z", (gdn.values, hidden)),
        b=loader.linear(f"{name}.in_proj_b", (gdn.value_heads, hidden)),
        a=loader.linear(f"{name}.in_proj_a", (gdn.value_heads, hidden)),
        out=loader.linear(f"{name}.out_proj", (hidden, gdn.values)),
        conv=loader.tensor(f"{name}.conv1d.weight").squeeze(1),
        a_log=_exact(loader, f"{name}.A_log"),
        dt_bias=_exact(loader, f"{name}.dt_bias"),
        norm_weight=_exact(loader, f"{name}.norm.weight"),
        eps=config.norm_eps,
    )


def attention_layer(loader: Loader, name: str, rotary: Rotary) -> AttentionLayer:
    config = loader.config
    hidden, size = config.hidden_size, config.head_dim
    return AttentionLayer(
        q=loader.linear(f"{name}.q_proj", (2 * config.heads * size, hidden)),
        k=loader.linear(f"{name}.k_proj", (config.kv_heads * size, hidden)),
        v=loader.linear(f"{name}.v_proj", (config.kv_heads * size, hidden)),
        out=loader.linear(f"{name}.o_proj", (hidden, config.heads * size)),
        q_norm=_exact(loader, f"{name}.q_norm.weight"),
        k_norm=_exact(loader, f"{name}.k_norm.weight"),
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=size,
        rotary=rotary,
        eps=config.norm_eps,
    )


def mlp(loader: Loader, name: str, size: int | None = None) -> Mlp:
    """The dense MLP, or a shared expert of `size`."""
    hidden, inner = loader.config.hidden_size, size or loader.config.intermediate_size
    return Mlp(
        gate=loader.linear(f"{name}.gate_proj", (inner, hidden)),
        up=loader.linear(f"{name}.up_proj", (inner, hidden)),
        down=loader.linear(f"{name}.down_proj", (hidden, inner)),
    )


def sparse_moe(loader: Loader, name: str) -> SparseMoe:
    moe = loader.config.moe
    assert moe is not None, "only a sparse model has experts"
    return SparseMoe(
        router=DenseLinear(loader.tensor(f"{name}.gate.weight")),
        experts=loader.experts(f"{name}.experts"),
        shared=mlp(loader, f"{name}.shared_expert", moe.shared_size),
        shared_gate=loader.linear(f"{name}.shared_expert_gate", (1, loader.config.hidden_size)),
        top_k=moe.top_k,
        normalise=moe.normalise,
    )


def any_mlp(loader: Loader, name: str) -> Mlp | SparseMoe:
    """The MLP that the configuration says."""
    return sparse_moe(loader, name) if loader.config.moe else mlp(loader, name)


def norm(loader: Loader, name: str) -> Norm:
    """The norm whose weight is `NAME.weight`."""
    return Norm(_exact(loader, f"{name}.weight"), loader.config.norm_eps, loader.dtype)


def rotary(loader: Loader, theta: float | None = None) -> Rotary:
    config = loader.config
    return Rotary(theta or config.rope_theta, config.rotary_dim, config.mrope_section, loader.device)


def output_head(loader: Loader, embedding: torch.Tensor) -> OutputHead:
    """The head of its own, or the embedding `[vocab, hidden]` where they are tied."""
    config = loader.config
    if config.tied:
        return OutputHead(DenseLinear(embedding))
    matrix: Linear = loader.linear("lm_head", (config.vocab_size, config.hidden_size))
    return OutputHead(matrix)


def _exact(loader: Loader, name: str) -> torch.Tensor:
    """Vectors are held in float32: they are small, and what they scale is computed in it."""
    return loader.tensor(name, torch.float32)
