"""From a checkpoint's files to what a decoder computes with: tensors, linear layers, experts, memory-mapped tables.

Everything is asked for by its short name, which is the same whatever wrapper the checkpoint was saved from:
`embed_tokens.weight`, `layers.3.self_attn.q_proj`, `norm.weight`, `lm_head`, `mtp.fc`, `visual.blocks.0.attn.qkv`.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F

from tandem.core.plugin import ModelError
from tandem.plugins.models._hf.folder import INDEX, WEIGHTS, Folder, read_json

if TYPE_CHECKING:
    from tandem.core.plugin import Options, Quantization, WeightScheme
    from tandem.plugins.models._hybrid.config import HybridConfig

PREFIXES = (
    ("model.language_model.", ""),  # the published files, and save_pretrained of the model with its tower
    ("language_model.model.", ""),
    ("language_model.", ""),
    ("model.visual.", "visual."),
    ("model.mtp.", "mtp."),
    ("model.", ""),  # save_pretrained of the text model alone
)
"""How a tensor's name begins in a file -> in a short name. The first that fits counts."""

FLOATS: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
"""The formats (in the words of safetensors) that hold the numbers themselves; all others need a scheme."""

INTEGERS = ("I64", "I32", "I16", "I8", "U8", "BOOL")


def short(name: str) -> str:
    """A tensor's or a layer's name without what the checkpoint was wrapped in."""
    for prefix, instead in PREFIXES:
        if name.startswith(prefix):
            return instead + name.removeprefix(prefix)
    return name


class Linear(Protocol):
    """A matrix `[out, in]`, dense or packed. The contract's `PackedLinear` is one."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def nbytes(self) -> int: ...

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """`[n, in]` to `[n, out]`."""
        ...

    def dense(self) -> torch.Tensor:
        """`[out, in]` float32."""
        ...


class DenseLinear:
    """A matrix as it is."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight
        """`[out, in]`"""

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape[0], self.weight.shape[1]

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return F.linear(rows, self.weight)

    def dense(self) -> torch.Tensor:
        return self.weight.float()


class BiasedLinear:
    """A matrix, and a vector that is added."""

    def __init__(self, matrix: Linear, bias: torch.Tensor) -> None:
        self.matrix = matrix
        self.bias = bias
        """`[out]`"""

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape

    @property
    def nbytes(self) -> int:
        return self.matrix.nbytes + self.bias.nbytes

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self.matrix(rows) + self.bias

    def dense(self) -> torch.Tensor:
        """The matrix alone."""
        return self.matrix.dense()


class Experts:
    """The experts of one layer, whichever way they are stored: E of them, hidden size H, their own size I."""

    def __init__(
        self, gate_up: torch.Tensor | None, down: torch.Tensor | None, packed: tuple[tuple[Linear, ...], ...] = ()
    ) -> None:
        self.gate_up = gate_up
        """`[E, 2I, H]`, the gate's rows first; None = packed."""
        self.down = down
        """`[E, H, I]`; None = packed."""
        self.packed = packed
        """For each expert its gate `(I, H)`, up `(I, H)` and down `(H, I)`; empty = dense."""

    def __len__(self) -> int:
        return len(self.packed) if self.gate_up is None else len(self.gate_up)

    @property
    def nbytes(self) -> int:
        dense = sum(tensor.nbytes for tensor in (self.gate_up, self.down) if tensor is not None)
        return dense + sum(linear.nbytes for expert in self.packed for linear in expert)

    def __getitem__(self, expert: int) -> Callable[[torch.Tensor], torch.Tensor]:
        """One expert as a whole MLP: `[n, H]` to `[n, H]`."""
        if not 0 <= expert < len(self):
            raise IndexError(f"there are experts 0 to {len(self) - 1}; {expert} is none of them")
        return partial(self._run, expert)

    def _run(self, expert: int, rows: torch.Tensor) -> torch.Tensor:
        gate, up = self.read(expert, rows)
        return self.write(expert, F.silu(gate) * up)

    def read(self, expert: int, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gate and up of one expert for `rows` `[n, H]`: two tensors `[n, I]`."""
        if self.gate_up is not None:
            gate, up = F.linear(rows, self.gate_up[expert]).chunk(2, -1)
            return gate, up
        return self.packed[expert][0](rows), self.packed[expert][1](rows)

    def write(self, expert: int, rows: torch.Tensor) -> torch.Tensor:
        """Down of one expert: `[n, I]` to `[n, H]`."""
        if self.down is not None:
            return F.linear(rows, self.down[expert])
        return self.packed[expert][2](rows)


class Table:
    """Rows of numbers in one or more tensors of safetensors files, read from the disk as they are asked for.

    The files are mapped into memory for random access, so what is resident is what the system's page cache keeps.
    """

    def __init__(self, parts: Iterable[tuple[Path, int, tuple[int, ...]]], dtype: torch.dtype) -> None:
        """`parts`: file, first byte in it and shape `(rows, width)` of each tensor, in the order of the rows."""
        self.dtype = dtype
        maps: dict[Path, mmap.mmap] = {}
        self._parts: list[np.ndarray[Any, np.dtype[np.uint8]]] = []
        for path, start, (rows, width) in parts:
            if path not in maps:
                with path.open("rb") as file:
                    maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                if hasattr(mmap, "MADV_RANDOM"):  # a row is a few hundred bytes; reading ahead would be waste
                    maps[path].madvise(mmap.MADV_RANDOM)
            count = rows * width * dtype.itemsize
            numbers = np.frombuffer(maps[path], np.uint8, count, start)
            self._parts.append(numbers.reshape(rows, width * dtype.itemsize))
            self.width = width
        self._ends = np.cumsum([len(part) for part in self._parts])

    @property
    def rows(self) -> int:
        return int(self._ends[-1])

    @property
    def nbytes(self) -> int:
        """Bytes in the files; none of them is held."""
        return self.rows * self.width * self.dtype.itemsize

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows `ids` (int64, any shape) as `[*ids.shape, width]`, in the table's number type on the CPU."""
        wanted = ids.reshape(-1).cpu().numpy()
        found = torch.empty(len(wanted), self.width, dtype=self.dtype)
        into = found.view(torch.uint8).numpy()
        places = np.searchsorted(self._ends, wanted, side="right")
        for place in np.unique(places):
            mine = places == place
            part = self._parts[place]
            into[mine] = part[wanted[mine] - (self._ends[place] - len(part))]
        return found.view(*ids.shape, self.width)


class Loader:
    """Reads a checkpoint, a tensor at a time, to one device and one number type."""

    def __init__(
        self,
        folder: Folder,
        config: HybridConfig,
        quantizations: tuple[tuple[Quantization, Options], ...],
        device: torch.device | str,
        dtype: torch.dtype,
    ) -> None:
        """Raises ModelError for files that can't be read, and for a way of storing that no enabled part knows."""
        self.folder = folder
        self.config = config
        self.device = torch.device(device)
        self.dtype = dtype
        self.names = Names(folder)
        opened = open_scheme(folder, quantizations)
        self.quantized_by = opened[0] if opened else None
        """The name of the quantization that the checkpoint is stored in; None = it is stored as it is."""
        self.scheme = opened[1] if opened else None

    def __contains__(self, name: str) -> bool:
        """Whether the checkpoint has this tensor, or a tensor of this layer."""
        return short(name) in self.names.tensors or short(name) in self.names.layers

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A tensor on the loader's device. Floating-point numbers become `dtype` (the loader's, if None); whole
        numbers stay as they are."""
        full = self.names.tensor(name)
        value = self.folder.weights.tensor(full)
        kind = self.folder.weights.formats[full]
        if kind in INTEGERS:
            return value.to(self.device, copy=True)
        if kind not in FLOATS:
            raise ModelError(
                f"{self.folder.path}: {full} is stored as {kind}; this tensor must be one of {', '.join(FLOATS)}"
            )
        return value.to(self.device, dtype or self.dtype, copy=True)

    def linear(self, name: str, shape: tuple[int, int], bias: bool = False) -> Linear:
        """The layer `name` (without `.weight`), `shape` = `(out, in)`."""
        matrix = self._matrix(short(name), shape)
        return BiasedLinear(matrix, self.tensor(f"{name}.bias")) if bias else matrix

    def experts(self, name: str) -> Experts:
        """The experts under `name`, such as `layers.0.mlp.experts`."""
        moe = self.config.moe
        assert moe is not None, "only a sparse model has experts"
        name, hidden, size = short(name), self.config.hidden_size, moe.expert_size
        if f"{name}.gate_up_proj" in self.names.tensors:
            return Experts(self.tensor(f"{name}.gate_up_proj"), self.tensor(f"{name}.down_proj"))
        shapes = {"gate_proj": (size, hidden), "up_proj": (size, hidden), "down_proj": (hidden, size)}
        if self.packed(f"{name}.0.gate_proj", shapes["gate_proj"]) is not None:
            matrices = (
                tuple(self._matrix(f"{name}.{expert}.{part}", shape) for part, shape in shapes.items())
                for expert in range(moe.experts)
            )
            return Experts(None, None, tuple(matrices))
        gate_up = torch.empty(moe.experts, 2 * size, hidden, dtype=self.dtype, device=self.device)
        down = torch.empty(moe.experts, hidden, size, dtype=self.dtype, device=self.device)
        for expert in range(moe.experts):
            gate_up[expert, :size] = self.tensor(f"{name}.{expert}.gate_proj.weight")
            gate_up[expert, size:] = self.tensor(f"{name}.{expert}.up_proj.weight")
            down[expert] = self.tensor(f"{name}.{expert}.down_proj.weight")
        return Experts(gate_up, down)

    def table(self, name: str) -> Table:
        """The table `name` (without `.weight`), whole or in shards `NAME.shard_N.weight`, on the disk."""
        weights = self.folder.weights
        fulls = [self.names.tensor(part) for part in self.names.shards(short(name))]
        kinds = {weights.formats[full] for full in fulls}
        if len(kinds) > 1 or not kinds <= FLOATS.keys():
            raise ModelError(
                f"{self.folder.path}: {fulls[0]} is stored as {', '.join(sorted(kinds))}; all of a table must be "
                f"stored as one of {', '.join(FLOATS)}"
            )
        places = tensor_places(self.folder.path, fulls)
        return Table(((*places[full], weights.shapes[full]) for full in fulls), FLOATS[kinds.pop()])

    def _matrix(self, name: str, shape: tuple[int, int]) -> Linear:
        if self.scheme is not None and self.packed(name, shape) is not None:
            with self._path_in_errors():
                return self.scheme.pack(self.names.layer(name), shape, self._stored, self.device)
        weight = self.tensor(f"{name}.weight")
        if weight.shape != shape:
            raise ModelError(
                f"{self.folder.path}: {self.names.tensor(f'{name}.weight')} has the shape {list(weight.shape)}; "
                f"it must be {list(shape)}"
            )
        return DenseLinear(weight)

    def packed(self, name: str, shape: tuple[int, int]) -> Mapping[str, tuple[int, ...]] | None:
        """The tensors that hold the layer `name` packed: the checkpoint's names -> shapes; None = it is dense.

        A layer that the scheme would hold packed, but whose plain numbers are in the files, is dense: exporters don't
        always list all that they leave alone.
        """
        if self.scheme is None:
            return None
        with self._path_in_errors():
            stored = self.scheme.tensors(self.names.layer(name), shape)
        if stored is None:
            return None
        weights, plain = self.folder.weights, f"{self.names.layer(name)}.weight"
        others = any(tensor in weights for tensor in stored if tensor != plain)
        return None if not others and weights.formats.get(plain) in FLOATS else stored

    def _stored(self, full: str) -> torch.Tensor:
        if full not in self.folder.weights:
            raise ModelError(f"there is no tensor {full}")
        return self.folder.weights.tensor(full)

    @contextmanager
    def _path_in_errors(self) -> Iterator[None]:
        """A scheme knows names of tensors, not where they are."""
        try:
            yield
        except ModelError as error:
            raise ModelError(f"{self.folder.path}: {error}") from error


class Names:
    """Short names beside the checkpoint's own."""

    def __init__(self, folder: Folder) -> None:
        self.path = folder.path
        self.tensors: dict[str, str] = {}
        """Short name of a tensor -> its name in the checkpoint."""
        self.layers: dict[str, str] = {}
        """Short name of a layer (a tensor's without the last word) -> its name in the checkpoint."""
        for full in folder.weights.shapes:
            name = short(full)
            if name in self.tensors:
                raise ModelError(
                    f"{self.path}: the tensors {self.tensors[name]} and {full} are the same; there must be one of them"
                )
            self.tensors[name] = full
            self.layers[name.rpartition(".")[0]] = full.rpartition(".")[0]
        self._prefixes = self._wrappers()

    def tensor(self, name: str) -> str:
        """The checkpoint's name of a tensor. Raises ModelError when it has none."""
        if (full := self.tensors.get(short(name))) is None:
            raise ModelError(f"{self.path}: there is no tensor {self.full(short(name))}")
        return full

    def layer(self, name: str) -> str:
        """The checkpoint's name of a layer, or what it would be called."""
        return self.layers.get(name) or self.full(name)

    def full(self, name: str) -> str:
        """What the checkpoint would call the tensor or the layer `name`, from how it calls others."""
        return self.tensors.get(name) or self._prefixes[_room(name)] + name

    def shards(self, table: str) -> list[str]:
        """The tensors that hold a table's rows, by short names, in order."""
        if f"{table}.weight" in self.tensors:
            return [f"{table}.weight"]
        start, end = f"{table}.shard_", ".weight"
        numbers = [
            name[len(start) : -len(end)] for name in self.tensors if name.startswith(start) and name.endswith(end)
        ]
        found = sorted(int(number) for number in numbers if number.isdecimal())
        if not found or found != list(range(len(found))):
            raise ModelError(
                f"{self.path}: the table {self.full(table)} must be one tensor or the shards 0, 1, 2 and so on; "
                f"there are {', '.join(map(str, found)) or 'none'}"
            )
        return [f"{start}{number}{end}" for number in found]

    def _wrappers(self) -> dict[str, str]:
        """Prefix of the checkpoint's names for the text layers, the tower and the rest."""
        found: dict[str, str] = {}
        for name, full in self.tensors.items():
            if full.endswith(name):
                found.setdefault(_room(name), full.removesuffix(name))
        text = found.get("text", "model.language_model.")
        return {"text": text, "visual": "model.", "mtp": "", "head": "", **found}


def _room(name: str) -> str:
    """Which of the parts with a prefix of their own a short name belongs to."""
    return {"visual": "visual", "mtp": "mtp", "lm_head": "head"}.get(name.partition(".")[0], "text")


# -------------------------------------------------------------------------------------------------------- quantization


def stored_quantization(folder: Folder) -> tuple[Path, Mapping[str, Any]] | None:
    """The file that says how a checkpoint is quantised, and what it says; None = it is not quantised.

    It is `quantization_config` in `config.json`. Exports of ModelOpt may have a file of their own instead, whose
    `quantization` is given the same form.
    """
    where = folder.path / "config.json"
    text = folder.config.get("text_config")
    for section in (folder.config, text if isinstance(text, Mapping) else {}):
        if (found := section.get("quantization_config")) is not None:
            if not isinstance(found, Mapping):
                raise ModelError(f"{where}: quantization_config is {found!r}; it must be an object")
            return where, found
    where = folder.path / "hf_quant_config.json"
    own = folder.json(where.name)
    if not own:
        return None
    inner = own.get("quantization")
    if not isinstance(inner, Mapping):
        raise ModelError(f"{where}: `quantization` is {inner!r}; it must be an object with a quant_algo")
    return where, {"quant_method": "modelopt", **inner}


def open_scheme(
    folder: Folder, quantizations: tuple[tuple[Quantization, Options], ...]
) -> tuple[str, WeightScheme] | None:
    """Name and scheme of the first enabled quantization that knows this checkpoint; None = it is not quantised.

    Raises ModelError when none of them does.
    """
    stored = stored_quantization(folder)
    if stored is None:
        return None
    where, config = stored
    for quantization, options in quantizations:
        try:
            scheme = quantization.open(options, config)
        except ModelError as error:
            raise ModelError(f"{where}: {error}") from error
        if scheme is not None:
            return quantization.name, scheme
    method = config.get("quant_method", "none")
    enabled = ", ".join(quantization.name for quantization, _ in quantizations) or "none"
    algorithm = config.get("quant_algo") or config.get("format")
    detail = f" with {algorithm}" if algorithm else ""
    raise ModelError(
        f"{where}: quant_method `{method}`{detail} is not among the enabled quantizations ({enabled}); "
        "enable one that reads it under `quantizations` in the manifest"
    )


# -------------------------------------------------------------------------------------------------------- file headers


def tensor_places(folder: Path, names: Iterable[str]) -> dict[str, tuple[Path, int]]:
    """For each tensor its file and where in it its first byte is.

    A safetensors file is the length of its header (8 bytes, little-endian), the header (JSON) and the numbers; the
    header's offsets count from the end of the header.
    """
    wanted = set(names)
    single = (folder / WEIGHTS).is_file()
    files = [WEIGHTS] if single else sorted(set(read_json(folder / INDEX)["weight_map"].values()))
    found: dict[str, tuple[Path, int]] = {}
    for path in (folder / name for name in files):
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header: Mapping[str, Any] = json.loads(file.read(length))
        found |= {name: (path, 8 + length + header[name]["data_offsets"][0]) for name in wanted & header.keys()}
    return found
