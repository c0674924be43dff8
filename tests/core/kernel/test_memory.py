from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tandem.core.kernel import memory
from tandem.core.kernel.memory import GROWTH, LEAST_ROWS, available_bytes, misfit, surely_fits, total_bytes

GIB = 2**30


def test_weights_and_the_least_sequence_are_counted_together() -> None:
    facts = {"weight_bytes": 4 * GIB, "kv_bytes_per_token": 1 << 20, "state_bytes": 1 << 29}
    needed = 4 * GIB + (LEAST_ROWS << 20) + (1 << 29)
    assert misfit(facts, needed) is None
    reason = misfit(facts, needed - 1)
    assert reason is not None
    assert "the weights take 4.0 GiB and a sequence of 1024 tokens 1.5 GiB" in reason
    assert "this machine has 5.5 GiB" in reason


def test_a_builder_that_tells_no_sizes_is_let_through() -> None:
    assert misfit({}, 0) is None
    assert misfit({"weight_bytes": None}, 0) is None


def test_a_device_that_tells_nothing_refuses_nothing() -> None:
    assert available_bytes("meta") is None
    assert misfit({"weight_bytes": 1 << 60, "device": "meta"}) is None


def test_a_small_checkpoint_need_not_be_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 100 * GROWTH)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "model.safetensors").write_bytes(bytes(60))
    (tmp_path / "config.json").write_bytes(bytes(40))
    assert surely_fits(tmp_path)
    (tmp_path / "more").write_bytes(b"x")
    assert not surely_fits(tmp_path)
    assert surely_fits(tmp_path / "deep" / "model.safetensors")


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def limited(limit: str, use: str, stat: str) -> None:
        for name, text in (("memory.max", limit), ("memory.current", use), ("memory.stat", stat)):
            (tmp_path / name).write_text(text)

    places = [(tmp_path, *memory.CGROUPS[0][1:])]
    monkeypatch.setattr(memory, "CGROUPS", places)
    return limited


def test_a_containers_limit_counts_less_what_gives_way(container: Any) -> None:
    container(f"{64 << 20}\n", f"{60 << 20}\n", f"anon {40 << 20}\ninactive_file {8 << 20}\n")
    assert available_bytes() == 12 << 20


def test_a_container_without_a_limit_has_the_machines_memory(container: Any) -> None:
    container("max\n", "1000\n", "anon 1\n")
    assert (available_bytes() or 0) > 64 << 20


def test_a_containers_limit_is_its_whole_memory(container: Any) -> None:
    container(f"{64 << 20}\n", f"{60 << 20}\n", "anon 1\n")
    assert total_bytes() == 64 << 20
    container("max\n", "1000\n", "anon 1\n")
    assert total_bytes() == psutil.virtual_memory().total


def test_a_container_over_its_limit_has_nothing_left(container: Any) -> None:
    container(f"{64 << 20}\n", f"{70 << 20}\n", "anon 1\n")
    assert available_bytes() == 0


def test_the_processs_own_limit_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    used = psutil.Process().memory_info().vms
    limits = SimpleNamespace(RLIMIT_AS=9, RLIM_INFINITY=-1, getrlimit=lambda which: (used + (48 << 20), -1))
    monkeypatch.setattr(memory, "resource", limits)
    assert abs((available_bytes() or 0) - (48 << 20)) < 16 << 20
    assert total_bytes() == used + (48 << 20)
    limits.getrlimit = lambda which: (-1, -1)
    assert total_bytes() == psutil.virtual_memory().total
