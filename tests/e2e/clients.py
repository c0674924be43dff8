"""Where the clients are installed, and how their processes are run: alone, and never longer than they should."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass
from pathlib import Path

import pytest

INSTALLED = Path(__file__).parents[2] / ".e2e"
PATIENCE_S = 90.0
"""How long one run of a client may take, in seconds."""


def installed(path: str, client: str) -> Path:
    """A file under `.e2e`. Where it isn't there, the test is skipped; where CI is set, it fails."""
    found = INSTALLED / path
    if not found.exists():
        told = f"{client} is not installed; `make e2e` does it, with node and npm for opencode and the JavaScript SDK"
        if os.environ.get("CI"):
            pytest.fail(told)
        pytest.skip(told)
    return found


@dataclass(frozen=True)
class Outcome:
    """What a client's process left. `code` is -9 when it had to be killed."""

    code: int
    out: str
    errors: str


def started(
    command: Seq[str | Path], folder: Path, environment: Mapping[str, str], said: str | None = None
) -> subprocess.Popen[str]:
    """A client at work in `folder`, in a process group of its own. It sees no variable of ours but PATH."""
    process = subprocess.Popen(
        [str(word) for word in command],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    if said is not None:
        assert process.stdin is not None
        process.stdin.write(said)
        process.stdin.close()
        process.stdin = None
    return process


def ended(process: subprocess.Popen[str], seconds: float = PATIENCE_S) -> Outcome:
    """Wait for the end; a client that takes longer is killed with all its children and fails the test."""
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        kill(process)
        out, errors = process.communicate()
        pytest.fail(f"still running after {seconds:g} s: {process.args}\n{out[-2000:]}\n{errors[-2000:]}")
    return Outcome(process.returncode, out, errors)


def kill(process: subprocess.Popen[str]) -> None:
    """As `kill -9` does it, with all that the process started."""
    os.killpg(process.pid, signal.SIGKILL)
