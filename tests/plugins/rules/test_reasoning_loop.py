"""`reasoning_loop`: loops are closed, honest work is not, and the arms agree with their naive twins."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tandem.core.plugin import Action, ActionKind, BlockEvent, SafePoint
from tandem.plugins.rules._phrases import Words, is_word
from tandem.plugins.rules.reasoning_loop import tandem_rules
from tandem.plugins.rules.reasoning_loop.novelty import Novelty
from tandem.plugins.rules.reasoning_loop.repeat import STEP, Repeats, Repetition
from tandem.testing.rules import Stand

[RULE] = tandem_rules()


def blocks(text: str, size: int = 7) -> Iterator[BlockEvent]:
    """The text as reasoning over bytes, as blocks of `size` tokens."""
    ids = list(text.encode())
    for start in range(0, len(ids), size):
        new = ids[start : start + size]
        yield BlockEvent(
            inside=True,
            ids=ids[: start + size],
            new_ids=new,
            new_reasoning=bytes(new).decode("utf-8", "replace"),
            reasoning_tokens=start + len(new),
        )


def findings(stand: Stand, text: str) -> list[Action]:
    return [action for event in blocks(text) if (action := stand.check(event)) is not None]


SENTENCE = "So the function should return the sum, but wait, the sum of what exactly. "


def test_a_sentence_over_and_over_is_closed_by_the_repeat_arm() -> None:
    [action] = findings(Stand(RULE), SENTENCE * 20)
    assert action.kind is ActionKind.CLOSE_REASONING
    assert action.reason == f"repeat({action.detail['copies']})"
    assert action.detail["arm"] == "repeat"
    assert action.detail["period"] == len(SENTENCE)
    assert action.text == RULE.params["text"]["default"]


def test_three_copies_are_no_loop_and_the_fourth_is() -> None:
    piece = "".join(chr(97 + i % 26) + chr(97 + i % 25) + " " for i in range(100))  # 300 tokens, no shorter period
    assert findings(Stand(RULE), piece * 3 + piece[:-STEP]) == []
    [action] = findings(Stand(RULE), piece * 4 + piece[:STEP])
    assert action.reason == "repeat(4)"


def test_words_in_another_order_each_time_are_closed_by_the_novelty_arm() -> None:
    parts = ("we read the file again", "then we look at the error", "and the test should pass", "so the path is wrong")
    orders = itertools.cycle(itertools.permutations(parts))
    text = " ".join(part for _, order in zip(range(80), orders, strict=False) for part in order)
    [action] = findings(Stand(RULE, longest=64), text)
    assert action.detail["arm"] == "novelty"
    assert action.reason == f"novelty({action.detail['share']:.2f})"
    assert action.detail["share"] < RULE.params["share"]["default"]


def test_case_after_case_is_no_loop() -> None:
    text = "".join(
        f"If x = {x} and y = {y}, then x + 2y = {x + 2 * y}, which is not {x * y + 40}, so we go on.\n"
        for x in range(15)
        for y in range(15)
    )
    assert findings(Stand(RULE), text) == []


def test_a_table_without_words_is_no_loop() -> None:
    rows = itertools.product("TF", repeat=7)
    assert findings(Stand(RULE), "".join("| " + " | ".join(row) + " |\n" for row in rows)) == []


def test_a_draft_that_is_written_out_three_times_is_no_loop() -> None:
    draft = " ".join(f"w{place * 7919 % 100_003:x}" for place in range(400))
    thrice = f"First try:\n{draft}\nOne name is wrong:\n{draft.replace('w7bbc', 'v7bbc')}\nAll of it:\n{draft}\n"
    assert findings(Stand(RULE), thrice) == []
    assert len(findings(Stand(RULE), thrice + draft)) == 1


def test_each_stretch_of_reasoning_is_closed_once() -> None:
    stand = Stand(RULE)
    assert len(findings(stand, SENTENCE * 60)) == 1
    assert stand.check(BlockEvent("an answer", "an answer", 10, new_ids=[1, 2])) is None
    assert len(findings(stand, SENTENCE * 60)) == 1


def test_what_is_said_outside_the_reasoning_is_not_looked_at() -> None:
    stand = Stand(RULE)
    for event in blocks(SENTENCE * 30):
        assert stand.check(BlockEvent(event.new_reasoning, event.new_reasoning, new_ids=event.new_ids)) is None
    assert stand.memo == {}


def test_a_reason_holds_no_text_of_the_reasoning() -> None:
    [action] = findings(Stand(RULE), "secret words " * 100)
    assert "secret" not in action.reason + repr(action.detail)


def test_an_event_without_fields_passes() -> None:
    assert Stand(RULE).check(BlockEvent()) is None
    assert Stand(RULE).check(BlockEvent(inside=True)) is None
    assert RULE.points == (SafePoint.SP1,)


# ------------------------------------------------------------------------------------------------- the naive twins


def naive_repetition(text: Sequence[int], copies: int, tokens: int, longest: int) -> Repetition | None:
    """The shortest period of the longest suffix that counts, by comparing everything."""
    for period in range(1, longest + 1):
        run = 0
        while run + period < len(text) and text[-1 - run] == text[-1 - run - period]:
            run += 1
        if run + period >= max(copies * period, tokens):
            return Repetition(period, run // period + 1)
    return None


loopy = st.tuples(
    st.lists(st.integers(0, 2), max_size=40),
    st.lists(st.integers(0, 2), min_size=1, max_size=20),
    st.integers(1, 12),
    st.lists(st.integers(0, 2), max_size=5),
).map(lambda parts: parts[0] + parts[1] * parts[2] + parts[3])


@given(st.lists(loopy, min_size=1, max_size=3), st.integers(2, 4), st.integers(1, 60), st.integers(1, 24), st.data())
def test_repeats_finds_what_comparing_everything_finds(
    texts: list[list[int]], copies: int, tokens: int, longest: int, data: st.DataObject
) -> None:
    text = [token for part in texts for token in part]
    arm, done = Repeats(copies, tokens, longest), 0
    while done < len(text):
        size = data.draw(st.integers(1, 2 * STEP))
        found = arm.feed(text[done : done + size])
        before, done = done // STEP, min(len(text), done + size)
        if done // STEP > before:  # a step was completed, and the last one is what it says
            assert found == naive_repetition(text[: done // STEP * STEP], copies, tokens, longest)
        else:
            assert found is None


def naive_share(items: Sequence[str], order: int, window: int, times: int) -> float:
    """By listing every phrase of the text."""
    places = [place for place, item in enumerate(items) if is_word(item)]
    phrases = [tuple(items[places[max(0, number - order + 1)] : place + 1]) for number, place in enumerate(places)]
    new = [phrases[:number].count(phrase) < times for number, phrase in enumerate(phrases)]
    return sum(new[-window:]) / window if len(new) >= window else 1.0


@given(
    st.lists(st.sampled_from(["go", "on", "we", "7", "12", "+", "a"]), max_size=60),
    st.integers(1, 4),
    st.integers(1, 12),
    st.integers(1, 3),
)
def test_novelty_counts_what_listing_every_phrase_counts(items: list[str], order: int, window: int, times: int) -> None:
    arm = Novelty(order, window, times)
    for item in items:
        arm.feed(f"{item} ")
    assert arm.share == pytest.approx(naive_share(items, order, window, times))


@given(st.text(st.sampled_from("ab1_ .+\né漢字か"), max_size=200), st.data())
@settings(max_examples=200)
def test_words_are_the_same_however_the_text_is_cut(text: str, data: st.DataObject) -> None:
    whole = Words()
    expected = whole.feed(text) + whole.end()
    pieces: Any = Words()
    found: list[str] = []
    rest = text
    while rest:
        size = data.draw(st.integers(1, 80))
        found += pieces.feed(rest[:size])
        rest = rest[size:]
    assert found + pieces.end() == expected


def test_a_word_without_end_is_cut() -> None:
    words = Words()
    items = [item for _ in range(50) for item in words.feed("abcdefg")] + words.end()
    assert "".join(items) == "abcdefg" * 50
    assert max(map(len, items)) == 64


def test_numbers_signs_and_single_letters_are_no_words() -> None:
    assert [item for item in Words().feed("so x = 12, 3rd foo_bar 漢 é. ") if is_word(item)] == ["so", "foo_bar", "漢"]
