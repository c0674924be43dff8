"""What the rules that look across a session cost a request.

    python benchmarks/session_rules.py --calls 200

Makes the conversation of an agent with so many calls (a third each reads, writes and shell commands) and asks every
rule about it: once as a conversation that the server sees for the first time, then as one that brings two results.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tandem.core.plugin import RequestEvent, Tool
from tandem.plugins.rules import claim_check, deliver, gate_fails, progress, state_files
from tandem.testing.rules import Stand, call, request

RULES = (claim_check, deliver, gate_fails, progress, state_files)


def tool(name: str, *names: str) -> Tool:
    return Tool(name, "", {"properties": {key: {"type": "string"} for key in names}, "required": list(names)})


TOOLS = [tool("read", "filePath"), tool("write", "content", "filePath"), tool("bash", "command")]


def conversation(calls: int) -> list[dict[str, Any]]:
    """The messages of a session with so many calls."""
    messages = [
        {"role": "system", "content": "Work in steps. " * 600 + "The state is in PROGRESS.yaml."},
        {"role": "user", "content": "Go on."},
    ]
    for n in range(calls):
        kinds: list[tuple[str, dict[str, Any], str]] = [
            ("read", {"filePath": f"a{n}.py"}, "a line of text\n" * 300),
            ("write", {"filePath": f"a{n}.py", "content": "value = 1\n" * 300}, "ok"),
            ("bash", {"command": f"cd app && npm test -- {n} 2>&1 | tail -20"}, "ok\n" * 300 + "Exit code: 1"),
        ]
        messages += call(*kinds[n % 3], id=f"c{n}")
    return messages


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(module: Any, first: RequestEvent, next_one: RequestEvent) -> tuple[float, float]:
    """Milliseconds of a rule for the conversation when it is new, and the median for a request of it."""
    (rule,) = module.tandem_rules()
    stand = Stand(rule)
    return (
        1e3 * seconds(lambda: stand.check(first)),
        1e3 * statistics.median(seconds(lambda: stand.check(next_one)) for _ in range(50)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=200, help="calls of the conversation")
    messages = conversation(parser.parse_args().calls)
    first = request(messages, tools=TOOLS)
    print(f"{len(json.dumps(messages)):,} bytes of JSON")
    for module in RULES:
        new, each = measure(module, first, replace(first, new_calls=first.new_calls[-2:]))
        print(f"{module.__name__.rpartition('.')[2]:12} first {new:5.1f} ms   a request {each:5.2f} ms")


if __name__ == "__main__":
    main()
