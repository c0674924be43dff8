"""`tandem plugins`: what is installed, from package metadata alone."""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tandem.api.command.manifests import read_manifest, reported
from tandem.core.kernel import Registry
from tandem.core.plugin import KINDS

_COLOURS = {"failed": "red", "enabled": "green"}


@click.command("plugins")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.option("--kind", type=click.Choice([kind.plural for kind in KINDS]), help="List one kind only.")
@click.option("--manifest", help="Load the plugins that this manifest enables, and show which of them fail.")
def plugins_command(as_json: bool, kind: str | None, manifest: str | None) -> None:
    """List every installed plugin.

    Without --manifest no plugin is imported, so a broken one is listed like any other.
    """
    registry = Registry()
    if manifest is not None:
        with reported():
            read_manifest(manifest, registry=registry)
    records = [record for record in registry.records if kind in (None, record.kind)]
    if as_json:
        click.echo(json.dumps([asdict(record) for record in records], indent=2))
    else:
        table = Table("kind", "name", "distribution", "version", "state", "reason", box=None, header_style="bold")
        table.columns[5].overflow = "fold"
        for record in records:
            state = Text(record.state, _COLOURS.get(record.state, ""))
            table.add_row(
                record.kind, record.name, record.distribution, record.version, state, Text(record.reason or "")
            )
        Console(soft_wrap=True).print(table)
    for note in registry.unreadable:
        click.echo(note, err=True)
