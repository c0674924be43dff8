"""The one thread that computes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class ModelThread:
    """Runs all work on the model, its loading included, on one thread.

    It is not only about order. OpenMP keeps a team of threads for each thread that ever computed in parallel, and once
    the teams together have more threads than the machine has cores, waiting threads are put to sleep instead of
    spinning. A token is a hundred short parallel sections, so a model that was loaded on another thread than it runs
    on decodes less than half as fast (SmolLM2 on two cores: 71 instead of 176 tokens a second).
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="tandem-engine", daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], T]) -> T:
        """Do `work` there and wait for it: its result, or what it raises."""
        done = threading.Event()
        outcome: dict[str, Any] = {}

        def task() -> None:
            try:
                outcome["result"] = work()
            except BaseException as error:
                outcome["error"] = error
            finally:
                done.set()

        self._work.put(task)
        done.wait()
        if "error" in outcome:
            raise outcome["error"]
        result: T = outcome["result"]
        return result

    def post(self, work: Callable[[], None]) -> None:
        """Do `work` there, after what was given before."""
        self._work.put(work)

    def close(self) -> None:
        """End the thread after the work it has, and wait for it. Safe to call twice, not from the thread itself."""
        self._work.put(None)
        self._thread.join()

    def _loop(self) -> None:
        while (task := self._work.get()) is not None:
            task()
