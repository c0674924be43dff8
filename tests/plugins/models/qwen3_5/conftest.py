"""Tiny random checkpoints of the family, one of each kind, loaded exactly; and one thread: tests share the machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the tiny checkpoints, shared by this room's tests
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from qwen35_tiny import Tiny, load, make


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Tiny]:
    """`tiny_of("moe", tied=True)`: a checkpoint that tests may read or copy, not change, made once a session."""

    @cache
    def tiny_of(kind: str = "text", **config: Any) -> Tiny:
        return make(tmp_path_factory.mktemp(kind), kind, **config)

    return tiny_of


@pytest.fixture(scope="session")
def folder(tiny_of: Callable[..., Tiny]) -> Path:
    """The dense text model's checkpoint, with multi-token prediction."""
    return tiny_of("text").path


@pytest.fixture(scope="session")
def model(folder: Path) -> Any:
    """The same, loaded exactly, without multi-token prediction."""
    return load(folder, mtp="off")


@pytest.fixture(scope="session")
def drafting(folder: Path) -> Any:
    """The same with multi-token prediction."""
    return load(folder, mtp="on")
