"""The response store: what is given again, and what goes when room or time runs out."""

from __future__ import annotations

from threading import Thread

from hypothesis import given, strategies as st

from tandem.core.plugin import AnswerKey, AnswerStore, KeptAnswer
from tandem.plugins.caches.response import OVERHEAD, Responses

ROOMY = 1 << 20


def key(name: str) -> AnswerKey:
    return AnswerKey(name.encode() * 4, "asked")


def ended(*tokens: int) -> KeptAnswer:
    return KeptAnswer(list(tokens), "eos")


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def test_it_is_a_store_of_answers() -> None:
    assert isinstance(Responses(ROOMY, 9, 60), AnswerStore)


def test_an_answer_is_found_by_its_own_key_alone() -> None:
    store = Responses(ROOMY, 9, 60)
    store.keep(key("a"), ended(1, 2))
    found = store.answer(key("a"), 5, ())
    assert found is not None
    assert list(found.tokens) == [1, 2]
    assert store.answer(AnswerKey(key("a").prompt, "asked otherwise"), 5, ()) is None
    assert store.answer(key("b"), 5, ()) is None
    assert (store.stats()["hits"], store.stats()["misses"]) == (1, 2)


def test_a_cut_answer_serves_a_lower_limit_and_not_a_higher_one() -> None:
    store = Responses(ROOMY, 9, 60)
    store.keep(key("a"), KeptAnswer([1, 2, 3], "max_tokens"))
    assert store.answer(key("a"), 3, ()) is not None
    assert store.answer(key("a"), 2, ("stop",)) is not None
    assert store.answer(key("a"), 4, ()) is None


def test_an_answer_cut_at_a_stop_string_serves_those_who_look_for_it_too() -> None:
    store = Responses(ROOMY, 9, 60)
    store.keep(key("a"), KeptAnswer([1, 2, 3], "stop_string", ("x",)))
    assert store.answer(key("a"), 99, ("x",)) is not None
    assert store.answer(key("a"), 99, ("y", "x")) is not None
    assert store.answer(key("a"), 99, ("y",)) is None
    assert store.answer(key("a"), 99, ()) is None


def test_a_whole_answer_is_not_replaced_by_a_part_of_it() -> None:
    store = Responses(ROOMY, 9, 60)
    store.keep(key("a"), KeptAnswer([1], "max_tokens"))
    store.keep(key("a"), ended(1, 2))
    store.keep(key("a"), KeptAnswer([1], "max_tokens"))
    found = store.answer(key("a"), 9, ())
    assert found is not None
    assert list(found.tokens) == [1, 2]
    assert store.stats()["entries"] == 1


def test_an_answer_grows_too_old() -> None:
    clock = Clock()
    store = Responses(ROOMY, 9, 60, clock)
    store.keep(key("a"), ended(1))
    clock.time += 59
    assert store.answer(key("a"), 9, ()) is not None
    clock.time += 2  # being asked for makes it no younger
    assert store.answer(key("a"), 9, ()) is None
    assert store.stats()["expired"] == 1
    assert store.stats()["bytes"] == 0


def test_the_least_recently_used_goes_first() -> None:
    store = Responses(ROOMY, 2, 60)
    store.keep(key("a"), ended(1))
    store.keep(key("b"), ended(2))
    assert store.answer(key("a"), 9, ()) is not None
    store.keep(key("c"), ended(3))
    assert store.answer(key("b"), 9, ()) is None
    assert store.answer(key("a"), 9, ()) is not None
    assert store.shed(1) > OVERHEAD
    assert store.answer(key("c"), 9, ()) is None
    store.clear()
    assert store.stats()["bytes"] == store.stats()["entries"] == 0


NAMES = st.sampled_from("abcdefgh")
STEPS = st.lists(
    st.tuples(NAMES, st.integers(0, 200), st.sampled_from(["eos", "max_tokens"]), st.booleans()), max_size=40
)


@given(STEPS, st.integers(1, 5 * OVERHEAD), st.integers(1, 4))
def test_the_bounds_hold_and_what_is_found_is_what_was_kept(
    steps: list[tuple[str, int, str, bool]], budget: int, entries: int
) -> None:
    store = Responses(budget, entries, 60)
    kept: dict[str, KeptAnswer] = {}
    for name, length, how, keeps in steps:
        answer = KeptAnswer([length] * length, how)
        if keeps:
            fits = key(name).nbytes + answer.nbytes + OVERHEAD <= budget
            if fits and not (name in kept and kept[name].whole and not answer.whole and found_now(store, name)):
                kept[name] = answer
            store.keep(key(name), answer)
        elif (found := store.answer(key(name), 10**6, ())) is not None:
            assert found.whole
            assert list(found.tokens) == list(kept[name].tokens)
        assert store.check() == []


def found_now(store: Responses, name: str) -> bool:
    return key(name) in store._entries


def test_threads_may_ask_and_keep_at_once() -> None:
    store = Responses(8 * OVERHEAD, 99, 60)

    def work(seed: int) -> None:
        for step in range(300):
            store.keep(key(str((seed * 7 + step) % 20)), ended(step))
            store.answer(key(str(step % 20)), 9, ())

    threads = [Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.check() == []
