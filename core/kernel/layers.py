"""From what the user wrote to one tree: the manifest, what it extends, what the command line sets, and references.

Each source is a layer. A later layer is merged over an earlier one, key by key; a list or a scalar replaces. A section
of parts may be a list of names or a mapping from name to `on`, `off` or options; it is brought to one form before it
is merged, so a child may switch off or configure what its parent lists.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tandem.config import MANIFESTS
from tandem.core.kernel.problems import ManifestError, Problem, nearest
from tandem.core.kernel.yaml12 import Keys, Mark, Tree, parse
from tandem.core.plugin.hookspecs import KINDS

MANIFEST_VERSION = 1
MODEL = "model"
PART_SECTIONS = tuple(kind.plural for kind in KINDS if kind.noun != MODEL)


def shipped() -> list[str]:
    """The names of the manifests that come with Tandem."""
    return sorted(path.stem for path in MANIFESTS.glob("*.yaml"))


def read(source: str | Path | Mapping[str, Any], overrides: Iterable[str]) -> Tree:
    """The merged tree of `source`, all that it extends, and `overrides` ("path.to.key=value")."""
    if isinstance(source, Mapping):
        tree = _extended(_from_mapping(source), ())
    else:
        tree = _from_file(_find(source, Path(), Problem(str(source), 0, "", "")), ())
    for number, text in enumerate(overrides, 1):
        tree = merge(tree, _from_override(tree, text, number))
    return tree


def merge(parent: Tree, child: Tree) -> Tree:
    """`child` over `parent`, key by key. A section left empty is as the parent has it."""
    return Tree(_merge(parent.value, child.value, ()), {**parent.marks, **child.marks})


def _merge(parent: Any, child: Any, keys: Keys) -> Any:
    if child is None and len(keys) == 1:
        return parent
    if not (isinstance(parent, dict) and isinstance(child, dict)) or is_reference(parent) or is_reference(child):
        return child
    if keys == (MODEL,) and "plugin" in child and child["plugin"] != parent.get("plugin"):
        # the parent's other options are of another plugin
        parent = {key: value for key, value in parent.items() if key == "served_name"}
    merged = dict(parent)
    for key, value in child.items():
        merged[key] = _merge(parent[key], value, (*keys, key)) if key in parent else value
    return merged


# ------------------------------------------------------------------------------------------------------- the layers


def _find(name: str | Path, base: Path, asked: Problem) -> Path:
    """The file of a manifest: a path, or the bare name of a shipped one. `asked` is where the name was written."""
    path = base / Path(name).expanduser()
    if isinstance(name, str) and os.sep not in name and "/" not in name and not name.endswith((".yaml", ".yml")):
        path = MANIFESTS / f"{name}.yaml" if name in shipped() else path
        missing, words = f"no manifest is called `{name}`; shipped: {', '.join(shipped())}", shipped()
    else:
        missing = f"there is no file `{path}`"
        words = [entry.name for entry in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    if not path.is_file():
        hint = nearest(Path(name).name, words)
        raise ManifestError([Problem(asked.file, asked.line, asked.path, missing, hint)])
    return path


def _from_file(path: Path, chain: tuple[Path, ...]) -> Tree:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ManifestError([Problem(str(path), 0, "", f"can't be read: {error.strerror}")]) from None
    return _extended(parse(content, str(path), path.parent), (*chain, path.resolve()))


def _from_mapping(source: Mapping[str, Any]) -> Tree:
    """A tree out of plain values. They have no lines."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(key): plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value

    return Tree(plain(source), {(): Mark("manifest", 0, Path())})


def _extended(tree: Tree, chain: tuple[Path, ...]) -> Tree:
    """`tree` over the manifest that it extends. `chain` holds the files from the first child to this one."""
    _check_version(tree)
    name = tree.value.pop("extends", None)
    _unify_sections(tree)
    if name is None:
        return tree
    mark = tree.mark(("extends",))
    asked = Problem(mark.file, mark.line, "extends", "")
    if not isinstance(name, str):
        raise ManifestError([Problem(mark.file, mark.line, "extends", "must be a manifest's name or path")])
    path = _find(name, mark.base, asked)
    if path.resolve() in chain:
        circle = " -> ".join(file.name for file in (*chain, path))
        raise ManifestError([Problem(mark.file, mark.line, "extends", f"goes in a circle: {circle}")])
    return merge(_from_file(path, chain), tree)


def _from_override(below: Tree, text: str, number: int) -> Tree:
    """One layer out of "path.to.key=value", to be merged over `below`; the value is YAML."""
    path, equals, value = text.partition("=")
    keys = tuple(path.strip().split("."))
    if not equals or not all(keys):
        raise ManifestError([Problem("--set", number, "", f"`{text}` must read path.to.key=value")])
    if keys[0] in ("tandem", "extends"):
        raise ManifestError([Problem("--set", number, keys[0], "belongs in a manifest's file")])
    mark = Mark("--set", number, Path())
    try:
        inner = parse(value, mark.file, mark.base) if value.strip() else Tree(None, {(): mark})
    except ManifestError as error:
        raise ManifestError([replace(problem, line=number, path=path) for problem in error.problems]) from None
    nested = inner.value
    for key in reversed(keys):
        nested = {key: nested}
    above = [keys[:depth] for depth in range(len(keys)) if keys[:depth] not in below.marks]
    tree = Tree(nested, dict.fromkeys([*above, *((*keys, *inside) for inside in inner.marks)], mark))
    _unify_sections(tree)
    return tree


def _check_version(tree: Tree) -> None:
    mark = tree.mark(())
    if not isinstance(tree.value, dict):
        raise ManifestError([Problem(mark.file, mark.line, "", "a manifest is a mapping of sections")])
    version = tree.value.get("tandem")
    if version is None:
        message = f"the first line must say which form this file has: `tandem: {MANIFEST_VERSION}`"
        raise ManifestError([Problem(mark.file, mark.line, "tandem", message)])
    if type(version) is not int or version != MANIFEST_VERSION:
        mark = tree.mark(("tandem",))
        message = f"this Tandem reads version {MANIFEST_VERSION}, not {version}"
        raise ManifestError([Problem(mark.file, mark.line, "tandem", message)])


def _unify_sections(tree: Tree) -> None:
    """Bring every section of parts to name -> options, `{}` for "on" and None for "off"."""
    for section in PART_SECTIONS:
        given = tree.value.get(section, {})
        if isinstance(given, list):
            for index, name in enumerate(given):
                if not isinstance(name, str):
                    _refuse(tree, (section, str(index)), "must be the name of a part")
                if name in given[:index]:
                    _refuse(tree, (section, str(index)), f"`{name}` is listed twice")
                tree.marks[section, name] = tree.mark((section, str(index)))
            given = dict.fromkeys(given, "on")
        if given is None:
            given = {}
        if not isinstance(given, dict) or is_reference(given):
            _refuse(tree, (section,), "must be a list of names, or a mapping from name to options")
        for name, options in given.items():
            if options == "on" or options is True or options is None:
                given[name] = {}
            elif options == "off" or options is False:
                given[name] = None
            elif not isinstance(options, dict) or is_reference(options):
                _refuse(tree, (section, name), "must be options, `on` or `off`")
        if section in tree.value:
            tree.value[section] = given


def _refuse(tree: Tree, keys: Keys, message: str) -> None:
    mark = tree.mark(keys)
    raise ManifestError([Problem(mark.file, mark.line, ".".join(keys), message)])


# ---------------------------------------------------------------------------------------------------- references


def is_reference(value: Any) -> bool:
    """`{$env: NAME}`, `{$env: NAME, default: x}` or `{$file: PATH}`."""
    return isinstance(value, dict) and ("$env" in value or "$file" in value)


def resolve(tree: Tree) -> dict[Keys, str]:
    """Put the value of every reference in its place, in `tree` itself.

    Returns where each came from (path -> `$env NAME`): such values may be secrets and are never shown. Raises
    `ManifestError` with all references that lead nowhere.
    """
    origins: dict[Keys, str] = {}
    problems: list[Problem] = []

    def walk(value: Any, keys: Keys) -> Any:
        if is_reference(value):
            found, origin = _look_up(value, keys, tree.mark(keys), problems)
            origins[keys] = origin
            return found
        if isinstance(value, dict):
            return {key: walk(item, (*keys, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [walk(item, (*keys, str(index))) for index, item in enumerate(value)]
        return value

    tree.value = walk(tree.value, ())
    if problems:
        raise ManifestError(problems)
    return origins


def _look_up(value: dict[str, Any], keys: Keys, mark: Mark, problems: list[Problem]) -> tuple[Any, str]:
    def wrong(message: str) -> None:
        problems.append(Problem(mark.file, mark.line, ".".join(keys), message))

    which = "$env" if "$env" in value else "$file"
    name = value[which]
    strange = set(value) - {which, "default"} if which == "$env" else set(value) - {which}
    if strange or not isinstance(name, str):
        wrong("a reference reads {$env: NAME}, {$env: NAME, default: VALUE} or {$file: PATH}")
        return None, which
    origin = f"{which} {name}"
    if which == "$env":
        if name not in os.environ and "default" not in value:
            wrong(f"the environment variable {name} is not set")
        return os.environ.get(name, value.get("default")), origin
    path = mark.base / Path(name).expanduser()
    try:
        return path.read_text(encoding="utf-8").rstrip("\r\n"), origin
    except OSError as error:
        wrong(f"can't read the file `{path}`: {error.strerror}")
    except UnicodeDecodeError:
        wrong(f"the file `{path}` is not UTF-8 text")
    return None, origin
