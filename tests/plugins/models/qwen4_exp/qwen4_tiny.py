"""Tiny random Qwen4-Exp checkpoints, written by transformers, whose own model is the oracle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

TEXT: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 24,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "hc_count": 4,
    "hc_lowrank": 12,
    "ple_layer_ids": [2],
    "ple_embed_dim": 32,
    "ngram_size": 3,
    "heads_per_ngram": 4,
    "ngram_vocab_size_base": 50,
    "make_ngram_vocab_size_divisible_by": 16,
    "split_ngram_parts": 4,
    "indexer_n_heads": 8,  # so that hardly a block scores 0: the order of such is not defined
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": 8,
    "indexer_compress_ratio": 4,
    "output_gate_type": "sigmoid",
    "max_position_embeddings": 4096,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}
"""Everything that can differ in size does, and the budget is two blocks: rows choose from the twelfth token on."""

VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_heads": 2,
    "out_hidden_size": 32,
    "num_position_embeddings": 16,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}

PREPROCESSOR: dict[str, Any] = {
    "size": {"shortest_edge": 4096, "longest_edge": 65536},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "image_processor_type": "Qwen2VLImageProcessorFast",
}

IMAGE = 290
"""The placeholder's id in the tiny vocabulary."""


def make(path: Path, *, seed: int = 0, **text: Any) -> Any:
    """Write a checkpoint with a vision tower into `path`; returns transformers' model.

    Every tensor is random: the usual ones and zeros of norms, biases and convolutions would hide a mistake.
    """
    from transformers import Qwen4ExpConfig, Qwen4ExpForConditionalGeneration

    torch.manual_seed(seed)
    config = Qwen4ExpConfig(
        text_config={**TEXT, **text},
        vision_config=VISION,
        image_token_id=IMAGE,
        video_token_id=IMAGE + 1,
        vision_start_token_id=IMAGE + 2,
        vision_end_token_id=IMAGE + 3,
    )
    config._attn_implementation = "eager"
    model = Qwen4ExpForConditionalGeneration(config).eval().requires_grad_(False)
    for name, value in model.named_parameters():
        randomise(name, value)
    model.save_pretrained(path, max_shard_size="200KB")
    tokenizer().save(str(path / "tokenizer.json"))
    (path / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    return model


def randomise(name: str, value: torch.Tensor) -> None:
    """Fill one of the model's tensors with numbers of a natural size."""
    if name.endswith("linear_attn.norm.weight"):  # the one norm that is not centred on zero
        value.uniform_(0.5, 1.5)
    elif "norm" in name or name.endswith("bias"):
        value.normal_(0, 0.3)
    elif name.endswith("A_log"):
        value.uniform_(-2.0, 1.0)
    elif "conv1d" in name:
        value.normal_(0, 0.4)
    elif "embed" in name:
        value.normal_(0, 1.0)
    elif "lm_head" in name:
        value.normal_(0, 4 * value.shape[-1] ** -0.5)
    else:
        value.normal_(0, value.shape[-1] ** -0.5)


def tokenizer() -> Any:
    """A byte-level tokenizer with three control tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    control = ["<|end|>", "<|start|>", "<|stop|>"]
    made = Tokenizer(models.BPE(vocab={token: at for at, token in enumerate([*control, *letters])}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True) for token in control])
    return made


def text(count: int, seed: int = 1) -> list[int]:
    """Random tokens, with an end-of-text token here and there."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, 259, (count,), generator=generator)
    tokens[torch.rand(count, generator=generator) < 0.05] = TEXT["eos_token_id"]
    return tokens.tolist()


def add_mtp(path: Path, seed: int = 9) -> dict[str, torch.Tensor]:
    """Add multi-token prediction to a checkpoint that `make` wrote with the sizes of `TEXT`; its tensors by name."""
    from safetensors.torch import save_file

    hidden, streams, rank, head = TEXT["hidden_size"], TEXT["hc_count"], TEXT["hc_lowrank"], TEXT["head_dim"]
    wide, experts, size = streams * hidden, TEXT["num_experts"], TEXT["moe_intermediate_size"]
    shared, index = TEXT["shared_expert_intermediate_size"], TEXT["indexer_head_dim"]
    queries, keys = TEXT["num_attention_heads"] * head, TEXT["num_key_value_heads"] * head
    layer = "mtp.layers.0."
    shapes: dict[str, tuple[int, ...]] = {
        "mtp.fc_embedding.weight": (hidden, hidden),
        "mtp.fc_hidden.weight": (hidden, hidden),
        "mtp.pre_fc_norm_embedding.weight": (hidden,),
        "mtp.pre_fc_norm_hidden.weight": (wide,),
        f"{layer}self_attn.q_proj.weight": (2 * queries, hidden),
        f"{layer}self_attn.k_proj.weight": (keys, hidden),
        f"{layer}self_attn.v_proj.weight": (keys, hidden),
        f"{layer}self_attn.o_proj.weight": (hidden, queries),
        f"{layer}self_attn.q_norm.weight": (head,),
        f"{layer}self_attn.k_norm.weight": (head,),
        f"{layer}self_attn.indexer.index_qk_proj.weight": ((TEXT["indexer_n_heads"] + 1) * index, hidden),
        f"{layer}self_attn.indexer.q_layernorm.weight": (index,),
        f"{layer}self_attn.indexer.k_layernorm.weight": (index,),
        f"{layer}mlp.gate.weight": (experts, hidden),
        f"{layer}mlp.experts.gate_up_proj": (experts, 2 * size, hidden),
        f"{layer}mlp.experts.down_proj": (experts, hidden, size),
        f"{layer}mlp.shared_expert.gate_proj.weight": (shared, hidden),
        f"{layer}mlp.shared_expert.up_proj.weight": (shared, hidden),
        f"{layer}mlp.shared_expert.down_proj.weight": (hidden, shared),
        f"{layer}mlp.shared_expert_gate.weight": (1, hidden),
    }
    for name in (f"{layer}attn_hyper_connection", f"{layer}mlp_hyper_connection", "mtp.hyper_connection_mixer"):
        shapes[f"{name}.hc_norm.weight"] = (wide,)
        shapes[f"{name}.input_mix_weight_down.weight"] = (rank, wide)
        shapes[f"{name}.input_mix_weight_up.weight"] = (wide, rank)
        if not name.endswith("mixer"):
            shapes[f"{name}.block_inject_weight.weight"] = (streams, wide)
    torch.manual_seed(seed)
    tensors = {name: torch.empty(shape) for name, shape in shapes.items()}
    for name, value in tensors.items():
        randomise(name, value)
    save_file(tensors, path / "mtp.safetensors")
    index_file = path / "model.safetensors.index.json"
    written = json.loads(index_file.read_text())
    written["weight_map"].update(dict.fromkeys(tensors, "mtp.safetensors"))
    index_file.write_text(json.dumps(written))
    announce_mtp(path)
    return tensors


def announce_mtp(path: Path) -> None:
    """Let `config.json` say that the checkpoint has multi-token prediction."""
    config = json.loads((path / "config.json").read_text())
    config["text_config"] |= {"mtp_num_hidden_layers": 1, "mtp": {"num_hidden_layers": 1, "rope_theta": 5000.0}}
    (path / "config.json").write_text(json.dumps(config))
