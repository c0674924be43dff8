"""Versioned documents as JSON files: one folder a document, one file a version, no file ever changed.

    STATE/conductor/profiles/000001.json
    {"form": 1, "document": "profiles", "version": 1, "at": 1767225600.0, "note": "...", "restored": null, "value": {}}

Version 0 is what is shipped and has no file; the highest number is the current version. A version appears whole or not
at all, and no two writers can have the same number: it is written beside and then linked to its name, which fails when
the name is taken. So several servers may share the folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORM = 1
FILE = re.compile(r"([0-9]{6,})\.json")
SETTLED_NS = 100_000_000
"""A folder that changed within this time may change again within the same tick of its clock."""


class StoreError(Exception):
    """A version can't be read or kept. The message says why."""


class Conflict(StoreError):
    """Somebody else has made a version in the meantime."""


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a document."""

    version: int
    value: Any
    note: str = "as shipped"
    at: float | None = None
    """Seconds since 1970; None for what is shipped."""
    restored: int | None = None
    """The version that it brought back."""

    @property
    def facts(self) -> dict[str, Any]:
        """What there is to say about it besides its value."""
        return {"version": self.version, "at": self.at, "note": self.note, "restored": self.restored}


Stamp = tuple[int, ...]
"""Changes whenever a document may have changed."""


class Store:
    """The files below one folder. Without a folder there are only the shipped versions. Thread-safe."""

    def __init__(self, root: Path | None) -> None:
        self.root = root
        self._newest: dict[str, tuple[int, int, str]] = {}
        """Document -> when its folder changed last, and the highest number in it then with its file."""

    def stamp(self, name: str) -> Stamp | None:
        """The document's state in a few numbers; None while it is too young to be told apart from the next one."""
        if self.root is None:
            return ()
        try:
            folder = os.stat(f"{self.root}/{name}").st_mtime_ns
            seen, newest, path = self._newest.get(name, (0, 0, ""))
            if seen != folder:
                newest = max(self.numbers(name), default=0)
                path = str(self._path(name, newest))
            file = os.stat(path) if newest else None
        except OSError:
            return ()
        touched = max(folder, file.st_mtime_ns if file else 0)
        if abs(time.time_ns() - touched) < SETTLED_NS:
            return None
        self._newest[name] = folder, newest, path
        return (folder, newest, *((file.st_mtime_ns, file.st_size) if file else ()))

    def numbers(self, name: str) -> list[int]:
        """The numbers of the versions that have a file, oldest first."""
        if self.root is None:
            return []
        try:
            found = [FILE.fullmatch(entry) for entry in os.listdir(self.root / name)]
        except OSError:
            return []
        return sorted(int(match[1]) for match in found if match)

    def read(self, name: str, number: int) -> Version:
        """One version that has a file. Raises StoreError for a file that is none."""
        path = self._path(name, number)
        try:
            kept = json.loads(path.read_bytes())
            if not isinstance(kept, dict) or kept["form"] != FORM:
                raise StoreError(f"{path.name}: not a version of a document in form {FORM}")
            return Version(number, kept["value"], str(kept["note"]), kept["at"], kept["restored"])
        except OSError as error:
            raise StoreError(f"{path.name}: can't be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise StoreError(f"{path.name}: not JSON: {error}") from None
        except KeyError as error:
            raise StoreError(f"{path.name}: {error} is missing") from None

    def write(
        self, name: str, value: Any, note: str, *, base: int | None = None, restored: int | None = None
    ) -> Version:
        """A new version. With `base` only when that is the highest number still; raises Conflict otherwise, and
        StoreError when it can't be kept."""
        if self.root is None:
            raise StoreError("nothing can be kept: the conductor has no folder for its documents")
        folder = self.root / name
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            newest = max(self.numbers(name), default=0)
            if base is not None and base != newest:
                raise Conflict(f"{name} is at version {newest} now, not {base}")
            made = Version(newest + 1, value, note, time.time(), restored)
            self._link(folder, self._path(name, made.version), {"form": FORM, "document": name, **made.facts}, value)
        except FileExistsError:
            raise Conflict(f"another version of {name} was made at the same time; look at it and try again") from None
        except OSError as error:
            raise StoreError(f"the version can't be kept in {folder}: {error.strerror}") from None
        return made

    def _link(self, folder: Path, path: Path, facts: dict[str, Any], value: Any) -> None:
        """Write the file beside its place, and give it its name when it is whole. Raises FileExistsError."""
        handle, beside = tempfile.mkstemp(prefix=".", suffix=".part", dir=folder)  # mode 0600
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({**facts, "value": value}, file, ensure_ascii=False, indent=1)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            os.link(beside, path)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(beside)

    def _path(self, name: str, number: int) -> Path:
        assert self.root is not None
        return self.root / name / f"{number:06d}.json"
