from __future__ import annotations

from array import array
from threading import Thread

from hypothesis import given, strategies as st

from tandem.core.engine.replay import OVERHEAD, ReplayStore, Written

ROOMY = 1 << 20


def turn(*tokens: int) -> Written:
    return Written.of(tokens)


def test_a_turn_is_found_by_what_it_answers_and_by_its_calls() -> None:
    store = ReplayStore(ROOMY)
    store.put(turn(1, 2), b"exact", b"calls")
    for found in (store.find(b"exact"), store.find(b"elsewhere", b"calls")):
        assert found is not None
        assert list(found.tokens) == [1, 2]
    assert store.find(b"elsewhere") is None
    assert store.stats()["hits"] == 2


def test_tokens_are_packed_and_counted() -> None:
    written = Written.of(range(1000), opening="<think>\n")
    assert isinstance(written.tokens, array)
    assert written.tokens.itemsize == 4
    assert written.nbytes == 4000 + 8 + OVERHEAD


def test_the_least_recently_used_turn_goes_first() -> None:
    store = ReplayStore(3 * turn(0).nbytes)
    for name in (b"a", b"b", b"c"):
        store.put(turn(name[0]), name, name + b"'")
    assert store.find(b"a") is not None
    store.put(turn(9), b"d", b"d'")
    assert store.find(b"b", b"b'") is None
    assert all(store.find(name) for name in (b"a", b"c", b"d"))
    assert store.stats()["evictions"] == 1
    assert store.check() == []


def test_a_later_turn_with_the_same_exact_key_takes_the_place_of_the_first() -> None:
    store = ReplayStore(ROOMY)
    store.put(turn(1), b"exact", b"first's calls")
    store.put(turn(2), b"exact", b"second's calls")
    found = store.find(b"exact")
    assert found is not None
    assert list(found.tokens) == [2]
    assert store.find(b"elsewhere", b"first's calls") is None
    assert store.stats()["kept"] == 1


def test_two_turns_with_one_loose_key_are_found_in_their_own_conversations_only() -> None:
    store = ReplayStore(ROOMY)
    store.put(turn(1), b"one", b"same calls")
    store.put(turn(2), b"two", b"same calls")
    one, two = store.find(b"one", b"same calls"), store.find(b"two", b"same calls")
    assert one is not None
    assert two is not None
    assert (list(one.tokens), list(two.tokens)) == ([1], [2])
    assert store.find(b"a third", b"same calls") is None


def test_nothing_is_kept_without_a_budget_and_nothing_larger_than_it() -> None:
    store = ReplayStore(0)
    store.put(turn(1), b"a")
    assert store.find(b"a") is None
    store = ReplayStore(2 * OVERHEAD)
    store.put(turn(1), b"small")
    store.put(Written.of(range(1000)), b"large")
    assert store.find(b"small") is not None
    assert store.find(b"large") is None


def test_clear_forgets_everything() -> None:
    store = ReplayStore(ROOMY)
    store.put(turn(1), b"a", b"b")
    store.clear()
    assert store.find(b"a", b"b") is None
    assert store.stats()["bytes"] == store.stats()["kept"] == 0
    assert store.check() == []


KEYS = st.sampled_from([bytes([letter]) for letter in range(6)])
STEPS = st.lists(st.tuples(KEYS, st.none() | KEYS, st.integers(0, 300), st.booleans()), max_size=40)


@given(STEPS, st.integers(0, 6 * OVERHEAD))
def test_the_budget_and_the_index_hold_whatever_is_put_and_found(
    steps: list[tuple[bytes, bytes | None, int, bool]], budget: int
) -> None:
    store = ReplayStore(budget)
    newest: dict[bytes, int] = {}
    for number, (exact, loose, length, puts) in enumerate(steps):
        exact, loose = b"e" + exact, None if loose is None else b"l" + loose
        if puts:
            store.put(Written.of([number] * (length + 1)), exact, loose)
            if 4 * (length + 1) + OVERHEAD <= budget:
                newest[exact] = number
        elif (found := store.find(exact)) is not None:
            assert found.tokens[0] == newest[exact]
        assert store.check() == []
        assert store.stats()["bytes"] <= budget


def test_threads_may_put_and_find_at_once() -> None:
    store = ReplayStore(20 * OVERHEAD)

    def work(seed: int) -> None:
        for step in range(300):
            key = bytes([(seed * 7 + step) % 40])
            store.put(turn(step), b"e" + key, b"l" + key)
            store.find(b"e" + bytes([step % 40]), b"l" + key)

    threads = [Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.check() == []
