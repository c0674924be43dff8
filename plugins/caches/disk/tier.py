"""The tier: which files there are, which of them serve a prompt, and what is written."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import queue
import shutil
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.core.plugin import CacheTier, Match, Model, Moment, Sequence
from tandem.plugins.caches._entries import longest
from tandem.plugins.caches.disk import format as files

log = logging.getLogger("tandem.caches.disk")

STATES = "[0-9a-f]" * 32 + ".state"
"""The names that this tier gives. A file with another one is not its own, and is left alone."""
PENDING = 2
"""Copies that wait to be written, at most: they take memory. What comes meanwhile is not written."""
PAUSE_S = 60.0
"""After an error of the disk, or when it is full, nothing is written this long."""
SEEN = 4096
"""Conversations whose turns are counted."""
CLOSING_S = 60.0
"""How long the closing server waits for the last files."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The tier's options, sizes in bytes and times in seconds."""

    budget: int
    seconds: float
    admit_after: int
    min_tokens: int
    leave_free: int
    spill: bool


@dataclass(slots=True, eq=False)
class Stored:
    """One file of this model."""

    path: Path
    tokens: list[int]
    size: int


class DiskTier(CacheTier):
    """See the contract. Files are looked up by their tokens, which stay in memory; the states don't."""

    def __init__(self, path: Path, model: Model, limits: Limits) -> None:
        """Reads the head of every file in `path`, and sweeps what is torn, too old or too much."""
        assert model.fingerprint is not None
        self._path = path
        self._model = model
        self._id = files.model_id(model.fingerprint)
        self._trim = model.caps.trim
        self._limits = limits
        self._lock = threading.Lock()  # over the entries: the writer adds to them
        self._entries: list[Stored] = []
        self._turns: OrderedDict[bytes, int] = OrderedDict()
        self._counts = dict.fromkeys(("written", "skipped", "errors", "swept"), 0)
        self._paused_until = 0.0
        self._closing = False
        self._cleared = 0
        """How often the tier was emptied: what was offered before that is not to be there afterwards."""
        self._queue: queue.Queue[tuple[int, list[int], Any] | None] = queue.Queue(PENDING)
        self._writer = threading.Thread(target=self._write_all, name="tandem-disk-cache", daemon=True)
        self._sweep()
        self._writer.start()

    # ------------------------------------------------------------------------------------------------ the contract

    def lookup(self, tokens: Seq[int]) -> Match | None:
        with self._lock:
            entries = list(self._entries)
        found = longest(entries, tokens, self._trim)
        if found is None or found[1] < self._limits.min_tokens:
            return None
        return Match(found[1], found[0])

    def resume(self, match: Match, new_sequence: Callable[[], Sequence]) -> Sequence | None:
        entry: Stored = match.handle
        try:
            head, tensors = files.read(entry.path)
            if head.model != self._id or head.tokens != entry.tokens:
                raise files.Broken("it is another state than it was")
            snapshot = self._model.snapshot_of(tensors)
        except (files.Broken, files.Foreign, OSError, ValueError) as error:
            log.warning("the state in %s is not used: %s", entry.path, error)
            self._remove(entry)
            return None
        sequence = new_sequence()
        sequence.restore(snapshot)
        if match.length < len(entry.tokens):
            sequence.trim(match.length)
        _touch(entry.path)
        return sequence

    def offer(self, moment: Moment, tokens: Seq[int], sequence: Sequence) -> None:
        if len(tokens) < self._limits.min_tokens:
            return
        if moment is Moment.PROMPT_END:
            self._count_turn(tokens)
        if not self._admits(moment, tokens):
            return
        with self._lock:
            known = longest(self._entries, tokens, self._trim)
        if known is not None and known[1] == len(tokens):
            return
        if time.monotonic() < self._paused_until or (self._queue.full() and moment is not Moment.CLOSING):
            self._counts["skipped"] += 1
            return
        self._queue.put((self._cleared, list(tokens), sequence.snapshot()))

    def shed(self, nbytes: int) -> int:
        return 0  # it holds no memory to speak of

    def stats(self) -> Mapping[str, float]:
        with self._lock:
            entries = list(self._entries)
        return {"bytes": sum(entry.size for entry in entries), "entries": len(entries), **self._counts}

    def clear(self) -> None:
        with self._lock:
            self._cleared += 1
            entries = list(self._entries)
        with contextlib.suppress(queue.Empty):  # the writer takes from it too
            while True:
                self._queue.get_nowait()
        for entry in entries:
            self._remove(entry)

    def check(self) -> list[str]:
        """Forget files that are gone or cut short: another server shares the directory, or somebody tidied it up."""
        with self._lock:
            entries = list(self._entries)
        for entry in entries:
            try:
                whole = entry.path.stat().st_size == entry.size
            except OSError:
                whole = False
            if not whole:
                self._remove(entry)
        return [] if self._closing or self._writer.is_alive() else ["its writer has ended, so nothing is kept any more"]

    def close(self) -> None:
        """Wait for what is still to be written."""
        self._closing = True
        if self._writer.is_alive():
            self._queue.put(None)
            self._writer.join(CLOSING_S)

    # -------------------------------------------------------------------------------------------------- admission

    def _admits(self, moment: Moment, tokens: Seq[int]) -> bool:
        if moment is Moment.CLOSING:
            return self._limits.spill
        # A state that can't be cut back serves the next turn only if that holds all of it: the prompt, not the answer.
        wanted = Moment.GENERATION_END if self._trim else Moment.PROMPT_END
        return moment is wanted and self._turns.get(self._conversation(tokens), 0) >= self._limits.admit_after

    def _count_turn(self, tokens: Seq[int]) -> None:
        """A prompt of a conversation was read."""
        name = self._conversation(tokens)
        self._turns[name] = self._turns.pop(name, 0) + 1
        if len(self._turns) > SEEN:
            self._turns.popitem(last=False)

    def _conversation(self, tokens: Seq[int]) -> bytes:
        """Prompts that begin alike are turns of one conversation."""
        beginning = repr(list(tokens[: self._limits.min_tokens])).encode()
        return hashlib.blake2b(beginning, digest_size=16).digest()

    # ---------------------------------------------------------------------------------------------------- the files

    def _write_all(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                self._write(*work)
            except Exception as error:  # the disk is full, read-only or gone: the server goes on without it
                self._counts["errors"] += 1
                self._pause(str(error))

    def _pause(self, reason: str) -> None:
        """The disk takes nothing now. It is looked at again later, and not for every state."""
        self._paused_until = time.monotonic() + PAUSE_S
        log.warning("no state is written for %.0f s: %s", PAUSE_S, reason)

    def _write(self, cleared: int, tokens: list[int], snapshot: Any) -> None:
        if snapshot.nbytes > self._limits.budget:
            self._counts["skipped"] += 1
            return
        self._make_room(snapshot.nbytes)
        free = shutil.disk_usage(self._path).free
        if free - snapshot.nbytes < self._limits.leave_free:
            self._counts["skipped"] += 1
            self._pause(
                f"a state of {snapshot.nbytes / 2**20:.1f} MiB would leave too little of the {free / 2**20:.1f} "
                "MiB that are free"
            )
            return
        path = self._path / files.file_name(self._id, tokens)
        size = files.write(path, self._id, tokens, snapshot.tensors())
        with self._lock:
            if cleared != self._cleared:  # emptied while this was being written
                path.unlink(missing_ok=True)
                return
            self._counts["written"] += 1
            older = [entry for entry in self._entries if entry.path == path or self._is_in(entry, tokens)]
            self._entries.append(Stored(path, tokens, size))
            self._entries = [entry for entry in self._entries if entry not in older]
        for entry in older:
            if entry.path != path:
                entry.path.unlink(missing_ok=True)

    def _is_in(self, entry: Stored, tokens: list[int]) -> bool:
        """The new state can be cut back to this one."""
        return self._trim and tokens[: len(entry.tokens)] == entry.tokens

    def _sweep(self) -> None:
        """Read all heads; delete what is torn or too old, then the oldest until the rest fits the budget."""
        now = time.time()
        for path, status in _found(self._path, ".*.part"):
            if now - status.st_mtime > 3600:  # no writer takes that long: it died
                self._delete(path)
        for path, status in _found(self._path, STATES):
            try:
                head = files.read_head(path)
            except files.Broken as error:
                log.warning("%s is deleted: %s", path, error)
                self._delete(path)
                continue
            except (files.Foreign, OSError) as error:
                log.warning("%s is left out: %s", path, error)
                continue
            if now - status.st_mtime > self._limits.seconds:
                self._delete(path)
            elif head.model == self._id:
                self._entries.append(Stored(path, head.tokens, head.size))
        self._make_room(0)

    def _make_room(self, size: int) -> None:
        """Delete the files that were not asked for the longest, of other models too, until `size` more bytes fit."""
        found = _found(self._path, STATES)
        held = sum(status.st_size for _, status in found)
        for path, status in found:
            if held + size <= self._limits.budget:
                return
            held -= status.st_size
            self._delete(path)

    def _delete(self, path: Path) -> None:
        with self._lock:
            self._entries = [entry for entry in self._entries if entry.path != path]
        try:
            path.unlink(missing_ok=True)
            self._counts["swept"] += 1
        except OSError as error:
            log.warning("%s can't be deleted: %s", path, error)

    def _remove(self, entry: Stored) -> None:
        self._delete(entry.path)


def _found(path: Path, pattern: str) -> list[tuple[Path, os.stat_result]]:
    """The files that match, the one that was not asked for the longest first. What is no file is somebody else's."""
    found = []
    for file in path.glob(pattern):
        try:
            status = file.lstat()
        except OSError:  # another server has deleted it
            continue
        if stat.S_ISREG(status.st_mode):
            found.append((file, status))
    return sorted(found, key=lambda item: (item[1].st_mtime, item[0]))


def _touch(path: Path) -> None:
    """The file was asked for now. Where that can't be noted, it only seems older than it is."""
    try:
        os.utime(path)
    except OSError as error:
        log.debug("%s keeps its time: %s", path, error)
