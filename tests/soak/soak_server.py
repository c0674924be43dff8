"""The server under a soak, seen from outside."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import soak_child

from tandem.testing.server import ServerProcess, until


@dataclass(frozen=True, slots=True)
class Held:
    """What the process holds, garbage and free blocks given back."""

    number: int
    rss: int
    """Bytes in memory."""
    objects: int
    threads: list[str]
    """The names of Python's threads, without those of pools."""
    files: int
    """Open descriptors, sockets among them."""


class WatchedServer(ServerProcess):
    """`tandem serve` in a process of its own that reports what it holds."""

    def __init__(self, folder: Path, manifest: str, *settings: str) -> None:
        self._report = folder / "held.json"
        self.command = (sys.executable, soak_child.__file__, str(self._report))
        super().__init__(manifest, *(word for setting in settings for word in ("--set", setting)))

    def held(self) -> Held:
        before = self._read()
        self.signal(signal.SIGUSR1)
        until(lambda: self._read().number > before.number)
        return self._read()

    def _read(self) -> Held:
        if not self._report.exists():
            return Held(0, 0, 0, [], 0)
        return Held(**json.loads(self._report.read_text("utf-8")))

    def health(self) -> dict[str, Any]:
        answer: dict[str, Any] = httpx2.get(f"{self.url}/health", timeout=20, trust_env=False).json()
        return answer

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics by its name with its labels."""
        lines = httpx2.get(f"{self.url}/metrics", timeout=20, trust_env=False).text.splitlines()
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def idle(self, seconds: float = 30.0) -> None:
        """Wait until every place, the queue and the lane are empty."""

        def empty() -> bool:
            queue = self.health()["queue"]
            return not (queue["running"] or queue["waiting"] or queue["lane"]["running"])

        until(empty, seconds)

    def log(self) -> str:
        """What the server has written to stderr so far."""
        # pread leaves the offset alone at which the server writes on
        return os.pread(self._errors.fileno(), 1 << 26, 0).decode()
