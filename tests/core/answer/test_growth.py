"""The work of a token does not depend on how much was written before it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence as Seq
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tandem.core.answer import Answer
from tandem.core.answer.held import Held
from tandem.core.engine.request import Piece


def benchmark() -> ModuleType:
    """The answers that benchmarks/answer.py takes apart."""
    path = Path(__file__).parents[3] / "benchmarks" / "answer.py"
    spec = importlib.util.spec_from_file_location("tandem_answer_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


BENCHMARK = benchmark()
CASES = {case.name: case for case in BENCHMARK.cases()}
HELD = {"qwen_xml typed", "blanks"}
"""A value whose type decides how it is written, until it is whole; blanks that may stand beside a call only."""
LONGEST_HELD = {"long stop": 4004}
"""Characters; a stop string of 4,001 is held while it still may come."""


def answer_of(case: Any, count: int) -> tuple[Answer, Seq[int]]:
    tokenizer = BENCHMARK.Pieces()
    tokens = [tokenizer.id_of(piece) for piece in case.write(count)]
    return Answer(tokenizer, case.stops, case.thinking, case.calls), tokens


def calls_a_token(case: Any, count: int) -> float:
    """Function calls, Python's own and the built-in ones."""
    answer, tokens = answer_of(case, count)
    calls = 0

    def counted(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        for token in tokens:
            answer.feed(token)
        answer.end()
    finally:
        sys.setprofile(None)
    return calls / len(tokens)


@pytest.mark.parametrize("name", CASES)
def test_a_longer_answer_takes_no_more_calls_a_token(name: str) -> None:
    # Ten times the text: work that grows with it would be up to ten times as much for each token.
    assert calls_a_token(CASES[name], 10_000) < 1.3 * calls_a_token(CASES[name], 1_000)


@pytest.mark.parametrize("name", [name for name in CASES if name not in HELD])
def test_what_is_held_back_does_not_grow(name: str) -> None:
    answer, tokens = answer_of(CASES[name], 5_000)
    held = longest = 0
    for token in tokens:
        held += len(answer._detokenizer._bytes_of(token))
        out = answer.feed(token)
        # A call's tags and names are taken off, so what goes out empties the account.
        held = 0 if out and any(event.text if isinstance(event, Piece) else True for event in out) else held
        longest = max(longest, held)
    assert longest <= LONGEST_HELD.get(name, 300)


def test_releasing_many_pieces_cuts_the_text_once() -> None:
    class Watched(str):
        """Counts the characters that slicing copies."""

        copied = 0

        def __getitem__(self, index: Any) -> str:
            part = Watched(super().__getitem__(index))
            Watched.copied += len(part)
            return part

        def __add__(self, other: str) -> str:
            return Watched(super().__add__(other))

    held = Held()
    held.text = Watched()
    for _ in range(2_000):
        held.push(Piece("abcd"))
    assert len(held.take(7_000)) == 1_750
    assert len(held.text) == 1_000
    assert Watched.copied <= 1_000
