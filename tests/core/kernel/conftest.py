"""Plugins for the kernel's tests: in-memory ones, and whole distributions written into a folder on the path."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tandem.core.kernel import Registry
from tandem.core.plugin import Drafter, ModelBuilder, Rule, SafePoint, hookimpl
from tandem.core.plugin.part import option

Install = Callable[..., None]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder at the head of the import path; modules imported from it are forgotten afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "") or "").startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture
def install(site: Path) -> Install:
    """`install("acme", {"rules": {"polite": "acme_mod"}}, acme_mod="...source...")` writes an installed package."""

    def write(distribution: str, entry_points: dict[str, dict[str, str]], version: str = "1.0", **modules: str) -> None:
        info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        lines: list[str] = []
        for kind, points in entry_points.items():
            lines += [f"[tandem.{kind}]", *(f"{name} = {value}" for name, value in points.items())]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        for module, source in modules.items():
            (site / f"{module}.py").write_text(source)
        importlib.invalidate_caches()

    return write


RULE_MODULE = """
from tandem.core.plugin import Rule, SafePoint, hookimpl
@hookimpl
def tandem_rules():
    return [Rule(name, at=SafePoint.SP2, check=lambda event, task, sup: None, doc="A rule.") for name in {names!r}]
"""


@pytest.fixture
def rule_module() -> Callable[..., str]:
    """The source of a module that returns rules of these names."""
    return lambda *names: RULE_MODULE.format(names=names)


class TinyModel:
    """What the kernel needs to see of a model: that it can be closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


LOOSE = {
    "x": option("integer", "A number.", 0),
    "y": option(["string", "integer", "boolean", "null"], "Anything small.", None),
    "o": option("object", "A mapping.", {}),
}


def _module() -> Any:
    """A module object with drafters `a`, `b`, `c`, a rule `look`, and the model builders `tiny` and `packed`."""
    module = ModuleType("memory")

    @hookimpl
    def tandem_drafters() -> list[Drafter]:
        def build(options: Any, model: Any) -> Any:
            return lambda: options["x"]

        return [Drafter(name=name, options=LOOSE, build=build) for name in "abc"]

    @hookimpl
    def tandem_rules() -> list[Rule]:
        params = {"repeats": option("integer", "How often.", 3, minimum=1), "word": option("string", "Which word.", "")}
        return [Rule("look", at=SafePoint.SP2, check=lambda event, task, sup: None, params=params)]

    @hookimpl
    def tandem_models() -> list[ModelBuilder]:
        size = {"size": option("integer", "How big.", 1, minimum=1)}

        def build(checkpoint: Any, options: Any, progress: Any) -> Any:
            progress("rows", 1, 2)
            if options["size"] == 13:
                raise RuntimeError("unlucky size")
            return TinyModel()

        return [
            ModelBuilder(name="tiny", options=size, needs_checkpoint=False, build=build),
            ModelBuilder(name="packed", options=size, build=build),
        ]

    vars(module).update(tandem_drafters=tandem_drafters, tandem_rules=tandem_rules, tandem_models=tandem_models)
    return module


@pytest.fixture(scope="session")
def memory() -> Callable[[], Registry]:
    """Makes registries of in-memory plugins: drafters `a`, `b`, `c`, rule `look`, models `tiny` and `packed`."""
    sys.modules["memory_plugins"] = SimpleNamespace(plugin=_module())  # type: ignore[assignment]
    names = {"drafters": ["a", "b", "c"], "rules": ["look"], "models": ["tiny", "packed"]}
    points = [
        EntryPoint(name, "memory_plugins:plugin", f"tandem.{kind}")
        for kind, kind_names in names.items()
        for name in kind_names
    ]
    return lambda: Registry(points)
