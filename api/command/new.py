"""`tandem new KIND NAME`: a plugin package that works, to change into one's own."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

import click

from tandem.core.plugin.hookspecs import KINDS, Kind

NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")

LAYOUT = {
    "pyproject.toml": "package/pyproject.toml.tmpl",
    "README.md": "package/README.md.tmpl",
    "manifest.yaml": "{noun}/manifest.yaml.tmpl",
    "tandem_{name}.py": "{noun}/module.py.tmpl",
    "tests/test_{name}.py": "{noun}/test.py.tmpl",
}
"""File of the new package -> its template."""


class NameRefused(ValueError):
    """The name can't be a plugin's; the text says why and what could."""


@dataclass(frozen=True, slots=True)
class Package:
    """A plugin package that is about to be written."""

    kind: Kind
    name: str

    @property
    def dashed(self) -> str:
        return self.name.replace("_", "-")

    @property
    def folder(self) -> str:
        return f"tandem-{self.dashed}"

    def files(self) -> dict[str, str]:
        """Path inside the package's folder -> text."""
        words = {
            "name": self.name,
            "dashed": self.dashed,
            "noun": self.kind.noun,
            "group": self.kind.group,
        }
        words["about"] = _template(f"{self.kind.noun}/about.txt.tmpl").substitute(words).strip()
        return {
            path.format(name=self.name): _template(source.format(noun=self.kind.noun)).substitute(words)
            for path, source in LAYOUT.items()
        }


def _template(path: str) -> Template:
    place: Traversable = files("tandem.api.command").joinpath("templates", *path.split("/"))
    return Template(place.read_text("utf-8"))


def package(kind: Kind, name: str) -> Package:
    """Raises NameRefused for a name that can't be an entry point and a module, or that is taken."""
    if not NAME.fullmatch(name):
        right = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()).strip("_")
        hint = f"; `{right}` would do" if NAME.fullmatch(right) else ""
        raise NameRefused(
            f"`{name}` is not a plugin name: it takes small letters, digits and single underscores, "
            f"and starts with a letter{hint}"
        )
    if name == "llm":
        raise NameRefused("`llm` would make the distribution `tandem-llm`, which is Tandem itself; take another name")
    if keyword.iskeyword(name):
        raise NameRefused(f"`{name}` is a word of Python; take another name, such as `{name}_{kind.noun}`")
    for point in entry_points(group=kind.group, name=name):
        owner = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        raise NameRefused(
            f"a {kind.noun} called `{name}` is installed already ({owner}); two of one name would both be refused"
        )
    return Package(kind, name)


@click.command("new")
@click.argument("kind", type=click.Choice([kind.noun for kind in KINDS]))
@click.argument("name")
@click.option(
    "--dir",
    "parent",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Where the package's folder is made; the current folder without it.",
)
def new_command(kind: str, name: str, parent: Path) -> None:
    """Write a plugin package of KIND called NAME: a small working part, its test, and a manifest to try it with."""
    try:
        made = package(next(k for k in KINDS if k.noun == kind), name)
    except NameRefused as refused:
        raise click.ClickException(str(refused)) from None
    folder = parent / made.folder
    try:
        write(folder, made.files())
    except FileExistsError:
        raise click.ClickException(f"{folder} exists already; nothing was written") from None
    except OSError as error:
        raise click.ClickException(f"{folder} can't be written: {error.strerror or error}") from None
    click.echo(f"{folder} is a {kind} that works. Next:\n")
    click.echo(f"  cd {folder}\n  pip install -e '.[test]'\n  pytest")


def write(folder: Path, texts: dict[str, str]) -> None:
    """Write the files into a folder that must not exist yet. Raises FileExistsError when it does."""
    folder.mkdir(parents=True)
    for path, text in texts.items():
        place = folder / path
        place.parent.mkdir(exist_ok=True)
        place.write_text(text, "utf-8")
