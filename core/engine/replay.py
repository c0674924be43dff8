"""What the model wrote in earlier turns, token by token, for the prompts in which those turns come back.

A client sends an answer back in words of its own: arguments with their keys sorted, the reasoning left out. The tokens
of such a prompt part from those that the model wrote, and with them from what a cache holds. With the store's help the
prompt says what the model said.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence as Seq
from dataclasses import dataclass, field
from threading import Lock

OVERHEAD = 600
"""Bytes that a turn takes besides its tokens: the objects, two keys, their places in the index."""


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


@dataclass(slots=True, eq=False)
class _Entry:
    written: Written
    exact: bytes
    loose: bytes | None = field(default=None)

    @property
    def keys(self) -> tuple[bytes, ...]:
        return (self.exact,) if self.loose is None else (self.exact, self.loose)


class ReplayStore:
    """Turns by two keys, the least recently used dropped first. Thread-safe.

    The `exact` key names a turn and all that was said before it; a later turn with the same one takes its place. The
    `loose` key, if a turn has one, names it wherever it stands; it finds nothing while two turns share it.
    """

    def __init__(self, budget: int) -> None:
        """`budget` in bytes; 0 keeps nothing."""
        self.budget = budget
        self._lock = Lock()
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        """By identity, in the order of use."""
        self._index: dict[bytes, list[_Entry]] = {}
        self._bytes = 0
        self._hits = self._evictions = 0

    def put(self, written: Written, exact: bytes, loose: bytes | None = None) -> None:
        """Keep a turn. One that is larger than the whole budget is not kept."""
        if written.nbytes > self.budget:
            return
        entry = _Entry(written, exact, loose)
        with self._lock:
            for old in list(self._index.get(exact, ())):
                self._drop(old)
            while self._bytes + written.nbytes > self.budget:
                self._drop(next(iter(self._entries.values())))
                self._evictions += 1
            self._entries[id(entry)] = entry
            self._bytes += written.nbytes
            for key in entry.keys:
                self._index.setdefault(key, []).append(entry)

    def find(self, exact: bytes, loose: bytes | None = None) -> Written | None:
        """The turn with this exact key, else the only one with this loose key."""
        with self._lock:
            found = self._index.get(exact) or (self._index.get(loose, []) if loose is not None else [])
            if len(found) != 1:
                return None
            self._entries.move_to_end(id(found[0]))
            self._hits += 1
            return found[0].written

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._index.clear()
            self._bytes = 0

    def stats(self) -> Mapping[str, int]:
        """Sizes and counts."""
        with self._lock:
            return {
                "bytes": self._bytes,
                "entries": len(self._entries),
                "hits": self._hits,
                "evictions": self._evictions,
            }

    def check(self) -> list[str]:
        """Broken invariants, in words; empty when all is well."""
        with self._lock:
            problems = []
            held = sum(entry.written.nbytes for entry in self._entries.values())
            if held != self._bytes or held > self.budget:
                problems.append(f"{held} bytes are held, {self._bytes} counted, {self.budget} allowed")
            listed = [id(entry) for entries in self._index.values() for entry in entries]
            known = [name for name, entry in self._entries.items() for _ in entry.keys]
            if sorted(listed) != sorted(known):
                problems.append("the index and the entries differ")
            return problems

    def _drop(self, entry: _Entry) -> None:
        del self._entries[id(entry)]
        self._bytes -= entry.written.nbytes
        for key in entry.keys:
            others = [other for other in self._index[key] if other is not entry]
            if others:
                self._index[key] = others
            else:
                del self._index[key]
