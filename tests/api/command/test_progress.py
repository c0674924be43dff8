"""The progress bar: a bar on a terminal, a line for each task elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from tandem.api.command.progress import progress_bar
from tandem.core.plugin import Progress


def test_without_a_terminal_each_task_is_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar() as report:
        assert isinstance(report, Progress)
        for done in range(3):
            report("reading weights", done, 2)
        report("packing", 0, 9)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "reading weights\npacking\n")


def test_on_a_terminal_a_bar_is_drawn_and_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with progress_bar() as report:
        report("reading weights", 1, 2)
        report("reading weights", 2, 2)
    drawn = terminal.getvalue()
    assert "reading weights" in drawn
    assert "100%" in drawn
    assert drawn.endswith("\x1b[2K")
