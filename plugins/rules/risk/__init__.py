"""C1: a call that can destroy what nobody asked to destroy is not sent.

`danger` reads shell commands (`_shell` and `_runs` take them apart), `sql` statements, `_paths` where a path lies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tandem.core.plugin import (
    Action,
    RequestEvent,
    Rule,
    SafePoint,
    Supervision,
    Task,
    Tool,
    ToolCallEvent,
    hookimpl,
    option,
)
from tandem.plugins.rules._effects import (
    Effect,
    command_of,
    effect,
    folder_of,
    loose,
    path_parameter,
    shell_parameter,
    written_path,
)
from tandem.plugins.rules._gate import SHADOW, again, asked, asks_for, text_option
from tandem.plugins.rules._paths import Project, project_of
from tandem.plugins.rules.risk.danger import WHY, Danger, dangers, path_danger
from tandem.plugins.rules.risk.sql import destroys

TANDEM_API = ">=0.2,<0.3"

DOC = """Stops a call that can destroy what nobody asked to destroy: whole trees, the system's files, history, tables.

## Why

A call runs as soon as it goes out, often without anybody looking at it. Most mistakes of a model cost a step; a few
cost what can't be brought back.

## When it acts

It reads the commands of shells (a tool with a text argument `command` that it can't be called without), the paths of
tools that write files, and the statements of tools for SQL. A shell command is taken apart as a shell would: quotes,
pipelines, `&&`, subshells, `sudo`, `env`, `xargs`, `bash -c "..."`, `find -exec`, here-documents, `cd`, variables that
it sets itself. So `echo "rm -rf /"` and a commit message are none. What it finds:

* deleting a whole tree (the project, a home folder, `/`, everything in the working folder), files outside the project
  or of the system, or `.git`; `find -delete` alike;
* writing to the system's files, to files of the home folder that hold credentials, or to a device;
* `git reset --hard`, `git clean -f`, `git checkout .`, `git push --force` and their like; `--force-with-lease` is none;
* recursive `chmod` or `chown` outside the project; a script from the network piped into an interpreter;
* `DROP TABLE`, `TRUNCATE`, `DELETE FROM` without a condition; commands of services that delete (`terraform destroy`);
* `kill -9 -1`, fork bombs, `shutdown`, `mkfs`, `dd of=/dev/...`.

The project is the folder that the client's system prompt states (`Working directory: ...`). Without one an absolute
path is only known to be the system's or not. What the text leaves open (a variable that it does not set, a symbolic
link) is no finding, and neither is what a program does inside (`python script.py`). A command that the user's message
of this turn literally asks for passes.

None of the answer's calls goes out; the model reads `text` and writes them again.

## Parameters

See the table. The rule starts in `shadow`.

## Example

`cd /srv/app && sudo rm -rf ../*`: not sent, `delete_tree(1)` in the journal. `rm -rf build` passes.
"""

PARAMS = {
    "mode": SHADOW,
    "ignore": option(
        "array",
        "Kinds of findings that are let through.",
        [],
        items={"type": "string", "enum": sorted(WHY)},
    ),
    "inside": option(
        "array",
        "Folders besides the project in which anything may be written and deleted, as absolute paths.",
        [],
        items={"type": "string", "minLength": 1},
    ),
    "text": text_option(
        "What the model reads instead of the call's result.",
        "This call was not run, because {why}. Nobody has asked for that. Do the task without it: touch only the files "
        "and things that it is about, name them one by one, and prefer what can be undone. If it really needs exactly "
        "this, do not call it: write the command into your answer, say why it is needed, and let the user decide.",
        "name",
        "why",
    ),
    "give_up": text_option(
        "What the client reads when the model can't be asked again.",
        "[Tandem stopped here: a call of {name} was not run, because {why}. To have it run, ask for exactly that "
        "command.]",
        "name",
        "why",
    ),
}

DATABASES = re.compile(r"sql|database|postgres|sqlite|duckdb|clickhouse|bigquery|snowflake", re.IGNORECASE)
STATEMENTS = frozenset(("sql", "query", "statement", "sqlquery", "queries", "statements"))


def check(event: ToolCallEvent, task: Task, sup: Supervision) -> Action | None:
    """At SP3: the call's dangers that the user has not asked for."""
    if event.tool is None or event.arguments is None:
        return None
    ignored = task.params["ignore"]
    found = [danger for danger in _dangers(event, _project(task, sup)) if danger.reason not in ignored]
    if not found:
        return None
    wish = asked(sup.request)
    left = [danger for danger in found if not asks_for(wish, danger.asks)]
    if not left:
        return Action.passed(f"asked({len(found)})", kind=found[0].reason)
    reason = left[0].reason
    return again(event, task, f"{reason}({len(left)})", why=WHY[reason])


def _dangers(event: ToolCallEvent, project: Project) -> Iterator[Danger]:
    tool, arguments = event.tool, event.arguments
    assert tool is not None
    assert arguments is not None
    command = command_of(tool, arguments)
    if command is not None:
        yield from dangers(command, project, folder_of(arguments))
        return
    path = written_path(tool, arguments)
    if path is not None:
        yield from _file(tool, path, project)
    for name in _statements(tool):
        value = arguments.get(name)
        for statement in destroys(value) if isinstance(value, str) else []:
            yield Danger("sql_drop", (statement,))


def _file(tool: Tool, path: str, project: Project) -> Iterator[Danger]:
    place = project.at(path)
    reason = path_danger(place, project)
    if reason is None and effect(tool) is Effect.DELETE:
        reason = "delete_tree" if project.tree(place) else "delete_outside" if project.outside(place) else None
    if reason:
        yield Danger(reason, (path,))


def _statements(tool: Tool) -> list[str]:
    """The parameters of a tool for SQL that hold statements."""
    about = DATABASES.search(f"{tool.name} {tool.description}") is not None
    return [name for name in tool.properties if loose(name).startswith("sql") or (about and loose(name) in STATEMENTS)]


def _project(task: Task, sup: Supervision) -> Project:
    if "project" not in sup.memo:
        sup.memo["project"] = project_of(sup.request.system, task.params["inside"])
    found: Project = sup.memo["project"]
    return found


def holds(request: RequestEvent, task: Task) -> bool:
    """Only tools with a command, a path that they write to, or statements are looked at."""
    return any(
        shell_parameter(tool) or (path_parameter(tool) and effect(tool)) or _statements(tool) for tool in request.tools
    )


@hookimpl
def tandem_rules() -> list[Rule]:
    return [Rule("risk", SafePoint.SP3, check, PARAMS, DOC, holds)]
