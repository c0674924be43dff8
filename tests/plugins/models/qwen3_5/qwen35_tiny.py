"""Tiny random checkpoints of Qwen3.5's kinds, written by transformers, whose own models are the oracle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tandem.core.plugin import Block, Checkpoint
from tandem.core.plugin.part import with_defaults
from tandem.plugins.models.qwen3_5 import OPTIONS, build

VOCAB = 300
IMAGE, VIDEO, VISION_START, VISION_END = 290, 291, 292, 293

TEXT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 5,
    "full_attention_interval": 4,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention", "full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 1024,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "pad_token_id": None,
    "mtp_num_hidden_layers": 1,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}
"""Everything that can differ in size does."""

MOE: dict[str, Any] = {
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 24,
    "num_experts": 8,
    "num_experts_per_tok": 3,
}

VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_heads": 2,
    "out_hidden_size": 48,
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


@dataclass(frozen=True)
class Tiny:
    """A checkpoint and the model that it was written from."""

    path: Path
    reference: Any


def make(
    path: Path,
    kind: str = "text",
    *,
    mtp: bool = True,
    fused: bool = False,
    tied: bool = False,
    last: str = "full_attention",
) -> Tiny:
    """Write a checkpoint: `text`, `moe`, or either with a vision tower, `picture` and `moe_picture`.

    Every tensor is random: the usual ones and zeros of norms, biases and convolutions would hide a mistake. `mtp` adds
    the tensors of multi-token prediction, which transformers' model does not have; `fused` stores the experts of a
    layer as one tensor, which `save_pretrained` does not. `last` is the type of the last layer.
    """
    import transformers

    torch.manual_seed(20)
    sparse = kind.startswith("moe")
    types = [*TEXT["layer_types"][:-1], last]
    text = {**TEXT, "layer_types": types, "tie_word_embeddings": tied, **(MOE if sparse else {})}
    if kind == "text":
        model = transformers.Qwen3_5ForCausalLM(_eager(transformers.Qwen3_5TextConfig(**text)))
    elif kind == "moe":
        model = transformers.Qwen3_5MoeForCausalLM(_eager(transformers.Qwen3_5MoeTextConfig(**text)))
    else:
        family = "Qwen3_5Moe" if sparse else "Qwen3_5"
        config = getattr(transformers, f"{family}Config")(
            text_config=text,
            vision_config=VISION,
            image_token_id=IMAGE,
            video_token_id=VIDEO,
            vision_start_token_id=VISION_START,
            vision_end_token_id=VISION_END,
            tie_word_embeddings=tied,
        )
        model = getattr(transformers, f"{family}ForConditionalGeneration")(_eager(config))
        (path / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    model = model.eval().requires_grad_(False)
    for name, value in model.named_parameters():
        randomise(name, value)
    if tied:  # the embedding is the head too: the last norm, (1 + weight), gives logits of a natural size
        model.get_decoder().norm.weight.add_(1).mul_(0.15).sub_(1)
    model.save_pretrained(path)
    tokenizer().save(str(path / "tokenizer.json"))
    if mtp or fused:
        rewrite(path, add=mtp_tensors(moe=sparse) if mtp else {}, fused=fused)
    return Tiny(path, model)


def _eager(config: Any) -> Any:
    config._attn_implementation = "eager"
    return config


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
    elif "embed_tokens" in name:
        value.normal_(0, 1.0)
    else:
        value.normal_(0, value.shape[-1] ** -0.5)


def mtp_tensors(moe: bool = False) -> dict[str, torch.Tensor]:
    """`mtp.*`: one block of full attention, the joining matrix and three norms."""
    hidden, heads, kv, size = 48, 4, 2, 16
    layer = "mtp.layers.0."
    shapes = {
        "mtp.fc.weight": (hidden, 2 * hidden),
        "mtp.pre_fc_norm_embedding.weight": (hidden,),
        "mtp.pre_fc_norm_hidden.weight": (hidden,),
        "mtp.norm.weight": (hidden,),
        layer + "input_layernorm.weight": (hidden,),
        layer + "post_attention_layernorm.weight": (hidden,),
        layer + "self_attn.q_proj.weight": (2 * heads * size, hidden),
        layer + "self_attn.k_proj.weight": (kv * size, hidden),
        layer + "self_attn.v_proj.weight": (kv * size, hidden),
        layer + "self_attn.o_proj.weight": (hidden, heads * size),
        layer + "self_attn.q_norm.weight": (size,),
        layer + "self_attn.k_norm.weight": (size,),
    }
    if moe:
        shapes |= {
            layer + "mlp.gate.weight": (8, hidden),
            layer + "mlp.experts.gate_up_proj": (8, 32, hidden),
            layer + "mlp.experts.down_proj": (8, hidden, 16),
            layer + "mlp.shared_expert.gate_proj.weight": (24, hidden),
            layer + "mlp.shared_expert.up_proj.weight": (24, hidden),
            layer + "mlp.shared_expert.down_proj.weight": (hidden, 24),
            layer + "mlp.shared_expert_gate.weight": (1, hidden),
        }
    else:
        shapes |= {
            layer + "mlp.gate_proj.weight": (40, hidden),
            layer + "mlp.up_proj.weight": (40, hidden),
            layer + "mlp.down_proj.weight": (hidden, 40),
        }
    made = {name: torch.empty(shape) for name, shape in shapes.items()}
    for name, value in made.items():
        randomise(name, value)
    return made


def rewrite(path: Path, add: dict[str, torch.Tensor] | None = None, fused: bool = False, drop: str = "") -> None:
    """Write the tensors of a checkpoint anew: some added, those that begin with `drop` left out."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(path / "model.safetensors")
    tensors = {name: value for name, value in tensors.items() if not drop or not name.startswith(drop)}
    if fused:
        tensors = _fused(tensors)
    save_file({**tensors, **(add or {})}, path / "model.safetensors", {"format": "pt"})


def _fused(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    kept: dict[str, torch.Tensor] = {}
    for name, value in tensors.items():
        before, mark, after = name.partition(".experts.")
        if not mark or not after[0].isdecimal():
            kept[name] = value
        elif after == "0.gate_proj.weight":

            def each(part: str, before: str = before) -> list[torch.Tensor]:
                return [tensors[f"{before}.experts.{expert}.{part}.weight"] for expert in range(8)]

            gates = zip(each("gate_proj"), each("up_proj"), strict=True)
            kept[f"{before}.experts.gate_up_proj"] = torch.stack([torch.cat(pair) for pair in gates])
            kept[f"{before}.experts.down_proj"] = torch.stack(each("down_proj"))
    return kept


def tokenizer() -> Any:
    """A byte-level tokenizer with three control tokens and the vision ones."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    control = ["<|end|>", "<|start|>", "<|stop|>"]
    vocab = {token: at for at, token in enumerate([*control, *letters])}
    vocab |= {"<|image_pad|>": IMAGE}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True) for token in [*control, "<|image_pad|>"]])
    return made


# ------------------------------------------------------------------------------------------------------------- running


def load(path: Path, **options: Any) -> Any:
    """The builder's model, in float32 on the CPU unless told otherwise."""
    chosen = with_defaults(OPTIONS, {"dtype": "float32", "device": "cpu", **options})
    return build(Checkpoint(path, str(path)), chosen, lambda what, done, total: None)


def text(count: int, seed: int = 1) -> list[int]:
    """Random tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 259, (count,), generator=generator).tolist()


def started(model: Any, ids: Sequence[int], max_len: int | None = None) -> Any:
    """A sequence that has read `ids` at once."""
    sequence = model.new_sequence(max_len or model.caps.max_len)
    if len(ids):
        model.forward([Block(sequence, list(ids))])
        sequence.commit(range(len(ids)))
    return sequence


def logits_of(model: Any, ids: Sequence[int], chunk: int = 512) -> torch.Tensor:
    """The logits of every row of a fresh sequence, `[len(ids), vocab]`."""
    sequence = model.new_sequence(model.caps.max_len)
    parts = []
    for start in range(0, len(ids), chunk):
        tokens = list(ids[start : start + chunk])
        parts += model.forward([Block(sequence, tokens, None, range(len(tokens)))])
        sequence.commit(range(len(tokens)))
    return torch.cat(parts)


def path_to(row: int, parents: Sequence[int]) -> list[int]:
    path = []
    while row >= 0:
        path.append(row)
        row = parents[row]
    return path[::-1]
