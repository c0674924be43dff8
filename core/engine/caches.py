"""The cache stack: the tiers behind one door. The longest match wins; a tier that fails is dropped, nothing else.

Beside the tiers stand stores that keep no sequences (the rows of pictures, whole answers): they shed, are cleared,
checked and counted with the tiers, and are never asked for a match.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence as Seq
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

from tandem.core.plugin import AnswerKey, AnswerStore, CacheTier, KeptAnswer, Match, Moment, Sequence, Store

log = logging.getLogger("tandem.caches")
T = TypeVar("T")

EVENTS = 64
"""Events that are kept."""
CLEARED = 2
"""How often a tier is cleared because of a check; the next time that it complains it is switched off."""


@dataclass(frozen=True, slots=True)
class CacheEvent:
    """A tier that went wrong."""

    at: float
    """Unix time."""
    tier: str
    what: str
    """`cleared` (it goes on, empty) or `dropped` (it is switched off)."""
    why: str


@dataclass(slots=True)
class Asked:
    """What came of asking a tier for a prompt's beginning. A match that was shorter than another tier's is neither."""

    hits: int = 0
    misses: int = 0


class CacheStack:
    """All tiers, in the manifest's order. `fail(name, reason)` is told when a tier raised and was dropped.

    All calls but `stats`, `events` and `answer` come from the engine's thread.
    """

    def __init__(
        self,
        tiers: Seq[tuple[str, CacheTier | AnswerStore]],
        fail: Callable[[str, str], None],
        stores: Seq[tuple[str, Store]] = (),
    ) -> None:
        self._tiers: list[tuple[str, CacheTier]] = []
        self._stores: list[tuple[str, Store]] = []
        self._order: list[str] = []
        """The names as they were added."""
        self._asked: dict[str, Asked] = {}
        self._cleared: dict[str, int] = {}
        self._events: deque[CacheEvent] = deque(maxlen=EVENTS)
        self._fail = fail
        self.add(tiers, stores)

    def add(self, tiers: Seq[tuple[str, CacheTier | AnswerStore]], stores: Seq[tuple[str, Store]] = ()) -> None:
        """Behind those that are there: what the manifest lists, and stores of which it knows nothing."""
        answers = [(name, tier) for name, tier in tiers if isinstance(tier, AnswerStore)]
        sequences = [(name, tier) for name, tier in tiers if not isinstance(tier, AnswerStore)]
        self._tiers = [*self._tiers, *sequences]
        self._stores = [*self._stores, *answers, *stores]
        self._order += [name for name, _ in tiers]
        self._asked |= {name: Asked() for name, _ in sequences}

    @property
    def _answers(self) -> list[tuple[str, AnswerStore]]:
        return [(name, store) for name, store in self._stores if isinstance(store, AnswerStore)]

    @property
    def keeps_answers(self) -> bool:
        """Whether any store of answers is left."""
        return bool(self._answers)

    def answer(self, key: AnswerKey, max_tokens: int, stop: Seq[str]) -> tuple[str, KeptAnswer] | None:
        """A kept answer that serves such a request, and the name of the store that has it. Safe from any thread."""
        for name, store in self._answers:
            kept: KeptAnswer | None = self._guard(name, store, partial(store.answer, key, max_tokens, stop), None)
            if kept is not None and kept.serves(max_tokens, stop):
                return name, kept
        return None

    def keep(self, key: AnswerKey, answer: KeptAnswer) -> None:
        """Tell every store of answers."""
        for name, store in self._answers:
            self._guard(name, store, partial(store.keep, key, answer), None)

    def resume(
        self, tokens: Seq[int], new_sequence: Callable[[], Sequence], leave: int = 1
    ) -> tuple[Sequence, str, int]:
        """A sequence that holds the longest known beginning of `tokens`: `(sequence, tier's name, rows)`.

        A cold start gives an empty one and `"none", 0`. The last `leave` tokens are never taken from a cache: the
        logits of the last one are needed, and the model may want more rows in a pass (`Caps.resume_rows`).
        """
        wanted = tokens[:-leave]
        found: list[tuple[int, str, CacheTier, Match]] = []
        for name, tier in list(self._tiers):
            match = self._guard(name, tier, partial(tier.lookup, wanted), None)
            if match is not None and 0 < match.length <= len(wanted):
                found.append((match.length, name, tier, match))
            else:
                self._asked[name].misses += 1
        for length, name, tier, match in sorted(found, key=lambda item: -item[0]):
            sequence: Sequence | None = self._guard(name, tier, partial(tier.resume, match, new_sequence), None)
            if sequence is not None and sequence.length == length:
                self._asked[name].hits += 1
                return sequence, name, length
            self._asked[name].misses += 1
            if sequence is not None:  # not what it said: not to be trusted
                sequence.close()
        return new_sequence(), "none", 0

    def offer(self, moment: Moment, tokens: Seq[int], sequence: Sequence) -> None:
        """Let every tier look at the sequence, which has committed exactly `tokens`."""
        for name, tier in list(self._tiers):
            self._guard(name, tier, partial(tier.offer, moment, tokens, sequence), None)

    def adopt(self, tokens: Seq[int], sequence: Sequence) -> bool:
        """Give the sequence, which nobody needs any more, to the first tier that wants it; False when none does."""
        return any(
            self._guard(name, tier, partial(tier.adopt, tokens, sequence), False) for name, tier in list(self._tiers)
        )

    def close(self) -> None:
        """The server goes down: what the tiers hold is offered to the others, then each is closed."""
        tiers = list(self._tiers)
        for name, tier in tiers:
            for tokens, sequence in self._guard(name, tier, lambda tier=tier: list(tier.held()), []):  # type: ignore[misc]
                for other, taker in tiers:
                    if taker is not tier:
                        self._guard(other, taker, partial(taker.offer, Moment.CLOSING, tokens, sequence), None)
        for name, tier in list(self._tiers):
            self._guard(name, tier, tier.close, None)
        for name, store in self._answers:
            self._guard(name, store, store.close, None)

    def shedding(self) -> list[str]:
        """The names in the order in which they give way when memory is short: the stores, then the tiers of the
        manifest, backwards.

        The manifest puts the tier first that is to be asked first, so what stands last is missed the least. What a
        store keeps is needed once more only if a tier has lost the sequence that was made of it.
        """
        left = [name for name, _ in self._all()]
        own = [name for name in left if name not in self._order]
        return [*own, *(name for name in reversed(self._order) if name in left)]

    def shed(self, name: str, nbytes: int) -> int:
        """Ask one tier to give back `nbytes`; what it says that it freed, 0 for one that is gone."""
        freed = 0
        for known, store in self._all():
            if known == name:
                freed += max(0, self._guard(name, store, partial(store.shed, nbytes), 0))
        return freed

    def kept(self, tokens: Seq[int]) -> int:
        """How many rows of `tokens` a tier holds in a sequence that it could give away as it is.

        Only a tier that adopts sequences gives any away; the others' copies take new memory.
        """
        longest = 0
        for name, tier in list(self._tiers):
            if getattr(type(tier), "adopt", CacheTier.adopt) is not CacheTier.adopt:
                match = self._guard(name, tier, partial(tier.lookup, tokens[:-1]), None)
                longest = max(longest, match.length if match is not None and not match.copied else 0)
        return min(longest, len(tokens) - 1)

    def clear(self) -> None:
        """Forget everything."""
        for name, store in self._all():
            self._guard(name, store, store.clear, None)

    def check(self) -> dict[str, list[str]]:
        """The broken invariants of each tier that has any. Nothing is done about them."""
        found: dict[str, list[str]] = {name: self._guard(name, store, store.check, []) for name, store in self._all()}
        return {name: problems for name, problems in found.items() if problems}

    def names(self) -> list[str]:
        """All tiers and stores that are left."""
        return [name for name, _ in self._all()]

    def care(self, name: str) -> None:
        """Check one tier. One that complains is cleared; one that still complains then, or for the third time, goes.

        A state that is not what its tokens say is worse than none: it would be served to somebody.
        """
        for known, store in self._all():
            if known == name and (problems := self._problems(name, store)):
                self._repair(name, store, problems)

    def _repair(self, name: str, store: Store, why: str) -> None:
        self._cleared[name] = self._cleared.get(name, 0) + 1
        if self._cleared[name] > CLEARED:
            self._drop(name, store, f"it breaks again and again: {why}")
            return
        log.warning("cache tier %s is cleared: %s", name, why)
        self._guard(name, store, store.clear, None)
        if still := self._problems(name, store):
            self._drop(name, store, f"it is broken, and still is once it was cleared: {still}")
        elif self._has(store):  # neither call has failed
            self._note(name, "cleared", why)

    def _problems(self, name: str, store: Store) -> str:
        """What the tier complains of; empty when all is well, or when it was dropped because its check failed."""
        found: list[str] = self._guard(name, store, store.check, [])
        return "; ".join(found)

    def __bool__(self) -> bool:
        return bool(self._tiers)

    def stats(self) -> dict[str, Mapping[str, float]]:
        """What each says of itself; of a tier also how often its state was taken (`hits`) or it had none (`misses`)."""
        told: dict[str, Mapping[str, float]] = {}
        for name, tier in list(self._tiers):
            own: Mapping[str, float] = self._guard(name, tier, tier.stats, {})
            told[name] = {**own, **asdict(self._asked[name])}
        for name, store in list(self._stores):
            told[name] = self._guard(name, store, store.stats, {})
        return told

    def events(self) -> list[dict[str, Any]]:
        """The last tiers that went wrong, and what was done about it. Safe from any thread."""
        return [asdict(event) for event in list(self._events)]

    def _all(self) -> list[tuple[str, Store]]:
        return [*self._tiers, *self._stores]

    def _has(self, store: Store) -> bool:
        return any(known is store for _, known in self._all())

    def _note(self, name: str, what: str, why: str) -> None:
        self._events.append(CacheEvent(time.time(), name, what, why))

    def _drop(self, name: str, store: Store, reason: str) -> None:
        """The tier is switched off. What it holds is freed, as far as it still can."""
        if not self._has(store):
            return
        log.warning("cache tier %s is switched off: %s", name, reason)
        self._tiers = [(n, t) for n, t in self._tiers if t is not store]
        self._stores = [(n, s) for n, s in self._stores if s is not store]
        self._note(name, "dropped", reason)
        self._fail(name, reason)
        with suppress(Exception):
            store.clear()

    def _guard(self, name: str, store: Store, call: Callable[[], Any], otherwise: T) -> Any | T:
        try:
            return call()
        except Exception as error:
            self._drop(name, store, traceback.format_exception_only(error)[-1].strip())
            return otherwise
