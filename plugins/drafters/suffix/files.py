"""A store's folder: who may write there, its logs and orders, and what is done with a file that is not right."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from tandem.plugins.drafters.suffix.layout import HEADER, WORD, Refused, check_log_header, log_header, valid_words

try:
    import fcntl
except ImportError:  # pragma: no cover - where the system has no such locks, nobody writes
    fcntl = None  # type: ignore[assignment]


class Folder:
    """The files of one tokenizer's store.

    One process may write: the one that holds the lock, until it ends. Others read. A file is never changed once a
    reader may have mapped it: a reader copies the last log, which is the only one that grows or is cut.
    """

    def __init__(self, path: Path, vocabulary: bytes) -> None:
        """Raises OSError when the folder can't be used."""
        self.path = path
        self._vocabulary = vocabulary
        self._growing: int | None = None
        self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.writer = _locked(self._lock)
        if self.writer:
            for left in path.glob("*.new"):  # what a crash left of a file in the making
                with contextlib.suppress(OSError):  # it is in nobody's way
                    left.unlink()

    def numbers(self) -> list[int]:
        """The numbers of all logs, ascending, whatever is in them."""
        return sorted(int(path.stem) for path in self.path.glob("*.log") if path.stem.isdecimal())

    def log(self, number: int) -> tuple[mmap.mmap, int]:
        """A full log, mapped, and the words of it that are valid. Raises Refused or OSError."""
        text = _mapped(self._log_path(number))
        check_log_header(text[:HEADER], number, self._vocabulary)
        return text, valid_words(text)

    def copy(self, number: int) -> bytes:
        """The valid part of a log that may still grow, or be cut. Raises Refused or OSError."""
        text = self._log_path(number).read_bytes()
        check_log_header(text[:HEADER], number, self._vocabulary)
        return text[: valid_words(text) * WORD]

    def order(self, number: int) -> mmap.mmap:
        """The file with the order of a log. Raises Refused or OSError."""
        return _mapped(self._order_path(number))

    def create(self, number: int) -> bytes:
        """Begin a log; the bytes it begins with."""
        head = log_header(number, self._vocabulary)
        self._write_whole(self._log_path(number), head)
        self.grow(number, HEADER // WORD)
        return head

    def grow(self, number: int, words: int) -> None:
        """Documents are appended to this log from now on, behind its first `words`; what else it holds is cut."""
        self.stop_growing()
        self._growing = os.open(self._log_path(number), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        if os.fstat(self._growing).st_size != words * WORD:
            os.ftruncate(self._growing, words * WORD)

    def append(self, document: bytes) -> None:
        """Write a document behind the others, whole or (with OSError) not at all."""
        assert self._growing is not None
        size = os.fstat(self._growing).st_size
        try:
            if os.write(self._growing, document) != len(document):
                raise OSError("the disk took a part of a document only")
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._growing, size)
            raise

    def stop_growing(self) -> None:
        """The growing log, if there is one, is complete: have it on the disk."""
        if self._growing is not None:
            growing, self._growing = self._growing, None
            try:
                os.fsync(growing)
            finally:
                os.close(growing)

    def keep_order(self, number: int, content: bytes) -> None:
        self._write_whole(self._order_path(number), content)

    def forget(self, number: int) -> None:
        """Remove a log and its order."""
        self._order_path(number).unlink(missing_ok=True)
        self._log_path(number).unlink(missing_ok=True)

    def close(self) -> None:
        """Let another process write."""
        with contextlib.suppress(OSError):
            self.stop_growing()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def name(self, number: int) -> str:
        """What to call a log in a message."""
        return str(self._log_path(number))

    def _log_path(self, number: int) -> Path:
        return self.path / f"{number:08d}.log"

    def _order_path(self, number: int) -> Path:
        return self.path / f"{number:08d}.order"

    def _write_whole(self, path: Path, content: bytes) -> None:
        """Make a file that is there with all its content, or not at all."""
        new = path.with_suffix(path.suffix + ".new")
        made = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(made, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(made)
        new.replace(path)


def others(path: Path) -> Iterator[tuple[Path, int]]:
    """The stores of other tokenizers beside this one, with their bytes."""
    for other in sorted(path.parent.iterdir()):
        if other != path and other.is_dir():
            yield other, sum(file.stat().st_size for file in other.iterdir() if file.is_file())


def _locked(lock: int) -> bool:
    if fcntl is None:  # pragma: no cover
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _mapped(path: Path) -> mmap.mmap:
    """A file, mapped for reading. Raises Refused when it is too short to be one of a store."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(file).st_size < HEADER:
            raise Refused("is too short")
        return mmap.mmap(file, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(file)
