"""What a pass costs: measured, learned, drawn as a curve."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings, strategies as st

from tandem.plugins.choosers.staircut.measure import SWEEPS, WIDTHS, measure
from tandem.plugins.choosers.staircut.prices import CLASSES, MAX_ROWS, Prices, context_class, isotonic
from tandem.plugins.models.scripted import ScriptedModel

seconds = st.floats(1e-6, 1e3)
tables = st.dictionaries(st.integers(1, MAX_ROWS), seconds, min_size=1)


@given(st.lists(st.tuples(st.floats(-100, 100), st.floats(0.1, 10)), min_size=1, max_size=7))
def test_the_isotonic_sequence_never_falls_and_none_that_never_falls_is_nearer(
    pairs: list[tuple[float, float]],
) -> None:
    values, weights = [v for v, _ in pairs], [w for _, w in pairs]
    fitted = isotonic(values, weights)
    assert all(a <= b + 1e-9 for a, b in itertools.pairwise(fitted))

    def far(sequence: list[float]) -> float:
        return sum(w * (v - x) ** 2 for v, w, x in zip(values, weights, sequence, strict=True))

    noise = random.Random(0)
    for _ in range(50):
        other = sorted(x + noise.gauss(0, 5) for x in fitted)
        assert far(fitted) <= far(other) + 1e-6


@given(tables)
def test_a_curve_covers_every_width_and_never_falls(table: dict[int, float]) -> None:
    prices = Prices(table)
    curve = [prices.price(rows, 100) for rows in range(1, 70)]
    assert all(0 < a <= b * (1 + 1e-9) for a, b in itertools.pairwise(curve))


def test_prices_between_measured_widths_lie_on_the_line_between_them() -> None:
    prices = Prices({1: 1.0, 2: 2.0, 4: 3.0})
    assert [prices.price(rows, 10) for rows in (1, 2, 3, 4, 8)] == pytest.approx([1.0, 2.0, 2.5, 3.0, 5.0])


def test_contexts_belong_to_the_class_that_ends_above_them() -> None:
    contexts = (0, 1024, 1025, 4096, 9000, 20000, 32768, 200_000)
    assert [context_class(context) for context in contexts] == [1024, 1024, 4096, 4096, 16384, 32768, 32768, 32768]


def test_passes_of_one_class_leave_the_widths_of_the_others_in_proportion() -> None:
    prices = Prices({1: 1.0, 8: 2.0})
    for _ in range(400):
        prices.observe(1, 10_000, 1.2)
        prices.observe(8, 10_000, 4.0)
    assert prices.price(8, 10_000) / prices.price(1, 10_000) == pytest.approx(4.0 / 1.2, rel=0.05)
    assert prices.price(8, 100) / prices.price(1, 100) == pytest.approx(2.0, rel=0.01)
    assert prices.price(8, 30_000) == prices.price(8, 10_000), "an unknown class has the prices of the nearest"


def test_a_machine_that_became_slower_is_believed_for_widths_that_were_not_seen() -> None:
    prices = Prices({1: 1.0, 2: 1.1, 8: 2.0})
    for _ in range(150):
        prices.observe(1, 10, 2.0)
    assert prices.price(1, 10) == pytest.approx(2.0, rel=0.03)
    assert prices.price(8, 10) / prices.price(1, 10) == pytest.approx(2.0, rel=0.2)


@pytest.mark.parametrize("hiccup", [1000.0, 1e-6])
def test_a_hiccup_moves_no_price_by_more_than_three_percent(hiccup: float) -> None:
    prices = Prices({1: 1.0, 2: 1.1, 8: 2.0})
    for _ in range(50):
        prices.observe(8, 10, 2.0)
    before = prices.price(8, 10), prices.price(1, 10)
    prices.observe(8, 10, hiccup * 2.0)
    after = prices.price(8, 10), prices.price(1, 10)
    assert after == pytest.approx(before, rel=0.03)
    assert after[0] / after[1] == pytest.approx(before[0] / before[1], rel=0.005), "no choice of a width moves"


def test_a_width_that_was_never_measured_is_learned_fast_and_without_the_speed() -> None:
    """Where a kernel ends, prices jump: what lies between two measured widths is not always on the line."""
    prices = Prices({1: 1.0, 4: 1.6, 8: 2.4})
    for _ in range(6):
        prices.observe(6, 10, 3.0)
    assert prices.price(1, 10) == pytest.approx(1.0, rel=0.1)
    assert prices.price(6, 10) > 2.4


def test_the_price_of_a_plain_step_grows_old() -> None:
    prices = Prices({1: 1.0, 8: 2.0})
    for _ in range(5):
        prices.observe(8, 10, 2.0)
    assert prices.since_plain(10) == 5
    prices.observe(1, 10, 1.0)
    assert prices.since_plain(10) == 0


@pytest.mark.parametrize(("rows", "taken"), [(0, 1.0), (33, 1.0), (4, 0.0), (4, -1.0), (4, float("nan"))])
def test_what_can_not_be_a_price_is_not_learned(rows: int, taken: float) -> None:
    prices = Prices({1: 1.0, 8: 2.0})
    prices.observe(rows, 10, taken)
    assert prices.observed == 0


@settings(max_examples=50)
@given(tables, st.lists(st.tuples(st.integers(1, MAX_ROWS), st.integers(0, 50_000), seconds), max_size=30))
def test_prices_come_back_from_json_as_they_were(table: dict[int, float], passes: list[tuple[int, int, float]]) -> None:
    prices = Prices(table)
    for rows, context, taken in passes:
        prices.observe(rows, context, taken)
    again = Prices.from_json(prices.to_json())
    assert again.report() == prices.report()


# ---------------------------------------------------------------------------------------------------- measuring


class Clock:
    """Each pass of the scripted model takes `1 + 0.1 * rows` seconds of this clock."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def timed(clock: Clock, spoil: int = 0) -> ScriptedModel:
    model = ScriptedModel({"reply": "x", "tokens_per_s": 0, "prefill_per_s": 0})
    run, passes = model.forward, [0]

    def forward(blocks):  # type: ignore[no-untyped-def]
        passes[0] += 1
        clock.now += 1.0 + 0.1 * len(blocks[0].tokens)
        if spoil and passes[0] % spoil == 0:
            clock.now += 100.0
        return run(blocks)

    model.forward = forward  # type: ignore[method-assign]
    return model


def test_every_width_is_measured_and_a_busy_moment_spoils_none() -> None:
    clock = Clock()
    table = measure(timed(clock, spoil=13), 1e9, clock)
    assert table == {rows: pytest.approx(1.0 + 0.1 * rows) for rows in sorted(WIDTHS)}


def test_measuring_stops_when_its_time_is_up_with_one_row_and_the_widest_known() -> None:
    clock = Clock()
    table = measure(timed(clock), 0.0, clock)
    assert set(table) == {1, 32}
    assert clock.now < 15
    clock = Clock()
    sweep = sum(1.0 + 0.1 * rows for rows in WIDTHS)
    assert set(measure(timed(clock), 30 + 2 * sweep, clock)) == set(WIDTHS)
    assert clock.now < 30 + 3 * sweep < SWEEPS * sweep


def test_a_model_with_little_room_is_measured_as_far_as_it_goes() -> None:
    clock = Clock()
    model = timed(clock)
    model.caps = type(model.caps)(max_len=5)  # type: ignore[misc]
    assert set(measure(model, 100.0, clock)) == {1, 2, 3, 4}


def test_the_classes_rise() -> None:
    assert list(CLASSES) == sorted(CLASSES)
