"""A checkpoint on disk, seen one way whatever its file format: names, shapes and tensors."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from tandem.core.plugin import Checkpoint, ModelError
from tandem.plugins.models.llama.config import LlamaConfig

if TYPE_CHECKING:
    import torch

    from tandem.plugins.models._hf.tokenizer import TextTokenizer

FLOAT_FORMATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class Groups:
    """A matrix of 4-bit numbers: weight = (code - 8) * scale + zero, scale and zero shared by 32 columns of a row."""

    codes: torch.Tensor
    """`[out, in]` uint8, 0 to 15."""
    scale: torch.Tensor
    """`[out, in / 32]` float32."""
    zero: torch.Tensor
    """`[out, in / 32]` float32."""


class Source(ABC):
    """A checkpoint that has been opened: its headers are read, its weights are not."""

    path: Path
    config: LlamaConfig
    name: str
    template: str | None = None
    template_vars: Mapping[str, str]
    recommended_sampling: Mapping[str, float] = MappingProxyType({})
    """How the checkpoint's makers would draw tokens, when they say so."""

    @abstractmethod
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape `[out, in]` of every tensor in the checkpoint, by the Hugging Face names where they have one."""

    @abstractmethod
    def format(self, name: str) -> str:
        """How the tensor's numbers are stored: `F32`, `BF16`, `Q4_1`, ..."""

    @abstractmethod
    def tensor(self, name: str) -> torch.Tensor:
        """The tensor in its own float type, quantised ones as float32.

        The rows of query and key projections come with the two numbers of a rotary pair side by side.
        """

    @abstractmethod
    def tokenizer(self) -> TextTokenizer: ...

    def groups(self, name: str) -> Groups | None:
        """The tensor as it is stored, if that is 4 bits in groups of 32; rows as in `tensor`."""
        return None

    def fingerprint(self, held: str) -> str:
        """Changes with the checkpoint's files, as far as their names, sizes and times tell, and with how it is held."""
        files = sorted(self.path.iterdir()) if self.path.is_dir() else [self.path]
        known = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]
        return hashlib.sha256(f"{held} {known}".encode()).hexdigest()

    def rope_divisors(self) -> torch.Tensor | None:
        """What the checkpoint divides its rotary frequencies by, `[head_dim / 2]`, when it stores that."""
        return None

    def ignores(self, name: str) -> bool:
        """A tensor that may be there and isn't needed."""
        return False

    def check(self) -> None:
        """Compare the tensors with what the config asks for; raises ModelError that names every difference."""
        wanted, found = self.config.shapes(), self.shapes()
        wrong = [
            f"{name} is {_written(found[name])} instead of {_written(shape)}"
            for name, shape in wanted.items()
            if name in found and found[name] != shape
        ]
        missing = [name for name in wanted if name not in found]
        extra = [name for name in found if name not in wanted and not self.ignores(name)]
        problems = [
            f"{word}: {', '.join(names)}"
            for word, names in (("missing", missing), ("of a wrong shape", wrong), ("not known", extra))
            if names
        ]
        if problems:
            raise ModelError(
                f"{self.path}: the tensors are not those of a {self.config.architecture} with the sizes in its "
                f"config; {'; '.join(problems)}"
            )


def _written(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def open_source(checkpoint: Checkpoint) -> Source:
    """Open a checkpoint by what it is: a directory, or a file that starts as a GGUF does. Reads headers only."""
    from tandem.plugins.models.llama.gguf_file import GgufFile
    from tandem.plugins.models.llama.hf_folder import HfFolder

    path = checkpoint.path
    if not path.exists():
        raise ModelError(f"{path}: there is nothing here; `checkpoint` must be a GGUF file or a Hugging Face directory")
    source: Source = HfFolder(path) if path.is_dir() else GgufFile(path)
    source.check()
    return source


def pairs_together(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder the rows of a query or key projection from half-split to interleaved rotary pairs.

    Hugging Face checkpoints keep the first numbers of all pairs of a head before all second ones; GGUF files of
    this architecture, and this builder, keep each pair together. `rows` is `[heads * head_dim, ...]`.
    """
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)
