"""What the journal costs the thread that decides: one write, and one counted pass, with and without a file.

python benchmarks/journal.py [--entries 20000]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tandem.core.conductor import Entry, Journal, Query
from tandem.core.conductor.events_file import EventsFile
from tandem.core.conductor.journal import Outcome


def each(work: Callable[[int], None], count: int) -> tuple[float, float]:
    """The median, and what 1 in 1,000 takes at least, in microseconds."""
    times = []
    for number in range(count):
        start = time.perf_counter()
        work(number)
        times.append(time.perf_counter() - start)
    times.sort()
    return times[count // 2] * 1e6, times[-1 - count // 1000] * 1e6


def entry(number: int) -> Entry:
    return Entry(
        number,
        "rule",
        "sp1",
        "notify",
        f"found({number})",
        True,
        "T",
        "act",
        f"s{number % 50}",
        hidden="The same words.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--entries", type=int, default=20_000)
    count = parser.parse_args().entries
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "conductor.sqlite"
        for name, journal in {"memory": Journal(), "file": Journal(file=EventsFile(path))}.items():
            passed = each(lambda n, j=journal: j.passed("T", "act"), count)  # type: ignore[misc]

            def write(number: int, journal: Journal = journal) -> None:
                journal.write(entry(number))
                journal.ended(Outcome(number, "chatcmpl-x", "stop", 10))

            def write_paced(number: int, journal: Journal = journal) -> None:
                if number % 2000 == 0:
                    journal.select(Query(limit=1))  # the disk catches up; that is one write in 2,000
                write(number)

            wrote = each(write_paced, count)
            start = time.perf_counter()
            journal.close()
            told = journal.report()
            print(
                f"{name}: a pass {passed[0]:.1f} us (1 in 1,000: {passed[1]:.0f}), "
                f"a decision and its end {wrote[0]:.1f} us ({wrote[1]:.0f}); "
                f"{told.get('written', 0):,} rows on disk, {told.get('dropped', 0):,} dropped, "
                f"{time.perf_counter() - start:.2f} s to close"
            )
        if path.exists():
            print(f"{path.stat().st_size / count:.0f} bytes a decision")


if __name__ == "__main__":
    main()
