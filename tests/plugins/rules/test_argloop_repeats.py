from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from tandem.plugins.rules.argloop.repeats import Repeat, repeated, repeats_at_end


def naive(text: str, needed: list[int]) -> list[Repeat]:
    """Count back, character by character, for each unit; tell those that reach further than all shorter ones."""
    told: list[Repeat] = []
    for unit in range(1, len(needed) + 1):
        length = min(unit, len(text))
        while length < len(text) and text[-length - 1] == text[-length - 1 + unit]:
            length += 1
        if length >= needed[unit - 1] and all(length > other.length for other in told):
            told.append(Repeat(unit, length))
    return told


needs = st.lists(st.integers(1, 12), min_size=1, max_size=12).map(lambda more: [u + n for u, n in enumerate(more, 1)])
texts = st.one_of(
    st.text("ab", max_size=60),
    st.text(max_size=40),
    st.builds(
        lambda head, unit, copies, cut: (head + unit * copies)[: -cut or None],
        st.text("ab\n", max_size=10),
        st.text("ab é😀\n", min_size=1, max_size=9),
        st.integers(2, 12),
        st.integers(0, 8),
    ),
)


@given(texts, needs)
@example("a" * 30 + "b" + "a" * 30 + "b" + "a" * 8, [3, *(u + 2 for u in range(2, 13))])
def test_the_repeats_are_those_of_counting_back(text: str, needed: list[int]) -> None:
    assert list(repeats_at_end(text, np.array(needed))) == naive(text, needed)


@pytest.mark.parametrize("seed", range(5))
def test_long_units_are_found_as_by_counting_back(seed: int) -> None:
    dice = random.Random(seed)
    unit = "".join(dice.choices("ab \n.", k=dice.randrange(1, 700)))
    text = "head " * 20 + unit * 5 + unit[: dice.randrange(len(unit) + 1)]
    needed = [max(3 * u, u + 20) for u in range(1, 801)]
    assert list(repeats_at_end(text, np.array(needed))) == naive(text, needed)


def test_a_unit_of_equal_parts_is_told_as_the_part() -> None:
    found = list(repeats_at_end("x" + "abcabc" * 10, np.array([2 * u + 1 for u in range(1, 20)])))
    assert found == [Repeat(3, 60)]


def test_a_run_inside_a_longer_unit_does_not_hide_it() -> None:
    row = "#" * 40 + "." * 3 + "\n"
    found = list(repeats_at_end(row * 4 + "#" * 30, np.array([max(2 * u, u + 8) for u in range(1, 60)])))
    assert found == [Repeat(1, 30), Repeat(44, 4 * 44 + 30)]


def test_the_words_of_thue_and_morse_which_defeat_the_hash_are_no_repeat() -> None:
    """Hashes modulo 2 ** 64 are equal for them; the text is compared besides."""
    word = "a"
    for _ in range(11):
        word += word.translate(str.maketrans("ab", "ba"))
    assert list(repeats_at_end(word, np.array([max(3 * u, u + 128) for u in range(1, 1025)]))) == []


@given(st.text("ab", min_size=2, max_size=30), st.integers(1, 29))
def test_repeated_is_what_it_says(text: str, unit: int) -> None:
    unit = min(unit, len(text) - 1)
    whole = all(a == b for a, b in zip(text, text[unit:], strict=False))
    assert repeated(text, unit, len(text)) == whole


def test_half_a_surrogate_pair_is_a_character_like_any() -> None:
    assert list(repeats_at_end("\ud800x" * 9, np.array([6, 6]))) == [Repeat(2, 18)]


def test_an_empty_text_repeats_nothing() -> None:
    assert list(repeats_at_end("", np.array([2, 3]))) == []
