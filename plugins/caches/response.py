"""The response store: whole answers to greedy requests, for requests that are the same."""

from __future__ import annotations

import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import dataclass

from tandem.core.plugin import (
    AnswerKey,
    AnswerStore,
    Cache,
    KeptAnswer,
    Model,
    Options,
    hookimpl,
    option,
)

TANDEM_API = ">=0.2,<0.3"

DOC = """\
Answers a greedy request that was answered before with the same tokens, without the model.

For tests, evaluations and programs that ask the same thing again and again. A request is the same when the prompt
(pictures included), the penalties, the bias, the thinking budget and the constraint are; a lower `max_tokens` and other
stop strings are served where they need no token that is not kept. Sampled requests are never answered from here.
"""

OVERHEAD = 500
"""Bytes that an entry takes besides its key and its tokens: the objects, and their place in the order."""
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """An answer and when it was kept, in the clock's seconds."""

    answer: KeptAnswer
    at: float
    nbytes: int


class Responses(AnswerStore):
    """Answers in the order of use, the oldest first. Bounded by bytes, by entries and by age. Thread-safe."""

    def __init__(self, budget: int, entries: int, ttl_s: float, now: Callable[[], float] = time.monotonic) -> None:
        """`budget` in bytes."""
        self._budget = budget
        self._most = entries
        self._ttl_s = ttl_s
        self._now = now
        self._lock = threading.Lock()
        self._entries: OrderedDict[AnswerKey, Entry] = OrderedDict()
        self._bytes = 0
        self._counts = dict.fromkeys(("hits", "misses", "evictions", "expired"), 0)

    def answer(self, key: AnswerKey, max_tokens: int, stop: Seq[str]) -> KeptAnswer | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and self._now() - entry.at > self._ttl_s:
                self._drop(key)
                self._counts["expired"] += 1
                entry = None
            if entry is None or not entry.answer.serves(max_tokens, stop):
                self._counts["misses"] += 1
                return None
            self._entries.move_to_end(key)
            self._counts["hits"] += 1
            return entry.answer

    def keep(self, key: AnswerKey, answer: KeptAnswer) -> None:
        answer = KeptAnswer(array("i", answer.tokens), answer.ended, answer.stop)
        nbytes = key.nbytes + answer.nbytes + OVERHEAD
        if nbytes > self._budget:
            return
        with self._lock:
            known = self._entries.get(key)
            if known is not None and known.answer.whole and not answer.whole:
                return
            if known is not None:
                self._drop(key)
            while self._bytes + nbytes > self._budget or len(self._entries) >= self._most:
                self._evict()
            self._entries[key] = Entry(answer, self._now(), nbytes)
            self._bytes += nbytes

    def shed(self, nbytes: int) -> int:
        with self._lock:
            before = self._bytes
            while before - self._bytes < nbytes and self._entries:
                self._evict()
            return before - self._bytes

    def stats(self) -> Mapping[str, float]:
        with self._lock:
            return {"bytes": self._bytes, "entries": len(self._entries), **self._counts}

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._bytes = 0

    def check(self) -> list[str]:
        with self._lock:
            held = sum(entry.nbytes for entry in self._entries.values())
            problems = [] if held == self._bytes else [f"{held} bytes are held, {self._bytes} counted"]
            if held > self._budget or len(self._entries) > self._most:
                count = len(self._entries)
                problems.append(f"{held} bytes in {count} entries; {self._budget} in {self._most} are allowed")
            return problems

    def close(self) -> None:
        self.clear()

    def _evict(self) -> None:
        """The one that was not asked for the longest."""
        self._drop(next(iter(self._entries)))
        self._counts["evictions"] += 1

    def _drop(self, key: AnswerKey) -> None:
        self._bytes -= self._entries.pop(key).nbytes


def build(options: Options, model: Model) -> AnswerStore:
    return Responses(int(options["mib"] * MIB), options["entries"], options["ttl_s"])


@hookimpl
def tandem_caches() -> list[Cache]:
    return [
        Cache(
            name="response",
            doc=DOC,
            build=build,
            options={
                "mib": option("number", "How much memory the answers may hold, in MiB.", 256, exclusiveMinimum=0),
                "entries": option("integer", "The most answers that are kept.", 4096, minimum=1),
                "ttl_s": option(
                    "number",
                    "How long an answer is given again, in seconds from when it was written.",
                    3600,
                    exclusiveMinimum=0,
                ),
            },
        )
    ]
