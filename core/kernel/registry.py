"""Every installed plugin, found in entry-point metadata; imported only when it is asked for, behind a guard."""

from __future__ import annotations

import importlib.metadata
import traceback
import typing
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import Distribution, EntryPoint
from typing import Any

import packaging.specifiers
import packaging.utils
import pluggy

import tandem.core.plugin as contracts
from tandem.core.kernel.problems import nearest
from tandem.core.kernel.schema import check_schemas
from tandem.core.plugin import hookspecs
from tandem.core.plugin.hookspecs import KINDS, Kind
from tandem.core.plugin.version import API_VERSION

FOUND, ENABLED, ACTIVE, FAILED = "found", "enabled", "active", "failed"

_kinds = {kind.plural: kind for kind in KINDS}


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """One plugin as the lists show it."""

    kind: str
    """The kind's plural, as in the manifest."""
    name: str
    distribution: str
    version: str
    entry_point: str
    """`module` or `module:object`."""
    state: str = FOUND
    """`found` (installed), `enabled` (the manifest names it), `active` (working) or `failed`."""
    reason: str | None = None
    """Why it failed."""

    @property
    def owner(self) -> str:
        return f"{self.distribution} {self.version}".strip()


class PluginFault(Exception):
    """What a plugin did wrong while it was loaded."""


class Registry:
    """The installed plugins. `entry_points` replaces what the environment has, for tests and embedders."""

    def __init__(self, entry_points: Iterable[EntryPoint] | None = None) -> None:
        self.unreadable: list[str] = []
        """Installed distributions whose entry points can't be read, with the reason."""
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._entry_points: dict[tuple[str, str], EntryPoint] = {}
        self._records: dict[tuple[str, str], PluginRecord] = {}
        self._parts: dict[tuple[str, str], Any] = {}
        groups = {kind.group: kind.plural for kind in KINDS}
        owners: dict[tuple[str, str], list[PluginRecord]] = defaultdict(list)
        for entry_point in self._installed() if entry_points is None else entry_points:
            if entry_point.group in groups:
                key = groups[entry_point.group], entry_point.name
                self._entry_points[key] = entry_point
                owners[key].append(PluginRecord(*key, *_owner(entry_point.dist), entry_point.value))
        order = list(_kinds)
        for key in sorted(owners, key=lambda key: (order.index(key[0]), key[1])):
            self._records[key] = owners[key][0]
            if len(owners[key]) > 1:
                names = " and ".join(sorted(record.owner for record in owners[key]))
                self._fail(key, f"two plugins have this name, so neither is used; uninstall one of them: {names}")

    @property
    def records(self) -> list[PluginRecord]:
        """By kind, then by name."""
        return list(self._records.values())

    def names(self, kind: str) -> list[str]:
        return [name for plural, name in self._records if plural == kind]

    def record(self, kind: str, name: str) -> PluginRecord:
        """Raises KeyError when no such plugin is installed."""
        return self._records[kind, name]

    def load(self, kind: str, name: str) -> Any | None:
        """Import the plugin and return its part, or None when it failed; its record then holds the reason.

        A plugin that fails leaves nothing registered behind. Loading twice gives the same part.
        """
        key = kind, name
        record = self._records[key]
        if record.state == FOUND:
            self._records[key] = replace(record, state=ENABLED)
            try:
                self._parts[key] = self._load(self._entry_points[key], _kinds[kind])
            except KeyboardInterrupt:
                raise
            except PluginFault as fault:
                self._fail(key, f"{fault} ({record.owner})")
            except BaseException as error:  # a plugin may raise anything, SystemExit too
                self._fail(key, f"{last_line(error)} ({record.owner})")
        return self._parts.get(key)

    def _fail(self, key: tuple[str, str], reason: str) -> None:
        self._records[key] = replace(self._records[key], state=FAILED, reason=reason)

    def _load(self, entry_point: EntryPoint, kind: Kind) -> Any:
        plugin = entry_point.load()
        known = self._manager.is_registered(plugin)
        try:
            if not known:
                _check_version(getattr(plugin, "TANDEM_API", None))
                self._manager.register(plugin, name=entry_point.value)
                self._check_hooks(plugin)
            part = _pick(self._call(plugin, kind), kind, entry_point.name)
            _check_options(part)
            return part
        except BaseException:
            if not known and self._manager.is_registered(plugin):
                self._manager.unregister(plugin)
            raise

    def _check_hooks(self, plugin: object) -> None:
        """A misspelt hook would never be called, so it is a fault."""
        specs = {kind.hook for kind in KINDS}
        for caller in self._manager.get_hookcallers(plugin) or []:
            wanted = any(impl.plugin is plugin and not impl.optionalhook for impl in caller.get_hookimpls())
            if wanted and not caller.has_spec():
                near = nearest(caller.name, specs)
                hint = f"; did you mean `{near}`?" if near else ""
                raise PluginFault(f"there is no hook `{caller.name}`{hint}")

    def _call(self, plugin: object, kind: Kind) -> Any:
        """What `plugin` alone returns from the hook of `kind`."""
        others = [other for other in self._manager.get_plugins() if other is not plugin]
        caller = self._manager.subset_hook_caller(kind.hook, others)
        if not any(impl.plugin is plugin for impl in caller.get_hookimpls()):
            raise PluginFault(f"implements no hook `{kind.hook}`")
        results = caller()
        return results[0] if results else None

    def _installed(self) -> Iterator[EntryPoint]:
        """Entry points of all distributions, the first of each name on the path. One that can't be read is noted."""
        seen = set()
        for distribution in importlib.metadata.distributions():
            name, version = _owner(distribution)
            if packaging.utils.canonicalize_name(name) in seen:
                continue
            seen.add(packaging.utils.canonicalize_name(name))
            try:
                yield from list(distribution.entry_points)
            except Exception as error:
                self.unreadable.append(f"{name} {version}: its entry points can't be read: {last_line(error)}")


def last_line(error: BaseException) -> str:
    """The last line of the error's traceback, whatever the error does when it is printed."""
    text = " ".join(str(traceback.TracebackException.from_exception(error)).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _owner(distribution: Distribution | None) -> tuple[str, str]:
    try:
        metadata: Any = distribution.metadata if distribution else {"Name": "", "Version": ""}
        return metadata["Name"] or "unknown", metadata["Version"] or ""
    except Exception:
        return "unknown", ""


def _check_version(wanted: Any) -> None:
    """`TANDEM_API` is the range of API versions that a plugin was written for; without one any version will do."""
    if wanted is None:
        return
    try:
        fits = packaging.specifiers.SpecifierSet(wanted).contains(API_VERSION, prereleases=True)
    except (packaging.specifiers.InvalidSpecifier, TypeError, AttributeError):
        raise PluginFault(f'TANDEM_API must be a version range such as ">=0.2,<0.3", not {wanted!r}') from None
    if not fits:
        raise PluginFault(f"written for Tandem's plugin API {wanted}, but this is {API_VERSION}")


def _pick(returned: Any, kind: Kind, name: str) -> Any:
    """The part called `name` among those that a hook returned."""
    wanted = part_type(kind)
    if not isinstance(returned, (list, tuple)):
        raise PluginFault(f"`{kind.hook}` must return a list of {wanted.__name__}, not {type(returned).__name__}")
    for part in returned:
        if not isinstance(part, wanted):
            raise PluginFault(f"`{kind.hook}` must return {wanted.__name__} objects only, not {type(part).__name__}")
    matching = [part for part in returned if part.name == name]
    if len(matching) != 1:
        names = ", ".join(f"`{part.name}`" for part in returned) or "nothing"
        amount = "no part" if not matching else "more than one part"
        raise PluginFault(f"`{kind.hook}` returned {amount} called `{name}`; it returned {names}")
    return matching[0]


def part_type(kind: Kind) -> type:
    """The contract of a kind: the hook returns a list of these."""
    hints = typing.get_type_hints(getattr(hookspecs, kind.hook), localns=vars(contracts))
    return typing.get_args(hints["return"])[0]


def _check_options(part: Any) -> None:
    if "required" in part.options:
        raise PluginFault("an option can't be called `required`: the manifest uses that word")
    try:
        check_schemas(part.options)
    except ValueError as error:
        raise PluginFault(str(error)) from None
