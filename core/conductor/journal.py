"""The journal: what rules decided, what came of it, and what went wrong with them.

The last entries are in memory; with a file behind it (`EventsFile`) all of the last days are on disk. A request only
hands its entries over: whatever becomes of the disk, no request waits for it or breaks on it.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tandem.core.conductor.counts import Counts, Decided, Tally
from tandem.core.plugin import ActionKind

if TYPE_CHECKING:
    from tandem.core.conductor.events_file import EventsFile

OPEN_REQUESTS = 4096
"""So many requests may have entries in memory that wait for their end, and so many sessions for a checker."""
OPEN_ENTRIES = 1024
"""So many entries of each wait; older ones learn nothing more in memory."""
CHECKER = re.compile(r"^\s*RESULT: (PASS|FAIL)\s*<-", re.MULTILINE)
"""How a project's checker says at the end of its output how it went: `RESULT: PASS <- pytest -q`."""
HARMLESS = frozenset(kind.value for kind in (ActionKind.PASS, ActionKind.NOTIFY))
"""Done or not, they change no answer."""

MONITOR, ROUTE = "monitor", "route"


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
    kind: str = MONITOR
    """`monitor` for what a rule decided, `route` for how a request was routed."""
    answer: str = ""
    """The answer's id, once the request has ended; empty while it runs, and for one that never had an id."""
    finish_reason: str = ""
    """How the request ended; empty while it runs."""
    completion_tokens: int | None = None
    next_checker: str = ""
    """`PASS` or `FAIL`: the first result of a checker that a later request of the session brought."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended."""

    request: int
    answer: str
    finish_reason: str
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Label:
    """A later request of the session brought a checker's result: it labels all entries before it that have none."""

    session: str
    before: int
    """The number of the request that brought it."""
    result: str


@dataclass(frozen=True, slots=True)
class Query:
    """Which entries are wanted: the newest that fit all of this."""

    limit: int = 100
    since: float = 0.0
    """Decided at or after this time, in Unix seconds."""
    task: str | None = None
    session: str | None = None
    action: str | None = None

    def fits(self, entry: Mapping[str, Any]) -> bool:
        named = {"task": self.task, "session": self.session, "action": self.action}
        return entry["time"] >= self.since and all(v is None or entry[k] == v for k, v in named.items())


def checker_result(text: str) -> str | None:
    """What a tool's result says of a checker's run; of several lines the last one counts."""
    found = CHECKER.findall(text)
    return found[-1] if found else None


class Journal:
    """The last entries in memory, and a file behind them where there is one. Thread-safe."""

    def __init__(self, room: int = 10_000, file: EventsFile | None = None) -> None:
        self.file = file
        self._entries: deque[_Kept] = deque(maxlen=room)
        self._open: OrderedDict[int, deque[_Kept]] = OrderedDict()
        self._unlabelled: OrderedDict[str, deque[_Kept]] = OrderedDict()
        self._tally = Tally()
        self._lock = threading.Lock()

    # ---------------------------------------------------------------------------------------------------- writing

    def write(self, entry: Entry) -> None:
        decided = Decided(entry.task or entry.rule, entry.action, entry.mode, entry.done)
        if entry.kind == MONITOR:
            self._tally.decided(
                entry.rule,
                decided,
                hidden_tokens=entry.hidden_tokens,
                reasoning_tokens=entry.reasoning_tokens,
                free=entry.action in HARMLESS,
            )
        kept = _Kept(entry)
        with self._lock:
            self._entries.append(kept)
            _add(self._open, entry.request, kept)
            if entry.session:
                _add(self._unlabelled, entry.session, kept)
        self._to_file(entry)

    def passed(self, task: str, mode: str) -> None:
        """Count a check that found nothing."""
        self._tally.passed(task, mode)

    def asked(self, task: str, *, failed: bool) -> None:
        """Count a question to the model."""
        self._tally.asked(task, failed=failed)

    def ended(self, outcome: Outcome) -> None:
        """A request is over. Nothing is written for one without entries."""
        with self._lock:
            entries = self._open.pop(outcome.request, None)
            if not entries:
                return
            for kept in entries:
                kept.entry = replace(
                    kept.entry,
                    answer=outcome.answer,
                    finish_reason=outcome.finish_reason,
                    completion_tokens=outcome.completion_tokens,
                )
        self._to_file(outcome)

    def labelled(self, label: Label) -> None:
        """A checker's result came. Nothing is written for a session without entries that wait for one."""
        with self._lock:
            waiting = self._unlabelled.get(label.session, deque())
            entries = [kept for kept in waiting if kept.entry.request < label.before]
            if not entries:
                return
            later = [kept for kept in waiting if kept.entry.request >= label.before]
            self._unlabelled[label.session] = deque(later, OPEN_ENTRIES)
            for kept in entries:
                kept.entry = replace(kept.entry, next_checker=label.result)
        self._to_file(label)

    def _to_file(self, item: Entry | Outcome | Label) -> None:
        if self.file is not None:
            self.file.add(item)

    # ---------------------------------------------------------------------------------------------------- reading

    def entries(self) -> list[dict[str, Any]]:
        """All that are in memory, oldest first."""
        with self._lock:
            entries = [kept.entry for kept in self._entries]
        return [asdict(entry) for entry in entries]

    def select(self, query: Query) -> list[dict[str, Any]]:
        """The newest entries that fit, newest first: from the file, which knows earlier runs too, or from memory where
        there is none, or none that can be read. Waits for what is on its way to the disk: never call it where a
        request would wait."""
        stored = self.file.select(query) if self.file is not None else None
        if stored is not None:
            return stored
        return [entry for entry in reversed(self.entries()) if query.fits(entry)][: query.limit]

    def counts(self) -> Counts:
        """What happened since the start."""
        return self._tally.now()

    def report(self) -> dict[str, Any]:
        """For `/health`."""
        with self._lock:
            kept = len(self._entries)
        return {"entries": kept, **(self.file.report() if self.file is not None else {"path": None})}

    def close(self) -> None:
        """The server goes down: what waits for the disk is written."""
        if self.file is not None:
            self.file.close()


@dataclass(slots=True)
class _Kept:
    """An entry in memory; what is learned of it later takes its place."""

    entry: Entry


def _add(store: OrderedDict[Any, deque[_Kept]], key: Any, kept: _Kept) -> None:
    store.setdefault(key, deque(maxlen=OPEN_ENTRIES)).append(kept)
    store.move_to_end(key)
    while len(store) > OPEN_REQUESTS:
        store.popitem(last=False)
