from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st

from tandem.core.plugin import Moment
from tandem.plugins.caches.state_store import SHARE, StateStore

ROW = 10


class Text:
    """A sequence that is its tokens, ten bytes each."""

    def __init__(self, tokens: Any = ()) -> None:
        self.tokens = list(tokens)

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def nbytes(self) -> int:
        return ROW * len(self.tokens)

    def snapshot(self, anchor: Any = None) -> tuple[int, ...]:
        return tuple(self.tokens)

    def restore(self, snapshot: tuple[int, ...]) -> None:
        self.tokens = list(snapshot)

    def trim(self, length: int, anchor: Any = None) -> None:
        del self.tokens[length:]


def shared(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def found(store: StateStore, prompt: list[int]) -> int:
    match = store.lookup(prompt)
    if match is None:
        return 0
    sequence: Any = store.resume(match, Text)  # type: ignore[arg-type]
    assert sequence.tokens == prompt[: match.length]
    return match.length


texts = st.lists(st.integers(0, 2), min_size=1, max_size=12)


@given(st.lists(texts, max_size=10), texts, st.integers(1, 40), st.booleans())
def test_the_longest_beginning_is_found_within_the_budget(
    offered: list[list[int]], prompt: list[int], room: int, trim: bool
) -> None:
    store = StateStore(budget=room * ROW, every=4, trim=trim)
    for text in offered:
        store.offer(Moment.GRID, text[: len(text) // 4 * 4], Text(text[: len(text) // 4 * 4]))  # type: ignore[arg-type]
        store.offer(Moment.PROMPT_END, text, Text(text))  # type: ignore[arg-type]
        store.offer(Moment.GENERATION_END, [*text, 9], Text([*text, 9]))  # type: ignore[arg-type]
        assert store.check() == []
    held = [entry.tokens for entry in store._entries]
    assert all(len(text) * ROW <= room * ROW // SHARE for text in held)
    usable = [shared(text, prompt) for text in held if trim or shared(text, prompt) == len(text)]
    assert found(store, prompt) == max(usable, default=0)


def test_a_copy_serves_any_number_of_prompts() -> None:
    store = StateStore(10**6, 4, trim=True)
    store.offer(Moment.PROMPT_END, [1, 2, 3], Text([1, 2, 3]))  # type: ignore[arg-type]
    assert [found(store, [1, 2, 3, last]) for last in range(3)] == [3, 3, 3]


def test_without_trim_the_places_on_the_way_are_kept_as_well() -> None:
    text = list(range(10))
    for trim, entries in ((True, 1), (False, 3)):
        store = StateStore(10**6, 4, trim=trim)
        for end in (4, 8, 10):
            moment = Moment.PROMPT_END if end == 10 else Moment.GRID
            store.offer(moment, text[:end], Text(text[:end]))  # type: ignore[arg-type]
        assert store.stats()["entries"] == entries
        assert found(store, [*text[:9], 77]) == (9 if trim else 8)


def test_the_least_recently_used_goes_first() -> None:
    store = StateStore(SHARE * 4 * ROW, 4, trim=True)
    for start in range(4):
        store.offer(Moment.PROMPT_END, [start] * 4, Text([start] * 4))  # type: ignore[arg-type]
    assert found(store, [0, 0, 0, 0, 5]) == 4
    store.offer(Moment.PROMPT_END, [7] * 4, Text([7] * 4))  # type: ignore[arg-type]
    assert found(store, [0, 0, 0, 0, 5]) == 4
    assert found(store, [1, 1, 1, 1, 5]) == 0
    assert store.shed(1) == 4 * ROW
    store.clear()
    assert store.stats()["bytes"] == 0
