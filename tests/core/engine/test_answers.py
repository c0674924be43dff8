"""Known answers: what a greedy answer depends on, and that one told again is the one that would be generated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Seq
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from served import LONG, Client, FakePlatform, SlowToy, ask
from toy import ToyModel

from tandem.core.conductor import Journal, Roster, Supervisor, Watch
from tandem.core.engine.answers import GREEDY_IGNORES, NO_MATTER, answer_key
from tandem.core.engine.constraint import Recipe
from tandem.core.engine.engine import Engine
from tandem.core.engine.request import (
    Calls,
    Finished,
    Generate,
    PlacedPicture,
    PrefillProgress,
    Rank,
    Sampling,
    SharedPrompt,
    Thinking,
)
from tandem.core.plugin import Action, AnswerKey, KeptAnswer, RequestEvent, Rule, SafePoint
from tandem.testing.server import until


def picture(start: int, rows: int, id: str) -> PlacedPicture:
    return PlacedPicture(start, SimpleNamespace(id=id, rows=rows))  # type: ignore[arg-type]


def recipe(key: str) -> Recipe:
    return Recipe(key, lambda: None)  # type: ignore[arg-type, return-value]


THINKING = Thinking(("<", ">"), True, 9, (3,))
BASE = Generate(
    [1, 2, 3], 9, thinking=THINKING, constraint=recipe("a grammar"), images=(picture(1, 1, "a"),), stop=("x",)
)


def watched(mode: str) -> Watch:
    """The supervision of a request by one task."""
    roster = Roster.of([("r", Rule("r", at=SafePoint.SP1, check=lambda event, task, sup: None), {"mode": mode})])
    return Supervisor(Journal()).begin(RequestEvent((), 1, 1, "plain"), roster)


CHANGES: dict[str, list[Any]] = {
    "prompt": [[1, 2], [1, 2, 4], [1, 2, 3, 3]],
    "thinking": [
        None,
        replace(THINKING, tags=("[", ">")),
        replace(THINKING, opened=False),
        replace(THINKING, budget=8),
        replace(THINKING, budget=None),
        replace(THINKING, closing=(4,)),
    ],
    "constraint": [None, recipe("another grammar")],
    "images": [(), (picture(1, 1, "b"),), (picture(2, 1, "a"),), (picture(1, 2, "a"),), (*BASE.images, *BASE.images)],
    "max_tokens": [1, 99],
    "stop": [(), ("y",), ("x", "y")],
    "calls": [Calls(lambda: None)],  # type: ignore[arg-type, return-value]
    "messages": [({"role": "user", "content": "x"},)],
    "client": ["curl"],
    "cache": [True],
    "keep_text": [False],
    "shared": [None],
    "rank": [Rank.SIDE],
    "head": [1],
    "follows": [True],
    "watch": [watched("act"), watched("shadow")],
    "masks": [{"a": "b"}],
    "hidden": [None],
    "hidden_prompt": [],  # below
    "sentence": [],
    "sampling": [],
}
"""Every field of a request, with other values than BASE has."""
SAMPLING: dict[str, list[Any]] = {
    "repetition_penalty": [1.1, 0.9],
    "presence_penalty": [0.5, -0.5],
    "frequency_penalty": [0.5, -0.5],
    "logit_bias": [{1: 1.0}, {2: 1.0}, {1: 2.0}, {1: 1.0, 2: 1.0}],
    "no_repeat_ngram_size": [2, 3],
    "temperature": [1e-9],
    "top_p": [0.5],
    "top_k": [1],
    "min_p": [0.5],
    "seed": [7],
    "logprobs": [None],
}


def test_every_field_of_a_request_is_looked_at() -> None:
    assert set(CHANGES) == {field.name for field in fields(Generate)}
    assert set(SAMPLING) == {field.name for field in fields(Sampling)}


def variants(request: Generate) -> Iterator[tuple[bool, Generate]]:
    """The request with one field changed, and whether that may change a token."""
    for name, values in CHANGES.items():
        yield from ((name not in NO_MATTER, replace(request, **{name: value})) for value in values)
    for name, values in SAMPLING.items():
        for value in values:
            yield name not in GREEDY_IGNORES, replace(request, sampling=replace(request.sampling, **{name: value}))


def test_a_change_of_any_field_that_may_change_a_token_is_another_key_and_of_no_other() -> None:
    seen = [answer_key(BASE)]
    for matters, other in variants(BASE):
        key = answer_key(other)
        assert key is not None
        assert (key == seen[0]) is not matters, other
        if matters:
            assert key not in seen, other
            seen.append(key)


def test_what_a_rule_put_into_the_prompt_or_said_itself_is_nobodys_answer() -> None:
    assert answer_key(replace(BASE, hidden_prompt=(range(1, 2),))) is None
    assert answer_key(replace(BASE, sentence=("r", "[No.]"))) is None


def test_bias_is_a_set_not_a_list() -> None:
    one, two = ({1: 1.0, 2: 2.0}, {2: 2.0, 1: 1.0})
    assert answer_key(Generate([1], 9, Sampling(logit_bias=one))) == answer_key(
        Generate([1], 9, Sampling(logit_bias=two))
    )


@pytest.mark.parametrize(
    "out",
    [
        {"sampling": Sampling(temperature=0.1)},
        {"sampling": Sampling(logprobs=0)},
        {"cache": False},
        {"shared": SharedPrompt()},
        {"constraint": lambda: None},
    ],
    ids=["sampled", "logprobs", "no cache", "several choices", "a constraint without a key"],
)
def test_a_request_whose_answer_is_not_the_only_one_has_no_key(out: dict[str, Any]) -> None:
    assert answer_key(replace(BASE, **out)) is None


# -------------------------------------------------------------------------------------------------- an engine with it


class Naive:
    """A store of answers without bounds."""

    def __init__(self) -> None:
        self.kept: dict[AnswerKey, KeptAnswer] = {}
        self.given = 0

    def answer(self, key: AnswerKey, max_tokens: int, stop: Seq[str]) -> KeptAnswer | None:
        found = self.kept.get(key)
        if found is None or not found.serves(max_tokens, stop):
            return None
        self.given += 1
        return found

    def keep(self, key: AnswerKey, answer: KeptAnswer) -> None:
        self.kept[key] = answer

    def shed(self, nbytes: int) -> int:
        return 0

    def stats(self) -> dict[str, float]:
        return {"bytes": 0, "entries": len(self.kept)}

    def clear(self) -> None:
        self.kept.clear()

    def check(self) -> list[str]:
        return []

    def close(self) -> None:
        return


def platform_with(store: Any, model: Any | None = None, **options: Any) -> FakePlatform:
    platform = FakePlatform(model or ToyModel(), **options)
    platform.tiers = [("answers", store)]
    return platform


@pytest.fixture
def served() -> Iterator[Any]:
    running: list[Engine] = []

    def start(platform: FakePlatform) -> Engine:
        engine = Engine(platform)  # type: ignore[arg-type]
        engine.start()
        running.append(engine)
        return engine

    yield start
    for engine in running:
        engine.stop()


def told(client: Client) -> list[Any]:
    """All that the client was sent, without counts of time and of where it came from."""
    client.wait()
    last = client.got[-1]
    assert isinstance(last, Finished)
    counts = last.stats.completion_tokens, last.stats.reasoning_tokens, last.stats.prompt_tokens
    sent = [event for event in client.got[:-1] if not isinstance(event, PrefillProgress)]
    return [*sent, (last.reason, last.detail, last.stop, *counts)]


def asked(engine: Engine, **more: Any) -> list[Any]:
    return told(ask(engine, **more)[0])


def test_a_request_that_was_answered_is_answered_without_a_pass(served: Any) -> None:
    store, model = Naive(), ToyModel()
    engine = served(platform_with(store, model))
    first = asked(engine, max_tokens=40)
    passes = model.passes
    client, job = ask(engine, max_tokens=40)
    assert told(client) == first
    assert model.passes == passes
    last = client.got[-1]
    assert (last.stats.cached_tokens, last.stats.cache_source, last.stats.rounds) == (3, "answers", 0)
    assert list(job.retold) == list(next(iter(store.kept.values())).tokens)
    totals = engine.snapshot()["totals"]
    assert totals["prompt_tokens"] == 6
    assert totals["cached_tokens"] == 3
    assert engine.idle


LIMITS = st.integers(1, 30)
STOPS = st.lists(st.text("abcdefghijk", min_size=1, max_size=2), max_size=3).map(tuple)
THINKS = st.sampled_from([None, Thinking(("b", "c"), True), Thinking(("b", "c"), True, 4, (3, 5))])
ASKS = st.tuples(LIMITS, STOPS)


@settings(max_examples=60)
@given(first=ASKS, then=ASKS, thinking=THINKS, prompt=st.lists(st.integers(1, 11), min_size=1, max_size=4))
def test_what_is_told_again_is_what_would_be_generated(
    first: tuple[int, tuple[str, ...]], then: tuple[int, tuple[str, ...]], thinking: Thinking | None, prompt: list[int]
) -> None:
    store = Naive()
    engine, oracle = _ENGINES.with_store(store), _ENGINES.oracle
    for limit, stop in (first, then, first):
        fields = {"prompt": prompt, "max_tokens": limit, "stop": stop, "thinking": thinking}
        assert asked(engine, **fields) == asked(oracle, **fields)


class _Engines:
    """One engine with a store that a test changes, and one without any: they start once."""

    def __init__(self) -> None:
        self._store: Any = None
        self._with: Engine | None = None
        self._without: Engine | None = None

    def with_store(self, store: Any) -> Engine:
        self._store = store
        if self._with is None:
            self._with = Engine(platform_with(_Passing(self)))  # type: ignore[arg-type]
            self._with.start()
        return self._with

    @property
    def oracle(self) -> Engine:
        if self._without is None:
            self._without = Engine(FakePlatform(ToyModel()))  # type: ignore[arg-type]
            self._without.start()
        return self._without

    @property
    def store(self) -> Any:
        return self._store

    def stop(self) -> None:
        for engine in (self._with, self._without):
            if engine is not None:
                engine.stop()


class _Passing(Naive):
    """Hands over to the store of the moment."""

    def __init__(self, engines: _Engines) -> None:
        super().__init__()
        self._engines = engines

    def answer(self, key: AnswerKey, max_tokens: int, stop: Seq[str]) -> KeptAnswer | None:
        found: KeptAnswer | None = self._engines.store.answer(key, max_tokens, stop)
        return found

    def keep(self, key: AnswerKey, answer: KeptAnswer) -> None:
        self._engines.store.keep(key, answer)


_ENGINES = _Engines()


@pytest.fixture(scope="module", autouse=True)
def _stopped() -> Iterator[None]:
    yield
    _ENGINES.stop()


def test_it_is_answered_beside_a_full_queue(served: Any) -> None:
    engine = served(platform_with(Naive(), SlowToy(**LONG), parallel=1, max_queue=0))
    first = asked(engine, max_tokens=5)
    holder, job = ask(engine, [4, 5], max_tokens=400)
    holder.first(PrefillProgress)
    assert asked(engine, max_tokens=5) == first
    assert not [event for event in holder.got if isinstance(event, Finished)]
    job.cancel()
    holder.wait()


def test_one_that_is_cancelled_first_is_abandoned(served: Any) -> None:
    engine = served(platform_with(Naive(), SlowToy(**LONG)))
    asked(engine, max_tokens=5)
    client = Client()
    hold = engine.errand(lambda: until(lambda: jobs and jobs[0].cancelled))
    jobs: list[Any] = []
    jobs.append(engine.submit(Generate([1, 2, 3], 5), client.sink))
    jobs[0].cancel()
    hold.result(20)
    last = client.wait()
    assert isinstance(last, Finished)
    assert last.reason == "abandoned"


@pytest.mark.parametrize("how", ["cancelled", "timed out", "thinking closed", "not to be kept"])
def test_an_answer_that_something_else_ended_or_steered_is_not_kept(served: Any, how: str) -> None:
    store = Naive()
    options = {"request_timeout_s": 0.1} if how == "timed out" else {}
    engine = served(platform_with(store, SlowToy(**LONG), **options))
    limit = 400 if how in ("cancelled", "timed out") else 30
    thinking = Thinking(("b", "c"), True, None, (3,)) if how == "thinking closed" else None
    client, job = ask(engine, max_tokens=limit, thinking=thinking, keep_text=how != "not to be kept")
    client.first(PrefillProgress)
    if how == "cancelled":
        job.cancel()
    if how == "thinking closed":
        job.end_thinking()
    client.wait()
    assert store.kept == {}


def test_a_failed_answer_is_not_kept(served: Any) -> None:
    store, model = Naive(), ToyModel(**LONG)
    model.break_at = 4
    engine = served(platform_with(store, model))
    ask(engine, max_tokens=9)[0].wait()
    assert store.kept == {}


# --------------------------------------------------------------------------------------------------------------- rules


@pytest.mark.parametrize("point", [SafePoint.SP4, SafePoint.SP1, SafePoint.SP2])
def test_an_answer_on_which_a_rule_acted_is_not_kept(served: Any, point: SafePoint) -> None:
    store = Naive()
    platform = platform_with(store, ToyModel(**LONG))
    platform.rules = [(Rule("no", at=point, check=lambda e, t, s: Action.give_up("not today")), {})]
    client, _ = ask(served(platform), max_tokens=5)
    client.wait()
    assert "not today" in client.text
    assert store.kept == {}


@pytest.mark.parametrize("point", [SafePoint.SP4, SafePoint.SP1, SafePoint.SP2])
def test_a_rule_that_acts_on_the_second_asking_is_heard(served: Any, point: SafePoint) -> None:
    """As one against a client that asks the same thing for ever."""
    store, requests = Naive(), set()

    def check(event: Any, task: Any, sup: Any) -> Action | None:
        requests.add(id(sup.memo))
        held.append(sup.memo)  # so that no other gets its id
        return Action.give_up("again?") if len(requests) > 1 else None

    held: list[Any] = []
    platform = platform_with(store, ToyModel(**LONG))
    platform.rules = [(Rule("again", at=point, check=check), {})]
    engine = served(platform)
    asked(engine, max_tokens=5)
    assert len(store.kept) == 1
    client, _ = ask(engine, max_tokens=5)
    last = client.wait()
    assert isinstance(last, Finished)
    assert last.detail == "rule:again"
    assert "again?" in client.text
    assert last.stats.cache_source == "none"


def test_rules_that_only_look_see_a_known_answer_too(served: Any) -> None:
    seen: list[str] = []
    platform = platform_with(Naive(), ToyModel(**LONG))
    platform.rules = [(Rule("look", at=SafePoint.SP2, check=lambda e, t, s: seen.append(e.answer)), {})]
    engine = served(platform)
    asked(engine, max_tokens=5)
    asked(engine, max_tokens=5)
    assert len(seen) == 2
    assert seen[0] == seen[1]


def test_a_store_that_fails_is_dropped_and_the_model_answers(served: Any) -> None:
    class Broken(Naive):
        def answer(self, key: AnswerKey, max_tokens: int, stop: Seq[str]) -> KeptAnswer | None:
            raise RuntimeError("it is broken")

    platform = platform_with(Broken())
    engine = served(platform)
    first = asked(engine, max_tokens=5)
    assert asked(engine, max_tokens=5) == first
    assert platform.failed == [("caches", "answers", "RuntimeError: it is broken")]
    assert engine.snapshot()["caches"] == {}
