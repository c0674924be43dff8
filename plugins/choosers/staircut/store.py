"""The price file: what was learned about this machine and this model, for the next start.

A JSON object: `version`, `machine` and `model` (what the prices hold for), `prices` (context class -> rows -> [seconds,
passes]) and `drafting` (drafter -> context class -> [seconds, asked]). It is named by a fingerprint of machine and
model, and a file that says another machine, model or version, or that can't be read, is not used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.core.plugin import Model, state_dir

log = logging.getLogger("tandem.staircut")

VERSION = 1
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Subject:
    """What prices hold for."""

    machine: Mapping[str, Any]
    model: Mapping[str, Any]

    @property
    def fingerprint(self) -> str:
        text = json.dumps([self.machine, self.model], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def subject(model: Model) -> Subject:
    """This machine and this model, in plain JSON."""
    import torch

    device = "cpu"
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    machine = {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": device,
    }
    facts = json.loads(json.dumps(dict(model.facts), sort_keys=True, default=str))
    return Subject(machine, {"name": model.name, "facts": facts})


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def place(option: str | None, about: Subject) -> Path | None:
    """Where the file is: the option's path, `auto` for the state directory, None for nowhere."""
    if option is None:
        return None
    if option != AUTO:
        return Path(option).expanduser()
    try:
        return state_dir("prices") / f"{about.fingerprint}.json"
    except OSError as error:
        log.warning("prices are not kept: the state directory can't be made: %s", error)
        return None


def read(path: Path, about: Subject) -> dict[str, Any] | None:
    """The file's content, or None, with the reason logged, when it is not there or is of no use here."""
    try:
        stored = json.loads(path.read_text("utf-8"))
        if not isinstance(stored, dict):
            raise ValueError("is no JSON object")
        if stored.get("version") != VERSION:
            raise ValueError(f"is of version {stored.get('version')!r}, and this is {VERSION}")
        for key, now in (("machine", dict(about.machine)), ("model", dict(about.model))):
            if stored.get(key) != now:
                raise ValueError(f"was measured for another {key}: {_difference(stored.get(key), now)}")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # JSON and text that can't be decoded are ValueErrors
        ignored(path, error)
        return None
    return stored


def ignored(path: Path, error: Exception) -> None:
    """Say that a file is not used, and why."""
    log.warning("the price file %s is not used, prices are measured anew: it %s", path, _told(error))


def _told(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return "is torn or no JSON"
    if isinstance(error, OSError):
        return f"can't be read: {error.strerror or error}"
    return str(error)


def _difference(stored: object, now: Mapping[str, Any]) -> str:
    if not isinstance(stored, dict):
        return "it does not say which"
    keys = sorted({*stored, *now})
    different = next((key for key in keys if stored.get(key) != now.get(key)), "")
    return f"{different} was {stored.get(different)!r} and is {now.get(different)!r}"


def write(path: Path, about: Subject, prices: Mapping[str, Any], drafting: Mapping[str, Any]) -> None:
    """Put the file in place whole: a reader finds the old one or the new one. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = json.dumps(
        {
            "version": VERSION,
            "machine": dict(about.machine),
            "model": dict(about.model),
            "prices": prices,
            "drafting": drafting,
        },
        indent=1,
    )
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
