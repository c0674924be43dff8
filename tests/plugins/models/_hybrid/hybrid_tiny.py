"""Tiny hybrid models as transformers makes them, and the real models' config files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

CONFIGS = Path(__file__).parent / "configs"

TEXT: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 512,
    "eos_token_id": 2,
}
DENSE = {"intermediate_size": 48}
SPARSE = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 48,
}
QWEN4 = {
    **SPARSE,
    "hc_count": 2,
    "hc_lowrank": 6,
    "ple_layer_ids": [2],
    "ple_embed_dim": 24,
    "ngram_size": 3,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 20,
    "make_ngram_vocab_size_divisible_by": 8,
    "split_ngram_parts": 4,
    "indexer_n_heads": 3,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
    "output_gate_type": "sigmoid",
}
VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_heads": 2,
    "in_channels": 3,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 32,
    "num_position_embeddings": 16,
}
KINDS = ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp", "qwen4_exp_text")


def model(kind: str, **text: Any) -> Any:
    """transformers' own model of a kind, with random weights; on the meta device inside `torch.device("meta")`."""
    import transformers

    of_text = {**TEXT, **(QWEN4 if kind.startswith("qwen4") else SPARSE if "moe" in kind else DENSE), **text}
    name = {"qwen3_5": "Qwen3_5", "qwen3_5_moe": "Qwen3_5Moe", "qwen4_exp": "Qwen4Exp"}[kind.removesuffix("_text")]
    if kind.endswith("_text"):
        config = getattr(transformers, f"{name}TextConfig")(**of_text)
        return getattr(transformers, f"{name}ForCausalLM")(config)
    # what the text model and the whole one say about tying must agree
    tied = {"tie_word_embeddings": True} if of_text.get("tie_word_embeddings") else {}
    config = getattr(transformers, f"{name}Config")(text_config=of_text, vision_config=VISION, **tied)
    return getattr(transformers, f"{name}ForConditionalGeneration")(config)


def saved(kind: str, path: Path, seed: int = 0, **text: Any) -> Any:
    """The same with weights, written to `path` by `save_pretrained`."""
    torch.manual_seed(seed)
    made = model(kind, **text).eval().requires_grad_(False)
    made.save_pretrained(path, max_shard_size="60KB")
    return made


def real_config(name: str) -> dict[str, Any]:
    """A real model's `config.json`."""
    found: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return found


def mtp_tensors(hidden: int, seed: int = 1) -> dict[str, torch.Tensor]:
    """The 15 tensors of multi-token prediction beside a dense model of `TEXT` and `DENSE`, in the file's names."""
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "mtp.fc.weight": (hidden, 2 * hidden),
        "mtp.pre_fc_norm_embedding.weight": (hidden,),
        "mtp.pre_fc_norm_hidden.weight": (hidden,),
        "mtp.norm.weight": (hidden,),
        "mtp.layers.0.input_layernorm.weight": (hidden,),
        "mtp.layers.0.post_attention_layernorm.weight": (hidden,),
        "mtp.layers.0.self_attn.q_proj.weight": (128, hidden),
        "mtp.layers.0.self_attn.k_proj.weight": (32, hidden),
        "mtp.layers.0.self_attn.v_proj.weight": (32, hidden),
        "mtp.layers.0.self_attn.o_proj.weight": (hidden, 64),
        "mtp.layers.0.self_attn.q_norm.weight": (16,),
        "mtp.layers.0.self_attn.k_norm.weight": (16,),
        "mtp.layers.0.mlp.gate_proj.weight": (48, hidden),
        "mtp.layers.0.mlp.up_proj.weight": (48, hidden),
        "mtp.layers.0.mlp.down_proj.weight": (hidden, 48),
    }
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
