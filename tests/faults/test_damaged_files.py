"""A byte that changed, a tail that is missing, a file of something else, in the stores that have no checksum."""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_full_disk import row

from tandem.core.engine.ledger import Ledger, LedgerError, read
from tandem.plugins.choosers.staircut import store
from tandem.plugins.choosers.staircut.prices import Prices
from tandem.testing.box import Box
from tandem.testing.server import until


def test_a_price_file_with_any_byte_changed_is_prices_or_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "prices.json"
    about = store.Subject({"cpu": "a", "cores": 2}, {"name": "m"})
    store.write(path, about, Prices({1: 0.01, 8: 0.02}).to_json(), {})
    content = path.read_bytes()
    used = 0
    for place in range(len(content)):
        for bits in (0x01, 0x10, 0x80):
            damaged = bytearray(content)
            damaged[place] ^= bits
            path.write_bytes(damaged)
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                stored = store.read(path, about)
            if stored is None:
                assert str(path) in caplog.text
                continue
            used += 1
            try:
                prices = Prices.from_json(stored.get("prices"))
            except ValueError:
                continue
            assert all(0 < prices.price(rows, 1000) < float("inf") for rows in (1, 8, 32))
    assert used, "no change was harmless"


def filled(path: Path) -> bytes:
    """A ledger of some pages, as it lies on the disk when its server is down."""
    ledger = Ledger(path)
    for number in range(200):
        ledger.add(replace(row(f"r{number}"), session=f"s{number % 7}"))
    ledger.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.read_bytes()


def reopened(path: Path) -> str | None:
    """Start on this file, add a row, read: what is wrong, in the ledger's own words; None for nothing.

    Raises whatever else it is.
    """
    try:
        ledger = Ledger(path)
    except LedgerError as error:
        return str(error) if str(path) in str(error) else f"the path is not in: {error}"
    ledger.add(row("new"))
    ledger.close()
    assert sum(ledger.stats().values()) == 1, "the row is neither written nor counted as lost"
    if ledger.error is not None:
        return ledger.error
    try:
        names = [one["id"] for one in read(path)]
    except LedgerError as error:
        return str(error)
    return None if "new" in names else "the row is not there"


def remade(folder: Path, content: bytes, log: bytes = b"") -> Path:
    """A ledger's file, and what was not moved into it yet, in a folder of its own."""
    path = Path(tempfile.mkdtemp(dir=folder)) / "l.sqlite"
    path.write_bytes(content)
    if log:
        path.with_name("l.sqlite-wal").write_bytes(log)
    return path


def test_a_ledger_with_any_byte_changed_works_or_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    content = filled(path)
    assert len(content) > 4 * 4096
    pages = range(0, len(content), 4096)
    # The file's header, the schema, the heads of the pages, and a place in each.
    places = [*range(100), *range(100, 4096, 61), *(page + at for page in pages for at in (0, 1, 3, 5, 8, 1000))]
    told = []
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= 0x21
        told.append(reopened(remade(tmp_path, bytes(damaged))))
    assert told.count(None) > len(told) // 3
    assert [reason for reason in told if reason is not None]
    assert not [reason for reason in told if reason and "path is not in" in reason]


def test_a_ledger_cut_anywhere_works_or_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    content = filled(path)
    for size in [*range(0, 120, 9), *range(512, len(content), 1777), len(content) - 1]:
        problem = reopened(remade(tmp_path, content[:size]))
        assert size or problem is None, "an empty file is a new ledger"


def test_a_ledger_whose_log_was_cut_or_changed_has_the_rows_before_it(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    content = filled(path)
    held = sqlite3.connect(path)  # keeps the log from being moved into the file
    held.execute("SELECT count(*) FROM requests").fetchall()
    for number in range(3):
        ledger = Ledger(path)
        ledger.add(row(f"late {number}"))
        ledger.close()
    log = path.with_name("l.sqlite-wal").read_bytes()
    held.close()
    assert len(log) > 4096
    for size in range(0, len(log), 501):
        for damaged in (log[:size], log[:size] + bytes([log[size] ^ 1]) + log[size + 1 :]):
            again = remade(tmp_path, content, damaged)
            assert reopened(again) is None
            assert len(read(again)) >= 201


@pytest.mark.parametrize("kind", ["a folder", "another program's", "a table of another kind"])
def test_what_is_no_ledger_stops_the_start_with_its_name(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "l.sqlite"
    if kind == "a folder":
        path.mkdir()
    else:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE requests (id TEXT, url TEXT)")
            if kind == "a table of another kind":
                connection.execute("PRAGMA user_version = 1")
    with pytest.raises(LedgerError, match=r"l\.sqlite: "):
        Ledger(path)


def test_health_says_what_the_ledger_lost_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tandem.core.engine import ledger as module

    def broken(path: Path) -> Any:
        raise sqlite3.OperationalError("database or disk is full")

    with Box(server={"ledger": str(tmp_path / "l.sqlite")}) as box:
        box.chat("a")
        ledger = box.app.state.service.ledger
        until(lambda: ledger.stats()["rows"] == 1)
        with monkeypatch.context() as patched:
            patched.setattr(module.sqlite, "connect", broken)
            box.chat("b")
            until(lambda: ledger.stats()["dropped"] == 1)
        assert json.loads(box.get("/health").text)["ledger"] == {
            "rows": 1,
            "dropped": 1,
            "error": "database or disk is full",
        }
    with Box() as box:
        assert box.get("/health").json()["ledger"] == {}
