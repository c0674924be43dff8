from __future__ import annotations

import sqlite3
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tandem.core.engine import ledger as module
from tandem.core.engine.ledger import COLUMNS, MIGRATIONS, Ledger, LedgerError, Row, read

ROW = Row(
    id="chatcmpl-1",
    ended_at=time.time(),
    route="chat",
    client="plain",
    session=None,
    stream=True,
    choices=1,
    reason="stop",
    detail="eos",
    prompt_tokens=10,
    cached_tokens=4,
    forwarded_tokens=6,
    image_tokens=0,
    completion_tokens=5,
    reasoning_tokens=0,
    rounds=5,
    draft_tokens=0,
    draft_accepted=0,
    cache_source="none",
    lane=None,
    wait_own_ms=0.0,
    queue_ms=0.5,
    prefill_ms=1.5,
    decode_ms=2.5,
    first_text_ms=None,
    total_ms=5.0,
)


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ledger.sqlite"
    ledger = Ledger(path)
    for number in range(5):
        ledger.add(replace(ROW, id=f"r{number}", ended_at=1000.0 * time.time() + number))
    ledger.close()
    rows = read(path)
    assert [row["id"] for row in rows] == [f"r{number}" for number in range(5)]
    assert {name: rows[0][name] for name in COLUMNS if name not in ("id", "ended_at", "stream")} == {
        name: getattr(ROW, name) for name in COLUMNS if name not in ("id", "ended_at", "stream")
    }
    assert ledger.stats() == {"rows": 5, "dropped": 0}
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_newest_schema_has_the_columns_of_a_row(tmp_path: Path) -> None:
    Ledger(tmp_path / "l.sqlite").close()
    with sqlite3.connect(tmp_path / "l.sqlite") as connection:
        found = connection.execute("PRAGMA table_info(requests)").fetchall()
    assert tuple(name for _, name, *_ in found) == COLUMNS


def test_rows_of_many_threads_are_all_there(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.sqlite")
    threads = [
        threading.Thread(target=lambda: [ledger.add(ROW) for _ in range(50)])  # type: ignore[func-returns-value]
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ledger.close()
    ledger.close()
    assert len(read(tmp_path / "l.sqlite")) == 400


def test_two_servers_share_a_file(tmp_path: Path) -> None:
    one, two = Ledger(tmp_path / "l.sqlite"), Ledger(tmp_path / "l.sqlite")
    for _ in range(20):
        one.add(ROW)
        two.add(ROW)
    one.close()
    two.close()
    assert len(read(tmp_path / "l.sqlite")) == 40


def test_old_rows_go(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    first = Ledger(path)
    first.add(replace(ROW, id="old", ended_at=time.time() - 10 * 86400))
    first.add(replace(ROW, id="new"))
    first.close()
    second = Ledger(path, retention_days=5)
    second.add(replace(ROW, id="newer"))
    second.close()
    assert [row["id"] for row in read(path)] == ["new", "newer"]


def test_an_older_file_is_brought_up_to_date_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "l.sqlite"
    before = Ledger(path)
    before.add(ROW)
    before.close()
    monkeypatch.setattr(module, "MIGRATIONS", (*MIGRATIONS, ("ALTER TABLE requests ADD COLUMN mood TEXT",)))
    after = Ledger(path)
    after.add(ROW)
    after.close()
    assert [row["mood"] for row in read(path)] == [None, None]


def test_a_later_version_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(LedgerError, match=f"schema version 99; this Tandem writes {len(MIGRATIONS)}"):
        Ledger(path)


def test_what_is_no_ledger_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    path.write_text("this is a letter, not a database, and long enough to be looked at" * 20)
    with pytest.raises(LedgerError, match=r"l\.sqlite: this is no ledger"):
        Ledger(path)
    with pytest.raises(LedgerError, match="there is no ledger here"):
        read(tmp_path / "absent")


def test_a_disk_that_breaks_costs_rows_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path / "l.sqlite")

    def broken(path: Path) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(module.sqlite, "connect", broken)
        ledger.add(ROW)
        deadline = time.monotonic() + 10
        while not ledger.stats()["dropped"] and time.monotonic() < deadline:
            time.sleep(0.005)
    ledger.add(ROW)
    ledger.close()
    assert ledger.stats() == {"rows": 1, "dropped": 1}


def test_a_full_queue_drops_the_row_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PENDING", 1)
    held = threading.Event()
    ledger = Ledger(tmp_path / "l.sqlite")
    write = ledger._write
    monkeypatch.setattr(ledger, "_write", lambda rows: (held.wait(10), write(rows)))
    for _ in range(6):
        ledger.add(ROW)
    assert ledger.stats()["dropped"] >= 3
    held.set()
    ledger.close()
    assert ledger.stats()["rows"] + ledger.stats()["dropped"] == 6


def test_a_file_without_the_columns_of_later_releases_gets_them(tmp_path: Path) -> None:
    """Whatever version such a file says it has: two lines of development may have given it the same number."""
    path = tmp_path / "l.sqlite"
    first = Ledger(path)
    first.add(ROW)
    first.close()
    with sqlite3.connect(path) as connection:
        for name in module.ADDED:
            connection.execute(f"ALTER TABLE requests DROP COLUMN {name}")
    second = Ledger(path)
    second.add(replace(ROW, hidden_tokens=3, hidden_prompt_tokens=2, acts=1, mode="on"))
    second.close()
    found = [[row[name] for name in module.ADDED] for row in read(path)]
    assert found == [[0, 0, 0, ""], [3, 2, 1, "on"]]
