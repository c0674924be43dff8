"""`tandem policy`: check a policy of the session monitor, print it whole, and print its JSON Schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tandem.api.command.manifests import reported
from tandem.core.conductor.policy import Policy, find_policy, known_rules, policy_schema, read_policy, whole
from tandem.core.kernel import Problem, Registry


@click.group("policy")
def policy_command() -> None:
    """Check a policy of the session monitor, or print what may stand in one."""


@policy_command.command("check")
@click.argument("file")
def check_command(file: str) -> None:
    """Check a policy against the installed rules.

    FILE is a file, or the name of a shipped policy. The exit code is 2 when something is wrong with it.
    """
    known = known_rules(registry := Registry())
    with reported():
        policy = read_policy(find_policy(file, Path(), Problem(file, 0, "", "")), known)
    Console(soft_wrap=True).print(_table(policy))
    for task in policy.tasks:
        if known[task.rule] is None:
            reason = registry.record("rules", task.rule).reason
            click.echo(
                f"tasks.{task.name}: its parameters are unchecked: {task.rule} can't be loaded: {reason}", err=True
            )


@policy_command.command("show")
@click.argument("file", default="default")
def show_command(file: str) -> None:
    """Print a policy whole, as YAML: every threshold and every text, those that it leaves to the rules too.

    FILE is a file, or the name of a shipped policy. What is printed is a policy itself, to be changed and named in a
    manifest (`conductor: {policy: FILE}`).
    """
    known = known_rules(Registry())
    with reported():
        policy = read_policy(find_policy(file, Path(), Problem(file, 0, "", "")), known)
    click.echo(yaml.safe_dump(whole(policy, known), sort_keys=False, allow_unicode=True, width=118), nl=False)


@policy_command.command("schema")
def schema_command() -> None:
    """Print the JSON Schema of a policy, made from the installed rules."""
    click.echo(json.dumps(policy_schema(known_rules(Registry())), ensure_ascii=False, indent=2))


def _table(policy: Policy) -> Table:
    """The tasks in their order, with what the policy says about each."""
    table = Table("task", "rule", "mode", "parameters", box=None, header_style="bold")
    table.columns[3].overflow = "fold"
    for task in policy.tasks:
        params = {name: value for name, value in task.options.items() if name != "mode"}
        mode = task.options.get("mode", "as the manifest has it")
        table.add_row(task.name, task.rule, mode, Text("\n".join(f"{k}: {_shown(v)}" for k, v in params.items())))
    return table


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
