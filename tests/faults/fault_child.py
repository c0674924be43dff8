"""`tandem serve` that is killed at the k-th thing that it asks of the disk.

Run as a program it takes k, then the arguments of `tandem`. SIGKILL comes before the call, or, for a write, when half
of it was done: what a store has written by then is what the next server finds.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any


def main() -> None:
    at = int(sys.argv.pop(1))
    calls = itertools.count(1)

    def killing(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            if next(calls) == at:
                if call is write:
                    write(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return called

    write = os.write
    from tandem.api.command import main as tandem

    for name in ("write", "fsync", "replace", "rename", "ftruncate", "unlink"):
        setattr(os, name, killing(getattr(os, name)))
    tandem()


if __name__ == "__main__":
    main()
