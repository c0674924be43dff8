"""Which images of a long conversation stay, against the rule written down the naive way."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from tandem.api.images.keeping import Keeping


def left_out(rows: list[int], newest: int, cap: int, row_cap: int, at_most: int = 100) -> int:
    """How many go, when images of such `rows` are looked at as the choice asks for them."""
    keeping = Keeping(len(rows), newest, max_images=cap, room=row_cap - sum(rows[len(rows) - newest :]))
    while asked := keeping.ask(at_most):
        for index in asked:
            keeping.weigh(rows[index])
    return keeping.left_out


def naive(rows: list[int], newest: int, cap: int, row_cap: int) -> int:
    step = max(1, cap // 2)
    gone = max(0, len(rows) - cap)
    while gone % step:
        gone += 1
    for index in range(len(rows)):
        if sum(rows[index:]) > row_cap:
            over = index + 1
            while over % step:
                over += 1
            gone = max(gone, over)
    return min(gone, len(rows) - newest)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[list[int]], int, int]:
    """The rows of each message's images, and caps under which each message's images fit on their own."""
    cap = draw(st.integers(1, 9))
    row_cap = draw(st.integers(100, 500))
    images = st.lists(st.integers(1, 100), max_size=cap).filter(lambda rows: sum(rows) <= row_cap)
    return draw(st.lists(images, min_size=1, max_size=12)), cap, row_cap


@given(conversations(), st.integers(100, 400))
def test_the_choice_is_the_rule_and_obeys_the_caps(talk: tuple[list[list[int]], int, int], at_most: int) -> None:
    messages, cap, row_cap = talk
    rows = [each for message in messages for each in message]
    newest = len(messages[-1])
    gone = left_out(rows, newest, cap, row_cap, at_most)
    assert gone == naive(rows, newest, cap, row_cap)
    assert len(rows) - gone <= cap
    assert sum(rows[gone:]) <= row_cap
    assert gone <= len(rows) - newest


@given(conversations())
def test_a_growing_conversation_changes_its_head_in_whole_steps_only(talk: tuple[list[list[int]], int, int]) -> None:
    messages, cap, row_cap = talk
    step = max(1, cap // 2)
    before = 0
    for turn in range(1, len(messages) + 1):
        rows = [each for message in messages[:turn] for each in message]
        newest = len(messages[turn - 1])
        gone = left_out(rows, newest, cap, row_cap)
        assert gone >= before
        assert gone % step == 0 or gone == len(rows) - newest
        before = gone


@pytest.mark.parametrize(("cap", "step"), [(16, 8), (5, 2), (1, 1)])
def test_with_an_image_a_turn_the_head_changes_once_in_half_the_cap(cap: int, step: int) -> None:
    gone = [left_out([1] * total, 1, cap, 10**6) for total in range(1, 6 * cap)]
    assert gone == [0] * cap + [-(-over // step) * step for over in range(1, 5 * cap)]


def test_seventeen_images_lose_eight_and_the_next_seven_change_nothing() -> None:
    assert [left_out([300] * total, 1, 16, 65536) for total in (16, 17, 18, 24, 25)] == [0, 8, 8, 8, 16]


def test_rows_over_the_cap_take_the_first_that_is_over_and_all_that_are_older_in_whole_steps() -> None:
    rows = [10, 10, 10, 10, 10, 60, 10, 10]  # 90 with the sixth from the end, so the third is the first over
    assert left_out(rows, 1, 8, 109) == 4
    assert left_out(rows, 1, 8, 120) == 4
    assert left_out(rows, 1, 8, 130) == 0


def test_the_newest_messages_images_stay_even_when_a_whole_step_would_take_them() -> None:
    assert left_out([1] * 19, 16, 16, 10**6) == 3
    assert left_out([60, 60, 60], 1, 16, 100) == 2


@given(conversations(), st.integers(100, 400))
def test_no_image_is_looked_at_that_one_by_one_would_have_spared(
    talk: tuple[list[list[int]], int, int], at_most: int
) -> None:
    messages, cap, row_cap = talk
    rows = [each for message in messages for each in message]
    newest = len(messages[-1])

    def looked_at(at_most: int) -> list[int]:
        seen: list[int] = []
        keeping = Keeping(len(rows), newest, max_images=cap, room=row_cap - sum(messages[-1]))
        while asked := keeping.ask(at_most):
            seen += asked
            for index in asked:
                keeping.weigh(rows[index])
        return seen

    assert looked_at(at_most) == looked_at(10**9)
