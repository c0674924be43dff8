"""The usage ledger: one row for each request in an SQLite file. Counts and times, never text.

Rows are written by a thread of the ledger's own, several in one transaction. A request only puts its row into a bounded
queue, so a slow or broken disk costs rows, which are counted, and never a request.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tandem.core.kernel import sqlite
from tandem.core.kernel.batches import Batches
from tandem.core.kernel.sqlite import BUSY_S

log = logging.getLogger("tandem.ledger")

PENDING = 4096
"""Rows that may wait for the disk."""
BATCH = 256
"""Rows that one transaction writes, at most."""
PRUNE_S = 86400.0


@dataclass(frozen=True, slots=True)
class Row:
    """One request. Times of day are seconds since 1970, durations are milliseconds."""

    id: str
    ended_at: float
    route: str
    client: str
    session: str | None
    """The client's own name for the conversation, hashed."""
    stream: bool
    choices: int
    reason: str
    """`stop`, `length`, `tool_calls`, `timeout`, `abandoned`, `error` or `refused`."""
    detail: str
    """Why exactly: `eos`, `stop_string`, `max_tokens`, `constraint`, `rule:NAME`, or a refusal's code."""
    prompt_tokens: int
    cached_tokens: int
    forwarded_tokens: int
    """Prompt tokens that were read."""
    image_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    rounds: int
    draft_tokens: int
    draft_accepted: int
    cache_source: str
    lane: str | None
    """What the request was served beside in the side lane, `decode` or `prefill`; empty = it had its own place. The
    times of such a row are no samples of speed."""
    wait_own_ms: float
    """How much of the wait was behind the server's own work."""
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    first_text_ms: float | None
    """From the request's arrival to its first text; empty when there was none."""
    total_ms: float
    wait_mem_ms: float = 0.0
    """How much of the wait was for memory."""
    hidden_tokens: int = 0
    """Tokens written into the answers' context that the client does not see."""
    hidden_prompt_tokens: int = 0
    """Prompt tokens that the client did not send; `prompt_tokens` does not count them."""
    acts: int = 0
    """What rules did to the request, as the caps count it."""
    mode: str = ""
    """In which mode rules watched it: `raw`, `shadow` or `on`; empty when it never came to that."""


COLUMNS = tuple(field.name for field in fields(Row))

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE requests ("
        "id TEXT, ended_at REAL, route TEXT, client TEXT, session TEXT, stream INTEGER, choices INTEGER, "
        "reason TEXT, detail TEXT, prompt_tokens INTEGER, cached_tokens INTEGER, forwarded_tokens INTEGER, "
        "image_tokens INTEGER, completion_tokens INTEGER, reasoning_tokens INTEGER, rounds INTEGER, "
        "draft_tokens INTEGER, draft_accepted INTEGER, cache_source TEXT, "
        "lane TEXT, wait_own_ms REAL, queue_ms REAL, prefill_ms REAL, "
        "decode_ms REAL, first_text_ms REAL, total_ms REAL)",
        "CREATE INDEX requests_by_time ON requests (ended_at)",
        "CREATE INDEX requests_by_session ON requests (session, ended_at)",
    ),
    ("ALTER TABLE requests ADD COLUMN wait_mem_ms REAL NOT NULL DEFAULT 0",),
)
"""What brings a file from each version of the schema to the next. A later version is appended, and none is changed."""

ADDED = {
    "hidden_tokens": "INTEGER NOT NULL DEFAULT 0",
    "hidden_prompt_tokens": "INTEGER NOT NULL DEFAULT 0",
    "acts": "INTEGER NOT NULL DEFAULT 0",
    "mode": "TEXT NOT NULL DEFAULT ''",
}
"""Columns that later releases added, with their declarations. They are put in wherever they are missing, after the
migrations, so a file of any release gets them."""

INSERT = f"INSERT INTO requests ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"


class LedgerError(Exception):
    """The file can't be used. The message names it and says what is wrong."""


class Ledger:
    """Open for writing; `add` may be called from any thread."""

    def __init__(self, path: Path, retention_days: float = 400) -> None:
        """Makes the file (mode 0600), or brings an older one up to date in place. Raises LedgerError."""
        self.path = path
        self._retention_s = retention_days * 86400
        self._counts = {"rows": 0, "dropped": 0}
        self.error: str | None = None
        """Why the last rows that were tried are lost; None when they were written."""
        self._prune_at = 0.0
        _prepare(path)
        self._rows: Batches[Row] = Batches(self._try, "tandem-ledger", room=PENDING, most=BATCH)

    def add(self, row: Row) -> None:
        """Write the row soon. One that finds no room is dropped and counted."""
        if not self._rows.put(row):
            self._counts["dropped"] += 1

    def stats(self) -> Mapping[str, int]:
        """`rows` written and `dropped` by this process."""
        return dict(self._counts)

    def close(self) -> None:
        """Write what waits. Safe to call twice."""
        self._rows.close(BUSY_S + 1)

    def _try(self, rows: list[Row]) -> None:
        try:
            self._write(rows)
            self._counts["rows"] += len(rows)
            self.error = None
        except Exception as error:  # of the disk, or of a file that was damaged: whatever it is, rows go on coming
            self._counts["dropped"] += len(rows)
            self.error = str(error)
            log.warning("%s: %d rows are lost: %s", self.path, len(rows), error)

    def _write(self, rows: list[Row]) -> None:
        connection = sqlite.connect(self.path)  # a file that was moved away meanwhile is made anew
        try:
            with connection:
                _migrate(connection)
                connection.executemany(INSERT, [[getattr(row, name) for name in COLUMNS] for row in rows])
                if time.monotonic() >= self._prune_at:
                    self._prune_at = time.monotonic() + PRUNE_S
                    connection.execute("DELETE FROM requests WHERE ended_at < ?", (time.time() - self._retention_s,))
        finally:
            connection.close()


def read(path: Path, since: float = 0.0) -> list[dict[str, Any]]:
    """The rows that ended at or after `since`, oldest first. Raises LedgerError."""
    if not path.is_file():
        raise LedgerError(f"{path}: there is no ledger here")
    try:
        connection = sqlite.connect_to_read(path)
        try:
            found = connection.execute("SELECT * FROM requests WHERE ended_at >= ? ORDER BY ended_at", (since,))
            return [dict(row) for row in found]
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise LedgerError(f"{path}: the ledger can't be read: {error}") from error


def _prepare(path: Path) -> None:
    try:
        sqlite.make(path)
        connection = sqlite.connect(path)
        try:
            with connection:
                _migrate(connection)
            _check(connection)
        finally:
            connection.close()
    except OSError as error:
        raise LedgerError(f"{path}: the ledger can't be written: {error.strerror or error}") from error
    except LedgerError as error:
        raise LedgerError(f"{path}: {error}") from error
    except sqlite3.Error as error:
        raise LedgerError(f"{path}: this is no ledger that can be written: {error}") from error


def _check(connection: sqlite3.Connection) -> None:
    """Raises sqlite3.Error for a file whose rows could not be written, however well it begins."""
    found = {name for _, name, *_ in connection.execute("PRAGMA table_info(requests)")}
    if missing := [name for name in COLUMNS if name not in found]:
        raise sqlite3.DatabaseError(f"its table lacks {', '.join(missing)}")


def _migrate(connection: sqlite3.Connection) -> None:
    """Bring the schema up to date. Raises LedgerError for a file of a later version."""
    try:
        sqlite.migrate(connection, MIGRATIONS, "ledger")
    except sqlite.SchemaError as error:
        raise LedgerError(str(error)) from None
    sqlite.add_columns(connection, "requests", ADDED)
