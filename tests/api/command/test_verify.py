"""`tandem verify-exactness`: what it proves, and what it says when it can't."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tandem.api.command import main


def test_it_proves_the_scripted_model() -> None:
    result = CliRunner().invoke(main, ["verify-exactness", "scripted", "--tokens", "12"])
    assert result.exit_code == 0, result.output
    assert "Drafts change no token" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "no manifest is called `nowhere`"),
        (["default", "--set", "model.checkpoint=/no/such/file"], "there is no file or directory"),
    ],
)
def test_a_manifest_that_cannot_start_is_said_in_a_line_and_no_traceback(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(main, ["verify-exactness", *arguments])
    assert result.exit_code == 2
    assert words in result.output
    assert isinstance(result.exception, SystemExit)
