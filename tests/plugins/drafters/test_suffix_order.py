from __future__ import annotations

import itertools
from array import array

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tandem.plugins.drafters.suffix.layout import FIRST, FRAME, WORD, document, log_header
from tandem.plugins.drafters.suffix.order import SORTED, Run, sort

HEAD = log_header(1, bytes(32))
Texts = list[list[int]]
texts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=40), min_size=1, max_size=8)
queries = st.lists(st.integers(0, 3), min_size=1, max_size=SORTED + 4)


def log_of(documents: Texts) -> bytes:
    return HEAD + b"".join(map(document, documents))


def run_of(log: bytes, start: int = FIRST) -> Run:
    words = np.frombuffer(log, np.uint32)
    return Run(log, start, len(words), sort(words, start, len(words)).data)


def places_behind(documents: Texts, newest: list[int]) -> list[int]:
    """Where a document goes on behind exactly these tokens, as a word of the log: by looking everywhere."""
    found, begin = [], FIRST
    for text in documents:
        begin += FRAME
        ends = range(len(newest), len(text))
        found += [begin + end for end in ends if text[end - len(newest) : end] == newest]
        begin += len(text)
    return found


def reversed_bytes(tokens: list[int]) -> bytes:
    return array("I", tokens).tobytes()[::-1]


@settings(max_examples=200)
@given(texts, queries)
def test_the_longest_match_and_all_its_places_are_found(documents: Texts, query: list[int]) -> None:
    run = run_of(log_of(documents))
    query = query[-SORTED:]
    longest = max((n for n in range(1, len(query) + 1) if places_behind(documents, query[-n:])), default=0)
    order, spot = run.longest(reversed_bytes(query))
    assert order == longest
    for n in range(1, order + 1):
        first, end = run.range(reversed_bytes(query[-n:]), spot)
        assert sorted(run.places[first:end]) == places_behind(documents, query[-n:])


@given(texts)
def test_places_are_sorted_by_what_stands_before_them(documents: Texts) -> None:
    log = log_of(documents)
    words = np.frombuffer(log, np.uint32).tolist()

    def before(place: int) -> list[int]:
        """Up to the document's beginning; there no order is promised."""
        tokens = words[place - SORTED : place][::-1]
        return tokens[: tokens.index(0xFFFFFFFF)] if 0xFFFFFFFF in tokens else tokens

    ordered = [before(place) for place in run_of(log).places]
    for one, other in itertools.pairwise(ordered):
        common = min(len(one), len(other))
        assert one[:common] <= other[:common]


@given(texts, texts)
def test_a_part_of_a_log_is_sorted_alone(old: Texts, new: Texts) -> None:
    log = log_of([*old, *new])
    start = len(log_of(old)) // WORD
    whole, part = run_of(log), run_of(log, start)
    assert sorted(part.places) == sorted(place for place in whole.places if place >= start)


def test_a_match_does_not_reach_over_a_documents_edge() -> None:
    run = run_of(log_of([[1, 2, 3], [4, 5, 6]]))
    assert run.longest(reversed_bytes([1, 2, 3, 4]))[0] == 1
    assert run.longest(reversed_bytes([3]))[0] == 0  # nothing follows the last token


@pytest.mark.parametrize("length", [1, 2, 3, 200])
def test_a_length_or_a_checksum_is_never_taken_for_a_token(length: int) -> None:
    rng = np.random.default_rng(length)
    documents = [rng.integers(0, 2**31, length).tolist() for _ in range(50)]
    begins = [FIRST + FRAME + i * (FRAME + length) for i in range(50)]
    continued = [begin + at for begin in begins for at in range(1, length)]
    assert sorted(run_of(log_of(documents)).places) == continued


def test_an_empty_run_has_no_match() -> None:
    run = run_of(log_of([[1], [2]]))
    assert len(run.places) == 0
    assert run.longest(reversed_bytes([1])) == (0, 0)
