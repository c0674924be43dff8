"""The cache contract: tiers that keep a sequence's state, and give it back to a prompt that starts the same way; and
stores that keep whole answers.

A tier sees a prompt as a list of keys: a token's key is its id, and a row that shows a picture has a negative key made
of the picture's content. Equal keys mean equal rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence as Seq
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, runtime_checkable

from tandem.core.plugin.model import Model, Sequence
from tandem.core.plugin.part import Options, Part


class Moment(Enum):
    """When a tier is offered a sequence."""

    GRID = "grid"
    """A prefill chunk was committed."""
    PROMPT_END = "prompt_end"
    """The whole prompt is committed, nothing generated yet."""
    GENERATION_END = "generation_end"
    """The generation has ended; the sequence is about to be closed."""
    CLOSING = "closing"
    """The server goes down, and this is what a tier still holds. A tier that outlives the process keeps it."""


@dataclass(frozen=True, slots=True)
class Match:
    """A tier holds the state of the first `length` tokens of a prompt."""

    length: int
    handle: Any
    """What the tier needs to find it again; opaque to everyone else."""
    copied: bool = False
    """Said by a tier that gives sequences away (`adopt`): this one will be a copy, whose rows take new memory."""


class Store(Protocol):
    """Something that keeps memory so that work need not be done again. Calls come from the engine's thread; `stats` may
    come from any."""

    def shed(self, nbytes: int) -> int:
        """Give back at least `nbytes` if possible, cheapest first; returns the bytes freed."""
        ...

    def stats(self) -> Mapping[str, float]:
        """Counters and sizes; `bytes` and `entries` at least."""
        ...

    def clear(self) -> None: ...

    def check(self) -> list[str]:
        """Broken invariants, in words; empty when all is well. Called by tests and in idle time.

        What a store can put right by itself (a file that somebody else deleted) is put right, and is no complaint. One
        that complains is cleared; one that still complains then is switched off.
        """
        ...


class CacheTier(Store, Protocol):
    """One store of sequence states. Whose state was taken is counted by the engine, as `hits` and `misses`.

    A tier that inherits from this class has the methods that it does not care about: `adopt`, `held` and `close`.
    """

    def lookup(self, tokens: Seq[int]) -> Match | None:
        """The longest stored prefix of `tokens`, every stored token compared with the prompt's.

        A question: it changes nothing and counts nothing. It may be asked several times for one prompt, and for a
        prompt that is never read.
        """
        ...

    def resume(self, match: Match, new_sequence: Callable[[], Sequence]) -> Sequence | None:
        """A sequence that has committed exactly the match's tokens; None when it is gone in the meantime.

        It is the engine's from here on. A tier restores a copy into a `new_sequence()`, or gives away one that it
        holds.
        """
        ...

    def offer(self, moment: Moment, tokens: Seq[int], sequence: Sequence) -> None:
        """The sequence has committed exactly `tokens`. A tier copies what it wants to keep."""
        ...

    def adopt(self, tokens: Seq[int], sequence: Sequence) -> bool:
        """The generation has ended, and nobody needs its sequence any more. True = this tier keeps the sequence itself,
        and closes it some day. Asked in the manifest's order until a tier says so."""
        return False

    def held(self) -> Iterable[tuple[Seq[int], Sequence]]:
        """The sequences that the tier keeps, with their tokens: offered to the other tiers when the server closes."""
        return ()

    def close(self) -> None:
        """The server goes down. Write what is to be kept, and free the rest."""
        return


ENDED_BY_ITSELF = frozenset({"eos", "constraint"})
"""How an answer ends that has nothing more to say: with the end token, or with a document that is whole."""


@dataclass(frozen=True, slots=True)
class AnswerKey:
    """All that decides which tokens greedy decoding draws, one after the other. Equal keys, equal tokens.

    How many are drawn and where the text is cut is not in it: see `KeptAnswer.serves`.
    """

    prompt: bytes
    """The prompt's token ids, 4 bytes each."""
    asked: str
    """Everything else, the content of pictures included."""

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        return len(self.prompt) + len(self.asked)


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """The tokens that were drawn for a key, from the first to the one with which that answer ended."""

    tokens: Seq[int]
    ended: str
    """`eos`, `constraint`, `max_tokens` or `stop_string`."""
    stop: tuple[str, ...] = ()
    """The stop strings that were looked for."""

    @property
    def whole(self) -> bool:
        """The model would write nothing more, whatever it is allowed."""
        return self.ended in ENDED_BY_ITSELF

    @property
    def nbytes(self) -> int:
        """Bytes that it holds, the tokens packed."""
        return 4 * len(self.tokens) + sum(map(len, self.stop))

    def serves(self, max_tokens: int, stop: Seq[str] = ()) -> bool:
        """Whether these tokens are all that a request with this limit and these stop strings needs.

        A limit and a stop string end an answer and change no token of it. So the tokens suffice when the model itself
        had nothing to add, when no more may be written, and when the stop string that ended them is looked for again:
        then the text ends there at the latest.
        """
        stopped = self.ended == "stop_string" and set(self.stop) <= set(stop)
        return self.whole or stopped or max_tokens <= len(self.tokens)


@runtime_checkable
class AnswerStore(Store, Protocol):
    """Keeps whole answers, for requests that are the same. `build` of a `Cache` may return one instead of a tier.

    `answer` may be called from any thread, and `stats` too; the rest comes from the engine's thread.
    """

    def answer(self, key: AnswerKey, max_tokens: int, stop: Seq[str]) -> KeptAnswer | None:
        """What is kept of exactly this key, if it `serves` a request with this limit and these stop strings."""
        ...

    def keep(self, key: AnswerKey, answer: KeptAnswer) -> None:
        """Such a request was answered. The answer takes the place of one with an equal key, unless that one is `whole`
        and this one is not."""
        ...

    def close(self) -> None:
        """As a tier's."""
        ...


def common_prefix(a: Seq[int], b: Seq[int]) -> int:
    """How many tokens `a` and `b` share from the start."""
    a, b = list(a), list(b)
    shared, end = 0, min(len(a), len(b))
    step = 4096  # whole slices compare at the speed of C
    while step:
        while shared + step <= end and a[shared : shared + step] == b[shared : shared + step]:
            shared += step
        step //= 8
    return shared


@dataclass(frozen=True, kw_only=True)
class Cache(Part):
    """A cache tier: `build(options, model)` returns the working `CacheTier`, or an `AnswerStore`."""

    build: Callable[[Options, Model], CacheTier | AnswerStore]
