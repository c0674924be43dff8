"""`tandem check`: everything that can be known about a manifest without starting it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tandem.api.command.manifests import CommandFailed, read_manifest, reported, set_option
from tandem.core.engine.options import SECTIONS
from tandem.core.kernel import Manifest
from tandem.core.kernel.memory import misfit
from tandem.core.plugin import KINDS, ModelError


@click.command("check")
@click.argument("manifest")
@set_option
def check_command(manifest: str, overrides: tuple[str, ...]) -> None:
    """Check a manifest and say what it would start.

    MANIFEST is a file, or the name of a shipped manifest. Nothing is loaded but the plugins' descriptions. The exit
    code is 0 when the manifest can start, 1 when a plugin that it can't do without is broken or the model does not fit
    into this machine's memory, and 2 when the manifest itself is wrong.
    """
    with reported():
        checked = read_manifest(manifest, overrides)
    console = Console(soft_wrap=True)
    console.print(_table(checked))
    facts, trouble = _describe(checked)
    if facts:
        console.print(_facts_table(facts))
    broken = [record for record in checked.registry.records if record.state == "failed" and _is_on(checked, record)]
    needed = {*checked.required, ("models", checked.model.plugin if checked.model else "")}
    for record in broken:
        fatal = (record.kind, record.name) in needed
        trouble = trouble or fatal
        word = "required, and it failed" if fatal else "failed, and is left out"
        click.echo(f"{record.kind}.{record.name}: {word}: {record.reason}", err=True)
    if reason := misfit(facts):
        trouble = True
        click.echo(f"model: it does not fit: {reason}", err=True)
    if trouble:
        raise CommandFailed("the manifest is right, but it can't start", 1)


def _is_on(manifest: Manifest, record: Any) -> bool:
    if record.kind == "models":
        return manifest.model is not None and manifest.model.plugin == record.name
    return record.name in manifest.enabled(record.kind)


def _table(manifest: Manifest) -> Table:
    """Section, part and options, a row each."""
    table = Table("section", "part", "options", box=None, header_style="bold")
    table.columns[2].overflow = "fold"
    model = manifest.model
    if model is not None:
        options = {"checkpoint": model.checkpoint, "served_name": model.served_name, **model.options}
        shown = {name: value for name, value in options.items() if value is not None}
        table.add_row("model", model.plugin, _options(manifest, ("model",), shown))
    for kind in KINDS:
        if kind.noun != "model":
            for name, part_options in manifest.enabled(kind.plural).items():
                table.add_row(kind.plural, name, _options(manifest, (kind.plural, name), part_options))
    for section in SECTIONS:
        table.add_row(section, "", _options(manifest, (section,), manifest.section(section)))
    return table


def _options(manifest: Manifest, at: tuple[str, ...], options: Mapping[str, Any]) -> Text:
    return Text("\n".join(f"{name}: {_shown(manifest, (*at, name), value)}" for name, value in options.items()))


def _shown(manifest: Manifest, keys: tuple[str, ...], value: Any) -> str:
    """`value` as the manifest would write it; one that holds a referenced value, which may be a secret, is hidden."""
    for place, origin in manifest.origins.items():
        if place[: len(keys)] == keys:
            return f"(from {origin})"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _describe(manifest: Manifest) -> tuple[Mapping[str, Any], bool]:
    """What the model's builder says it would load, and whether that went wrong."""
    model = manifest.model
    builder = manifest.registry.load("models", model.plugin) if model else None
    if model is None or builder is None or builder.describe is None:
        return {}, False
    try:
        return builder.describe(model.located, model.options), False
    except ModelError as error:
        click.echo(f"model: {error}", err=True)
    except Exception as error:
        owner = manifest.registry.record("models", model.plugin).owner
        click.echo(f"model: {model.plugin} can't describe it: {type(error).__name__}: {error} ({owner})", err=True)
    return {}, True


def _facts_table(facts: Mapping[str, Any]) -> Table:
    table = Table("the model", "", box=None, header_style="bold")
    for name, value in facts.items():
        table.add_row(str(name), Text(value if isinstance(value, str) else json.dumps(value, default=str)))
    return table
