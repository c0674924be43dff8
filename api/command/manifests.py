"""Reading a manifest for a command: the `server` section's options, and problems as exit codes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click

from tandem.api.auth import read_gate
from tandem.core.conductor import check_policy
from tandem.core.engine.options import SECTIONS
from tandem.core.kernel import Manifest, ManifestError, Registry, StartError, load_manifest


def read_manifest(
    source: str | Path | Mapping[str, Any], overrides: Iterable[str] = (), *, registry: Registry | None = None
) -> Manifest:
    """`load_manifest` with the sections that this server knows, its tokens and its policy checked. Raises
    `ManifestError`."""
    manifest = load_manifest(source, overrides=overrides, sections=SECTIONS, registry=registry)
    read_gate(manifest)
    check_policy(manifest)
    return manifest


class CommandFailed(click.ClickException):
    """Ends the command with a text on stderr. Exit codes: 1 = the start failed, 2 = the manifest is wrong."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click reads it from the instance as well

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(self.message, file=file, err=file is None)


@contextmanager
def reported() -> Iterator[None]:
    """Turns `ManifestError` and `StartError` into their texts and exit codes."""
    try:
        yield
    except ManifestError as error:
        raise CommandFailed(str(error), 2) from None
    except StartError as error:
        raise CommandFailed(str(error), 1) from None


def set_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option `--set path=value`, as the parameter `overrides`."""
    return click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="PATH=VALUE",
        help="Change one value of the manifest, as in `--set server.port=9000`. May be given several times.",
    )(command)
