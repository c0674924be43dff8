"""What the fault runs share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory of the servers of one test."""
    path = tmp_path / "state"
    path.mkdir()
    monkeypatch.setenv("TANDEM_STATE_DIR", str(path))
    return path
