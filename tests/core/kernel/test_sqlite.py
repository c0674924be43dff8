"""Databases that several processes share."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from tandem.core.kernel import sqlite
from tandem.core.kernel.sqlite import SchemaError, add_columns, connect, connect_to_read, make, migrate

STEPS = (("CREATE TABLE things (name TEXT)",), ("ALTER TABLE things ADD COLUMN size INTEGER",))


def test_a_file_is_made_for_its_user_alone_and_kept_when_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.sqlite"
    make(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.write_bytes(b"x")
    make(path)
    assert path.read_bytes() == b"x"


def test_a_file_that_another_process_is_making_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    other = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # SQLite refuses to change the journal now, and does not wait for it
    threading.Timer(0.2, lambda: other.execute("COMMIT")).start()
    mine = connect(path)
    assert mine.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    mine.close()
    other.close()


def test_one_that_stays_locked_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_S", 0.05)
    other = sqlite3.connect(tmp_path / "x.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        connect(tmp_path / "x.sqlite")
    other.close()


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_file_of_any_version_becomes_the_newest_with_its_rows(tmp_path: Path, version: int) -> None:
    connection = connect(tmp_path / "x.sqlite")
    migrate(connection, STEPS[:version], "box")
    if version:
        connection.execute("INSERT INTO things (name) VALUES ('one')")
        connection.commit()
    migrate(connection, STEPS, "box")
    add_columns(connection, "things", {"colour": "TEXT NOT NULL DEFAULT 'red'", "size": "REAL"})
    connection.close()
    reader = connect_to_read(tmp_path / "x.sqlite")
    found = [dict(row) for row in reader.execute("SELECT * FROM things")]
    assert reader.execute("PRAGMA user_version").fetchone()[0] == 2
    reader.close()
    assert found == [{"name": "one", "size": None, "colour": "red"}][:version]


def test_a_step_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    connection = connect(tmp_path / "x.sqlite")
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, (("CREATE TABLE a (x)", "CREATE TABLE a (y)"),), "box")
    connection.close()
    connection = connect(tmp_path / "x.sqlite")
    assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    connection.close()


def test_a_later_file_is_refused_in_words(tmp_path: Path) -> None:
    connection = connect(tmp_path / "x.sqlite")
    connection.execute("PRAGMA user_version = 9")
    with pytest.raises(SchemaError, match="the box has schema version 9; this Tandem writes 2"):
        migrate(connection, STEPS, "box")
    connection.close()
