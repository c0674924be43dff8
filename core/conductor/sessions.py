"""Sessions: what is remembered from one request of a conversation to the next: numbers, hashes and names, no text."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Any

from tandem.core.plugin.rule import PastCall, canonical, text_of

HOUR_S = 3600.0
CALLS = 4096
"""So many call ids of a session are remembered."""


@dataclass(slots=True)
class SessionState:
    """One conversation."""

    key: str
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Task -> its own memory."""
    acts: deque[float] = field(default_factory=deque)
    """When something was done in it, within the last hour."""
    turns: int = 0
    """Requests that have ended."""
    running: int = 0
    ended: float | None = None
    """When the last of them did."""
    client: str = ""
    profile: str = ""
    issued: OrderedDict[str, float] = field(default_factory=OrderedDict)
    """Call id -> when the answer that made it had ended."""
    brought: OrderedDict[str, float | None] = field(default_factory=OrderedDict)
    """Call id -> the seconds its result took to come; None when that is not known."""

    def of(self, task: str) -> dict[str, Any]:
        return self.tasks.setdefault(task, {})

    def acted(self, now: float) -> int:
        """Acts within the last hour."""
        while self.acts and now - self.acts[0] > HOUR_S:
            self.acts.popleft()
        return len(self.acts)


class Sessions:
    """The sessions that were used last. Thread-safe; a state is used by one request at a time or read only."""

    def __init__(self, room: int = 256) -> None:
        self.room = room
        self._states: OrderedDict[str, SessionState] = OrderedDict()
        self._heads: dict[str, list[_Talk]] = {}
        self._lock = threading.Lock()

    def of(self, key: str) -> SessionState:
        """The session's state, made when it is new. The one unused for the longest goes when there are too many."""
        with self._lock:
            state = self._states.get(key)
            if state is None:
                state = self._states[key] = SessionState(key)
            self._states.move_to_end(key)
            while len(self._states) > self.room:
                gone, _ = self._states.popitem(last=False)
                head = gone.partition("#")[0]
                if talks := [talk for talk in self._heads.get(head, []) if talk.key != gone]:
                    self._heads[head] = talks
                else:
                    self._heads.pop(head, None)
            return state

    def all(self) -> list[SessionState]:
        with self._lock:
            return list(self._states.values())

    def key(self, client: str, given: str | None, messages: Seq[Mapping[str, Any]]) -> str:
        """The session that a request belongs to: the client's own id of the conversation, else how it begins.

        Conversations that begin alike are told apart by their first turn: what was answered to the first message. A
        request that has no answer yet begins a new one, unless the newest of its kind has not been answered either.
        """
        if given:
            return f"{client}:{_digest(given)}"
        first = next((i for i, m in enumerate(messages) if m.get("role") == "user"), len(messages) - 1)
        head = f"{client}:h{_digest([_words(m) for m in messages[: first + 1] if m.get('role') == 'user'])}"
        turn = _first_turn(messages[first + 1 :])
        with self._lock:
            talks = self._heads.setdefault(head, [])
            if turn is None:
                waiting = talks[-1] if talks and talks[-1].turn is None else None
                return (waiting or _new(talks, head)).key
            for talk in talks:
                if talk.turn == turn:
                    return talk.key
            newest = talks[-1] if talks and talks[-1].turn is None else _new(talks, head)
            newest.turn = turn
            return newest.key

    # ------------------------------------------------------------------------------------------------ the calls

    def begun(self, state: SessionState, calls: Seq[PastCall]) -> tuple[tuple[PastCall, ...], tuple[PastCall, ...]]:
        """A request brings these calls: all of them with the seconds their results took, and those of them whose
        results are new to the session."""
        now = time.monotonic()
        timed: list[PastCall] = []
        new: list[PastCall] = []
        with self._lock:
            for call in calls:
                if call.result is None:
                    timed.append(call)
                    continue
                is_new = call.id not in state.brought
                if is_new:
                    sent = state.issued.get(call.id)
                    _put(state.brought, call.id, None if sent is None else now - sent)
                timed.append(replace(call, seconds=state.brought[call.id]))
                if is_new:
                    new.append(timed[-1])
        return tuple(timed), tuple(new)

    def ended(self, state: SessionState, call_ids: Seq[str]) -> None:
        """A request of the session has ended, with these calls in its answer."""
        now = time.monotonic()
        with self._lock:
            state.turns += 1
            state.running = max(0, state.running - 1)
            state.ended = now
            for call in call_ids:
                _put(state.issued, call, now)


@dataclass(slots=True)
class _Talk:
    key: str
    turn: str | None = None
    """A digest of its first turn; None while there is no answer."""


def _new(talks: list[_Talk], head: str) -> _Talk:
    last = int(talks[-1].key.rpartition("#")[2]) if talks else 0
    talks.append(_Talk(f"{head}#{last + 1}"))
    return talks[-1]


def _first_turn(messages: Seq[Mapping[str, Any]]) -> str | None:
    """A digest of the first answer; None while there is none."""
    for message in messages:
        if message.get("role") == "assistant":
            calls = [
                [call.get("id"), (call.get("function") or {}).get("name")] for call in message.get("tool_calls") or ()
            ]
            return _digest([text_of(message).strip(), calls])
    return None


def _words(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else canonical(content)


def _digest(value: Any) -> str:
    written = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(written.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _put(store: OrderedDict[str, Any], key: str, value: Any) -> None:
    store[key] = value
    store.move_to_end(key)
    while len(store) > CALLS:
        store.popitem(last=False)
