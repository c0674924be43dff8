"""Turns as rows of an SQLite table: the statements, and what makes a row of a turn and a turn of a row."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import struct
import sys
from array import array
from collections.abc import Iterator, Sequence as Seq
from dataclasses import dataclass
from typing import Any

from tandem.core.engine.replay import Turn, Written

VERSION = 1
"""Of these tables; another one is another file."""
TABLES = (
    "CREATE TABLE turns ("
    "id INTEGER PRIMARY KEY, model BLOB NOT NULL, exact BLOB NOT NULL, loose BLOB, place BLOB NOT NULL, "
    "opening TEXT NOT NULL, reasons INTEGER NOT NULL, thoughts BLOB NOT NULL, tokens BLOB NOT NULL, "
    "hidden BLOB NOT NULL, "
    "used REAL NOT NULL, seal BLOB NOT NULL, UNIQUE (model, exact))",
    "CREATE INDEX turns_by_calls ON turns (model, loose) WHERE loose IS NOT NULL",
    "CREATE INDEX turns_by_place ON turns (model, place)",
    "CREATE INDEX turns_by_use ON turns (used)",
)
FIELDS = ("exact", "loose", "place", "opening", "reasons", "thoughts", "tokens", "hidden")
COLUMNS = ("model", *FIELDS, "used", "seal")
PUT = (
    f"INSERT INTO turns ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))}) "
    f"ON CONFLICT (model, exact) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in COLUMNS[2:])}"
)
TOUCH = "UPDATE turns SET used = ? WHERE model = ? AND exact = ?"
AGED = "DELETE FROM turns WHERE used < ?"
OLDEST = "DELETE FROM turns WHERE id IN (SELECT id FROM turns ORDER BY used LIMIT ?)"
COUNT = "SELECT count(*) FROM turns WHERE model = ?"


class Damage(sqlite3.DatabaseError):
    """The file can be opened, and is not what it should be."""


def is_damage(error: Exception) -> bool:
    """The file itself is broken; not locked, not unwritable."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return isinstance(error, Damage) or code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_busy(error: Exception) -> bool:
    """Somebody else has the file locked."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@contextlib.contextmanager
def transaction(file: sqlite3.Connection) -> Iterator[None]:
    """One writer at a time, all or nothing."""
    file.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            file.execute("ROLLBACK")
        raise
    file.execute("COMMIT")


def prepare(file: sqlite3.Connection) -> None:
    """Make the tables of a new file, and look through an old one. Raises sqlite3.Error, `Damage` for a broken file."""
    file.execute("PRAGMA auto_vacuum = INCREMENTAL")  # of a new file, before anything else
    file.execute("PRAGMA journal_mode = WAL")
    file.execute("PRAGMA synchronous = NORMAL")
    with transaction(file):
        version = version_of(file)
        if version == 0:
            for statement in TABLES:
                file.execute(statement)
            file.execute(f"PRAGMA user_version = {VERSION}")
    [(verdict,), *_] = file.execute("PRAGMA quick_check(1)")
    if version not in (0, VERSION) or verdict != "ok":
        raise Damage(f"version {version}; {verdict}")


def version_of(file: sqlite3.Connection) -> int:
    """0 = nothing is in it yet."""
    [(version,)] = file.execute("PRAGMA user_version")
    return int(version)


def size_of(file: sqlite3.Connection) -> int:
    """Bytes of the file, the log and the pages that are free again apart."""
    [(pages,)], [(free,)], [(size,)] = (
        file.execute(f"PRAGMA {name}") for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def shrink(file: sqlite3.Connection) -> None:
    """Give free pages back to the disk."""
    file.executescript("PRAGMA incremental_vacuum")  # `execute` would stop behind the first page


def select(file: sqlite3.Connection, model: bytes, key: str, value: bytes, most: int) -> list[tuple[Any, ...]]:
    """The rows of a model with this key (`exact`, `loose` or `place`)."""
    columns = ", ".join(COLUMNS)
    return file.execute(
        f"SELECT {columns} FROM turns WHERE model = ? AND {key} = ? LIMIT ?", (model, value, most)
    ).fetchall()


@dataclass(frozen=True, slots=True)
class Row:
    """A turn that was read."""

    turn: Turn
    used: float
    """When it was last written or noted as used, in Unix time."""


def row_of(model: bytes, turn: Turn, used: float) -> tuple[Any, ...]:
    """The values of `COLUMNS`."""
    written = turn.written
    tokens = _packed(written.tokens)
    hidden = _packed([end for places in written.hidden for end in (places.start, places.stop)])
    keys = turn.exact, turn.loose, turn.place
    fields = (*keys, written.opening, int(written.reasons), written.thoughts, tokens, hidden)
    return (model, *fields, used, _seal(model, fields))


def read_row(row: Seq[Any]) -> Row | None:
    """The turn in a row; None when it is not what was written."""
    model, *fields, used, seal = row
    if _seal(model, fields) != seal:
        return None
    exact, loose, place, opening, reasons, thoughts, tokens, hidden = fields
    ends = _unpacked(hidden)
    places = tuple(range(start, stop) for start, stop in zip(ends[::2], ends[1::2], strict=True))
    written = Written(_unpacked(tokens), opening, bool(reasons), thoughts, places)
    return Row(Turn(exact, loose, place, written), used)


def _packed(numbers: Seq[int]) -> bytes:
    return _little_endian(array("i", numbers)).tobytes()


def _unpacked(data: bytes) -> array[int]:
    numbers = array("i")
    numbers.frombytes(data)
    return _little_endian(numbers)


def _little_endian(ids: array[int]) -> array[int]:
    if sys.byteorder == "big":
        ids.byteswap()
    return ids


def _seal(model: bytes, fields: Seq[Any]) -> bytes:
    """A checksum over a turn's fields, the length of each in front."""
    digest = hashlib.blake2b(model, digest_size=8)
    for field in fields:
        data = field if isinstance(field, bytes) else str(field).encode("utf-8", "surrogatepass")
        digest.update(struct.pack("<I", len(data)) + data)
    return digest.digest()
