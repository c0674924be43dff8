"""The examples do what their README says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.core.engine.options import SECTIONS
from tandem.core.kernel import load_manifest
from tandem.testing.box import Box

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("manifests/*.yaml")), ids=lambda path: path.name)
def test_a_manifest_is_right(path):
    # Whether the weights are installed here is another matter.
    manifest = load_manifest(path, overrides=["model={plugin: scripted}"], sections=SECTIONS)
    assert manifest.section("server")["port"] == 8000


def test_the_team_listens_where_the_environment_says(monkeypatch):
    monkeypatch.setenv("TANDEM_PORT", "9123")
    path = EXAMPLES / "manifests" / "team.yaml"
    manifest = load_manifest(path, overrides=["model={plugin: scripted}"], sections=SECTIONS)
    assert (manifest.section("server")["host"], manifest.section("server")["port"]) == ("0.0.0.0", 9123)


def run(host: Box, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OPENAI_BASE_URL": f"{host.url}/v1"}
    return subprocess.run(
        command, cwd=EXAMPLES / "clients", env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def demo(platform):
    return platform(model={"plugin": "scripted", "reply": "Elbe, Rhine, Danube.", "served_name": "demo"})


def test_the_python_client_prints_the_answer_and_the_counts(demo):
    done = run(demo, sys.executable, "stream.py", "Three rivers?")
    assert (done.returncode, done.stdout) == (0, "Elbe, Rhine, Danube.\n"), done.stderr
    assert "20 written" in done.stderr


def test_the_shell_client_prints_the_stream(demo):
    done = run(demo, "sh", "stream.sh")
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("data: [DONE]")


def test_a_good_client_copes_with_the_odd_stream(demo):
    done = run(demo, sys.executable, "odd_stream.py")
    assert (done.returncode, done.stdout) == (0, "The client copes.\n"), done.stderr


@pytest.mark.parametrize("folder", sorted(EXAMPLES.glob("packages/*")), ids=lambda path: path.name)
def test_a_packages_own_tests_pass(folder):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", [p for p in sorted(EXAMPLES.rglob("*")) if p.is_file()], ids=lambda path: path.name)
def test_every_example_is_in_the_index(path):
    inside = path.relative_to(EXAMPLES)
    if "__pycache__" in inside.parts or inside.name == "README.md":
        return
    index = (EXAMPLES / "README.md").read_text("utf-8")
    name = str(Path(*inside.parts[:2]))
    assert f"({name}" in index
