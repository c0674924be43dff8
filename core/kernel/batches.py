"""Slow writes on a thread of their own: what is put is written soon, in batches, and nobody waits for a disk."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

log = logging.getLogger("tandem.batches")

Item = TypeVar("Item")
NICENESS = 10
"""Where a thread has a priority of its own (Linux): those that compute go first."""


class _End:
    """Nothing comes behind it."""


class Batches(Generic[Item]):
    """Hands what was put to `write`, in order, on one thread. Safe from any thread.

    The queue is bounded, so a slow `write` costs items, which `put` reports, and never the caller's time. The thread is
    started with the first item. A `write` that raises is logged, and the thread goes on.
    """

    def __init__(
        self,
        write: Callable[[list[Item]], None],
        name: str,
        *,
        room: int,
        most: int,
        last: Callable[[], None] = lambda: None,
    ) -> None:
        """`room` items may wait, and one batch has `most`. `last` is called on the thread when it ends."""
        self._write = write
        self._name = name
        self._most = most
        self._last = last
        self._queue: queue.Queue[Item | threading.Event | _End] = queue.Queue(room)
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, item: Item) -> bool:
        """Have it written soon; False when there is no room, or after `close`."""
        with self._starting:
            if self._closed:
                return False
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            return False
        return True

    def flush(self, timeout_s: float) -> bool:
        """Wait until what was put so far was given to `write`; False when that took too long."""
        if self._thread is None or not self._thread.is_alive():
            return True
        done = threading.Event()
        try:
            self._queue.put(done, timeout=timeout_s)
        except queue.Full:
            return False
        return done.wait(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Write what waits, and end the thread. What takes longer is left to it. Safe to call twice."""
        with self._starting:
            self._closed = True
        thread = self._thread
        if thread is None or not thread.is_alive():
            return
        with contextlib.suppress(queue.Full):
            self._queue.put(_End(), timeout=timeout_s)
        thread.join(timeout_s)

    def _run(self) -> None:
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        closing = False
        while not closing:
            taken = [self._queue.get()]
            with contextlib.suppress(queue.Empty):
                while len(taken) < self._most:
                    taken.append(self._queue.get_nowait())
            closing = any(isinstance(item, _End) for item in taken)
            items = [item for item in taken if not isinstance(item, threading.Event | _End)]
            if items:
                try:
                    self._write(items)
                except Exception:
                    log.exception("%s: %d items are lost", self._name, len(items))
            for item in taken:
                if isinstance(item, threading.Event):
                    item.set()
        self._last()
