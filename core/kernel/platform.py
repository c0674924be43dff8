"""The assembled whole: the model, and every active part with its options."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tandem.core.kernel.layers import PART_SECTIONS
from tandem.core.kernel.manifest import MODELS, Manifest, ModelSection
from tandem.core.kernel.memory import misfit, surely_fits
from tandem.core.kernel.registry import ACTIVE, FAILED, PluginRecord, Registry, last_line
from tandem.core.plugin.model import Model, ModelBuilder, ModelError, Progress
from tandem.core.plugin.part import Options

log = logging.getLogger("tandem.plugins")


class StartError(Exception):
    """The platform can't start: the model, or a part that the manifest requires, failed. The message says why."""


@dataclass(frozen=True, slots=True)
class ActivePart:
    """A part that the manifest switched on and that works."""

    name: str
    part: Any
    """What the plugin returned, of the kind's own type."""
    options: Options
    record: PluginRecord


class Platform:
    """What the rest of the core works with. Made by `assemble`.

    `fail` may be called from any thread while others read: a part once failed stays so, and nothing else changes.
    """

    def __init__(self, manifest: Manifest, registry: Registry) -> None:
        self.manifest = manifest
        self.registry = registry
        self.model: Model | None = None
        self._parts = {kind: list(self._load(kind)) for kind in PART_SECTIONS}
        self._failed: dict[tuple[str, str], str] = {}
        self._require_all()

    @property
    def served_name(self) -> str | None:
        """The model's name in the API; None without a model."""
        return self.manifest.served_name if self.manifest.model else None

    def active(self, kind: str) -> list[ActivePart]:
        """The working parts of a kind (its plural), in the manifest's order."""
        return [part for part in self._parts[kind] if (kind, part.name) not in self._failed]

    def build(self, kind: str, *args: Any) -> list[tuple[str, Any]]:
        """Call `build(options, *args)` of every active part of a kind; the name and the result of each.

        One that raises is failed, left out and told in the log. Raises `StartError` when the manifest requires it.
        """
        built = []
        for active in self.active(kind):
            try:
                built.append((active.name, active.part.build(active.options, *args)))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a plugin may raise anything, SystemExit too
                reason = f"{last_line(error)} ({active.record.owner})"
                self.fail(kind, active.name, reason)
                _tell_left_out(kind, active.name, reason)
        self._require_all()
        return built

    def fail(self, kind: str, name: str, reason: str) -> None:
        """Switch an active part off for good and list it as failed."""
        self._failed.setdefault((kind, name), reason)

    def records(self) -> list[dict[str, Any]]:
        """Every installed plugin with its state, ready for JSON."""
        working = {(kind, part.name) for kind in self._parts for part in self.active(kind)}
        if self.model is not None and self.manifest.model is not None:
            working.add((MODELS.plural, self.manifest.model.plugin))
        listed = []
        for record in self.registry.records:
            key = record.kind, record.name
            if key in self._failed:
                record = replace(record, state=FAILED, reason=self._failed[key])
            elif key in working:
                record = replace(record, state=ACTIVE)
            listed.append({field: getattr(record, field) for field in record.__slots__})
        return listed

    def close(self) -> None:
        """Free the model. Safe to call twice."""
        model, self.model = self.model, None
        if model is not None:
            model.close()

    def _load(self, kind: str) -> Any:
        for name, options in self.manifest.enabled(kind).items():
            part = self.registry.load(kind, name)
            record = self.registry.record(kind, name)
            if part is not None:
                yield ActivePart(name, part, options, replace(record, state=ACTIVE))
            elif record.reason:
                _tell_left_out(kind, name, record.reason)

    def _require_all(self) -> None:
        for kind, name in sorted(self.manifest.required):
            reason = self._failed.get((kind, name)) or self.registry.record(kind, name).reason
            if reason:
                raise StartError(f"{kind}.{name} is required, and it failed: {reason}")


def _tell_left_out(kind: str, name: str, reason: str) -> None:
    """The start goes on without a part; whoever reads the log must not have to look for it in a list."""
    log.warning("%s.%s is left out: %s", kind, name, reason)


def _check_memory(builder: ModelBuilder, section: ModelSection) -> None:
    """Raises StartError for a model that can't fit, as far as its builder can tell before it loads."""
    if builder.describe is None or (section.located and surely_fits(section.located.path)):
        return
    try:
        reason = misfit(builder.describe(section.located, section.options))
    except KeyboardInterrupt:
        raise
    except BaseException:  # what is wrong with the checkpoint, the builder itself says better when it loads
        return
    if reason is not None:
        raise StartError(f"the model does not fit: {reason}")


def assemble(manifest: Manifest, *, registry: Registry | None = None, progress: Progress | None = None) -> Platform:
    """Load every part that `manifest` enables, then the model. `progress` is told while the model loads.

    Raises `StartError` when the model or a required part fails; any other failing plugin is listed and left out.
    """
    platform = Platform(manifest, registry or manifest.registry)
    section = manifest.model
    if section is None:
        return platform
    builder = platform.registry.load(MODELS.plural, section.plugin)
    record = platform.registry.record(MODELS.plural, section.plugin)
    if builder is None:
        raise StartError(f"the model's plugin `{section.plugin}` failed: {record.reason}")
    _check_memory(builder, section)
    report: Callable[..., None] = progress or (lambda what, done, total: None)
    try:
        platform.model = builder.build(section.located, section.options, report)
    except KeyboardInterrupt:
        raise
    except ModelError as error:
        raise StartError(f"the model can't be loaded: {error}") from error
    except BaseException as error:  # a plugin may raise anything, SystemExit too
        reason = f"{last_line(error)} ({record.owner})"
        raise StartError(f"the model's plugin `{section.plugin}` failed: {reason}") from error
    return platform
