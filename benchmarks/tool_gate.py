"""The tool gate's rules on real commands and on long ones: what `risk` finds, and what a call costs.

    python benchmarks/tool_gate.py [FOLDER ...] [--show N]

The commands are the shell blocks of the Markdown files and package descriptions below the folders (by default those of
the installed packages): what people tell each other to type. `--show N` prints up to N findings of each kind, to judge
them by eye. The second table is the time of one check for the longest that each rule may have to read.
"""

from __future__ import annotations

import argparse
import json
import re
import site
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence as Seq
from pathlib import Path

from tandem.core.plugin import PastCall, Tool
from tandem.plugins.rules import _streak, call_sequence, malformed_call
from tandem.plugins.rules._paths import Project
from tandem.plugins.rules.risk.danger import dangers
from tandem.testing.rules import Stand, request, written

FENCE = re.compile(r"^[ \t]*```+ *(?:bash|sh|shell|console|zsh)\b[^\n]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
PROJECT = Project("/home/u/app", "/home/u")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, default=[Path(path) for path in site.getsitepackages()])
    parser.add_argument("--show", type=int, default=0)
    options = parser.parse_args()
    judge_blocks(options.folders, options.show)
    print()
    for name, milliseconds in costs():
        print(f"{name:<72} {milliseconds:8.3f} ms")


def judge_blocks(folders: Seq[Path], show: int) -> None:
    texts = {text for folder in folders for text in blocks(folder)}
    found: dict[str, list[str]] = defaultdict(list)
    start = time.perf_counter()
    for text in sorted(texts):
        for reason in {danger.reason for danger in dangers(text, PROJECT)}:
            found[reason].append(text)
    seconds = time.perf_counter() - start
    count = len({text for several in found.values() for text in several})
    print(f"{len(texts)} blocks, {seconds / max(len(texts), 1) * 1e6:.0f} us each; {count} with findings:")
    for reason, number in Counter({reason: len(several) for reason, several in found.items()}).most_common():
        print(f"  {reason:<20} {number}")
        for text in found[reason][:show]:
            print("      " + text.replace("\n", "\n      "))


def blocks(folder: Path) -> Iterator[str]:
    """Every shell block below a folder, without the prompts."""
    for path in (*folder.rglob("*.md"), *folder.rglob("METADATA")):
        if path.is_file() and path.stat().st_size < 300_000:
            for found in FENCE.finditer(path.read_text("utf-8", "replace")):
                yield re.sub(r"^[ \t]*\$ ", "", found[1], flags=re.MULTILINE).strip()


def costs() -> Iterator[tuple[str, float]]:
    """What is measured and its milliseconds, the best of five."""
    document = "cat > a.py <<'EOF'\n" + "x = [1, 2]  # $y `z`\n" * 5_000 + "EOF\n"
    yield f"risk: a here-document of {len(document):,} characters", best(lambda: dangers(document, PROJECT))
    line = "cd a && git status | head -5; " * 100
    yield "risk: 300 programs in one command", best(lambda: dangers(line, PROJECT))
    calls = [PastCall("c", "grep", {}, "x" * 3_000 + str(i) + "y" * 3_000, "r") for i in range(3)]
    yield "loop_escape: three calls with 6,000 characters", best(lambda: _streak.near_run(calls, 10, 3, 0.8))
    a, b = "abcdefg" * 571, "gfedcba" * 571
    yield "loop_escape: two texts of 4,000 characters without a common end", best(lambda: _streak.similarity(a, b))
    properties = {f"p{i}": {"type": "string", "description": "One of them."} for i in range(10)}
    schema = {"type": "object", "properties": properties, "required": ["p0"], "additionalProperties": False}
    tools = [Tool(f"create_thing_{i}", "Creates a thing.", schema) for i in range(40)]
    offered = request(tools=tools)
    stand = Stand(malformed_call.tandem_rules()[0], event=offered)
    event = written(offered, ("create_thing_0", json.dumps({"p0": "x" * 100_000})))
    yield "malformed_call: ten parameters, one of 100,000 characters", best(lambda: stand.check(event))
    rule = call_sequence.tandem_rules()[0]
    yield (
        "call_sequence: forty tools read anew",
        best(
            lambda: Stand(rule, event=offered).check(written(offered, ("create_thing_0", {}), ("create_thing_1", {})))
        ),
    )


def best(what: Callable[[], object]) -> float:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        what()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


if __name__ == "__main__":
    main()
