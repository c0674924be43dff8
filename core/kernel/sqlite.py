"""SQLite files that grow with Tandem: private to the user, shared by several processes, brought up to date in place."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Mapping, Sequence as Seq
from pathlib import Path

BUSY_S = 5.0
"""How long a write waits for another process that has the file locked."""


class SchemaError(Exception):
    """The file was written by a later version."""


def make(path: Path) -> None:
    """An empty file (mode 0600) where there is none, with its folders. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))


def connect(path: Path) -> sqlite3.Connection:
    """Open for writing. A write-ahead log lets others read and write the same file meanwhile."""
    connection = sqlite3.connect(path, timeout=BUSY_S)
    try:
        _use_log(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        connection.close()
        raise
    return connection


def _use_log(connection: sqlite3.Connection) -> None:
    """Turn the write-ahead log on. Where two processes make a file at once, SQLite tells one of them that the file is
    locked, without the wait that it grants a write."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.005)


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open an existing file for reading; rows come as `sqlite3.Row`."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_S)
    connection.row_factory = sqlite3.Row
    return connection


def migrate(connection: sqlite3.Connection, steps: Seq[Seq[str]], what: str) -> None:
    """Bring the schema up to date; `steps` lead from each version to the next. Raises SchemaError."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(steps):
        raise SchemaError(f"the {what} has schema version {version}; this Tandem writes {len(steps)}")
    if version == len(steps):
        return
    connection.execute("BEGIN IMMEDIATE")  # of two processes that find an old file, one brings it up to date
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    for statements in steps[version:]:
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {len(steps)}")
    connection.commit()


def add_columns(connection: sqlite3.Connection, table: str, columns: Mapping[str, str]) -> None:
    """Add the columns (name -> declaration) that a table lacks.

    A new column needs no new version: a Tandem that does not know it names the others when it writes.
    """
    known = {name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")}
    for name, declaration in columns.items():
        if name not in known:
            try:
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {name} {declaration}")
            except sqlite3.OperationalError as error:
                if "duplicate column" not in str(error):  # another process was faster
                    raise
