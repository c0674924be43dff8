"""Where a model computes, and in which number type."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from tandem.core.plugin import ModelError, Options

T = TypeVar("T")


def choose(options: Options) -> tuple[torch.device, torch.dtype]:
    """What the options `device` and `dtype` say. Raises ModelError for a GPU that is not there."""
    name = options["device"]
    if name == "cuda" and not torch.cuda.is_available():
        raise ModelError(
            "the option `device: cuda` can't be met: torch finds no GPU here; `auto` and `cpu` take the processor"
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(options["dtype"])
    if dtype is None:
        dtype = torch.bfloat16 if name == "cuda" or _cpu_multiplies_bfloat16() else torch.float32
    return torch.device(name), dtype


def _cpu_multiplies_bfloat16() -> bool:
    """Without such instructions bfloat16 matrices are slower than float32 ones."""
    features = dict(torch.cpu.get_capabilities())
    return any(features.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16", "arm_bf16"))


def in_passing_thread(work: Callable[[], T]) -> T:
    """Do `work` (the loading) in a thread that ends with it.

    Each thread that computes keeps OpenMP helpers of its own for good. As soon as a process has more of them than
    cores, all of them sleep between two operations instead of waiting awake, and waking them takes longer than one
    operation of a decode step. So nothing of the loading stays behind.
    """
    with ThreadPoolExecutor(1, "tandem-load") as loader:
        return loader.submit(work).result()
