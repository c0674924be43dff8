"""`tandem plugins`: the list of what is installed, read from metadata."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tandem.api.command import main


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution whose import leaves a mark and then breaks, and one that claims the same name."""
    for name, points in {
        "tandem-shout": "[tandem.rules]\nshout = shout_mod\nclaimed = shout_mod\n",
        "tandem-claim": "[tandem.rules]\nclaimed = claim_mod\n",
    }.items():
        info = tmp_path / f"{name.replace('-', '_')}-3.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 3.1\n")
        (info / "entry_points.txt").write_text(points)
    (tmp_path / "shout_mod.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\nraise OSError('loud')\n")
    (tmp_path / "m.yaml").write_text("tandem: 1\nrules: [shout]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def run(*args: str) -> Result:
    return CliRunner().invoke(main, ["plugins", *args])


def rules(*args: str) -> dict[str, dict[str, str]]:
    result = run("--json", *args)
    assert result.exit_code == 0, result.output
    return {record["name"]: record for record in json.loads(result.stdout) if record["kind"] == "rules"}


def test_a_broken_plugin_is_listed_and_not_imported(site: Path) -> None:
    assert rules()["shout"] == {
        "kind": "rules", "name": "shout", "distribution": "tandem-shout", "version": "3.1",
        "entry_point": "shout_mod", "state": "found", "reason": None,
    }  # fmt: skip
    assert run().exit_code == 0
    assert not (site / "imported").exists()


def test_the_installed_command_lists_a_broken_plugin_without_importing_it(site: Path) -> None:
    tandem = Path(sys.executable).parent / "tandem"
    done = subprocess.run(
        [tandem, "plugins"], capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "PYTHONPATH": str(site)},
    )  # fmt: skip
    assert ["rules", "shout", "tandem-shout", "3.1", "found"] in [line.split() for line in done.stdout.splitlines()]
    assert not (site / "imported").exists()


def test_a_manifest_shows_which_of_its_plugins_fail(site: Path) -> None:
    listed = rules("--manifest", str(site / "m.yaml"))
    assert (listed["shout"]["state"], listed["shout"]["reason"]) == ("failed", "OSError: loud (tandem-shout 3.1)")
    assert (site / "imported").exists()


@pytest.mark.usefixtures("site")
def test_a_name_claimed_twice_is_listed_as_failed_with_both_owners() -> None:
    claimed = rules()["claimed"]
    assert claimed["state"] == "failed"
    assert "tandem-claim 3.1 and tandem-shout 3.1" in claimed["reason"]


@pytest.mark.usefixtures("site")
def test_the_table_shows_kind_name_distribution_version_and_state() -> None:
    lines = [line.split() for line in run().stdout.splitlines()]
    assert ["rules", "shout", "tandem-shout", "3.1", "found"] in lines
    assert ["models", "scripted", "tandem-llm", "0.1.0", "found"] in lines


@pytest.mark.usefixtures("site")
def test_one_kind_can_be_listed_alone() -> None:
    records = json.loads(run("--json", "--kind", "models").stdout)
    assert {record["kind"] for record in records} == {"models"}
    assert run("--kind", "modles").exit_code == 2


def test_unreadable_entry_points_are_noted_on_stderr(site: Path) -> None:
    (site / "tandem_claim-3.1.dist-info" / "entry_points.txt").write_text("[tandem.rules]\nnothing\n")
    result = run("--json")
    assert "tandem-claim 3.1: its entry points can't be read" in result.stderr
    assert "shout" in {record["name"] for record in json.loads(result.stdout)}
