"""The shape of a hybrid decoder (Qwen3.5, its MoE, Qwen4-Exp), read from a `config.json`.

A file holds the text model's fields at the top, or under `text_config` beside `vision_config`. Where a field is left
out, the value is the one that transformers 5 takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass
from functools import cache
from math import inf, isqrt
from pathlib import Path
from typing import Any

from tandem.core.plugin import ModelError

LINEAR, FULL = "linear_attention", "full_attention"

FAMILIES = {
    "qwen3_5": "qwen3_5",
    "qwen3_5_text": "qwen3_5",
    "qwen3_5_moe": "qwen3_5",
    "qwen3_5_moe_text": "qwen3_5",
    "qwen4_exp": "qwen4_exp",
    "qwen4_exp_text": "qwen4_exp",
}
"""`model_type` -> the family, which decides how the layers are joined."""

Section = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class GdnConfig:
    """Gated DeltaNet. Value head h reads key head `h // (value_heads / key_heads)`."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    output_gate: str
    """`silu` or `sigmoid`: what the gate z goes through before it scales the normalised output."""

    @property
    def channels(self) -> int:
        """Columns of q, k and v together: what the convolution runs over."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def values(self) -> int:
        """Columns of v, of z and of the output."""
        return self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """A sparse MLP on every layer, with one shared expert."""

    experts: int
    top_k: int
    expert_size: int
    shared_size: int
    normalise: bool
    """The weights of the chosen experts are divided by their sum."""


@dataclass(frozen=True, slots=True)
class HyperConfig:
    """Hyper-connections: the residual is `count` streams of `hidden_size`."""

    count: int
    low_rank: int


@dataclass(frozen=True, slots=True)
class IndexerConfig:
    """The index that chooses which blocks of tokens a full-attention layer reads."""

    heads: int
    kv_heads: int
    dim: int
    budget: int
    """Tokens in the chosen blocks, at most."""
    block: int
    """Tokens whose keys are averaged into one."""


@dataclass(frozen=True, slots=True)
class PleConfig:
    """Per-layer embedding of hashed n-grams."""

    layers: tuple[int, ...]
    """The decoder layers that have one, counted from 0 (the file counts from 1)."""
    embed_dim: int
    heads: int
    """Hashes for each n-gram order, 2 to `ngram`."""
    ngram: int
    vocab_base: int
    pad: int
    """The table's rows are a multiple of this."""
    parts: int
    """Shards that a checkpoint cuts the table into."""
    conv_kernel: int
    seed: int

    @property
    def all_heads(self) -> int:
        return (self.ngram - 1) * self.heads

    @property
    def row(self) -> int:
        """Numbers in one row of the table."""
        return self.embed_dim // self.all_heads

    def vocab_sizes(self, index: int) -> tuple[int, ...]:
        """Rows of each head of the `index`-th embedding: the next primes from `vocab_base` on, `[all_heads]`."""
        return _primes_from(self.vocab_base, (index + 1) * self.all_heads)[index * self.all_heads :]

    def rows(self, index: int) -> int:
        """Rows of the `index`-th table, its padding included."""
        return -(-sum(self.vocab_sizes(index)) // self.pad) * self.pad


@dataclass(frozen=True, slots=True)
class MtpConfig:
    """Multi-token prediction: blocks of full attention behind the trunk."""

    layers: int
    rope_theta: float
    dedicated_embeddings: bool
    """It has an embedding and a head of its own, which is not supported; without, it shares the model's."""


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """The vision tower. Sizes in patches' numbers, not pixels, unless said."""

    depth: int
    hidden: int
    heads: int
    mlp: int
    channels: int
    patch: int
    """Pixels along a patch's side."""
    merge: int
    """Patches along the side of a merged patch, which becomes one row of the prompt."""
    temporal: int
    """Frames in a patch."""
    out_hidden: int
    positions: int
    """Rows of the learned position table: a square grid."""

    @property
    def patch_numbers(self) -> int:
        """Numbers of one flattened patch."""
        return self.channels * self.temporal * self.patch**2


@dataclass(frozen=True, slots=True)
class HybridConfig:
    """Everything that decides the arithmetic of the model."""

    family: str
    """`qwen3_5` or `qwen4_exp`."""
    hidden_size: int
    layer_types: tuple[str, ...]
    """`linear_attention` or `full_attention` for each layer."""
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    """The first numbers of a head that are turned by the position."""
    rope_theta: float
    mrope_section: Section
    """Rotary frequencies of the time, height and width axis, interleaved."""
    gdn: GdnConfig
    intermediate_size: int
    """Of the dense MLP; 0 where `moe` takes its place."""
    moe: MoeConfig | None
    vocab_size: int
    tied: bool
    """The output head is the embedding matrix."""
    norm_eps: float
    max_len: int
    eos: tuple[int, ...]
    dtype: str
    """The number type that the checkpoint was written in, `bfloat16` where the file says nothing."""
    mtp: MtpConfig | None
    vision: VisionConfig | None
    image_token: int
    video_token: int
    vision_start: int
    vision_end: int
    hyper: HyperConfig | None = None
    indexer: IndexerConfig | None = None
    ple: PleConfig | None = None

    @property
    def layers(self) -> int:
        return len(self.layer_types)

    @property
    def linear_layers(self) -> tuple[int, ...]:
        return tuple(layer for layer, kind in enumerate(self.layer_types) if kind == LINEAR)

    @property
    def full_layers(self) -> tuple[int, ...]:
        return tuple(layer for layer, kind in enumerate(self.layer_types) if kind == FULL)

    @property
    def width(self) -> int:
        """Numbers of the residual for each token."""
        return self.hidden_size * (self.hyper.count if self.hyper else 1)


def read_config(data: Mapping[str, Any], where: Path) -> HybridConfig:
    """Read a `config.json`; `where` is its path. Raises ModelError for what the hybrid builders can't compute."""
    top = _Fields(data, where)
    text = top.section("text_config") or top
    kind = text.first("model_type") or top.first("model_type")
    family = FAMILIES.get(str(kind))
    if family is None:
        raise text.error("model_type", kind, f"one of {', '.join(FAMILIES)}")
    sparse = family == "qwen4_exp" or "moe" in str(kind)
    text.served("hidden_act", "silu")
    text.served("attention_bias", False)
    hidden = text.whole("hidden_size", 2048 if sparse else 4096)
    heads = text.whole("num_attention_heads", 16)
    head_dim = text.whole("head_dim", 256)
    kv_heads = text.whole("num_key_value_heads", 2 if sparse else 4)
    text.divides("num_attention_heads", heads, "num_key_value_heads", kv_heads)
    rotary_dim, theta, section = _rope(text, family, head_dim)
    types = _layer_types(text, family, sparse)
    moe = _moe(text, family) if sparse else None
    eos = text.ids("eos_token_id")
    vision = top.section("vision_config") if text is not top else None
    return HybridConfig(
        family=family,
        hidden_size=hidden,
        layer_types=types,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        rope_theta=theta,
        mrope_section=section,
        gdn=_gdn(text, family),
        intermediate_size=0 if moe else text.whole("intermediate_size", 12288),
        moe=moe,
        vocab_size=text.whole("vocab_size", 248320),
        tied=bool(top.data.get("tie_word_embeddings", text.data.get("tie_word_embeddings", False))),
        norm_eps=text.number("rms_norm_eps", 1e-6),
        max_len=text.whole("max_position_embeddings", 32768),
        eos=eos,
        dtype=str(text.first("dtype", "torch_dtype") or top.first("dtype", "torch_dtype") or "bfloat16"),
        mtp=_mtp(text, theta),
        vision=_vision(vision, hidden) if vision and not top.data.get("language_model_only") else None,
        image_token=top.whole("image_token_id", 248056, least=0),
        video_token=top.whole("video_token_id", 248057, least=0),
        vision_start=top.whole("vision_start_token_id", 248053, least=0),
        vision_end=top.whole("vision_end_token_id", 248054, least=0),
        hyper=_hyper(text) if family == "qwen4_exp" else None,
        indexer=_indexer(text, rotary_dim) if family == "qwen4_exp" else None,
        ple=_ple(text, types, hidden, eos) if family == "qwen4_exp" else None,
    )


# ------------------------------------------------------------------------------------------------ the parts of a file


def _layer_types(text: _Fields, family: str, sparse: bool) -> tuple[str, ...]:
    count = text.whole("num_hidden_layers", 40 if sparse else 32)
    types = text.data.get("layer_types")
    if types is None:
        interval = text.whole("full_attention_interval", 4)
        return tuple(FULL if (layer + 1) % interval == 0 else LINEAR for layer in range(count))
    if not isinstance(types, list) or len(types) != count:
        raise text.error("layer_types", types, f"a list of {count} types, one for each of the num_hidden_layers")
    # transformers renames the full attention of Qwen4-Exp, which reads chosen blocks only, when it saves.
    known = {LINEAR: LINEAR, FULL: FULL, "indexed_attention": FULL}
    for layer, kind in enumerate(types):
        if str(kind) not in known or (kind == "indexed_attention" and family != "qwen4_exp"):
            raise text.error(f"layer_types[{layer}]", kind, f"{LINEAR!r} or {FULL!r}")
    return tuple(known[kind] for kind in types)


def _rope(text: _Fields, family: str, head_dim: int) -> tuple[int, float, Section]:
    """Rotary size, base and the axes' sections."""
    rope = text.section("rope_parameters") or text.section("rope_scaling") or _Fields({}, text.where)
    kind = rope.first("rope_type", "type") or "default"
    if kind not in ("default", "mrope"):
        raise rope.error("rope_type", kind, "'default'")
    if rope.data.get("mrope_interleaved", True) is not True:
        raise rope.error("mrope_interleaved", rope.data["mrope_interleaved"], "true")
    source = rope if "partial_rotary_factor" in rope.data else text
    factor = source.number("partial_rotary_factor", 1.0 if family == "qwen4_exp" else 0.25)
    rotary = int(head_dim * factor)
    if rotary % 2 or not 0 < rotary <= head_dim:
        raise source.error(
            "partial_rotary_factor", factor, f"a part of head_dim {head_dim} that comes to an even number of it"
        )
    theta = (rope if "rope_theta" in rope.data else text).number("rope_theta", 10_000.0)
    section = rope.data.get("mrope_section", [11, 11, 10])
    if not _is_whole_list(section) or len(section) != 3 or min(section) < 0:
        raise rope.error("mrope_section", section, "three whole numbers: frequencies of time, height and width")
    return rotary, theta, (section[0], section[1], section[2])


def _gdn(text: _Fields, family: str) -> GdnConfig:
    gate = text.data.get("output_gate_type") or "silu"
    gate = "silu" if gate == "swish" else gate
    wanted = ("silu", "sigmoid") if family == "qwen4_exp" else ("silu",)
    if gate not in wanted:
        raise text.error("output_gate_type", gate, " or ".join(repr(name) for name in wanted))
    key_heads = text.whole("linear_num_key_heads", 16)
    value_heads = text.whole("linear_num_value_heads", 32)
    text.divides("linear_num_value_heads", value_heads, "linear_num_key_heads", key_heads)
    return GdnConfig(
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=text.whole("linear_key_head_dim", 128),
        value_dim=text.whole("linear_value_head_dim", 128),
        conv_kernel=text.whole("linear_conv_kernel_dim", 4, least=2),
        output_gate=gate,
    )


def _moe(text: _Fields, family: str) -> MoeConfig:
    qwen4 = family == "qwen4_exp"
    experts = text.whole("num_experts", 512 if qwen4 else 256)
    top_k = text.whole("num_experts_per_tok", 10 if qwen4 else 8)
    if top_k > experts:
        raise text.error("num_experts_per_tok", top_k, f"at most num_experts, {experts}")
    return MoeConfig(
        experts=experts,
        top_k=top_k,
        expert_size=text.whole("moe_intermediate_size", 512),
        shared_size=text.whole("shared_expert_intermediate_size", 512),
        # Qwen3.5 has no such field: its router always does.
        normalise=bool(text.data.get("norm_topk_prob", True)) or not qwen4,
    )


def _mtp(text: _Fields, theta: float) -> MtpConfig | None:
    own = text.section("mtp")
    layers = text.whole("mtp_num_hidden_layers", own.whole("num_hidden_layers", 0, least=0) if own else 0, least=0)
    if not layers:
        return None
    types = own.data.get("layer_types") if own else text.data.get("mtp_layer_types")
    if types is not None and (not isinstance(types, list) or set(map(str, types)) - {FULL, "indexed_attention"}):
        raise text.error("mtp.layer_types" if own else "mtp_layer_types", types, f"a list of {FULL!r}")
    return MtpConfig(
        layers=layers,
        rope_theta=own.number("rope_theta", theta) if own else theta,
        dedicated_embeddings=bool(text.data.get("mtp_use_dedicated_embeddings", False)),
    )


def _vision(vision: _Fields, hidden_size: int) -> VisionConfig:
    vision.served("hidden_act", "gelu_pytorch_tanh")
    if vision.data.get("deepstack_visual_indexes"):
        raise vision.error("deepstack_visual_indexes", vision.data["deepstack_visual_indexes"], "empty")
    found = VisionConfig(
        depth=vision.whole("depth", 27),
        hidden=vision.whole("hidden_size", 1152),
        heads=vision.whole("num_heads", 16),
        mlp=vision.whole("intermediate_size", 4304),
        channels=vision.whole("in_channels", 3),
        patch=vision.side("patch_size", 16),
        merge=vision.whole("spatial_merge_size", 2),
        temporal=vision.side("temporal_patch_size", 2),
        out_hidden=vision.whole("out_hidden_size", 3584),
        positions=vision.whole("num_position_embeddings", 2304),
    )
    vision.divides("hidden_size", found.hidden, "num_heads", found.heads)
    if (found.hidden // found.heads) % 4:
        raise vision.error(
            "num_heads", found.heads, "heads whose size is a multiple of 4 (pairs of numbers for rows and columns)"
        )
    if isqrt(found.positions) ** 2 != found.positions:
        raise vision.error("num_position_embeddings", found.positions, "a square number")
    if found.out_hidden != hidden_size:
        raise vision.error("out_hidden_size", found.out_hidden, f"the text model's hidden_size, {hidden_size}")
    return found


def _hyper(text: _Fields) -> HyperConfig:
    return HyperConfig(count=text.whole("hc_count", 4, least=2), low_rank=text.whole("hc_lowrank", 320))


def _indexer(text: _Fields, rotary_dim: int) -> IndexerConfig:
    found = IndexerConfig(
        heads=text.whole("indexer_n_heads"),
        kv_heads=text.whole("indexer_kv_heads"),
        dim=text.whole("indexer_head_dim"),
        budget=text.whole("indexer_budget"),
        block=text.whole("indexer_compress_ratio"),
    )
    if found.kv_heads != 1:
        raise text.error("indexer_kv_heads", found.kv_heads, "1")
    text.divides("indexer_budget", found.budget, "indexer_compress_ratio", found.block)
    if rotary_dim > found.dim:
        raise text.error("indexer_head_dim", found.dim, f"at least the rotary size of attention, {rotary_dim}")
    return found


def _ple(text: _Fields, types: Seq[str], hidden: int, eos: Seq[int]) -> PleConfig | None:
    ids = text.ids("ple_layer_ids")
    if not ids:
        return None
    for layer in ids:
        if not 1 <= layer <= len(types):
            raise text.error("ple_layer_ids", layer, f"layers counted from 1 to {len(types)}")
        if types[layer - 1] != LINEAR:
            raise text.error("ple_layer_ids", layer, f"layers of the type {LINEAR}")
    if not eos:
        raise text.error("eos_token_id", None, "a token: the n-gram embedding reads it where no token stands before")
    found = PleConfig(
        layers=tuple(sorted({layer - 1 for layer in ids})),
        embed_dim=text.whole("ple_embed_dim", hidden),
        heads=text.whole("heads_per_ngram", 8),
        ngram=text.whole("ngram_size", 3, least=2),
        vocab_base=text.whole("ngram_vocab_size_base", 20_000_000, least=2),
        pad=text.whole("make_ngram_vocab_size_divisible_by", 128),
        parts=text.whole("split_ngram_parts", 512),
        conv_kernel=text.whole("ple_conv_kernel_size", 4, least=2),
        seed=text.whole("seed", 1234, least=0),
    )
    text.divides("ple_embed_dim", found.embed_dim, "heads_per_ngram * (ngram_size - 1)", found.all_heads)
    return found


# ----------------------------------------------------------------------------------------------------- reading fields


@dataclass(frozen=True, slots=True)
class _Fields:
    """An object of the file, with refusals that name the file, the field, its value and what would be right."""

    data: Mapping[str, Any]
    where: Path
    path: str = ""

    def error(self, name: str, value: Any, right: str) -> ModelError:
        return ModelError(f"{self.where}: {self.path}{name} is {value!r}; it must be {right}")

    def section(self, name: str) -> _Fields | None:
        """The object `name`, or None when there is none."""
        value = self.data.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(name, value, "an object")
        return _Fields(value, self.where, f"{self.path}{name}.")

    def first(self, *names: str) -> Any:
        """The first of the fields `names` that is there."""
        return next((self.data[name] for name in names if self.data.get(name) is not None), None)

    def whole(self, name: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of at least `least`. Without a default the field must be there."""
        value = self.data.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(name, value, f"a whole number of at least {least}")
        return value

    def number(self, name: str, default: float) -> float:
        """A number above 0."""
        value = self.data.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
            raise self.error(name, value, "a number above 0")
        return float(value)

    def side(self, name: str, default: int) -> int:
        """A whole number, or a list of equal ones."""
        value = self.data.get(name)
        if isinstance(value, list) and value and len(set(map(str, value))) == 1:
            return _Fields({name: value[0]}, self.where, self.path).whole(name)
        return self.whole(name, default)

    def ids(self, name: str) -> tuple[int, ...]:
        """A whole number or a list of them; empty when there is none."""
        value = self.data.get(name)
        if value is None:
            return ()
        listed = value if isinstance(value, list) else [value]
        if not _is_whole_list(listed):
            raise self.error(name, value, "a whole number or a list of them")
        return tuple(listed)

    def served(self, name: str, wanted: Any) -> None:
        """Refuse any other value than `wanted`."""
        if (value := self.data.get(name)) is not None and value != wanted:
            raise self.error(name, value, repr(wanted))

    def divides(self, name: str, value: int, by: str, divisor: int) -> None:
        if value % divisor:
            raise self.error(name, value, f"a multiple of {by}, {divisor}")


def _is_whole_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, int) and not isinstance(each, bool) for each in value)


@cache
def _primes_from(start: int, count: int) -> tuple[int, ...]:
    """The first `count` primes from `start` on."""
    found: list[int] = []
    number = start
    while len(found) < count:
        if (number % 2 and all(number % divisor for divisor in range(3, isqrt(number) + 1, 2))) or number == 2:
            found.append(number)
        number += 1
    return tuple(found)
