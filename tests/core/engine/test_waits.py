from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st

from tandem.core.engine.waits import LEAST_KNOWN, Running, Waits, in_words

PLAIN = Running(
    held_s=2.0, kind="plain", prefill_left=0, written=20, max_tokens=1000, prefill_per_s=100.0, decode_per_s=10.0
)


def known(*written: int, kind: str = "plain", rate: float = 10.0) -> Waits:
    waits = Waits()
    for tokens in written:
        waits.ended(kind, held_s=tokens / rate, read=100, prefill_s=1.0, written=tokens, decode_s=tokens / rate)
    return waits


def change(**fields: object) -> Running:
    return Running(**{name: getattr(PLAIN, name) for name in Running.__slots__} | fields)  # type: ignore[arg-type]


def test_nothing_is_said_before_a_few_requests_have_ended() -> None:
    assert known(*[50] * (LEAST_KNOWN - 1)).estimate([PLAIN], 0) is None
    assert known(*[50] * LEAST_KNOWN).estimate([], 0) is None


def test_the_rest_of_the_answer_is_what_others_of_its_kind_went_on_to_write() -> None:
    waits = known(10, 10, 40, 60, 80, 100)
    # of 40, 60, 80, 100 the 75th percentile is 85: 65 tokens to go at 10 a second
    assert waits.estimate([PLAIN], 0) == pytest.approx(6.5)


def test_the_prompt_that_is_still_to_be_read_comes_first() -> None:
    waits = known(40, 60, 80, 100, 120)
    more = waits.estimate([change(prefill_left=300)], 0)
    assert more == pytest.approx((waits.estimate([PLAIN], 0) or 0) + 3.0)


def test_the_output_limit_bounds_it() -> None:
    assert known(*[500] * 6).estimate([change(max_tokens=30)], 0) == pytest.approx(1.0)


def test_kinds_are_kept_apart() -> None:
    waits = known(*[1000] * 6, kind="thinking")
    for _ in range(6):
        waits.ended("plain", 3.0, 100, 1.0, 30, 3.0)
    assert waits.estimate([PLAIN], 0) == pytest.approx(1.0)
    assert waits.estimate([change(kind="thinking")], 0) == pytest.approx(98.0)


def test_without_rates_of_its_own_it_has_those_of_the_others() -> None:
    waits = known(*[120] * 6, rate=20.0)
    assert waits.estimate([change(decode_per_s=None)], 0) == pytest.approx(5.0)


def test_a_request_that_outlives_all_of_its_kind_is_judged_by_the_time_it_holds_its_place() -> None:
    waits = known(*[30] * 6)
    for held in (10.0, 20.0, 30.0):
        waits.ended("other", held, 0, 0.0, 5, 1.0)
    assert waits.estimate([change(written=900, held_s=8.0)], 0) == pytest.approx(12.0)
    assert waits.estimate([change(written=900, held_s=80.0)], 0) is None


def test_waiters_take_the_places_in_the_order_in_which_they_become_free() -> None:
    waits = known(*[100] * 6)  # each holds its place for 10 s, and all write as much
    two = [change(written=50), change(written=90)]  # 5 s and 1 s to go
    assert [waits.estimate(two, ahead) for ahead in range(4)] == pytest.approx([1.0, 5.0, 11.0, 15.0])


def test_caution_is_not_added_up_where_others_wait_before() -> None:
    waits = known(10, 10, 40, 60, 80, 100)
    # of 40, 60, 80, 100 the 60th percentile is 76: 56 tokens to go; each before held its place for 5 s at the median
    assert waits.estimate([PLAIN], 2) == pytest.approx(5.6 + 2 * 5.0)


def test_own_work_is_told_by_how_long_it_took_to_give_way() -> None:
    waits = known(*[100] * 6)
    for seconds in (0.1, 0.2, 0.3, 0.4):
        waits.gave_way(seconds)
    assert waits.estimate([], 0, own=1) is None, "four are too few"
    waits.gave_way(2.0)
    assert waits.estimate([], 0, own=1) == pytest.approx(0.3)
    assert waits.estimate([], 0, own=1, waited_s=0.35) == pytest.approx((0.05 + 1.65) / 2), "longer ones alone"
    assert waits.estimate([], 0, own=1, waited_s=3.0) is None
    assert waits.estimate([PLAIN], 1, own=1) == pytest.approx(8.0), "the one ahead takes own work's place"


@given(st.lists(st.integers(1, 2000), min_size=5, max_size=40), st.integers(0, 3), st.integers(0, 2000))
def test_more_waiters_ahead_never_shorten_the_wait(written: list[int], ahead: int, so_far: int) -> None:
    waits = known(*written)
    one = change(written=so_far, held_s=so_far / 10)
    first, later = waits.estimate([one], ahead), waits.estimate([one], ahead + 1)
    assert (first is None) == (later is None)
    if first is not None and later is not None:
        assert 0 <= first <= later


def test_over_a_made_load_estimates_come_near_the_real_waits() -> None:
    """Answers of log-normal length, the waiter arriving anywhere in them."""
    draw = random.Random(7)
    lengths = [int(draw.lognormvariate(5.5, 0.6)) + 1 for _ in range(400)]
    waits = known(*lengths[:200], rate=20.0)
    ratios = []
    for length in lengths[200:]:
        so_far = int(length * draw.random())
        real = (length - so_far) / 20.0
        guess = waits.estimate([change(written=so_far, held_s=so_far / 20.0, decode_per_s=20.0)], 0)
        if guess is not None and 5 <= real <= 60:
            ratios.append(guess / real)
    ratios.sort()
    assert 0.8 <= ratios[len(ratios) // 2] <= 1.6


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (3.4, "3 s"), (12, "10 s"), (37, "40 s"), (114, "110 s"), (115, "2 min"), (610, "10 min")],
)
def test_estimates_are_said_as_people_say_them(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
