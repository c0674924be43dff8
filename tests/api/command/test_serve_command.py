"""`tandem serve`: from the command line to the checked manifest, and from errors to exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import tandem.api.serve
from tandem.api.command import main
from tandem.core.kernel import Manifest, StartError


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Manifest]:
    """The manifests that would have been served."""
    manifests: list[Manifest] = []

    def run(manifest: Manifest) -> int:
        manifests.append(manifest)
        return 0

    monkeypatch.setattr(tandem.api.serve, "run", run)
    return manifests


def serve(*args: str) -> Result:
    return CliRunner().invoke(main, ["serve", *args])


def test_host_and_port_win_over_set_and_set_over_the_file(served: list[Manifest]) -> None:
    args = ["--port", "0", "--host", "::1", "--set", "server.port=9", "--set", "server.parallel=5"]
    assert serve("scripted", *args).exit_code == 0
    (manifest,) = served
    server = manifest.section("server")
    assert (server["host"], server["port"], server["parallel"], server["max_queue"]) == ("::1", 0, 5, 8)
    assert manifest.model is not None
    assert manifest.model.plugin == "scripted"


def test_without_a_name_the_default_manifest_is_served(served: list[Manifest]) -> None:
    assert serve().exit_code == 0
    assert served[0].path is not None
    assert served[0].path.name == "default.yaml"


def test_a_wrong_manifest_is_not_served(served: list[Manifest], tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("tandem: 1\nservr: {}\n")
    result = serve(str(tmp_path / "m.yaml"))
    assert (result.exit_code, result.stdout, served) == (2, "", [])
    assert result.stderr == f"{tmp_path}/m.yaml:2: servr: unknown section (did you mean `server`?)\n"
    assert serve("scripted", "--port", "99999").exit_code == 2
    assert serve("scripted", "--port", "many").exit_code == 2


def test_a_failed_start_ends_with_1_and_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(manifest: Any) -> int:
        raise StartError("no room for the model")

    monkeypatch.setattr(tandem.api.serve, "run", run)
    result = serve("scripted")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "no room for the model\n")


def test_the_servers_exit_code_is_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tandem.api.serve, "run", lambda manifest: 7)
    assert serve("scripted").exit_code == 7
