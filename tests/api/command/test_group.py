"""The command as a whole: its table of subcommands, its help, its exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tandem.api.command import main
from tandem.api.command.group import SUBCOMMANDS

TANDEM = Path(sys.executable).parent / "tandem"


def imported(*args: str) -> set[str]:
    """The modules that are loaded after `tandem ARGS` ended well."""
    source = (
        "import sys\nfrom tandem.api.command import main\n"
        f"try: main({list(args)!r})\nexcept SystemExit as end: assert not end.code, end.code\n"
        "print('MODULES', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("MODULES")[2].split())


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_command_of_the_table_is_there_and_helps(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"Usage: main {name} ")


def test_help_imports_no_subcommand() -> None:
    loaded = imported("--help")
    assert not loaded & {"torch", "jsonschema", "yaml", "rich", "starlette", "tandem.core"}
    assert not {module for module in loaded if module.startswith("tandem.api.command.")} - {"tandem.api.command.group"}


LIGHT = [
    "plugins",
    "check scripted",
    "explain server.port",
    "explain drafters",
    "explain fields",
    "serve --help",
]


@pytest.mark.parametrize("line", LIGHT)
def test_listing_checking_and_explaining_import_no_torch(line: str) -> None:
    assert not imported(*line.split()) & {"torch", "transformers", "tokenizers", "uvicorn"}


def test_help_lists_every_command_with_its_sentence() -> None:
    for flag in "--help", "-h":
        shown = " ".join(CliRunner().invoke(main, [flag]).output.split())
        assert all(f"{name} {sentence}" in shown for name, (_, sentence) in SUBCOMMANDS.items())


def test_a_misspelt_command_is_a_usage_error_with_the_nearest_name() -> None:
    result = CliRunner().invoke(main, ["chekc"])
    assert result.exit_code == 2
    assert "no command is called `chekc` (did you mean `check`?)" in result.stderr
    assert result.stdout == ""


def test_the_installed_command_prints_its_version_and_its_errors_on_stderr() -> None:
    version = subprocess.run([TANDEM, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert version.stdout.startswith("tandem ")
    wrong = subprocess.run([TANDEM, "check", "scriptd"], capture_output=True, text=True, timeout=60, check=False)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == (
        "scriptd: no manifest is called `scriptd`; shipped: default, scripted (did you mean `scripted`?)\n"
    )
