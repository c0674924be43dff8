"""The manifest: which parts are on, with which options; checked whole before anything heavy is imported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tandem.core.kernel import checkpoint as checkpoints, layers
from tandem.core.kernel.problems import ManifestError
from tandem.core.kernel.registry import Registry
from tandem.core.kernel.schema import OptionCheck, Schemas
from tandem.core.kernel.yaml12 import Keys, Tree
from tandem.core.plugin.hookspecs import KINDS
from tandem.core.plugin.model import Checkpoint
from tandem.core.plugin.part import Options, Part, option

SERVED_NAME = "TandemLLM"
"""The model's name in the API unless the manifest gives another."""

MODELS = next(kind for kind in KINDS if kind.noun == layers.MODEL)

MODEL_OPTIONS: Schemas = {
    "plugin": option("string", "Which plugin builds the model."),
    "checkpoint": option(["string", "null"], "Where the weights are: a path, or package:NAME/FILE.", None),
    "served_name": option("string", "The model's name in the API.", SERVED_NAME, minLength=1),
}


@dataclass(frozen=True)
class ModelSection:
    """The manifest's `model` section."""

    plugin: str
    checkpoint: str | None
    """What the manifest says."""
    located: Checkpoint | None
    """Where that is. It existed when the manifest was checked; None for a builder that needs no checkpoint."""
    served_name: str
    options: Options
    """The builder's own options, defaults filled in."""


@dataclass(frozen=True)
class Manifest:
    """A checked manifest."""

    path: Path | None
    """The file; None when it was given as a mapping."""
    registry: Registry
    """The plugins it was checked against, those it enables already loaded."""
    model: ModelSection | None
    required: frozenset[tuple[str, str]]
    """(kind, name) of the parts without which the start fails."""
    origins: Mapping[Keys, str]
    """Path -> where its value came from (`$env NAME`). Such values may be secrets: never show them."""
    sections: Mapping[str, Options]
    parts: Mapping[str, Mapping[str, Options]]
    tree: Tree

    @property
    def served_name(self) -> str:
        return self.model.served_name if self.model else SERVED_NAME

    def section(self, name: str) -> dict[str, Any]:
        """The options of a section such as `server`, defaults filled in."""
        return dict(self.sections[name])

    def enabled(self, kind: str) -> dict[str, Options]:
        """Name -> options of the enabled parts of a kind (its plural), in the manifest's order.

        Parts whose plugin is broken are among them, with their options unchecked.
        """
        return dict(self.parts[kind])

    def locate(self, path: str | Iterable[str]) -> tuple[str, int]:
        """The file and line where `path` was written, or else what is nearest above it."""
        mark = self.tree.mark(tuple(path.split(".") if isinstance(path, str) else path))
        return mark.file, mark.line


def load_manifest(
    source: str | Path | Mapping[str, Any],
    *,
    overrides: Iterable[str] = (),
    sections: Mapping[str, Schemas] | None = None,
    registry: Registry | None = None,
) -> Manifest:
    """Read and check a manifest.

    `source` is a path, the bare name of a shipped manifest, or the manifest as a mapping. `overrides` are
    "path.to.key=value" texts that come last. `sections` gives the options of the sections that are not about plugins
    (name -> option name -> JSON Schema). Raises `ManifestError` with everything that is wrong. A plugin that is
    installed but broken is not the manifest's fault: see its record in `registry`.
    """
    sections = sections or {}
    registry = registry or Registry()
    tree = layers.read(source, overrides)
    origins = layers.resolve(tree)
    check = OptionCheck(tree, origins)
    known = ["tandem", layers.MODEL, *layers.PART_SECTIONS, *sections]
    for key in tree.value:
        if key not in known:
            check.unknown((key,), "unknown section", known)
    required: set[tuple[str, str]] = set()
    parts = {kind: _check_parts(kind, check, registry, required) for kind in layers.PART_SECTIONS}
    manifest = Manifest(
        path=None if isinstance(source, Mapping) else Path(tree.mark(()).file),
        registry=registry,
        model=_check_model(check, registry, parts),
        required=frozenset(required),
        origins=origins,
        sections={
            name: check.options((name,), {} if tree.value.get(name) is None else tree.value[name], schemas)
            for name, schemas in sections.items()
        },
        parts=parts,
        tree=tree,
    )
    if check.problems:
        raise ManifestError(sorted(check.problems, key=lambda problem: (problem.file, problem.line)))
    return manifest


def _check_parts(
    kind: str, check: OptionCheck, registry: Registry, required: set[tuple[str, str]]
) -> dict[str, Options]:
    """The enabled parts of one section, name -> options. Adds those marked so to `required`."""
    enabled: dict[str, Options] = {}
    for name, given in check.tree.value.get(kind, {}).items():
        if given is None:
            continue
        if name not in registry.names(kind):
            check.unknown((kind, name), _not_installed(name, kind, registry), registry.names(kind))
            continue
        needed = given.pop("required", False)
        if not isinstance(needed, bool):
            check.report((kind, name, "required"), "must be true or false")
        if needed is True:
            required.add((kind, name))
        part = registry.load(kind, name)
        enabled[name] = check.options((kind, name), given, part.options) if part else given
    return enabled


def _check_model(
    check: OptionCheck, registry: Registry, parts: Mapping[str, Mapping[str, Options]]
) -> ModelSection | None:
    keys: Keys = (layers.MODEL,)
    given = check.tree.value.get(layers.MODEL, "off")
    if given == "off" or given is False:
        return None
    name = given.get("plugin") if isinstance(given, dict) else None
    builder = None
    names = registry.names(MODELS.plural)
    if isinstance(name, str) and name not in names:
        check.unknown((*keys, "plugin"), _not_installed(name, MODELS.plural, registry), names, name)
    elif isinstance(name, str):
        builder = registry.load(MODELS.plural, name)
    if builder is None and isinstance(given, dict):
        own = {key: value for key, value in given.items() if key in MODEL_OPTIONS}
        options = {**given, **check.options(keys, own, MODEL_OPTIONS)}
    else:
        options = check.options(keys, given, {**(builder.options if builder else {}), **MODEL_OPTIONS})
    spec = options.pop("checkpoint")
    located = None
    if builder and isinstance(spec, str):
        located = _locate(spec, builder, check)
        if located is not None:
            helping = {kind.plural: _working(kind.plural, parts, registry) for kind in KINDS if kind.for_builders}
            located = replace(located, parts=helping)
    elif builder and spec is None and builder.needs_checkpoint:
        check.report(keys, f"`checkpoint` is missing: the builder `{name}` needs one")
    return ModelSection(options.pop("plugin", ""), spec, located, options.pop("served_name"), options)


def _locate(spec: str, builder: Any, check: OptionCheck) -> Checkpoint | None:
    keys: Keys = (layers.MODEL, "checkpoint")
    if not builder.needs_checkpoint:
        check.report(keys, f"the builder `{builder.name}` takes no checkpoint")
        return None
    try:
        return checkpoints.find(spec, check.tree.mark(keys).base)
    except checkpoints.CheckpointMissing as missing:
        check.report(keys, str(missing), missing.hint)
        return None


def _working(
    kind: str, parts: Mapping[str, Mapping[str, Options]], registry: Registry
) -> tuple[tuple[Part, Options], ...]:
    """The enabled parts of a kind whose plugins loaded."""
    loaded = ((registry.load(kind, name), options) for name, options in parts[kind].items())
    return tuple((part, options) for part, options in loaded if part is not None)


def _not_installed(name: str, kind: str, registry: Registry) -> str:
    noun = next(known.noun for known in KINDS if known.plural == kind)
    elsewhere = [known.plural for known in KINDS if name in registry.names(known.plural)]
    return f"no {noun} called `{name}` is installed" + (f" (one of the {elsewhere[0]} is)" if elsewhere else "")
