"""`tandem new`: what it writes, and what it refuses."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given, strategies as st

from tandem.api.command.new import NAME, NameRefused, new_command, package
from tandem.core.plugin import KINDS

RULE = next(kind for kind in KINDS if kind.noun == "rule")


def run(*args: str) -> Result:
    return CliRunner().invoke(new_command, args)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.noun)
def test_every_kind_gets_a_package_that_names_its_own_entry_point(kind, tmp_path):
    result = run(kind.noun, "two_words", "--dir", str(tmp_path))
    assert result.exit_code == 0, result.output
    folder = tmp_path / "tandem-two-words"
    written = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert written == ["README.md", "manifest.yaml", "pyproject.toml", "tandem_two_words.py", "tests/test_two_words.py"]
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["entry-points"] == {kind.group: {"two_words": "tandem_two_words"}}
    assert project["project"]["dependencies"] == ["tandem-llm"]
    module = ast.parse((folder / "tandem_two_words.py").read_text())
    assert kind.hook in [node.name for node in module.body if isinstance(node, ast.FunctionDef)]
    manifest = yaml.safe_load((folder / "manifest.yaml").read_text())
    assert "two_words" in (manifest["model"]["plugin"] if kind.noun == "model" else manifest[kind.plural])
    assert not re.search(r"\$\w", "".join((folder / path).read_text() for path in written))


def test_the_next_three_commands_are_printed(tmp_path):
    output = run("rule", "polite", "--dir", str(tmp_path)).output
    assert [line.strip() for line in output.splitlines() if line.startswith("  ")] == [
        f"cd {tmp_path / 'tandem-polite'}",
        "pip install -e '.[test]'",
        "pytest",
    ]


def test_nothing_is_overwritten(tmp_path):
    run("rule", "polite", "--dir", str(tmp_path))
    module = tmp_path / "tandem-polite" / "tandem_polite.py"
    module.write_text("my own work")
    again = run("drafter", "polite", "--dir", str(tmp_path))
    assert again.exit_code == 1
    assert "tandem-polite exists already; nothing was written" in again.output
    assert module.read_text() == "my own work"


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    result = run("rule", "polite", "--dir", str(tmp_path / "file"))
    assert result.exit_code == 2 or "can't be written" in result.output
    assert "Traceback" not in result.output


def test_an_unknown_kind_lists_the_ten():
    result = run("hook", "polite")
    assert result.exit_code == 2
    assert all(kind.noun in result.output for kind in KINDS)


@pytest.mark.parametrize(
    ("name", "right"),
    [("No-Disclaimer", "no_disclaimer"), ("noDisclaimer", "no_disclaimer"), ("a__b", "a_b"), ("_x", "x")],
)
def test_a_wrong_name_is_refused_with_the_nearest_right_one(name, right, tmp_path):
    result = run("rule", name, "--dir", str(tmp_path))
    assert result.exit_code == 1
    assert f"`{right}` would do" in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["9lives", "日本", "llm", "class", "../up", ""])
def test_a_name_that_cannot_be_a_plugin_is_refused(name, tmp_path):
    result = run("rule", name, "--dir", str(tmp_path))
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_installed_already_is_refused_with_its_owner():
    model = next(kind for kind in KINDS if kind.noun == "model")
    with pytest.raises(NameRefused, match=r"a model called `scripted` is installed already \(tandem-llm "):
        package(model, "scripted")


@given(st.text(max_size=20))
def test_whatever_the_name_the_folder_is_one_step_below(name):
    try:
        made = package(RULE, name)
    except NameRefused:
        return
    assert NAME.fullmatch(name)
    assert Path(made.folder).name == made.folder
    assert all(part not in ("..", "/") for path in made.files() for part in Path(path).parts)
