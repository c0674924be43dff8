"""`tandem rules`: what rules there are, and what one would have done in a recorded conversation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence as Seq
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tandem.api.command.manifests import CommandFailed, reported, set_option
from tandem.core.conductor.config import manifest_policy
from tandem.core.conductor.policy import PolicyTask, known_rules, read_policy
from tandem.core.conductor.roster import Caps
from tandem.core.engine.options import SECTIONS
from tandem.core.engine.rehearsal import Finding, Rehearsal, TranscriptError, read_turns
from tandem.core.kernel import Manifest, Registry, load_manifest, nearest
from tandem.core.plugin import AnswerFormat, Rule
from tandem.core.plugin.part import with_defaults

NOTATION = "hermes_json"
"""How recorded calls are written: arguments stand in it as the client sent them, broken ones too."""
Manifested = click.option("--manifest", help="Take the options, and what is switched on, from this manifest.")


@click.group("rules")
def rules_command() -> None:
    """The rules that watch a generation."""


# --------------------------------------------------------------------------------------------------------- the list


@rules_command.command("list")
@Manifested
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def list_command(manifest: str | None, as_json: bool) -> None:
    """List every installed rule: where it stands, what it does, and its mode in the manifest."""
    registry = Registry()
    modes: dict[str, str] = {}
    if manifest is not None:
        with reported():
            modes = _modes(_manifest(manifest, ("model=off",), registry))
    rows = [_row(registry, name, modes.get(name, "")) for name in registry.names("rules")]
    if as_json:
        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    table = Table("rule", "points", "mode", "what it does", box=None, header_style="bold")
    table.columns[3].overflow = "fold"
    for row in rows:
        table.add_row(row["rule"], " ".join(row["points"]), row["mode"] or "-", Text(row["summary"]))
    Console(soft_wrap=True).print(table)


def _modes(manifest: Manifest) -> dict[str, str]:
    modes = {name: str(options.get("mode", "act")) for name, options in manifest.enabled("rules").items()}
    return {name: "act" if mode == "on" else mode for name, mode in modes.items()}


def _row(registry: Registry, name: str, mode: str) -> dict[str, Any]:
    rule = registry.load("rules", name)
    if not isinstance(rule, Rule):
        return {"rule": name, "points": [], "mode": "failed", "summary": registry.record("rules", name).reason or ""}
    return {"rule": name, "points": [point.value for point in rule.points], "mode": mode, "summary": rule.summary}


# ------------------------------------------------------------------------------------------------------- the replay


@rules_command.command("replay")
@click.argument("name", metavar="RULE")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@Manifested
@set_option
@click.option("--block", type=click.IntRange(1, 64), default=4, show_default=True, help="Tokens that come at once.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def replay_command(name: str, file: Path, manifest: str | None, overrides: Seq[str], block: int, as_json: bool) -> None:
    """Say what RULE, or a task of the manifest's policy, would have done in the conversation of FILE.

    FILE is JSON, or JSON lines: requests as a client sends them (each with its `messages`), or the messages of one
    conversation. Nothing is generated: the recorded answers go past the rule block by block. For an export of the
    journal, the decisions that it has of the rule are listed instead.
    """
    registry = Registry()
    with reported():
        rule_name, own = _task(name, manifest, registry)
    values = _values(file)
    journal = _journal(values)
    try:
        if journal is not None:
            _print([_recorded(entry) for entry in journal if name in (entry.get("rule"), entry.get("task"))], as_json)
            return
        turns = read_turns(values)
    except TranscriptError as error:
        raise CommandFailed(f"{file}: {error}", 2) from None
    with reported():
        whole = _manifest(manifest, (f"rules.{rule_name}={{}}", "model=off", *overrides), registry)
    rule = registry.load("rules", rule_name)
    if not isinstance(rule, Rule):
        reason = registry.record("rules", rule_name).reason
        raise CommandFailed(f"rules.{rule_name} can't be loaded: {reason}", 1)
    options = {**whole.enabled("rules")[rule_name], **own}
    params = {key: value for key, value in options.items() if key != "mode"}
    section = whole.section("conductor")
    caps = Caps(section["acts_per_request"], section["acts_per_session_hour"])
    rehearsal = Rehearsal(rule, params, _notation(registry), block=block, caps=caps)
    try:
        _print(list(rehearsal.turns(turns)), as_json)
    finally:
        rehearsal.close()
    if not as_json:
        answers = sum(turn.answer is not None for turn in turns)
        click.echo(f"{len(turns)} requests with {answers} answers were replayed; tokens are estimated.", err=True)
    if rehearsal.is_off:
        click.echo(f"{name} failed so often that a server would have switched it off.", err=True)


def _task(name: str, manifest: str | None, registry: Registry) -> tuple[str, Mapping[str, Any]]:
    """The rule behind a rule's or a task's name, and the options that the task has of its own. Raises ManifestError."""
    installed = registry.names("rules")
    tasks: dict[str, PolicyTask] = {}
    if manifest is not None:
        tree = manifest_policy(_manifest(manifest, ("model=off",), registry))
        tasks = {task.name: task for task in read_policy(tree, known_rules(registry)).tasks}
    if name in tasks:
        return tasks[name].rule, tasks[name].options
    if name in installed:
        return name, {}
    near = nearest(name, [*installed, *tasks])
    raise CommandFailed(f"no rule or task is called `{name}`" + (f" (did you mean `{near}`?)" if near else ""), 2)


def _manifest(source: str | None, overrides: Seq[str], registry: Registry) -> Manifest:
    return load_manifest(source or {"tandem": 1}, overrides=overrides, sections=SECTIONS, registry=registry)


def _notation(registry: Registry) -> AnswerFormat:
    part = registry.load("formats", NOTATION) if NOTATION in registry.names("formats") else None
    if part is None:
        raise CommandFailed(f"the format `{NOTATION}`, in which recorded calls are read, is not installed", 1)
    notation: AnswerFormat = part.build(with_defaults(part.options, {}))
    return notation


def _values(file: Path) -> list[Any]:
    """The JSON values of the file: the items of one list, one object, or those of its lines."""
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{file} can't be read: {error}", 2) from None
    try:
        whole = json.loads(text)
    except ValueError:
        return [_line(file, number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    return whole if isinstance(whole, list) else [whole]


def _line(file: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise CommandFailed(f"{file}:{number}: this is neither JSON nor JSON lines: {error}", 2) from None


def _journal(values: Seq[Any]) -> list[Mapping[str, Any]] | None:
    """The entries, when the file is what `GET /v1/conductor/...` gave."""
    if len(values) == 1 and isinstance(values[0], Mapping) and isinstance(values[0].get("data"), list):
        values = values[0]["data"]
    is_entries = bool(values) and all(
        isinstance(v, Mapping) and {"rule", "point", "action"} <= v.keys() for v in values
    )
    return sorted(values, key=lambda entry: entry.get("time", 0)) if is_entries else None


def _recorded(entry: Mapping[str, Any]) -> Finding:
    """A journaled decision; the journal numbers requests, not messages."""
    return Finding(
        entry.get("request", 0),
        entry["point"],
        entry["action"],
        entry.get("reason", ""),
        bool(entry.get("done")),
        entry.get("position", 0),
        "request",
    )


def _print(findings: Seq[Finding], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2, ensure_ascii=False))
        return
    if not findings:
        click.echo("It would have done nothing, and noted nothing.")
        return
    counted = findings[0].counted
    table = Table(counted, "point", "action", "done", "at token", "reason", box=None, header_style="bold")
    table.columns[5].overflow = "fold"
    for f in findings:
        done = Text("yes", "green") if f.done else Text("no")
        table.add_row(str(f.message), f.point, f.action, done, str(f.tokens or ""), Text(f.reason))
    Console(soft_wrap=True).print(table)
