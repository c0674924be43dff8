"""The resident tier over sequences that are their own text, with and without a recurrent state."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tandem.core.plugin import Anchor, Moment
from tandem.plugins.caches.resident.tier import LEAST, Resident

ROW, STATE = 10, 1000


class Text:
    """A sequence of ten bytes a row. With `recurrent`, it can be cut at its own anchors only."""

    def __init__(self, recurrent: bool, tokens: Any = ()) -> None:
        self.recurrent = recurrent
        self.tokens = list(tokens)
        self.closed = False

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def nbytes(self) -> int:
        return ROW * len(self.tokens)

    def anchor(self) -> Anchor:
        return Anchor(len(self.tokens), STATE if self.recurrent else 0, tuple(self.tokens))

    def _at(self, anchor: Anchor | None, length: int) -> list[int]:
        if self.recurrent and length != len(self.tokens):
            assert anchor is not None, "a recurrent state was cut without an anchor"
            assert anchor.length == length, "the anchor is of another length"
            assert list(anchor.state) == self.tokens[:length], "the anchor is of other rows"
        return self.tokens[:length]

    def trim(self, length: int, anchor: Anchor | None = None) -> None:
        self.tokens = self._at(anchor, length)

    def snapshot(self, anchor: Anchor | None = None) -> list[int]:
        return self._at(anchor, len(self.tokens) if anchor is None else anchor.length)

    def restore(self, snapshot: list[int]) -> None:
        self.tokens = list(snapshot)

    def close(self) -> None:
        assert not self.closed
        self.closed = True


def tier(trim: bool = True, **options: int) -> Resident:
    given_ = {"budget": 10**6, "anchor_budget": 10**6, "conversations": 16, "anchor_every": 8, **options}
    return Resident(trim=trim, **given_)


def run(resident: Resident, prompt: list[int], answer: list[int], chunk: int = 8) -> int:
    """One generation, as the engine drives a tier; the rows that came from it."""
    trim = resident._trim
    match = resident.lookup(prompt[:-1])
    sequence = resident.resume(match, lambda: Text(not trim)) if match else None  # type: ignore[arg-type, return-value]
    found = sequence.length if sequence is not None else 0
    if sequence is None:
        sequence = Text(not trim)  # type: ignore[assignment]
    text: Any = sequence
    assert text.tokens == prompt[:found]
    assert match is None or match.length == found
    while text.length < len(prompt):
        end = min(text.length - text.length % chunk + chunk, len(prompt))
        text.tokens.extend(prompt[text.length : end])
        resident.offer(Moment.GRID, prompt[:end], text)
    resident.offer(Moment.PROMPT_END, prompt, text)
    text.tokens.extend(answer)
    resident.offer(Moment.GENERATION_END, text.tokens, text)
    if not resident.adopt(list(text.tokens), text):
        text.close()
    assert resident.check() == []
    return found


WORDS = list(range(1, 400))


@pytest.mark.parametrize("trim", [True, False])
def test_a_next_turn_reads_only_what_is_new(trim: bool) -> None:
    resident = tier(trim)
    assert run(resident, WORDS[:50], [900, 901]) == 0
    assert run(resident, [*WORDS[:50], 900, 901, *WORDS[60:70]], [902]) == 52
    assert resident.stats()["entries"] == 1
    assert resident.stats()["copies"] == 0


def test_an_answer_that_comes_back_changed_costs_the_answer_alone() -> None:
    resident = tier()
    run(resident, WORDS[:50], [900, 901, 902])
    assert run(resident, [*WORDS[:50], 900, 77, 78], [5]) == 51


def test_a_recurrent_state_goes_back_to_the_prompts_end_or_to_a_line_of_the_grid() -> None:
    resident = tier(trim=False)
    run(resident, WORDS[:50], [900, 901, 902])
    assert run(resident, [*WORDS[:50], 77, 78], [5]) == 50, "the anchor where the prompt ended"
    assert run(resident, [*WORDS[:30], 66, 67], [5]) == 24, "the last line before the edit"


def test_a_shared_system_prompt_is_copied_and_the_conversation_stays() -> None:
    resident = tier()
    run(resident, WORDS[:200], [900])
    assert run(resident, [*WORDS[:60], 7, 8, 9], [5]) == 60
    assert run(resident, [*WORDS[:200], 900, 11], [5]) == 201
    assert resident.stats()["copies"] == 1


def test_a_few_shared_tokens_are_read_again() -> None:
    resident = tier()
    run(resident, WORDS[:100], [900])
    assert run(resident, [*WORDS[: LEAST - 1], *([7] * 50)], [5]) == 0


def test_the_least_recently_used_conversation_goes_first() -> None:
    resident = tier(conversations=2)
    one, two, three = WORDS[:40], WORDS[100:140], WORDS[200:240]
    run(resident, one, [900])
    run(resident, two, [900])
    run(resident, [*one, 900, 5], [901])
    run(resident, three, [900])
    assert resident.stats()["evictions"] == 1
    assert run(resident, [*one, 900, 5, 901, 6], [9]) == 43
    assert run(resident, [*two, 900, 5], [9]) == 0


def test_what_is_larger_than_the_budget_is_not_kept() -> None:
    resident = tier(budget=100 * ROW)
    run(resident, WORDS[:120], [900])
    assert resident.stats()["entries"] == 0
    run(resident, WORDS[:60], [900])
    run(resident, WORDS[200:260], [900])
    assert resident.stats()["entries"] == 1
    assert resident.stats()["bytes"] <= 100 * ROW


def test_shed_and_clear_close_what_they_drop() -> None:
    resident = tier()
    texts = [Text(False, WORDS[start : start + 50]) for start in (0, 100, 200)]
    for text in texts:
        assert resident.adopt(list(text.tokens), text)  # type: ignore[arg-type]
    assert resident.shed(1) == 50 * ROW
    assert [text.closed for text in texts] == [True, False, False]
    resident.clear()
    assert all(text.closed for text in texts)
    assert resident.stats()["bytes"] == 0


def test_anchors_stay_within_their_budget_and_the_newest_last() -> None:
    resident = tier(trim=False, anchor_budget=6 * STATE)
    run(resident, WORDS[:200], [900])
    stats = resident.stats()
    assert stats["anchor_bytes"] <= 6 * STATE
    assert run(resident, [*WORDS[:200], 5], [6]) == 200, "the newest anchor was given up"


def test_anchors_of_a_generation_that_broke_are_forgotten() -> None:
    resident = tier(trim=False)
    text = Text(True, WORDS[:40])
    resident.offer(Moment.GRID, WORDS[:40], text)  # type: ignore[arg-type]
    assert len(resident._running) == 1
    del text
    gc.collect()
    assert len(resident._running) == 0


def test_a_conversation_is_in_one_pair_of_hands_only() -> None:
    resident = tier()
    run(resident, WORDS[:50], [900])
    match = resident.lookup([*WORDS[:50], 900])
    assert match is not None
    first = resident.resume(match, lambda: Text(False))  # type: ignore[arg-type, return-value]
    assert first is not None
    assert resident.resume(match, lambda: Text(False)) is None  # type: ignore[arg-type, return-value]
    again = resident.lookup([*WORDS[:50], 900])
    assert again is not None
    assert again.copied
    assert resident.resume(again, lambda: Text(False)) is not first  # type: ignore[arg-type, return-value]


def begin(resident: Resident, prompt: list[int], read: int, chunk: int = 8) -> Any:
    """A generation that has read so much of its prompt, and goes on."""
    match = resident.lookup(prompt[:-1])
    empty = Text(not resident._trim)
    text: Any = resident.resume(match, lambda: empty) if match else empty  # type: ignore[arg-type, return-value]
    while text.length < read:
        end = min(text.length - text.length % chunk + chunk, read)
        text.tokens.extend(prompt[text.length : end])
        resident.offer(Moment.PROMPT_END if end == len(prompt) else Moment.GRID, prompt[:end], text)
    return text


@pytest.mark.parametrize(("trim", "found"), [(True, 101), (False, 100)])
def test_who_goes_on_with_a_conversation_while_another_does_gets_a_copy(trim: bool, found: int) -> None:
    resident = tier(trim)
    run(resident, WORDS[:100], [900])
    first = begin(resident, [*WORDS[:100], 900, *range(50, 60)], 111)
    match = resident.lookup([*WORDS[:100], 900, 7, 8])
    assert match is not None
    assert (match.length, match.copied) == (found, True)
    second: Any = resident.resume(match, lambda: Text(not trim))  # type: ignore[arg-type, return-value]
    assert second.tokens == [*WORDS[:100], 900][:found]
    assert first.tokens == [*WORDS[:100], 900, *range(50, 60)]
    assert resident.lookup([*WORDS[:100], 900, 7, 8]) is not None, "there is a third copy for who comes next"


def test_what_a_running_one_was_not_shown_to_have_read_is_not_promised() -> None:
    resident = tier()
    first = begin(resident, WORDS[:100], 64)
    first.tokens.extend(WORDS[64:70])  # in the middle of a chunk
    match = resident.lookup(WORDS[:100])
    assert match is not None
    assert match.length == 64


def test_a_running_one_that_broke_gives_nothing() -> None:
    resident = tier()
    first = begin(resident, WORDS[:100], 64)
    match = resident.lookup(WORDS[:100])
    assert match is not None
    first.tokens.clear()
    first.close()
    assert resident.lookup(WORDS[:100]) is None
    assert resident.resume(match, lambda: Text(False)) is None  # type: ignore[arg-type, return-value]


def test_a_sequence_that_cannot_be_watched_is_kept_when_it_is_over() -> None:
    class Bare:
        __slots__ = ("length", "nbytes")

    resident = tier()
    bare: Any = Bare()
    bare.length, bare.nbytes = 20, 200
    resident.offer(Moment.PROMPT_END, WORDS[:20], bare)
    assert resident.lookup(WORDS[:30]) is None
    assert resident.adopt(WORDS[:20], bare)
    match = resident.lookup(WORDS[:30])
    assert match is not None
    assert resident.resume(match, lambda: bare) is bare


def test_a_match_says_whether_rows_are_given_away() -> None:
    resident = tier()
    run(resident, WORDS[:200], [900])
    whole, fork = resident.lookup([*WORDS[:200], 900]), resident.lookup(WORDS[:60])
    assert whole is not None
    assert fork is not None
    assert (whole.copied, fork.copied) == (False, True)


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(st.sampled_from(["continue", "edit", "fork", "again", "new"]), st.integers(0, 10**6)), max_size=12
    ),
    st.booleans(),
    st.integers(3, 40),
    st.integers(0, 8),
)
def test_whatever_is_asked_next_resumes_what_it_says_and_no_more(
    steps: list[tuple[str, int]], trim: bool, room: int, anchors: int
) -> None:
    """`run` checks that resumed rows are the prompt's own, and `Text` that no state is cut without its anchor."""
    resident = tier(trim, budget=room * 50 * ROW, anchor_budget=anchors * STATE, conversations=4)
    histories: list[list[int]] = [[*range(30)]]
    for kind, number in steps:
        history = histories[number % len(histories)]
        place = number % (len(history) + 1)
        prompt = {
            "continue": [*history, 1000 + number % 7, 1001],
            "edit": [*history[:place], 2000 + number % 3, 1],
            "fork": [*history[: place // 2], *([3000 + number % 3] * 20)],
            "again": history,
            "new": [4000 + number % 3] * 25,
        }[kind]
        if not prompt:
            continue
        answer = [5000 + number % 5] * (number % 6)
        found = run(resident, prompt, answer)
        assert found < len(prompt)
        histories.append([*prompt, *answer])
