"""`tandem serve`: read a manifest and run the server."""

from __future__ import annotations

import click

from tandem.api.command.manifests import read_manifest, reported, set_option


@click.command("serve")
@click.argument("manifest", default="default")
@click.option("--host", help="The address to listen on; the same as `--set server.host=...`.")
@click.option("--port", type=int, help="The port to listen on, 0 for a free one; the same as `--set server.port=...`.")
@set_option
def serve_command(manifest: str, host: str | None, port: int | None, overrides: tuple[str, ...]) -> None:
    """Serve a manifest's model over HTTP.

    MANIFEST is a file, or the name of a shipped manifest.
    """
    given = {"server.host": host, "server.port": port}
    own = [f"{path}={value}" for path, value in given.items() if value is not None]
    with reported():
        checked = read_manifest(manifest, [*overrides, *own])
        from tandem.api.serve import run

        raise SystemExit(run(checked))
