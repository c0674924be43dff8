"""The journal's file: one SQLite database, shared by all servers that name it.

    conductor_events   one row for each decision
    conductor_texts    each text that a model read and a client did not, once, by its hash

A thread of the file's own writes, many rows in one transaction. What comes in only goes into a bounded queue, so a slow
disk costs rows and never a request; a broken one is told once, and tried again with the next rows.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
import time
import uuid
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from tandem.core.conductor.journal import Entry, Journal, Label, Outcome, Query
from tandem.core.kernel import sqlite
from tandem.core.kernel.batches import Batches
from tandem.core.plugin import state_dir

log = logging.getLogger("tandem.conductor")

PENDING = 8192
"""Rows that may wait for the disk."""
BATCH = 512
PRUNE_S = 86400.0
FLUSH_S = 2.0
"""How long a reader waits for what is on its way."""

COLUMNS = tuple(field.name for field in fields(Entry) if field.name != "hidden")

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE conductor_events ("
        "id INTEGER PRIMARY KEY, run TEXT NOT NULL, text_hash TEXT, "
        "request INTEGER, rule TEXT, point TEXT, action TEXT, reason TEXT, done INTEGER, task TEXT, mode TEXT, "
        "session TEXT, client TEXT, detail TEXT, score REAL, position INTEGER, reasoning_tokens INTEGER, "
        "hidden_tokens INTEGER, time REAL, kind TEXT, answer TEXT, finish_reason TEXT, completion_tokens INTEGER, "
        "next_checker TEXT)",
        "CREATE INDEX conductor_events_by_time ON conductor_events (time)",
        "CREATE INDEX conductor_events_by_session ON conductor_events (session, time)",
        "CREATE INDEX conductor_events_by_request ON conductor_events (run, request)",
        "CREATE TABLE conductor_texts (hash TEXT PRIMARY KEY, text TEXT NOT NULL, seen REAL NOT NULL)",
    ),
)
"""What brings a file from each version of the schema to the next. A later version is appended, and none is changed."""

ADDED: dict[str, str] = {}
"""Columns that later releases added, with their declarations. They are put in wherever they are missing."""

_PLACES = ", ".join("?" * (2 + len(COLUMNS)))
INSERT = f"INSERT INTO conductor_events (run, text_hash, {', '.join(COLUMNS)}) VALUES ({_PLACES})"
OUTCOME = (
    "UPDATE conductor_events SET answer = ?, finish_reason = ?, completion_tokens = ? WHERE run = ? AND request = ?"
)
LABEL = (
    "UPDATE conductor_events SET next_checker = ? WHERE run = ? AND session = ? AND request < ? AND next_checker = ''"
)

Item = Entry | Outcome | Label


class EventsFile:
    """Takes rows from any thread. The file is made with the first one, so a server that journals nothing has none."""

    def __init__(self, path: Path, days: float = 30) -> None:
        self.path = path
        self.run = uuid.uuid4().hex
        """Tells this process's requests from those of others, which count from 1 as well."""
        self._keep_s = days * 86400
        self._rows = self._dropped = 0
        self._broken = ""
        self._prune_at = 0.0
        self._items: Batches[Item] = Batches(self._try, "tandem-journal", room=PENDING, most=BATCH)

    def add(self, item: Item) -> None:
        """Write the item soon. One that finds no room is dropped and counted."""
        if not self._items.put(item):
            self._dropped += 1

    def select(self, query: Query) -> list[dict[str, Any]] | None:
        """The newest rows that fit, newest first; None when the file is not there or can't be read."""
        self._items.flush(FLUSH_S)
        if self._broken or not self.path.is_file():
            return None
        try:
            connection = sqlite.connect_to_read(self.path)
            try:
                return [_entry(row) for row in connection.execute(*_select(query))]
            finally:
                connection.close()
        except sqlite3.Error as error:
            self._tell(error)
            return None

    def report(self) -> dict[str, Any]:
        """Where the file is, how many rows this process wrote and lost, and what is wrong with the disk."""
        return {"path": str(self.path), "written": self._rows, "dropped": self._dropped, "fault": self._broken}

    def close(self) -> None:
        """Write what waits. Safe to call twice."""
        self._items.close(sqlite.BUSY_S + 1)

    # -------------------------------------------------------------------------------------------- on its own thread

    def _try(self, items: list[Item]) -> None:
        try:
            self._write(items)
        except (OSError, sqlite3.Error, sqlite.SchemaError) as error:
            self._dropped += len(items)
            self._tell(error)
        except Exception as error:  # whatever a detail holds
            self._dropped += len(items)
            log.exception("%s: %d rows of the journal are lost: %s", self.path, len(items), error)
        else:
            self._rows += len(items)
            self._mended()

    def _write(self, items: list[Item]) -> None:
        sqlite.make(self.path)  # one that was moved away meanwhile is made anew
        connection = sqlite.connect(self.path)
        try:
            sqlite.migrate(connection, MIGRATIONS, "journal")
            sqlite.add_columns(connection, "conductor_events", ADDED)
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                for item in items:
                    self._put(connection, item)
                if time.monotonic() >= self._prune_at:
                    self._prune_at = time.monotonic() + PRUNE_S
                    self._prune(connection)
        finally:
            connection.close()

    def _put(self, connection: sqlite3.Connection, item: Item) -> None:
        if isinstance(item, Outcome):
            told = (item.answer, item.finish_reason, item.completion_tokens, self.run, item.request)
            connection.execute(OUTCOME, told)
        elif isinstance(item, Label):
            connection.execute(LABEL, (item.result, self.run, item.session, item.before))
        else:
            digest = _keep_text(connection, item)
            connection.execute(INSERT, (self.run, digest, *(_value(item, name) for name in COLUMNS)))

    def _prune(self, connection: sqlite3.Connection) -> None:
        """Forget what is too old, and the texts that no row names any more."""
        connection.execute("DELETE FROM conductor_events WHERE time < ?", (time.time() - self._keep_s,))
        connection.execute(
            "DELETE FROM conductor_texts WHERE hash NOT IN (SELECT text_hash FROM conductor_events "
            "WHERE text_hash IS NOT NULL)"
        )

    def _tell(self, error: Exception) -> None:
        """Say once what is wrong, until it is mended."""
        if not self._broken:
            log.warning("%s: the journal can't be kept on disk and goes on in memory: %s", self.path, error)
        self._broken = str(error)

    def _mended(self) -> None:
        if self._broken:
            log.warning("%s: the journal is kept on disk again", self.path)
        self._broken = ""


def journal_of(wanted: str | None, days: float) -> Journal:
    """The journal that the manifest asks for. Where there can be no file it is kept in memory, and the log says why."""
    if wanted is None:
        return Journal()
    try:
        path = state_dir() / "conductor.sqlite" if wanted == "auto" else Path(wanted).expanduser()
    except (OSError, RuntimeError) as error:  # no directory can be made, or `~` is nobody's
        log.warning("conductor.journal: the journal goes on in memory: %s", error)
        return Journal()
    return Journal(file=EventsFile(path, days))


def _keep_text(connection: sqlite3.Connection, entry: Entry) -> str | None:
    """The hash under which the entry's hidden text is stored; None when it has none."""
    if not entry.hidden:
        return None
    digest = hashlib.sha256(entry.hidden.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    text = entry.hidden.encode("utf-8", "replace").decode()
    connection.execute("INSERT OR IGNORE INTO conductor_texts VALUES (?, ?, ?)", (digest, text, entry.time))
    return digest


def _value(entry: Entry, name: str) -> Any:
    value = getattr(entry, name)
    if isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "replace").decode()
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _select(query: Query) -> tuple[str, list[Any]]:
    wheres, values = ["time >= ?"], [query.since]
    for name in ("task", "session", "action"):
        if (value := getattr(query, name)) is not None:
            wheres.append(f"{name} = ?")
            values.append(value)
    statement = (
        f"SELECT {', '.join(COLUMNS)}, coalesce(text, '') AS hidden FROM conductor_events "
        "LEFT JOIN conductor_texts ON hash = text_hash "
        f"WHERE {' AND '.join(wheres)} ORDER BY time DESC, id DESC LIMIT ?"
    )
    return statement, [*values, query.limit]


def _entry(row: sqlite3.Row) -> dict[str, Any]:
    """A row as `Journal.entries` gives it."""
    told = {field.name: row[field.name] for field in fields(Entry)}
    return {**told, "done": bool(told["done"]), "detail": json.loads(told["detail"])}
