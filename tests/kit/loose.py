"""Plugins that are not installed: a module or an object under test, put among the installed ones."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import Distribution, EntryPoint, entry_points
from types import ModuleType
from typing import Any

from tandem.core.kernel.registry import Registry
from tandem.core.plugin.hookspecs import KINDS


class UnderTest(Distribution):
    """Stands where an installed plugin has its distribution."""

    def __init__(self, name: str) -> None:
        self._metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n"

    def read_text(self, filename: str) -> str | None:
        return self._metadata if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        raise FileNotFoundError(path)


class LooseEntryPoint(EntryPoint):
    """An entry point that gives the plugin itself instead of importing it."""

    plugin: Any

    def load(self) -> Any:
        return self.plugin


def registry(plugins: Iterable[Any]) -> Registry:
    """All installed plugins and these. One that is installed as well, from the same module, is listed once.

    Raises TypeError for a plugin that implements no hook: nothing could come of it.
    """
    loose = [point for plugin in plugins for point in _entry_points(plugin)]
    replaced = {(point.group, point.name, point.value) for point in loose}
    installed = [point for kind in KINDS for point in entry_points(group=kind.group)]
    return Registry([p for p in installed if (p.group, p.name, p.value) not in replaced] + loose)


def _entry_points(plugin: Any) -> list[EntryPoint]:
    """One for each part that the plugin's hooks return."""
    hooks = [(kind, hook) for kind in KINDS if (hook := getattr(plugin, kind.hook, None)) is not None]
    where = plugin.__name__ if isinstance(plugin, ModuleType) else type(plugin).__qualname__
    if not hooks:
        raise TypeError(f"{where} implements no hook; there are {', '.join(kind.hook for kind in KINDS)}")
    points: list[EntryPoint] = []
    for kind, hook in hooks:
        for part in hook():
            point: Any = LooseEntryPoint(name=part.name, value=where, group=kind.group)
            vars(point).update(plugin=plugin, dist=UnderTest(where.replace("_", "-")))
            points.append(point)
    return points
