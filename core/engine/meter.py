"""What this process holds of the memory, and how its free blocks are given back."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import psutil

from tandem.core.kernel.memory import available_bytes


@dataclass(frozen=True, slots=True)
class Reading:
    """The memory at one moment, in bytes."""

    held: int
    """What this process holds, the free blocks of its allocator included."""
    available: int
    """What it could take besides."""
    reusable: int = 0
    """The free blocks, as far as the allocator tells: new tensors take these first."""


class Meter:
    """Reads the memory of one device. Safe to read from any thread.

    On a CPU the process holds its resident set less the pages of mapped files: the kernel drops those by itself when
    memory gets short, so weights that are mapped from the disk are no reason to give a cache up. The unique set (USS)
    says nearly the same, but to learn it the kernel walks over every page of the process, which takes milliseconds for
    each GiB; this reading takes microseconds. On a GPU the numbers are torch's allocator's.
    """

    def __init__(self, device: str = "cpu") -> None:
        self._device = device
        self._process = psutil.Process()

    def read(self) -> Reading:
        available = available_bytes(self._device)
        available = sys.maxsize if available is None else available
        if self._device.startswith("cuda"):
            import torch

            reserved = torch.cuda.memory_reserved(self._device)
            return Reading(reserved, available, reserved - torch.cuda.memory_allocated(self._device))
        told = self._process.memory_info()
        return Reading(max(0, told.rss - getattr(told, "shared", 0)), available)

    def release(self) -> None:
        """Give the allocator's free blocks back: to the GPU's driver, or to the machine where the C library can."""
        if self._device.startswith("cuda"):
            import torch

            torch.cuda.empty_cache()
        elif (trim := _malloc_trim()) is not None:
            trim(0)

    def collect(self) -> None:
        """Find what nobody refers to any more, then release. Takes some tens of milliseconds."""
        gc.collect()
        self.release()


def device_of(facts: Mapping[str, Any]) -> str:
    """Where a loaded model is: what its facts say, else the GPU that this process has begun to use, else the CPU."""
    if "device" in facts:
        return str(facts["device"])
    torch = sys.modules.get("torch")
    return "cuda" if torch is not None and torch.cuda.is_initialized() else "cpu"


@cache
def _malloc_trim() -> Any:
    """The function of glibc that gives free pages of the heap back; None elsewhere."""
    with suppress(OSError, AttributeError, TypeError):
        return ctypes.CDLL(None).malloc_trim
    return None
