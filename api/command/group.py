"""The command group: a table of subcommands, none of them imported before it is called."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import click

SUBCOMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("tandem.api.command.serve:serve_command", "Serve a manifest's model over HTTP."),
    "chat": ("tandem.api.command.chat:chat_command", "Talk to a running server."),
    "check": ("tandem.api.command.check:check_command", "Check a manifest and say what it would start."),
    "plugins": ("tandem.api.command.plugins:plugins_command", "List every installed plugin."),
    "explain": ("tandem.api.command.explain:explain_command", "Explain a plugin, an option or a kind of plugin."),
    "new": ("tandem.api.command.new:new_command", "Write the package of a new plugin."),
    "rules": ("tandem.api.command.rules:rules_command", "List the rules, or replay one over a recorded conversation."),
    "policy": (
        "tandem.api.command.policy:policy_command",
        "Check a policy of the session monitor, or print its schema.",
    ),
    "verify-exactness": (
        "tandem.api.command.verify:verify_command",
        "Prove on a checkpoint that drafting never changes a token.",
    ),
}
"""Name -> (module:attribute, the sentence that `--help` shows)."""


class LazyGroup(click.Group):
    """A group that knows its subcommands by name and sentence, so that `--help` imports none of them."""

    def __init__(self, *args: Any, subcommands: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.subcommands = subcommands

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.subcommands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.subcommands:
            return None
        module, _, attribute = self.subcommands[cmd_name][0].partition(":")
        return getattr(importlib.import_module(module), attribute)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.subcommands and not args[0].startswith("-"):
            from tandem.core.kernel.problems import nearest

            near = nearest(args[0], self.subcommands)
            hint = f" (did you mean `{near}`?)" if near else ""
            ctx.fail(f"no command is called `{args[0]}`{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence) for name, (_, sentence) in self.subcommands.items()])


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"tandem {version('tandem-llm')}")
        ctx.exit()


@click.group(cls=LazyGroup, subcommands=SUBCOMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
def main() -> None:
    """Serve language models on this machine, with every feature a plugin."""
