"""The meter: what comes and goes in this process, what a GPU's allocator tells, where a model is."""

from __future__ import annotations

import mmap
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from tandem.core.engine.meter import Meter, Reading, device_of
from tandem.core.kernel.memory import total_bytes


def test_the_meter_sees_memory_come_and_go() -> None:
    meter = Meter()
    meter.collect()
    before = meter.read()
    ballast = bytearray(b"\x01") * (96 << 20)
    assert meter.read().held - before.held > 80 << 20
    del ballast
    meter.release()
    assert meter.read().held - before.held < 16 << 20
    assert before.reusable == 0


@pytest.mark.skipif(not hasattr(psutil.Process().memory_info(), "shared"), reason="file pages aren't told here")
def test_pages_of_mapped_files_are_not_held(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(64 << 20))
    meter = Meter()
    meter.collect()
    before, rss = meter.read().held, psutil.Process().memory_info().rss
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert sum(mapped[place] for place in range(0, len(mapped), 4096)) == 0
        assert psutil.Process().memory_info().rss - rss > 48 << 20
        assert meter.read().held - before < 16 << 20


def test_a_device_that_does_not_tell_has_no_end() -> None:
    assert Meter("meta").read().available > 1 << 60
    assert total_bytes("meta") is None


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A GPU with 100 bytes, of which torch has reserved 40 and allocated 30."""
    told = SimpleNamespace(free=60, reserved=40, allocated=30, is_integrated=False)

    def empty() -> None:
        told.free, told.reserved = told.free + told.reserved - told.allocated, told.allocated

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (told.free, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: told.reserved)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: told.allocated)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: told)
    monkeypatch.setattr(torch.cuda, "empty_cache", empty)
    return told


def test_on_a_gpu_the_allocators_numbers_count(gpu: SimpleNamespace) -> None:
    meter = Meter("cuda:0")
    assert meter.read() == Reading(held=40, available=60, reusable=10)
    assert total_bytes("cuda:0") == 100
    meter.release()
    assert meter.read() == Reading(held=30, available=70, reusable=0)


def test_a_gpu_that_shares_the_machines_memory_has_what_the_machine_has(gpu: SimpleNamespace) -> None:
    gpu.is_integrated = True
    available = Meter("cuda").read().available
    assert abs(available - psutil.virtual_memory().available) < 2 << 30
    assert total_bytes("cuda") == total_bytes("cpu")


def test_a_model_is_where_its_facts_say(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_of({"device": "cuda:1"}) == "cuda:1"
    assert device_of({}) == "cpu"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert device_of({}) == "cuda"
