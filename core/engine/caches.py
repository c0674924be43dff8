"""The cache stack: the tiers behind one door. The longest match wins; a tier that fails is dropped, nothing else.

Stores of whole answers stand behind the same door: they shed, are cleared, checked and counted with the tiers, and are
never asked for a sequence.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence as Seq
from functools import partial
from typing import Any, TypeVar

from tandem.core.plugin import AnswerKey, AnswerStore, CacheTier, KeptAnswer, Match, Moment, Sequence

log = logging.getLogger("tandem.caches")
T = TypeVar("T")


class CacheStack:
    """All tiers, in the manifest's order. `fail(name, reason)` is told when a tier raised and was dropped."""

    def __init__(self, tiers: Seq[tuple[str, CacheTier | AnswerStore]], fail: Callable[[str, str], None]) -> None:
        self._tiers: list[tuple[str, CacheTier]] = []
        self._answers: list[tuple[str, AnswerStore]] = []
        self._order = [name for name, _ in tiers]
        for name, tier in tiers:
            if isinstance(tier, AnswerStore):
                self._answers.append((name, tier))
            else:
                self._tiers.append((name, tier))
        self._fail = fail

    @property
    def keeps_answers(self) -> bool:
        """Whether any store of answers is left."""
        return bool(self._answers)

    def answer(self, key: AnswerKey, max_tokens: int, stop: Seq[str]) -> tuple[str, KeptAnswer] | None:
        """A kept answer that serves such a request, and the name of the store that has it. Safe from any thread."""
        for name, store in list(self._answers):
            kept: KeptAnswer | None = self._guard(name, store, partial(store.answer, key, max_tokens, stop), None)
            if kept is not None and kept.serves(max_tokens, stop):
                return name, kept
        return None

    def keep(self, key: AnswerKey, answer: KeptAnswer) -> None:
        """Tell every store of answers."""
        for name, store in list(self._answers):
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
        for length, name, tier, match in sorted(found, key=lambda item: -item[0]):
            sequence: Sequence | None = self._guard(name, tier, partial(tier.resume, match, new_sequence), None)
            if sequence is not None and sequence.length == length:
                return sequence, name, length
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
        for name, store in self._all():
            self._guard(name, store, store.close, None)

    def shedding(self) -> list[str]:
        """The tiers' names in the order in which they give way when memory is short: the manifest's, backwards.

        The manifest puts the tier first that is to be asked first, so what stands last is missed the least.
        """
        left = {name for name, _ in self._all()}
        return [name for name in reversed(self._order) if name in left]

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
                longest = max(longest, match.length if match is not None else 0)
        return min(longest, len(tokens) - 1)

    def clear(self) -> None:
        """Forget everything."""
        for name, store in self._all():
            self._guard(name, store, store.clear, None)

    def check(self) -> dict[str, list[str]]:
        """The broken invariants of each tier that has any."""
        found: dict[str, list[str]] = {name: self._guard(name, store, store.check, []) for name, store in self._all()}
        return {name: problems for name, problems in found.items() if problems}

    def __bool__(self) -> bool:
        return bool(self._tiers)

    def stats(self) -> dict[str, Mapping[str, float]]:
        return {name: self._guard(name, store, store.stats, {}) for name, store in self._all()}

    def _all(self) -> list[tuple[str, CacheTier | AnswerStore]]:
        return [*self._tiers, *self._answers]

    def _guard(self, name: str, tier: CacheTier | AnswerStore, call: Callable[[], Any], otherwise: T) -> Any | T:
        try:
            return call()
        except Exception as error:
            reason = traceback.format_exception_only(error)[-1].strip()
            log.warning("cache tier %s is switched off: %s", name, reason)
            self._tiers = [(n, t) for n, t in self._tiers if t is not tier]
            self._answers = [(n, s) for n, s in self._answers if s is not tier]
            self._fail(name, reason)
            return otherwise
