"""The `tandem` command. Each subcommand lives in its own module, imported only when it runs."""

from tandem.api.command.group import main

__all__ = ["main"]
