"""What the model wrote in earlier turns, token by token, for the prompts in which those turns come back.

A client sends an answer back in words of its own: arguments with their keys sorted, the reasoning left out. The tokens
of such a prompt part from those that the model wrote, and with them from what a cache holds. With the store's help the
prompt says what the model said.
"""

from __future__ import annotations

import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence as Seq
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

OVERHEAD = 1000
"""Bytes that a turn takes besides its tokens: the objects, three keys, their places in the index."""
NOTE_S = 86400.0
"""A turn in use is noted on disk once in this time."""


@dataclass(frozen=True, slots=True)
class Written:
    """A turn as the model wrote it."""

    tokens: Seq[int]
    """What it wrote, without the token that ended the turn."""
    opening: str = ""
    """What the prompt had written behind the assistant's header: nothing, the tag that opens the reasoning, or a closed
    block."""
    reasons: bool = False
    """Reasoning tags stand in the turn, the opening's included."""
    thoughts: bytes = b""
    """A digest of the reasoning; empty when there is none."""
    hidden: tuple[range, ...] = ()
    """Places among the tokens that the client was not given."""

    @classmethod
    def of(
        cls,
        tokens: Iterable[int],
        opening: str = "",
        reasons: bool = False,
        thoughts: bytes = b"",
        hidden: tuple[range, ...] = (),
    ) -> Written:
        """The same, with the tokens packed as they are kept."""
        return cls(array("i", tokens), opening, reasons, thoughts, hidden)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in the store, packed."""
        return 4 * len(self.tokens) + len(self.opening) + OVERHEAD


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn with the keys by which it is found; see `ReplayStore`."""

    exact: bytes
    loose: bytes | None
    place: bytes
    written: Written


class Disk(Protocol):
    """What outlives the process (`tandem.core.engine.turnfile.TurnFile`)."""

    def put(self, turn: Turn) -> None: ...

    def find(self, exact: bytes, loose: bytes | None, place: bytes) -> list[Turn]: ...

    def touch(self, exact: bytes) -> None: ...

    def clear(self) -> None: ...

    def stats(self) -> Mapping[str, int]: ...

    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Entry:
    turn: Turn
    noted: float
    """When the disk was last told of it, in the clock's seconds."""

    @property
    def keys(self) -> tuple[bytes, ...]:
        turn = self.turn
        return (turn.exact, turn.place) if turn.loose is None else (turn.exact, turn.place, turn.loose)


class ReplayStore:
    """Turns by three keys, the least recently used dropped first. Thread-safe.

    The `exact` key names a turn and all that was said before it; a later turn with the same one takes its place. The
    `loose` key, if a turn has one, names it wherever it stands; it finds nothing while two turns share it. The `place`
    is all that was said before, and tells an edited turn from one that nobody here has written. No two kinds of keys
    are ever equal.

    With a `disk` behind it, every turn is kept there too, and what is not in memory is looked for there.
    """

    def __init__(self, budget: int, disk: Disk | None = None, now: Callable[[], float] = time.monotonic) -> None:
        """`budget` of the memory, in bytes; 0 keeps nothing."""
        self.budget = budget
        self._disk = disk
        self._now = now
        self._lock = Lock()
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        """By identity, in the order of use."""
        self._index: dict[bytes, list[_Entry]] = {}
        self._bytes = 0
        self._counts = dict.fromkeys(("hits", "edited", "recalled", "evictions"), 0)

    def put(self, written: Written, exact: bytes, loose: bytes | None = None, place: bytes = b"") -> None:
        """Keep a turn. One that is larger than the whole budget is not kept."""
        if written.nbytes > self.budget:
            return
        turn = Turn(exact, loose, place, written)
        with self._lock:
            self._add(turn)
        if self._disk is not None:
            self._disk.put(turn)

    def find(
        self, exact: bytes, loose: bytes | None = None, place: bytes = b"", thoughts: bytes | None = None
    ) -> Written | None:
        """The turn with this exact key, else the only one with this loose key.

        `thoughts` is a digest of the reasoning that came back with it, None without any. Other reasoning than the
        turn's is an edit, and nothing is found.
        """
        with self._lock:
            known = self._known(exact, loose, place)
        if self._disk is not None and exact not in known:
            # One that stands there in words of its own may be on disk, and one that is known here may not be the only.
            known |= self._recall(exact, loose, place, known)
        if exact in known:
            known = {exact: known[exact]}
        named = [turn for turn in known.values() if turn.exact == exact or (loose is not None and turn.loose == loose)]
        turn = named[0] if len(named) == 1 else None
        edited = turn.written.thoughts != thoughts if turn is not None and thoughts is not None else not named
        with self._lock:
            self._counts["edited"] += edited and bool(known)
            self._counts["hits"] += turn is not None and not edited
        if turn is None or edited:
            return None
        self._use(turn)
        return turn.written

    def _known(self, exact: bytes, loose: bytes | None, place: bytes) -> dict[bytes, Turn]:
        """What is in memory of such a turn, by the exact keys."""
        found = [*self._index.get(exact, ()), *self._index.get(place, ())]
        if loose is not None:
            found += self._index.get(loose, ())
        return {entry.turn.exact: entry.turn for entry in found}

    def _recall(
        self, exact: bytes, loose: bytes | None, place: bytes, known: Mapping[bytes, Turn]
    ) -> dict[bytes, Turn]:
        """What the disk has besides."""
        assert self._disk is not None
        turns = {turn.exact: turn for turn in self._disk.find(exact, loose, place) if turn.exact not in known}
        with self._lock:
            self._counts["recalled"] += len(turns)
        return turns

    def _use(self, turn: Turn) -> None:
        """It was found: it goes last in memory, and the disk hears of it now and then."""
        with self._lock:
            entry = next((entry for entry in self._index.get(turn.exact, ()) if entry.turn.exact == turn.exact), None)
            if entry is None:
                if turn.written.nbytes <= self.budget:
                    self._add(turn)
                return
            self._entries.move_to_end(id(entry))
            if self._disk is None or self._now() - entry.noted < NOTE_S:
                return
            entry.noted = self._now()
        self._disk.touch(turn.exact)

    def _add(self, turn: Turn) -> None:
        entry = _Entry(turn, self._now())
        for old in list(self._index.get(turn.exact, ())):
            self._drop(old)
        while self._bytes + turn.written.nbytes > self.budget:
            self._drop(next(iter(self._entries.values())))
            self._counts["evictions"] += 1
        self._entries[id(entry)] = entry
        self._bytes += turn.written.nbytes
        for key in entry.keys:
            self._index.setdefault(key, []).append(entry)

    def clear(self) -> None:
        """Forget everything, on disk too."""
        with self._lock:
            self._entries.clear()
            self._index.clear()
            self._bytes = 0
        if self._disk is not None:
            self._disk.clear()

    def close(self) -> None:
        """The server is down: what is still to be written is."""
        if self._disk is not None:
            self._disk.close()

    def stats(self) -> Mapping[str, int]:
        """`kept` turns in memory and their `bytes`; since the start the `hits`, the turns that came back `edited`,
        those `recalled` from the disk and the `evictions`. The disk's own numbers begin with `disk_`."""
        with self._lock:
            told = {"kept": len(self._entries), "bytes": self._bytes, **self._counts}
        disk = self._disk.stats() if self._disk is not None else {}
        return {**told, **{f"disk_{name}": value for name, value in disk.items()}}

    def check(self) -> list[str]:
        """Broken invariants, in words; empty when all is well."""
        with self._lock:
            problems = []
            held = sum(entry.turn.written.nbytes for entry in self._entries.values())
            if held != self._bytes or held > self.budget:
                problems.append(f"{held} bytes are held, {self._bytes} counted, {self.budget} allowed")
            listed = [id(entry) for entries in self._index.values() for entry in entries]
            known = [name for name, entry in self._entries.items() for _ in entry.keys]
            if sorted(listed) != sorted(known):
                problems.append("the index and the entries differ")
            return problems

    def _drop(self, entry: _Entry) -> None:
        del self._entries[id(entry)]
        self._bytes -= entry.turn.written.nbytes
        for key in entry.keys:
            others = [other for other in self._index[key] if other is not entry]
            if others:
                self._index[key] = others
            else:
                del self._index[key]
