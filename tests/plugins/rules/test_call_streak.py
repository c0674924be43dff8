"""The run of identical calls that a turn ends with, and how alike two calls are, against naive twins."""

import itertools
import time

import pytest
from hypothesis import given, strategies as st

from tandem.core.plugin import PastCall
from tandem.plugins.rules._streak import is_similar, lcs, near_run, run_length, similarity

CALLS = st.lists(
    st.builds(
        PastCall,
        id=st.just("c"),
        name=st.sampled_from("ab"),
        arguments=st.just({}),
        written=st.sampled_from(["{}", '{"x":1}']),
        result=st.sampled_from(["r", "s", None]),
        seconds=st.sampled_from([None, 1.0, 10.0, 60.0]),
    ),
    max_size=6,
)


def naive_run(calls, wait_s):
    """The longest suffix all of whose calls are equal, have a result and were no wait."""
    for start in range(len(calls)):
        rest = calls[start:]
        same = len({(one.name, one.written, one.result) for one in rest}) == 1
        if same and all(one.result is not None and (one.seconds or 0) < wait_s for one in rest):
            return len(rest)
    return 0


def naive_lcs(a, b):
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, j in itertools.product(range(len(a)), range(len(b))):
        table[i + 1][j + 1] = table[i][j] + 1 if a[i] == b[j] else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


@given(CALLS)
def test_the_run_is_the_longest_suffix_of_equal_calls(calls):
    assert run_length(calls, 10) == naive_run(calls, 10)


TEXTS = st.text("abc", max_size=14)


@given(TEXTS, TEXTS)
def test_similarity_is_twice_the_common_subsequence_over_both_lengths(a, b):
    assert lcs(a, b) == lcs(b, a) == naive_lcs(a, b)
    expected = 2 * naive_lcs(a, b) / (len(a) + len(b)) if a or b else 1.0
    assert similarity(a, b) == pytest.approx(expected)
    assert is_similar(a, b, 0.8) == (similarity(a, b) >= 0.8)


@given(CALLS, st.integers(2, 4))
def test_a_near_run_is_a_suffix_of_alike_calls(calls, count):
    last = calls[-count:]
    expected = (
        len(last) == count
        and len({(one.name, one.result) for one in last}) == 1
        and all(one.result is not None and (one.seconds or 0) < 10 for one in last)
        and all(similarity(one.written, last[-1].written) >= 0.8 for one in last)
    )
    assert near_run(calls, 10, count, 0.8) == expected


def past(written: str, result: str = "r", name: str = "grep") -> PastCall:
    return PastCall("c", name, {}, written, result)


def test_calls_that_differ_a_little_are_a_near_run_and_others_are_not():
    near = [past(f'{{"path":"src/main.py","pattern":"def f{i}"}}') for i in range(3)]
    far = [past('{"path":"src/main.py"}'), past('{"pattern":"zq","where":"tests"}'), near[0]]
    assert near_run(near, 10, 3, 0.8)
    assert not near_run(far, 10, 3, 0.8)
    assert not near_run([*near[:2], past(near[2].written, "another")], 10, 3, 0.8)


def test_long_texts_that_differ_in_the_middle_are_compared_by_their_ends():
    a, b = "x" * 50_000 + "a" * 5_000 + "y" * 50_000, "x" * 50_000 + "b" * 5_000 + "y" * 50_000
    start = time.process_time()
    assert similarity(a, b) == pytest.approx(100 / 105)
    assert not is_similar("ab" * 20_000, "cd" * 20_000, 0.8)
    assert time.process_time() - start < 1
