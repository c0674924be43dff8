"""Turns on disk, so that a restarted server still knows what the model wrote.

One SQLite file with a write-ahead log: any number of servers write to it, and who reads waits for nobody. What a
request looks for is read at once, by key. What is written goes through a bounded queue to a thread of the file's own,
so a slow or broken disk costs turns, which are counted, and never a request.

Files are named `turns-v1-N.sqlite`, and the one with the highest N is in use. A damaged file stays as it is, under its
name, and N + 1 is begun. No name is ever used twice, so a server that still has the damaged one open does no harm.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import sqlite3
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence as Seq
from pathlib import Path

from tandem.core.engine import turnrows
from tandem.core.engine.replay import Turn
from tandem.core.kernel.batches import Batches
from tandem.core.plugin import Model

log = logging.getLogger("tandem.replay")

FILE = re.compile(rf"turns-v{turnrows.VERSION}-([0-9]{{1,9}})\.sqlite")
PENDING = 4096
"""Turns that may wait for the disk."""
BATCH = 256
"""Turns that one transaction writes, at most."""
DROP = 16
"""Turns that go at once when the file is too large."""
READ_WAIT_S = 0.05
"""How long a reader waits for a file that is locked. It is while it is begun or mended, not while it is written."""
WRITE_WAIT_S = 5.0
TRIES = 4
"""So often a batch is tried before it is given up."""
PAUSE_S = 60.0
"""After an error of the disk, nothing is written this long."""
PRUNE_S = 3600.0
"""From one look at the turns' age to the next."""
TOUCH_S = 86400.0
"""A turn in use is noted as used once in this time."""
FEW = 8
"""So many turns of one place are looked at, at most."""

Item = Turn | bytes | None
"""What the thread is given: a turn to write, the key of one that is in use, or nothing, when it is to look at the file
itself."""


def author(model: Model, tags: tuple[str, str] | None) -> bytes:
    """Whose turns they are: 16 bytes of the model, its vocabulary, its template and its reasoning tags. A change of
    any of them makes other tokens of the same words."""
    told = [model.name, model.fingerprint or dict(model.facts), model.template, tags]
    digest = hashlib.blake2b(json.dumps(told, sort_keys=True, default=str).encode(), digest_size=16)
    tokenizer = model.tokenizer
    for token in range(tokenizer.vocab_size):
        try:
            written = tokenizer.token_bytes(token)
        except IndexError:  # the logits have rows for more ids than the tokenizer knows
            break
        digest.update(struct.pack("<I", len(written)) + written)
    return digest.digest()


class TurnFile:
    """The turns of one model in a folder that servers may share. Safe from any thread.

    Lazy: no file is made and no thread started before there is something to write.
    """

    def __init__(
        self, folder: Path, model: bytes, budget: int, days: float, now: Callable[[], float] = time.time
    ) -> None:
        """`model` is its `author`. `budget`, in bytes, is for the turns of all models in the file: the least recently
        used go first, and those that were not used for `days`."""
        self._folder = folder
        self._model = model
        self._budget = budget
        self._keep_s = days * 86400
        self._now = now
        self._items: Batches[tuple[int, Item]] = Batches(
            self._guarded, "tandem-turns", room=PENDING, most=BATCH, last=self._close_writer
        )
        """Each with how often everything had been forgotten by then."""
        self._closed = False
        self._to_forget = self._forgotten = 0
        """How often everything was to be forgotten, and how often it was."""
        self._damaged: Path | None = None
        self._lock = threading.Lock()  # over the reader
        self._reader: sqlite3.Connection | None = None
        self._read_from: Path | None = None
        self._writer: sqlite3.Connection | None = None
        self._write_to = folder
        self._paused_until = 0.0
        self._prune_at = 0.0
        self._counts = dict.fromkeys(("written", "dropped", "errors", "damaged"), 0)

    # ------------------------------------------------------------------------------------------------- from requests

    def put(self, turn: Turn) -> None:
        """Write the turn soon. One that finds no room in the queue is dropped and counted."""
        if not self._post(turn):
            self._counts["dropped"] += 1

    def find(self, exact: bytes, loose: bytes | None, place: bytes) -> list[Turn]:
        """The turn with this exact key, else those with this loose one, else those of this place; not all of many.

        What can't be had at once is not there.
        """
        rows: list[tuple[object, ...]] = []
        with self._lock:
            try:
                reader = self._open_reader()
                if reader is None:
                    return []
                for key, value in (("exact", exact), ("loose", loose), ("place", place)):
                    if value is not None and not rows:
                        rows = turnrows.select(reader, self._model, key, value, FEW)
            except sqlite3.Error as error:
                self._lose_reader(error)
                return []
        found = [row for row in map(turnrows.read_row, rows) if row is not None]
        self._counts["damaged"] += len(rows) - len(found)
        for row in found:
            if row.turn.exact == exact and self._now() - row.used > TOUCH_S:
                self._post(exact)
        return [row.turn for row in found]

    def touch(self, exact: bytes) -> None:
        """The turn is in use: keep it as long as one that is written now."""
        self._post(exact)

    def clear(self) -> None:
        """Forget everything, the turns of other models too. From now on nothing is found; the file is emptied soon."""
        self._to_forget += 1
        self._post(None)

    def settle(self, timeout: float = WRITE_WAIT_S) -> bool:
        """Wait until what was asked for so far is done, or could not be; False when that took too long."""
        return self._items.flush(timeout)

    def stats(self) -> Mapping[str, int]:
        """`bytes` of the file, `entries` of this model in it, and this process's own counts."""
        size = entries = 0
        with self._lock:
            try:
                reader = self._open_reader()
                if reader is not None:
                    size = turnrows.size_of(reader)
                    [(entries,)] = reader.execute(turnrows.COUNT, (self._model,))
            except sqlite3.Error as error:
                self._lose_reader(error)
        return {"bytes": size, "entries": entries, **self._counts}

    def close(self) -> None:
        """Write what waits, and let go of the file. Safe to call twice."""
        self._closed = True
        self._items.close(2 * WRITE_WAIT_S)
        with self._lock:
            self._close_reader()

    def _post(self, item: Item) -> bool:
        """Hand something to the thread; False when it takes nothing more."""
        return self._items.put((self._to_forget, item))

    def _open_reader(self) -> sqlite3.Connection | None:
        """The reader's connection; None while there is no file that can be read, or what is in it is to be forgotten.

        Raises sqlite3.Error.
        """
        if self._closed or self._to_forget != self._forgotten:
            return None
        if self._reader is None:
            self._read_from = self._latest()
            if self._read_from is None or self._read_from == self._damaged:
                return None
            self._reader = sqlite3.connect(
                self._read_from, timeout=READ_WAIT_S, isolation_level=None, check_same_thread=False
            )
            if turnrows.version_of(self._reader) != turnrows.VERSION:
                self._close_reader()  # it is just being made
            else:
                self._reader.execute("PRAGMA query_only = ON")
        return self._reader

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _lose_reader(self, error: sqlite3.Error) -> None:
        """Reading failed: the file is opened anew the next time, and left if it is damaged."""
        self._counts["errors"] += 1
        log.debug("%s: turns can't be read: %s", self._read_from, error)
        self._close_reader()
        if turnrows.is_damage(error):
            self._damaged = self._read_from
            self._post(None)  # so that the thread sees to it

    def _latest(self) -> Path | None:
        """The file in use."""
        try:
            numbers = [int(found[1]) for name in os.listdir(self._folder) if (found := FILE.fullmatch(name))]
        except OSError:
            return None
        return self._file(max(numbers)) if numbers else None

    def _file(self, number: int) -> Path:
        return self._folder / f"turns-v{turnrows.VERSION}-{number}.sqlite"

    # ------------------------------------------------------------------------------------------------- on the thread

    def _guarded(self, batch: Seq[tuple[int, Item]]) -> None:
        """Write a batch, into a new file if this one is damaged. What fails costs the batch alone."""
        turns = sum(isinstance(item, Turn) for _, item in batch)
        if time.monotonic() < self._paused_until and self._to_forget == self._forgotten:
            self._counts["dropped"] += turns
            return
        for attempt in range(TRIES):
            try:
                self._write(batch)
                return
            except Exception as error:
                self._counts["errors"] += 1
                self._close_writer()
                if turnrows.is_damage(error):
                    self._damaged = self._write_to
                elif turnrows.is_busy(error):
                    time.sleep(0.1 * (attempt + 1))
                else:
                    log.warning("%s: %d turns are not written: %s", self._write_to, turns, error)
                    self._paused_until = time.monotonic() + PAUSE_S
                    break
        self._counts["dropped"] += turns

    def _write(self, batch: Seq[tuple[int, Item]]) -> None:
        """Everything in the order in which it was asked for: what was put before all was forgotten is forgotten too."""
        if self._write_to == self._damaged:
            self._close_writer()
        forget, now = self._to_forget, self._now()
        items = [item for asked, item in batch if asked == forget]
        if self._latest() is None and not any(isinstance(item, Turn) for item in items):
            self._forgotten = forget  # there is nothing to forget, and nothing to write
            return
        file = self._writer = self._writer or self._open()
        rows = [turnrows.row_of(self._model, item, now) for item in items if isinstance(item, Turn)]
        with turnrows.transaction(file):
            if forget != self._forgotten:
                file.execute("DELETE FROM turns")
            file.executemany(turnrows.PUT, rows)
            file.executemany(turnrows.TOUCH, [(now, self._model, item) for item in items if isinstance(item, bytes)])
            if time.monotonic() >= self._prune_at:
                self._prune_at = time.monotonic() + PRUNE_S
                file.execute(turnrows.AGED, (now - self._keep_s,))
        self._counts["written"] += len(rows)
        self._bound(file)
        if forget != self._forgotten:
            file.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()  # nothing stays in the log either
            self._forgotten = forget

    def _bound(self, file: sqlite3.Connection) -> None:
        """Drop the oldest until the file is as small as it should be."""
        gone = 1
        while turnrows.size_of(file) > self._budget and gone > 0:
            with turnrows.transaction(file):
                gone = file.execute(turnrows.OLDEST, (DROP,)).rowcount
        turnrows.shrink(file)

    def _open(self) -> sqlite3.Connection:
        """The file in use, whole and ready; the next one if that is damaged. Raises OSError and sqlite3.Error."""
        path = self._latest() or self._file(1)
        if path == self._damaged:
            path = self._begin_next(path)
        self._write_to = path
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        file = sqlite3.connect(path, timeout=WRITE_WAIT_S, isolation_level=None, check_same_thread=False)
        try:
            turnrows.prepare(file)
        except BaseException:
            file.close()
            raise
        return file

    def _begin_next(self, damaged: Path) -> Path:
        """The name of the file behind a damaged one. Of damaged ones the last is kept, for whoever wants to look."""
        log.warning("%s is damaged: it is left as it is, and a new file is begun", damaged)
        self._counts["damaged"] += 1
        found = FILE.fullmatch(damaged.name)
        assert found is not None
        number = int(found[1])
        for old in range(max(1, number - FEW), number):
            for end in ("", "-wal", "-shm"):
                self._file(old).with_name(self._file(old).name + end).unlink(missing_ok=True)
        return self._file(number + 1)

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
