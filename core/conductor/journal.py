"""The journal: what rules decided, and what went wrong with them."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Entry:
    """One decision. It holds reasons and counts, never a prompt or an answer."""

    request: int
    """The request's number in this process."""
    rule: str
    point: str
    action: str
    """`pass`, `notify`, `give_up` or `fault`."""
    reason: str
    done: bool
    """Whether the action took effect; False in shadow mode and for faults."""
    time: float = field(default_factory=time.time)


class Journal:
    """The last entries, in memory. Safe to read from any thread."""

    def __init__(self, room: int = 10_000) -> None:
        self._entries: deque[Entry] = deque(maxlen=room)
        self._lock = threading.Lock()

    def write(self, entry: Entry) -> None:
        with self._lock:
            self._entries.append(entry)

    def entries(self) -> list[dict[str, Any]]:
        """All kept entries, oldest first."""
        with self._lock:
            return [asdict(entry) for entry in self._entries]
