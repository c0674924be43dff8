"""Serves many conversations in little memory, and prints what became of it. Run by test_memory_http.py.

    python memory_child.py MIB COUNT gate|open|peak

The process limits its own address space to MIB more than it has now (with `peak` it has a peak of so much instead), and
keeps COUNT conversations of 64 MiB each. With `open` nobody asks the gate. Else it sends a prompt that needs more than
there is, alone and four times at once among small ones, and small ones at the end.
"""

from __future__ import annotations

import json
import resource
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import weighty

from tandem.core.engine.memory import OPENS
from tandem.core.engine.meter import Meter
from tandem.testing.box import Box


def main(mib: int, count: int, mode: str) -> None:
    server: dict[str, Any] = {"parallel": 1}
    if mode == "peak":
        server |= {"mem_peak_gib": (Meter().read().held + (mib << 20)) / 2**30, "mem_floor_gib": 0}
    else:
        limit = psutil.Process().memory_info().vms + (mib << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    keep = {"resident": {"gib": 100, "conversations": 1000}}
    with Box(model={"plugin": "weighty"}, caches=keep, server=server, plugins=[weighty]) as box:
        if mode == "open":
            assert box.engine.gate is not None
            box.engine.gate.admit = lambda *args, **more: OPENS  # type: ignore[method-assign]
        statuses = [box.chat(f"{place:04} " * 200, max_tokens=8).status for place in range(count)]
        health = box.get("/health").json()
        refusals = [] if mode == "open" else [refusal(box)]
        kept = box.get("/health").json()["caches"]["resident"]
        small = [] if mode == "open" else pressed(box, refusals)
        after = box.get("/health").json()
    told = {"statuses": statuses, "memory": health["memory"], "resident": health["caches"]["resident"]}
    print(json.dumps({**told, "refusals": refusals, "kept": kept, "small": small, "after": after}))


def refusal(box: Box) -> dict[str, Any]:
    """What comes of a prompt of 900 MiB."""
    answer = box.chat("too much " * 800, max_tokens=8)
    return {"status": answer.status, "retry_after": answer.headers.get("retry-after"), "body": answer.body}


def pressed(box: Box, refusals: list[dict[str, Any]]) -> list[int]:
    """The statuses of small requests among such prompts, and of some after them."""
    with ThreadPoolExecutor(8) as pool:
        large = [pool.submit(refusal, box) for _ in range(4)]
        small = [pool.submit(box.chat, f"small {number}", max_tokens=8) for number in range(4)]
        refusals += [one.result() for one in large]
        statuses = [one.result().status for one in small]
    return statuses + [box.chat(f"later {number}", max_tokens=8).status for number in range(3)]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
