"""How much memory a piece of work takes: every allocation of torch on the CPU, the operators' own included."""

from __future__ import annotations

from collections.abc import Callable

import torch


def peak_bytes(work: Callable[[], object]) -> int:
    """The most bytes that torch held on the CPU at once while `work` ran, above what it held before.

    The allocator's own record, so neither the machine's load nor free blocks of the heap play a part. What numpy and
    Python hold is not in it. What `work` frees of what was there before counts as less.
    """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    results = profile.profiler.kineto_results
    changes = sorted(
        ((event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]"),
        key=lambda change: change[0],
    )
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most
