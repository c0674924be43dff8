"""How much memory there is: whether what a builder describes fits, before any of it is read, and what is left later."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

CGROUPS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Where a container's limit is told, version 2 and version 1: directory, limit, use, and the field of `memory.stat`
that says how much of the use is cached files, which give way."""

GROWTH = 16
"""Weights take at most this many times their file's size: 4 bits become 32, and are held twice."""

LEAST_ROWS = 1024
"""A model that can't hold this many tokens beside its weights serves nobody."""


def misfit(facts: Mapping[str, Any], available: int | None = None) -> str | None:
    """Why the described model can't be loaded here, in a sentence; None when it can, or when the facts don't say.

    `facts` is what `ModelBuilder.describe` gave: `weight_bytes` is held after loading, `kv_bytes_per_token` and
    `state_bytes` by each sequence, on `device` (without one, the CPU). `available` bytes replace what the machine has.
    """
    weights = facts.get("weight_bytes")
    if not isinstance(weights, int):
        return None
    device = str(facts.get("device", "cpu"))
    if available is None:
        available = available_bytes(device)
    rows = int(facts.get("state_bytes", 0)) + LEAST_ROWS * int(facts.get("kv_bytes_per_token", 0))
    if available is None or weights + rows <= available:
        return None
    return (
        f"the weights take {in_gib(weights)} and a sequence of {LEAST_ROWS} tokens {in_gib(rows)}, "
        f"but {'this machine' if device == 'cpu' else f'the device {device}'} has {in_gib(available)} of memory left; "
        "free some, or load weights in fewer bits"
    )


def surely_fits(path: Path) -> bool:
    """A checkpoint so small that it fits however it is held. To describe it could take a second for nothing."""
    files = [path] if path.is_file() else path.rglob("*")
    room = available_bytes()
    return room is not None and GROWTH * sum(file.stat().st_size for file in files if file.is_file()) <= room


def available_bytes(device: str = "cpu") -> int | None:
    """Bytes that this process can still take: of the machine's memory within its container's limit and its own limit
    (`ulimit -v`), or of the GPU's.

    A GPU that shares the machine's memory has what the machine has: the driver counts cached files as taken, although
    they give way. None for a device that does not tell.
    """
    if device.startswith("cuda") and not _shares_memory(device):
        import torch

        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    if device != "cpu" and not device.startswith("cuda"):
        return None
    left = [max(0, limit - use) for limit, use in (*_containers(), *_own_limit())]
    return min([psutil.virtual_memory().available, *left])


def total_bytes(device: str = "cpu") -> int | None:
    """The memory of the machine within the same limits, or of the GPU; None for a device that does not tell."""
    if device.startswith("cuda") and not _shares_memory(device):
        import torch

        total: int = torch.cuda.mem_get_info(device)[1]
        return total
    if device != "cpu" and not device.startswith("cuda"):
        return None
    return min([psutil.virtual_memory().total, *(limit for limit, _ in (*_containers(), *_own_limit()))])


def _shares_memory(device: str) -> bool:
    """Whether a GPU has no memory of its own."""
    import torch

    return bool(getattr(torch.cuda.get_device_properties(device), "is_integrated", False))


def _containers() -> list[tuple[int, int]]:
    """The limit of this process's container and what is used of it, cached files not counted; empty without one."""
    return [found for place in CGROUPS if (found := _cgroup(*place)) is not None]


def _cgroup(root: Path, limit_name: str, use_name: str, cached: str) -> tuple[int, int] | None:
    try:
        limit, use = int((root / limit_name).read_text()), int((root / use_name).read_text())
        stat = dict(line.split(None, 1) for line in (root / "memory.stat").read_text().splitlines())
        return limit, use - int(stat.get(cached, 0))
    except (OSError, ValueError):  # not there, or `max`
        return None


def _own_limit() -> list[tuple[int, int]]:
    """The limit of this process's address space and what is used of it; empty without one."""
    if resource is None or (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) == resource.RLIM_INFINITY:
        return []
    return [(limit, psutil.Process().memory_info().vms)]


def in_gib(size: int) -> str:
    """A size as messages write it."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**28 else f"{size / 2**20:.0f} MiB"
