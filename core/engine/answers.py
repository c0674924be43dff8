"""Answers without the model: a greedy request that was answered before gets the same tokens again.

Only the tokens are kept. They go through the chain of filters of the request that asks now, so its stop strings, its
limit and its tools make of them what they would make of a fresh answer.

Who is in and who is out:

* In: greedy requests, whatever else they ask for; `answer_key` lists what their tokens depend on.
* Out, both ways: sampling, log-probabilities, several choices, `cache_prompt: false`.
* Not kept: what `store: false` forbids, answers on which a rule acted or whose reasoning was closed from outside, and
  those that ended from outside (timeout, a client that left, a failure).
* Out, too: a prompt with a hidden note, and a request that a rule answered itself.
* Rules that watch a request belong to its key: they were asked about these tokens when they were drawn, and let them
  be. So they are not asked again, and an answer that nobody watched is never given where somebody would have.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass, fields
from typing import Any

from tandem.core.answer import Answer
from tandem.core.conductor import Watch
from tandem.core.engine.caches import CacheStack
from tandem.core.engine.constraint import Recipe
from tandem.core.engine.generation import Generation
from tandem.core.engine.request import Event, Failed, Finished, Generate, PlacedPicture, Sampling, Stats
from tandem.core.engine.sampling import GREEDY_BELOW
from tandem.core.plugin import AnswerKey, KeptAnswer, Tokenizer

ENDINGS = frozenset({"eos", "constraint", "max_tokens", "stop_string"})
"""The answers' own ways to end."""
OTHERWISE = frozenset({"prompt", "images", "sampling", "constraint", "watch"})
"""Fields of a request that stand in the key in a form of their own."""
NO_MATTER = frozenset(
    {
        "max_tokens",  # a bound, `KeptAnswer.serves`
        "stop",  # the same
        "calls",  # how the text is read
        "messages",  # for rules, which are asked
        "client",  # the same
        "cache",  # out, or in
        "keep_text",  # only to keep it
        "shared",  # out
        "rank",
        "head",  # where it is placed
        "masks",  # what the client reads of it
        "hidden",  # the template's; nothing was hidden in what is kept
        "hidden_prompt",  # out
        "sentence",  # out
        "follows",  # whether it is taken
    }
)
"""Fields that change no token."""
GREEDY_IGNORES = frozenset({"temperature", "top_p", "top_k", "min_p", "seed", "logprobs"})
"""Sampling that greedy decoding does not look at; `logprobs` is out."""


def answer_key(request: Generate) -> AnswerKey | None:
    """What the tokens of the answer follow from; None when they may differ from one time to the next, when more than
    tokens is asked for, or when the client wants no cache.

    A field that is added to a request is part of the key until it is named above.
    """
    sampling, constraint = request.sampling, request.constraint
    if sampling.temperature >= GREEDY_BELOW or sampling.logprobs is not None:
        return None
    if not request.cache or request.shared is not None or request.hidden_prompt or request.sentence is not None:
        return None
    if constraint is not None and not isinstance(constraint, Recipe):
        return None
    asked = [
        ("constraint", constraint.key if constraint is not None else None),
        ("sampling", _sampling(sampling)),
        ("watch", _watched(request.watch)),
        ("images", [_picture(placed) for placed in request.images]),
        *((field.name, getattr(request, field.name)) for field in fields(request) if field.name not in _APART),
    ]
    return AnswerKey(array("i", request.prompt).tobytes(), repr(asked))


_APART = OTHERWISE | NO_MATTER


def _sampling(sampling: Sampling) -> list[tuple[str, Any]]:
    given = [(f.name, getattr(sampling, f.name)) for f in fields(sampling) if f.name not in GREEDY_IGNORES]
    return [(name, sorted(value.items()) if isinstance(value, Mapping) else value) for name, value in given]


def _watched(watch: Watch | None) -> list[tuple[str, str, str]]:
    """The tasks that look at the answer."""
    posts = watch.roster.posts if watch is not None else ()
    return [(post.task.name, post.task.mode, repr(sorted(post.task.params.items()))) for post in posts]


def _picture(placed: PlacedPicture) -> tuple[int, int, str]:
    return placed.start, placed.picture.rows, placed.picture.id


@dataclass(frozen=True, slots=True)
class Known:
    """A kept answer that serves a request."""

    store: str
    """The name of the store that had it."""
    answer: KeptAnswer


@dataclass(frozen=True, slots=True)
class Retold:
    """A kept answer as the request gets it."""

    tokens: Seq[int]
    events: list[Event]
    """Through the last one."""


class KnownAnswers:
    """Finds and keeps answers in the stores of a cache stack, and tells them again."""

    def __init__(self, caches: CacheStack, tokenizer: Tokenizer) -> None:
        self._caches = caches
        self._tokenizer = tokenizer

    def find(self, request: Generate) -> Known | None:
        """The answer to a request, if it is known. Safe from any thread."""
        if not self._caches.keeps_answers or (key := answer_key(request)) is None:
            return None
        found = self._caches.answer(key, request.max_tokens, request.stop)
        return Known(*found) if found is not None else None

    def keep(self, generation: Generation, last: Finished | Failed) -> None:
        """A generation is over; its answer is kept if the next one would be the same."""
        request = generation.request
        if not self._caches.keeps_answers or isinstance(last, Failed) or last.detail not in ENDINGS:
            return
        if not generation.repeatable or not request.keep_text or (key := answer_key(request)) is None:
            return
        self._caches.keep(key, KeptAnswer(array("i", generation.output), last.detail, request.stop))

    def retell(self, known: Known, request: Generate) -> Retold:
        """The events that a generation of these tokens sends, at once.

        The same tests in the same order as `Generation`: after each token its stop strings, then its limit.
        """
        answer = Answer(self._tokenizer, request.stop, request.thinking, request.calls, masks=request.masks)
        tokens = known.answer.tokens[: request.max_tokens]
        events: list[Event] = []
        taken = 0
        for token in tokens:
            events += answer.feed(token)
            taken += 1
            if answer.stopped is not None:
                break
        reason, detail = "stop", "stop_string"
        if answer.stopped is None and taken >= request.max_tokens:
            reason, detail = "length", "max_tokens"
        elif answer.stopped is None:
            detail = known.answer.ended
        events += answer.end(cut=reason == "length")
        if reason == "stop" and answer.calls:
            reason = "tool_calls"
        stats = Stats(
            prompt_tokens=len(request.prompt),
            cached_tokens=len(request.prompt),
            completion_tokens=taken,
            reasoning_tokens=answer.reasoning_tokens,
            cache_source=known.store,
        )
        return Retold(tokens[:taken], [*events, Finished(reason, stats, detail, answer.stopped)])
