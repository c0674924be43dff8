"""The journal: what rules decided, and what went wrong with them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
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
    """An action's name (`pass`, `give_up`, ...), or `fault`."""
    reason: str
    done: bool
    """Whether the action took effect; False in shadow mode and for faults."""
    task: str = ""
    """The task's name in the policy."""
    mode: str = ""
    """The task's mode in this request: `act` or `shadow`."""
    session: str = ""
    client: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """Numbers and short words."""
    score: float | None = None
    position: int = 0
    """Tokens behind the prompt when it was decided."""
    reasoning_tokens: int = 0
    hidden: str = ""
    """The text that the model read and the client did not; empty when there was none."""
    hidden_tokens: int = 0
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

    def close(self) -> None:
        """The server goes down."""
