"""Tiny checkpoints beside their oracle, built once; one thread, since tests share the machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the tiny models, shared by this room's tests
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from qwen4_tiny import make

from tandem.core.plugin import Block, Checkpoint
from tandem.core.plugin.part import with_defaults
from tandem.plugins.models.qwen4_exp import OPTIONS, build


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def load4() -> Callable[..., Any]:
    """`load4(path, **options)` builds a model, in float32 on the CPU unless told otherwise."""

    def load4(path: Path, **options: Any) -> Any:
        chosen = with_defaults(OPTIONS, {"dtype": "float32", "device": "cpu", **options})
        return build(Checkpoint(path, str(path)), chosen, lambda what, done, total: None)

    return load4


@pytest.fixture(scope="session")
def tiny4_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A checkpoint that tests may read or copy, not change, and transformers' own model of it."""
    path = tmp_path_factory.mktemp("qwen4")
    return path, make(path)


@pytest.fixture(scope="session")
def tiny4(load4: Callable[..., Any], tiny4_folder: tuple[Path, Any]) -> Any:
    """The same, loaded exactly."""
    return load4(tiny4_folder[0])


@pytest.fixture(scope="session")
def read4() -> Callable[..., torch.Tensor]:
    """`read4(model, sequence, tokens, chunk=512)`: read and commit the tokens; the logits of all, `[n, vocab]`."""

    def read4(model: Any, sequence: Any, tokens: Sequence[int], chunk: int = 512) -> torch.Tensor:
        parts = []
        for start in range(0, len(tokens), chunk):
            part = list(tokens[start : start + chunk])
            parts += model.forward([Block(sequence, part, None, range(len(part)))])
            sequence.commit(range(len(part)))
        return torch.cat(parts)

    return read4
