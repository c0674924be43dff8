"""The process that a soak watches: `tandem serve`, and a thread that says on SIGUSR1 how much it holds.

Run as a program it takes the file for its reports, then the arguments of `tandem`. A report is JSON, whole or not
there, and has the number of the signal that asked for it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

POOLS = ("asyncio_", "uvloop_", "image_")
"""Threads of pools. How many there are is a matter of the bursts, up to a fixed number."""


def main() -> None:
    """The signal is blocked before any thread is there: each inherits that, and only the reporter gets it."""
    report = Path(sys.argv.pop(1))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    threading.Thread(target=_report, args=(report,), name="soak-report", daemon=True).start()
    from tandem.api.command import main as tandem

    tandem()


def _report(path: Path) -> None:
    number = 0
    while True:
        signal.sigwait([signal.SIGUSR1])
        number += 1
        held = _held()
        new = path.with_suffix(".new")
        new.write_text(json.dumps({"number": number, **held}), "utf-8")
        new.replace(path)


def _held() -> dict[str, Any]:
    """What is left when what can be given back has been."""
    gc.collect()
    with suppress(OSError, AttributeError):  # another C library keeps what it freed
        ctypes.CDLL(None).malloc_trim(0)
    process = psutil.Process()
    lasting = [thread for thread in threading.enumerate() if not thread.name.startswith(POOLS)]
    return {
        "rss": process.memory_info().rss,
        "objects": len(gc.get_objects()),
        "threads": sorted(thread.name for thread in lasting),
        "files": process.num_fds(),
    }


if __name__ == "__main__":
    main()
