"""What the file of earlier turns costs: writing, finding, not finding, looking through it.

python benchmarks/turnfile.py [TURNS]
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tandem.core.engine.replay import Turn, Written
from tandem.core.engine.turnfile import TurnFile

MODEL = bytes(16)
WRITTEN = Written.of(range(250), "<think>\n", True, bytes(16))
ASKED = 2000
"""Look-ups that are timed."""


def key(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=16).digest()


def timed(work: Callable[[], object], times: int = 1) -> float:
    """Seconds of one."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) / times


def fill(file: TurnFile, count: int) -> None:
    for number in range(count):
        file.put(Turn(key(f"e{number}"), key(f"l{number}"), key(f"p{number}"), WRITTEN))
        if number % 1000 == 999:
            file.settle(60)
    file.settle(60)


def find(file: TurnFile, name: str, step: int) -> None:
    for number in range(ASKED):
        at = number * step
        file.find(key(f"{name}e{at}"), key(f"{name}l{at}"), key(f"{name}p{at}"))


def main() -> None:
    count = int(sys.argv[1]) if sys.argv[1:] else 40_000
    with tempfile.TemporaryDirectory() as folder:
        file = TurnFile(Path(folder), MODEL, 1 << 30, 14)
        print(f"write a turn           {timed(lambda: fill(file, count), count) * 1e6:8.0f} µs")
        file.close()
        file = TurnFile(Path(folder), MODEL, 1 << 30, 14)
        file.find(b"", None, b"")
        print(f"find a turn            {timed(lambda: find(file, '', max(1, count // ASKED)), ASKED) * 1e6:8.0f} µs")
        print(f"find that there is none{timed(lambda: find(file, 'x', 1), ASKED) * 1e6:8.0f} µs")
        file.put(Turn(key("new"), None, key("new"), WRITTEN))
        print(f"look through the file  {timed(lambda: file.settle(60)) * 1e3:8.0f} ms")
        stats = file.stats()
        print(f"{stats['entries']} turns of {len(WRITTEN.tokens)} tokens in {stats['bytes'] / 1e6:.1f} MB")
        file.close()


if __name__ == "__main__":
    main()
