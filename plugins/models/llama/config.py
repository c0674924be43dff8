"""The shape of a Llama model, read from a Hugging Face config or from GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.core.plugin import ModelError
from tandem.plugins.models.llama.rope import Rope

HF_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
GGUF_ARCHITECTURES = ("llama",)


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Everything that decides the arithmetic of the model."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    max_len: int
    rope: Rope
    tied: bool
    """The output head is the embedding matrix."""
    attention_bias: bool = False
    mlp_bias: bool = False

    def check(self, where: Path) -> LlamaConfig:
        """Refuse sizes that don't fit together, with the names of the fields."""
        sizes = (
            "vocab_size", "hidden_size", "intermediate_size", "layers", "heads", "kv_heads", "head_dim", "max_len",
        )  # fmt: skip
        for name in sizes:
            if getattr(self, name) < 1:
                raise ModelError(f"{where}: {name} is {getattr(self, name)}; it must be at least 1")
        if self.heads % self.kv_heads:
            raise ModelError(
                f"{where}: {self.heads} attention heads can't share {self.kv_heads} key-value heads evenly; "
                "the number of heads must be a multiple"
            )
        if self.head_dim % 2:
            raise ModelError(f"{where}: head_dim {self.head_dim} is odd; rotary positions turn pairs of numbers")
        return self

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape `[out, in]` of every tensor the model needs, by the Hugging Face names."""
        hidden, middle = self.hidden_size, self.intermediate_size
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        matrices = {
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (middle, hidden),
            "mlp.up_proj": (middle, hidden),
            "mlp.down_proj": (hidden, middle),
        }
        found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."
            found[prefix + "input_layernorm.weight"] = (hidden,)
            found[prefix + "post_attention_layernorm.weight"] = (hidden,)
            for name, shape in matrices.items():
                found[f"{prefix}{name}.weight"] = shape
                if self.attention_bias if name.startswith("self_attn") else self.mlp_bias:
                    found[f"{prefix}{name}.bias"] = shape[:1]
        found["model.norm.weight"] = (hidden,)
        if not self.tied:
            found["lm_head.weight"] = (self.vocab_size, hidden)
        return found


def from_hf(data: Mapping[str, Any], where: Path) -> LlamaConfig:
    """Read a `config.json` (`where` is its path). Raises ModelError for what this builder can't compute."""
    named = data.get("architectures") or []
    known = [name for name in named if name in HF_ARCHITECTURES]
    if not known:
        raise ModelError(
            f"{where}: the architecture is {', '.join(map(str, named)) or 'not named'}; "
            f"this builder loads {', '.join(HF_ARCHITECTURES)}"
        )
    if data.get("quantization_config"):
        method = data["quantization_config"].get("quant_method", "unknown")
        raise ModelError(
            f"{where}: the weights are quantised by {method!r}; this builder loads float weights from safetensors "
            "(and packs them itself with `weights: int8` or `int4`) or quantised weights from GGUF"
        )
    if data.get("hidden_act", "silu") != "silu":
        raise ModelError(f"{where}: hidden_act is {data['hidden_act']!r}; only `silu` is supported")
    window = data.get("sliding_window")
    max_len = _whole(data, "max_position_embeddings", where)
    if window is not None and data.get("use_sliding_window", True) and window < max_len:
        raise ModelError(f"{where}: sliding_window is {window}; only attention without a window is supported")

    heads = _whole(data, "num_attention_heads", where)
    hidden = _whole(data, "hidden_size", where)
    return LlamaConfig(
        architecture=known[0],
        vocab_size=_whole(data, "vocab_size", where),
        hidden_size=hidden,
        intermediate_size=_whole(data, "intermediate_size", where),
        layers=_whole(data, "num_hidden_layers", where),
        heads=heads,
        kv_heads=_whole(data, "num_key_value_heads", where) if data.get("num_key_value_heads") else heads,
        head_dim=_whole(data, "head_dim", where) if data.get("head_dim") else hidden // max(heads, 1),
        norm_eps=float(data.get("rms_norm_eps", 1e-6)),
        max_len=max_len,
        rope=Rope.from_hf(data, where),
        tied=bool(data.get("tie_word_embeddings", False)),
        attention_bias=bool(data.get("attention_bias", False)),
        mlp_bias=bool(data.get("mlp_bias", False)),
    ).check(where)


def from_gguf(fields: Mapping[str, Any], tensors: Mapping[str, Any], where: Path) -> LlamaConfig:
    """Read GGUF metadata (`fields`: key -> value); `tensors` says which optional tensors the file has."""
    architecture = fields.get("general.architecture")
    if architecture not in GGUF_ARCHITECTURES:
        raise ModelError(
            f"{where}: the GGUF architecture is {architecture or 'not named'}; "
            f"this builder loads {', '.join(GGUF_ARCHITECTURES)}"
        )
    if fields.get(f"{architecture}.expert_count"):
        raise ModelError(f"{where}: a mixture of experts is not a plain Llama; only dense feed-forward layers load")

    def whole(key: str, default: int | None = None) -> int:
        return _whole(fields, f"{architecture}.{key}", where, default)

    heads, hidden = whole("attention.head_count"), whole("embedding_length")
    head_dim = whole("attention.key_length", hidden // max(heads, 1))
    if whole("attention.value_length", head_dim) != head_dim:
        raise ModelError(f"{where}: keys and values of different sizes are not supported")
    if whole("rope.dimension_count", head_dim) != head_dim:
        raise ModelError(f"{where}: rope.dimension_count differs from the head size {head_dim}; they must be equal")
    embedding = tensors.get("token_embd.weight")
    return LlamaConfig(
        architecture=architecture,
        vocab_size=int(embedding[0]) if embedding is not None else whole("vocab_size"),
        hidden_size=hidden,
        intermediate_size=whole("feed_forward_length"),
        layers=whole("block_count"),
        heads=heads,
        kv_heads=whole("attention.head_count_kv", heads),
        head_dim=head_dim,
        norm_eps=_number(fields, f"{architecture}.attention.layer_norm_rms_epsilon", where),
        max_len=whole("context_length"),
        rope=Rope.from_gguf(fields, architecture, where),
        tied="output.weight" not in tensors,
        attention_bias=any(name.startswith("blk.0.attn_") and name.endswith(".bias") for name in tensors),
        mlp_bias=any(name.startswith("blk.0.ffn_") and name.endswith(".bias") for name in tensors),
    ).check(where)


def _whole(data: Mapping[str, Any], key: str, where: Path, default: int | None = None) -> int:
    value = data.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        state = "is missing" if value is None else f"is {value!r}"
        raise ModelError(f"{where}: {key} {state}; it must be a whole number")
    return value


def _number(data: Mapping[str, Any], key: str, where: Path) -> float:
    value = data.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        state = "is missing" if value is None else f"is {value!r}"
        raise ModelError(f"{where}: {key} {state}; it must be a number")
    # GGUF keeps float32: 1e-5 comes back as 9.99999975e-06. Seven digits are all that a float32 says.
    return float(f"{value:.7g}")
