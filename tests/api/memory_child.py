"""Serves many conversations in little memory, and prints what became of it. Run by test_memory_http.py.

    python memory_child.py MIB COUNT gate|open

The process limits its own address space to MIB more than it has now, then keeps COUNT conversations of 64 MiB each.
With `open` nobody asks the gate.
"""

from __future__ import annotations

import json
import resource
import sys

import psutil
import weighty

from tandem.core.engine.memory import OPENS
from tandem.testing.box import Box


def main(mib: int, count: int, mode: str) -> None:
    limit = psutil.Process().memory_info().vms + (mib << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    keep = {"resident": {"gib": 100, "conversations": 1000}}
    with Box(model={"plugin": "weighty"}, caches=keep, server={"parallel": 1}, plugins=[weighty]) as box:
        if mode == "open":
            assert box.engine.gate is not None
            box.engine.gate.admit = lambda *args, **more: OPENS  # type: ignore[method-assign]
        statuses = [box.chat(f"{place:04} " * 200, max_tokens=8).status for place in range(count)]
        health = box.get("/health").json()
    print(json.dumps({"statuses": statuses, "memory": health["memory"], "resident": health["caches"]["resident"]}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
