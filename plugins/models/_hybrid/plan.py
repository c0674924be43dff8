"""Every tensor that a hybrid decoder needs, with its shape, and what of it a checkpoint has.

The plan is compared with the headers of the files before a number is read, so that all that is wrong with a checkpoint
is said at once. Names are the short ones of `weights.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from tandem.core.plugin import ModelError
from tandem.plugins.models._hybrid.config import LINEAR, HybridConfig, MoeConfig, VisionConfig
from tandem.plugins.models._hybrid.weights import FLOATS, INTEGERS, Loader, short

if TYPE_CHECKING:
    from tandem.core.plugin import Options, Quantization
    from tandem.plugins.models._hf.folder import Folder

PARTS = ("embedding", "gdn", "attention", "mlp", "experts", "norm", "hyper", "ple", "table", "head", "mtp", "vision")
"""What tensors are grouped by. `mlp` is the dense MLP, or a sparse one's router and shared expert; `experts` are the
routed ones; `table` is the n-gram table, which stays on the disk."""

CHOICES = ("auto", "on", "off")
"""Of an option for a part that a checkpoint may lack: `auto` takes it where it is there, `on` refuses a checkpoint
without it, `off` leaves it on the disk."""

LISTED = 8
"""Names alike but for their numbers that a message spells out before it counts them."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of the unquantised model."""

    name: str
    shape: tuple[int, ...]
    part: str
    linear: bool = False
    """It is the `.weight` of a matrix that rows are multiplied by, so a quantization may store it otherwise."""
    whole: bool = False
    """It holds int64 numbers."""

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def layer(self) -> str:
        """The name without `.weight`."""
        return self.name.removesuffix(".weight")


# ---------------------------------------------------------------------------------------------------- what is needed


def entries(config: HybridConfig) -> tuple[Entry, ...]:
    """All tensors of the model, its vision tower and multi-token prediction included where the config has them.

    Experts stand fused, as `[E, 2I, H]` and `[E, H, I]`, and an n-gram table as one tensor.
    """
    return tuple(_entries(config))


def parameters(config: HybridConfig) -> dict[str, int]:
    """Part -> parameters. Whole numbers (the n-gram hashes' own) are not parameters."""
    found = dict.fromkeys(PARTS, 0)
    for entry in entries(config):
        found[entry.part] += 0 if entry.whole else entry.size
    return {part: count for part, count in found.items() if count}


def _entries(config: HybridConfig) -> Iterator[Entry]:
    hidden = config.hidden_size
    yield Entry("embed_tokens.weight", (config.vocab_size, hidden), "embedding")
    for layer, kind in enumerate(config.layer_types):
        yield from _block(config, f"layers.{layer}.", kind)
        if config.ple and layer in config.ple.layers:
            yield from _ple(config, f"layers.{layer}.ple.", config.ple.layers.index(layer))
    if config.hyper:
        yield from _hyper(config, "hyper_connection_mixer.", inject=False)
    else:
        yield Entry("norm.weight", (hidden,), "norm")
    if not config.tied:
        yield Entry("lm_head.weight", (config.vocab_size, hidden), "head", linear=True)
    yield from _in_part(_mtp(config), "mtp")
    if config.vision:
        yield from _vision(config.vision)


def _block(config: HybridConfig, at: str, kind: str) -> Iterator[Entry]:
    """One decoder layer."""
    if config.hyper:
        yield from _hyper(config, f"{at}attn_hyper_connection.")
        yield from _hyper(config, f"{at}mlp_hyper_connection.")
    else:
        yield Entry(f"{at}input_layernorm.weight", (config.hidden_size,), "norm")
        yield Entry(f"{at}post_attention_layernorm.weight", (config.hidden_size,), "norm")
    yield from _gdn(config, f"{at}linear_attn.") if kind == LINEAR else _attention(config, f"{at}self_attn.")
    if config.moe:
        yield from _moe(config.moe, config.hidden_size, f"{at}mlp.")
    else:
        yield from _mlp(config.hidden_size, config.intermediate_size, f"{at}mlp.")


def _gdn(config: HybridConfig, at: str) -> Iterator[Entry]:
    gdn, hidden = config.gdn, config.hidden_size
    yield Entry(f"{at}in_proj_qkv.weight", (gdn.channels, hidden), "gdn", linear=True)
    yield Entry(f"{at}in_proj_z.weight", (gdn.values, hidden), "gdn", linear=True)
    yield Entry(f"{at}in_proj_b.weight", (gdn.value_heads, hidden), "gdn", linear=True)
    yield Entry(f"{at}in_proj_a.weight", (gdn.value_heads, hidden), "gdn", linear=True)
    yield Entry(f"{at}conv1d.weight", (gdn.channels, 1, gdn.conv_kernel), "gdn")
    yield Entry(f"{at}A_log", (gdn.value_heads,), "gdn")
    yield Entry(f"{at}dt_bias", (gdn.value_heads,), "gdn")
    yield Entry(f"{at}norm.weight", (gdn.value_dim,), "gdn")
    yield Entry(f"{at}out_proj.weight", (hidden, gdn.values), "gdn", linear=True)


def _attention(config: HybridConfig, at: str) -> Iterator[Entry]:
    hidden, size = config.hidden_size, config.head_dim
    queries, keys = config.heads * size, config.kv_heads * size
    yield Entry(f"{at}q_proj.weight", (2 * queries, hidden), "attention", linear=True)  # and the output's gate
    yield Entry(f"{at}k_proj.weight", (keys, hidden), "attention", linear=True)
    yield Entry(f"{at}v_proj.weight", (keys, hidden), "attention", linear=True)
    yield Entry(f"{at}o_proj.weight", (hidden, queries), "attention", linear=True)
    yield Entry(f"{at}q_norm.weight", (size,), "attention")
    yield Entry(f"{at}k_norm.weight", (size,), "attention")
    if index := config.indexer:
        columns = (index.heads + index.kv_heads) * index.dim
        yield Entry(f"{at}indexer.index_qk_proj.weight", (columns, hidden), "attention", linear=True)
        yield Entry(f"{at}indexer.q_layernorm.weight", (index.dim,), "attention")
        yield Entry(f"{at}indexer.k_layernorm.weight", (index.dim,), "attention")


def _mlp(hidden: int, size: int, at: str) -> Iterator[Entry]:
    yield Entry(f"{at}gate_proj.weight", (size, hidden), "mlp", linear=True)
    yield Entry(f"{at}up_proj.weight", (size, hidden), "mlp", linear=True)
    yield Entry(f"{at}down_proj.weight", (hidden, size), "mlp", linear=True)


def _moe(moe: MoeConfig, hidden: int, at: str) -> Iterator[Entry]:
    yield Entry(f"{at}gate.weight", (moe.experts, hidden), "mlp")
    yield Entry(f"{at}experts.gate_up_proj", (moe.experts, 2 * moe.expert_size, hidden), "experts")
    yield Entry(f"{at}experts.down_proj", (moe.experts, hidden, moe.expert_size), "experts")
    yield from _mlp(hidden, moe.shared_size, f"{at}shared_expert.")
    yield Entry(f"{at}shared_expert_gate.weight", (1, hidden), "mlp", linear=True)


def _hyper(config: HybridConfig, at: str, inject: bool = True) -> Iterator[Entry]:
    assert config.hyper is not None
    width, rank = config.width, config.hyper.low_rank
    yield Entry(f"{at}hc_norm.weight", (width,), "hyper")
    yield Entry(f"{at}input_mix_weight_down.weight", (rank, width), "hyper", linear=True)
    yield Entry(f"{at}input_mix_weight_up.weight", (width, rank), "hyper", linear=True)
    if inject:
        yield Entry(f"{at}block_inject_weight.weight", (config.hyper.count, width), "hyper", linear=True)


def _ple(config: HybridConfig, at: str, index: int) -> Iterator[Entry]:
    ple, hidden, width = config.ple, config.hidden_size, config.width
    assert ple is not None
    yield Entry(f"{at}ple_embedding.layer_multipliers", (ple.ngram,), "ple", whole=True)
    yield Entry(f"{at}ple_embedding.ngram_heads_vocab_sizes", (ple.all_heads,), "ple", whole=True)
    yield Entry(f"{at}ple_embedding.ngram_heads_offsets", (ple.all_heads,), "ple", whole=True)
    yield Entry(f"{at}ple_embedding.ngram_embedding.weight", (ple.rows(index), ple.row), "table")
    yield Entry(f"{at}key_proj.weight", (width, ple.embed_dim), "ple", linear=True)
    yield Entry(f"{at}value_proj.weight", (hidden, ple.embed_dim), "ple", linear=True)
    for norm in ("norm_key", "norm_query", "norm_conv"):
        yield Entry(f"{at}{norm}.weight", (width,), "ple")
    yield Entry(f"{at}conv1d.weight", (width, 1, ple.conv_kernel), "ple")


def _mtp(config: HybridConfig) -> Iterator[Entry]:
    if not config.mtp:
        return
    hidden = config.hidden_size
    yield Entry("mtp.pre_fc_norm_embedding.weight", (hidden,), "mtp")
    yield Entry("mtp.pre_fc_norm_hidden.weight", (config.width,), "mtp")
    if config.hyper:
        yield Entry("mtp.fc_embedding.weight", (hidden, hidden), "mtp", linear=True)
        yield Entry("mtp.fc_hidden.weight", (hidden, hidden), "mtp", linear=True)
        yield from _hyper(config, "mtp.hyper_connection_mixer.", inject=False)
    else:
        yield Entry("mtp.fc.weight", (hidden, 2 * hidden), "mtp", linear=True)
        yield Entry("mtp.norm.weight", (hidden,), "mtp")
    for layer in range(config.mtp.layers):
        yield from _block(config, f"mtp.layers.{layer}.", "full_attention")


def _vision(vision: VisionConfig) -> Iterator[Entry]:
    hidden, merged = vision.hidden, vision.hidden * vision.merge**2
    yield Entry(
        "visual.patch_embed.proj.weight",
        (hidden, vision.channels, vision.temporal, vision.patch, vision.patch),
        "vision",
    )
    yield Entry("visual.patch_embed.proj.bias", (hidden,), "vision")
    yield Entry("visual.pos_embed.weight", (vision.positions, hidden), "vision")
    for block in range(vision.depth):
        at = f"visual.blocks.{block}."
        for norm in ("norm1", "norm2"):
            yield Entry(f"{at}{norm}.weight", (hidden,), "vision")
            yield Entry(f"{at}{norm}.bias", (hidden,), "vision")
        yield from _biased(f"{at}attn.qkv", 3 * hidden, hidden)
        yield from _biased(f"{at}attn.proj", hidden, hidden)
        yield from _biased(f"{at}mlp.linear_fc1", vision.mlp, hidden)
        yield from _biased(f"{at}mlp.linear_fc2", hidden, vision.mlp)
    yield Entry("visual.merger.norm.weight", (hidden,), "vision")
    yield Entry("visual.merger.norm.bias", (hidden,), "vision")
    yield from _biased("visual.merger.linear_fc1", merged, merged)
    yield from _biased("visual.merger.linear_fc2", vision.out_hidden, merged)


def _biased(name: str, out: int, columns: int) -> Iterator[Entry]:
    yield Entry(f"{name}.weight", (out, columns), "vision", linear=True)
    yield Entry(f"{name}.bias", (out,), "vision")


def _in_part(found: Iterable[Entry], part: str) -> Iterator[Entry]:
    return (Entry(entry.name, entry.shape, part, entry.linear, entry.whole) for entry in found)


# -------------------------------------------------------------------------------------------------------- what is there


@dataclass(frozen=True, slots=True)
class Plan:
    """A checkpoint that fits its config."""

    mtp: bool
    """Multi-token prediction is loaded."""
    vision: bool
    """The vision tower is loaded."""
    parameters: int
    """Of all that is loaded, the n-gram table included."""
    held: Mapping[str, int]
    """Part -> bytes in memory once loaded."""
    mapped: int
    """Bytes of n-gram tables, which stay on the disk."""

    @property
    def weight_bytes(self) -> int:
        return sum(self.held.values())


def check(loader: Loader, options: Options | None = None) -> Plan:
    """Compare a checkpoint with the plan of its config. `options` may hold `mtp` and `vision`, each one of `CHOICES`.

    Raises one ModelError that names every tensor that is missing, that has another shape or holds codes where numbers
    are wanted, or that is not of this model. Nothing is loaded.
    """
    options = options or {}
    wanted = {"mtp": _wants(loader, "mtp", options), "vision": _wants(loader, "vision", options)}
    needed = [entry for entry in entries(loader.config) if wanted.get(entry.part, True)]
    faults = _Faults(loader)
    held = dict.fromkeys(PARTS, 0)
    for entry in needed:
        held[entry.part] += faults.look(entry)
    faults.look_for_others(wanted)
    faults.tell()
    return Plan(
        mtp=wanted["mtp"],
        vision=wanted["vision"],
        parameters=sum(0 if entry.whole else entry.size for entry in needed),
        held={part: count for part, count in held.items() if count},
        mapped=faults.mapped,
    )


def describe(
    folder: Folder,
    config: HybridConfig,
    options: Options,
    quantizations: tuple[tuple[Quantization, Options], ...] = (),
    dtype: torch.dtype = torch.bfloat16,
) -> dict[str, Any]:
    """What would be loaded, from the headers of the files alone. Sizes in bytes; `dtype` is that of what is held
    dense and of the keys and values."""
    loader = Loader(folder, config, quantizations, "cpu", dtype)
    return facts(loader, check(loader, options))


def facts(loader: Loader, plan: Plan) -> dict[str, Any]:
    """What there is to say about a checkpoint and its plan."""
    config, number = loader.config, loader.dtype.itemsize
    found: dict[str, Any] = {
        "architecture": config.family,
        "parameters": plan.parameters,
        "dtype": str(loader.dtype).removeprefix("torch."),
        "device": loader.device.type,
        "weights": loader.quantized_by or "dense",
        "weight_bytes": plan.weight_bytes,
        "bytes_by_part": dict(plan.held),
        "kv_bytes_per_token": kv_bytes_per_token(config, number),
        "state_bytes": state_bytes(config),
        "conv_bytes": conv_bytes(config, number),
        "context_length": config.max_len,
        "mtp": plan.mtp,
        "vision": plan.vision,
    }
    if plan.mapped:
        found["mapped_bytes"] = plan.mapped
    if plan.mtp and config.mtp:
        found["mtp_kv_bytes_per_token"] = config.mtp.layers * kv_bytes_of_layer(config, number)
    return found


def kv_bytes_per_token(config: HybridConfig, number: int) -> int:
    """Keys, values and index keys of one token in the trunk's full-attention layers, `number` bytes for each."""
    return len(config.full_layers) * kv_bytes_of_layer(config, number)


def state_bytes(config: HybridConfig) -> int:
    """The recurrent states of one sequence: `[value_heads, key_dim, value_dim]` float32 for each GDN layer."""
    gdn = config.gdn
    return len(config.linear_layers) * gdn.value_heads * gdn.key_dim * gdn.value_dim * 4


def conv_bytes(config: HybridConfig, number: int) -> int:
    """What the convolutions of one sequence keep of the tokens before, `number` bytes for each number; and, for an
    n-gram embedding, the token ids."""
    gdn = config.gdn
    total = len(config.linear_layers) * gdn.channels * (gdn.conv_kernel - 1) * number
    if ple := config.ple:
        tail = (ple.conv_kernel - 1) * ple.ngram * config.width * number
        total += len(ple.layers) * (tail + (ple.ngram - 1) * 8)
    return total


def kv_bytes_of_layer(config: HybridConfig, number: int) -> int:
    """Keys, values and index keys of one token in one full-attention layer."""
    index = config.indexer.kv_heads * config.indexer.dim if config.indexer else 0
    return (2 * config.kv_heads * config.head_dim + index) * number


def _wants(loader: Loader, part: str, options: Options) -> bool:
    """Whether the part is loaded. Raises ModelError when it is asked for and can't be."""
    choice = options.get(part, "auto")
    assert choice in CHOICES, f"{part} is one of {', '.join(CHOICES)}"
    if choice == "off":
        return False
    config, where = loader.config, loader.folder.path
    start = {"mtp": "mtp.", "vision": "visual."}[part]
    there = any(name.startswith(start) for name in loader.names.tensors)
    why = None
    if part == "mtp" and config.mtp and config.mtp.dedicated_embeddings:
        why = "config.json says mtp_use_dedicated_embeddings, which is not supported"
    elif (config.mtp if part == "mtp" else config.vision) is None:
        why = f"config.json has no {'mtp_num_hidden_layers' if part == 'mtp' else 'vision_config'}"
    elif not there:
        why = f"config.json has it, but the files hold no {start}* tensors (some exporters leave them out)"
    if why and choice == "on":
        raise ModelError(f"{where}: the option `{part}: on` can't be met: {why}; `auto` goes on without it")
    return why is None


class _Faults:
    """What is wrong with a checkpoint, gathered."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._weights = loader.folder.weights
        self._missing: list[str] = []
        self._misshapen: list[str] = []
        self._mistyped: list[str] = []
        self._foreign: list[str] = []
        self._used: set[str] = set()
        self.mapped = 0

    def look(self, entry: Entry) -> int:
        """Find what holds the entry; the bytes that it takes in memory."""
        names = self._loader.names
        if entry.part == "table":
            return self._look_at_table(entry)
        if len(entry.shape) == 3 and ".experts." in entry.name and entry.name not in names.tensors:
            return sum(self.look(expert) for expert in self._single_experts(entry))
        if entry.linear:
            out, columns = entry.shape
            stored = self._loader.packed(entry.layer, (out, columns))
            if stored is not None and self._loader.scheme is not None:
                for full, shape in stored.items():
                    self._compare(full, shape)
                return self._loader.scheme.nbytes(names.layer(entry.layer), (out, columns))
        full = names.full(entry.name)
        self._compare(full, entry.shape)
        self._look_at_format(full, entry.whole)
        return entry.size * (8 if entry.whole else self._loader.dtype.itemsize)

    def look_for_others(self, wanted: Mapping[str, bool]) -> None:
        """Find tensors that no entry asked for. Those of a part that is not loaded may be there."""
        unused = getattr(self._loader.scheme, "unused", None)
        for full in self._weights.shapes:
            name = short(full)
            if full in self._used or name.endswith("rotary_emb.inv_freq"):
                continue
            if any(name.startswith(start) and not wanted[part] for start, part in _OPTIONAL):
                continue
            if (self._loader.config.tied and name == "lm_head.weight") or (unused and unused(full)):
                continue
            self._foreign.append(full)

    def tell(self) -> None:
        """Raise ModelError if anything is wrong."""
        said = []
        if self._missing:
            said.append(f"{len(self._missing)} missing: {_listed(self._missing)}")
        if self._misshapen:
            said.append(f"{len(self._misshapen)} of another shape: {_listed(self._misshapen)}")
        if self._mistyped:
            said.append(f"{len(self._mistyped)} of another number type: {_listed(self._mistyped)}")
        if self._foreign:
            said.append(f"{len(self._foreign)} that this model does not have: {_listed(self._foreign)}")
        if said:
            raise ModelError(
                f"{self._loader.folder.path}: the tensors are not those of the model in config.json: {'; '.join(said)}"
            )

    def _compare(self, full: str, shape: tuple[int, ...]) -> None:
        self._used.add(full)
        found = self._weights.shapes.get(full)
        if found is None:
            self._missing.append(full)
        elif found != shape and not (prod(found) == prod(shape) == 1):  # one number may be stored as [] or [1]
            self._misshapen.append(f"{full} is {list(found)} and must be {list(shape)}")

    def _look_at_format(self, full: str, whole: bool = False) -> None:
        """Numbers that are not packed must be themselves, not codes."""
        kind = self._weights.formats.get(full)
        if kind is not None and kind not in (INTEGERS if whole else FLOATS):
            wanted = "whole numbers" if whole else f"one of {', '.join(FLOATS)}"
            self._mistyped.append(f"{full} is {kind} and must be {wanted}")

    def _look_at_table(self, entry: Entry) -> int:
        try:
            shards = [self._loader.names.tensor(name) for name in self._loader.names.shards(entry.layer)]
        except ModelError:
            at = self._loader.names.full(entry.layer)
            ple = self._loader.config.ple
            for full in (f"{at}.shard_{part}.weight" for part in range(ple.parts if ple else 0)):
                self._used.add(full)
                if full not in self._weights:
                    self._missing.append(full)
            return 0
        for full in shards:
            self._look_at_format(full)
        shapes = [self._weights.shapes[full] for full in shards]
        self._used.update(shards)
        if any(len(shape) != 2 or shape[1] != entry.shape[1] for shape in shapes) or (
            sum(shape[0] for shape in shapes) != entry.shape[0]
        ):
            rows = sum(shape[0] for shape in shapes)
            self._misshapen.append(
                f"{shards[0]} to {shards[-1]} are {rows} rows of {shapes[0][-1]} and must be {list(entry.shape)}"
            )
        self.mapped += entry.size * FLOATS.get(self._weights.formats[shards[0]], torch.uint8).itemsize
        return 0

    def _single_experts(self, entry: Entry) -> Iterator[Entry]:
        """A fused entry as the matrices of its experts."""
        at, _, kind = entry.name.rpartition(".")
        experts, out, columns = entry.shape
        parts = ("gate_proj", "up_proj") if kind == "gate_up_proj" else ("down_proj",)
        for expert in range(experts):
            for part in parts:
                yield Entry(f"{at}.{expert}.{part}.weight", (out // len(parts), columns), entry.part, linear=True)


_OPTIONAL = (("mtp.", "mtp"), ("visual.", "vision"))


def _listed(names: list[str]) -> str:
    """All names, with a count in place of many that differ in their numbers only."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(re.sub(r"\.\d+(?=\.)", ".N", name), []).append(name)
    said: list[str] = []
    for pattern, members in groups.items():
        said += members if len(members) <= LISTED else [f"{pattern} ({len(members)}, the first {members[0]})"]
    return ", ".join(said)
