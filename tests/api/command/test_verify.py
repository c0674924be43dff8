"""`tandem verify-exactness`: what it proves, and what it says when it can't."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tandem.api.command import main
from tandem.plugins.models.scripted import ScriptedModel


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["verify-exactness", *arguments])


def test_it_proves_the_scripted_model() -> None:
    result = run("scripted", "--tokens", "8")
    assert result.exit_code == 0, result.output
    assert "Drafts change no token" in result.stdout
    for word in ("always wrong", "half right", "two at once", "the model's own", "JSON schema", "thinking budget"):
        assert word in result.stdout


def test_one_way_and_one_case_can_be_run_alone(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\n\ntwo\nthree\n")
    result = run("scripted", "--way", "half right", "--case", "seeded", "--prompts", str(prompts), "--tokens", "4")
    assert result.exit_code == 0, result.output
    assert "3 prompts" in result.stdout
    assert "3/3" in result.stdout
    assert "always wrong" not in result.stdout
    assert "JSON" not in result.stdout


def test_a_token_that_changes_fails_the_command_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ScriptedModel.forward

    def wrong(self: ScriptedModel, blocks: Any) -> Any:
        out = right(self, blocks)
        for block, rows in zip(blocks, out, strict=True):
            rows[:, ord("x")] = 39.0 if block.parents is None else 41.0  # what is written has 40
        return out

    monkeypatch.setattr(ScriptedModel, "forward", wrong)
    result = run("scripted", "--tokens", "6", "--case", "greedy")
    assert result.exit_code == 1
    assert "greedy, half right: prompt 0 parts from plain decoding at token" in result.stdout
    assert "greedy, no drafter" not in result.stdout
    assert "Drafts change no token" not in result.stdout
    assert run("scripted", "--tokens", "6", "--case", "greedy", "--tie-nats", "1.5").exit_code == 0


def test_a_pass_that_fails_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ScriptedModel.forward

    def broken(self: ScriptedModel, blocks: Any) -> Any:
        if any(block.parents is not None for block in blocks):
            raise RuntimeError("no room for a tree")
        return right(self, blocks)

    monkeypatch.setattr(ScriptedModel, "forward", broken)
    result = run("scripted", "--tokens", "4", "--case", "greedy", "--way", "always wrong")
    assert result.exit_code == 1
    assert "greedy, always wrong: prompt 0: a pass failed: no room for a tree" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nowhere"], 2, "no manifest is called `nowhere`"),
        (["default", "--set", "model.checkpoint=/no/such/file"], 2, "there is no file or directory"),
        (["scripted", "--way", "sideways"], 1, "--way 'sideways' is not known here; there are: 'no drafter', "),
        (
            ["scripted", "--case", "lucky"],
            1,
            "--case 'lucky' is not known here; there are: 'greedy', 'greedy, penalties, ",
        ),
    ],
)
def test_what_cannot_be_run_is_said_in_a_line_and_no_traceback(arguments: list[str], code: int, words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == code
    assert words in result.output
    assert isinstance(result.exception, SystemExit)


def test_a_ways_list_has_the_chooser_that_was_not_built_for_it() -> None:
    served = ("--set", "drafters=[lookup]", "--set", "choosers=[staircut]")
    assert "'as served'" in run("scripted", "--way", "sideways", *served).output
    assert "'as served'" not in run("scripted", "--way", "sideways").output


def test_a_file_without_a_prompt_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    result = run("scripted", "--prompts", str(tmp_path / "empty.txt"))
    assert result.exit_code == 1
    assert "no line with a token in it" in result.output
