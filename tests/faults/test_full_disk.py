"""A disk that is full, at every byte at which it can be: what was kept stays whole, what is new is lost, and told."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import subprocess
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from fault_server import Answers, StoredServer, right_answers

from tandem.core.engine.ledger import Ledger, Row, read
from tandem.plugins.caches.disk import format as files
from tandem.plugins.choosers.staircut import store as prices
from tandem.plugins.drafters.suffix.files import Folder
from tandem.plugins.drafters.suffix.store import LEAST, Store
from tandem.testing.server import until

VOCABULARY = b"v" * 32


@contextlib.contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """The system refuses what would make any file of this process longer, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def row(name: str) -> Row:
    given: dict[str, Any] = {field.name: 0 for field in fields(Row)}
    return Row(**{**given, "id": name, "ended_at": time.time(), "reason": "stop", "client": "c" * 300})


# ------------------------------------------------------------------------------------------------------ each store


def test_a_state_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    tokens = list(range(40))
    tensors = {"a": torch.arange(40), "b": torch.ones(300, 3)}
    model = files.model_id("m")
    whole = files.write(tmp_path / "whole", model, tokens, tensors)
    for size in [*range(0, whole, 97), whole - 1]:
        path = tmp_path / "x.state"
        with no_file_longer_than(size), pytest.raises(OSError, match="File too large"):
            files.write(path, model, tokens, tensors)
        assert sorted(file.name for file in tmp_path.iterdir()) == ["whole"], f"at byte {size}"
    with no_file_longer_than(whole):
        files.write(path, model, tokens, tensors)
    assert files.read(path)[0].tokens == tokens


def test_a_suffix_store_goes_on_in_memory_and_its_files_are_whole(tmp_path: Path) -> None:
    texts = [[number] * 40 for number in range(5)]  # one to a log, so that full ones get their orders too
    for size in range(0, 400, 9):
        path = tmp_path / str(size)
        path.mkdir()
        reports: list[str] = []
        folder = Folder(path, VOCABULARY)
        store = Store(folder, VOCABULARY, LEAST, reports.append)
        with no_file_longer_than(size):
            for text in texts:
                store.add(text)
            store.settle()
            assert store.documents() == texts, f"at byte {size}"
            store.close()
        assert len(reports) <= 1
        assert not reports or "in memory only" in reports[0]
        again = Store(Folder(path, VOCABULARY), VOCABULARY, LEAST, reports.append)
        again.settle()
        kept = again.documents()
        assert kept == texts[: len(kept)], f"at byte {size}"
        again.add([99] * 5)
        again.settle()
        again.close()
        assert len(reports) <= 1, "the next start found something to complain about"


def test_a_price_file_that_can_not_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    about = prices.Subject({"cpu": "a"}, {"name": "m"})
    prices.write(path, about, {"1024": {"1": [0.1, 5]}}, {})
    before = path.read_bytes()
    for size in range(0, len(before), 11):
        with no_file_longer_than(size), pytest.raises(OSError, match="File too large"):
            prices.write(path, about, {"1024": {"1": [0.2, 50]}}, {})
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]


def test_a_ledger_loses_the_rows_of_the_full_time_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "l.sqlite"
    for size in (0, 100, 4096, 8192, 12288, 20000):
        path.unlink(missing_ok=True)
        ledger = Ledger(path)
        ledger.add(row("before"))
        until(lambda ledger=ledger: ledger.stats()["rows"] == 1)
        caplog.clear()
        with caplog.at_level(logging.WARNING), no_file_longer_than(size):
            added = 0
            while not ledger.stats()["dropped"] and added < 200:
                ledger.add(row(f"full {added}"))
                added += 1
                until(lambda ledger=ledger, added=added: sum(ledger.stats().values()) == 1 + added)
            lost = ledger.stats()["dropped"]
            assert lost == 1
            assert ledger.error
            assert "1 rows are lost" in caplog.text
        ledger.add(row("after"))
        until(lambda ledger=ledger, added=added: sum(ledger.stats().values()) == 2 + added)
        assert ledger.error is None
        ledger.close()
        names = [one["id"] for one in read(path)]
        assert names[0] == "before"
        assert names[-1] == "after"
        assert len(names) == added + 2 - lost


# --------------------------------------------------------------------------------------------------- a whole server


@pytest.fixture(scope="module")
def answers() -> Answers:
    return right_answers()


@contextlib.contextmanager
def small_disk(path: Path, size: str = "3m") -> Iterator[Path]:
    """A file system of its own, in memory."""
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True)
    if done.returncode:
        pytest.skip("a file system can't be mounted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_server_on_a_full_disk_answers_right_and_says_what_is_lost(state: Path, answers: Answers) -> None:
    with small_disk(state):
        with StoredServer(state.parent) as server:
            server.ask(answers)
            until(lambda: server.health()["caches"]["disk"]["written"] > 0)
            with contextlib.suppress(OSError), open(state / "filler", "wb", buffering=0) as filler:
                while filler.write(bytes(512)):
                    pass
            httpx2.post(f"{server.url}/v1/cache/clear", timeout=20, trust_env=False)
            with contextlib.suppress(OSError), open(state / "filler", "ab", buffering=0) as filler:
                while filler.write(bytes(512)):
                    pass
            server.ask(answers)
            server.ask(answers)
            told = server.health()
            assert told["caches"]["disk"]["skipped"] + told["caches"]["disk"]["errors"] > 0
            assert told["caches"]["disk"]["entries"] == 0
            assert told["ledger"]["dropped"] > 0
            assert told["ledger"]["error"]
            assert "rows are lost" in server.log()
            assert "no state is written for 60 s" in server.log()
            server.stop()
        os.unlink(state / "filler")
        with StoredServer(state.parent) as server:
            server.ask(answers)
            until(lambda: server.health()["caches"]["disk"]["written"] > 0)
            assert server.ask(answers) > 0
            assert server.health()["ledger"]["dropped"] == 0
            server.stop()


def test_a_server_on_a_disk_that_may_only_be_read_serves_what_is_there_and_says_what_it_can_not_do(
    state: Path, answers: Answers
) -> None:
    with small_disk(state, "4m"):
        with StoredServer(state.parent) as server:
            server.ask(answers)
            server.stop()
        subprocess.run(["mount", "-o", "remount,ro", str(state)], check=True)
        manifest = (state.parent / "faults.yaml").read_text("utf-8").replace("ledger: auto, ", "")
        with StoredServer(state.parent, manifest=manifest) as server:
            assert server.ask(answers) > 0, "what is there can be read"
            server.ask(answers)
            assert server.health()["plugins"]["failed"] == []
            log = server.stop()
        assert "the suffix store has no folder, and lives in memory only" in log
        assert "Read-only file system" in log
        assert "can't be written" in log, "the price file"


def test_a_ledger_on_a_disk_that_may_only_be_read_stops_the_start_with_a_word(state: Path) -> None:
    with small_disk(state):
        subprocess.run(["mount", "-o", "remount,ro", str(state)], check=True)
        with pytest.raises(AssertionError, match=r"server\.ledger: .*ledger\.sqlite: the ledger can't be written"):
            StoredServer(state.parent)
