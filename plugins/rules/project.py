"""C2: a call stays inside the project, keeps off what the project declares read-only, and edits no file unseen.

Paths are judged by their letters (`_paths`), shell commands by their parts (`_runs`). What was seen is remembered for
the session as hashes of paths, so that a compaction of the conversation forgets nothing.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterator, Mapping
from fnmatch import translate
from functools import cache
from typing import Any

from tandem.core.plugin import (
    Action,
    PastCall,
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
from tandem.core.plugin.rule import text_of
from tandem.plugins.rules._effects import (
    PATHS,
    before_parameter,
    command_of,
    folder_of,
    loose,
    path_parameter,
    shell_parameter,
    written_path,
)
from tandem.plugins.rules._gate import SHADOW, again, asked, asks_for, text_option
from tandem.plugins.rules._paths import Project, below, project_of
from tandem.plugins.rules._runs import path_of, runs
from tandem.plugins.rules._writes import written_words

TANDEM_API = ">=0.2,<0.3"

DOC = """Stops a call that writes outside the project, to what the project declares read-only, or to a file unseen.

## Why

A coding agent works in one folder, on files that it has looked at. A write elsewhere is mostly a wrong path; an edit of
a file that was never read quotes lines that are not there, fails, and is tried again with another guess.

## When it acts

* `outside`: a call writes a file outside the project. The project is the folder that the client's system prompt states
  (`Working directory: ...`, `Workspace root folder: ...`, `<cwd>...</cwd>`); without one nothing is outside but what
  `..` leads out to. Temporary folders and those of `inside` are fine.
* `read_only`: it writes a file that the project's rules declare read-only, in a line of the system prompt that starts
  with `marker` and lists patterns: `read-only-files: migrations/**, *.lock`. The line may stand in an AGENTS.md that
  the client puts into its prompt, in a comment too. A pattern without `/` means a name in any folder.
* `unread`: an editing tool (one with a path and the text that is to be replaced) is to change a file that no call of
  the session has read or written, and that no message names. Files that a search only listed do not count as read.

It looks at the paths of tools that write, and at what shell commands write: redirections and the targets of `tee`,
`cp`, `mv`, `touch`, `mkdir`, `ln`, `sed -i`, `rm` and their like. A path that the user's message of this turn names
passes. Symbolic links, paths in variables and what programs do inside are not seen.

None of the answer's calls goes out; the model reads the finding's text and writes them again.

## Parameters

See the table. The rule starts in `shadow`.

## Example

With `Working directory: /home/u/app`, `write {"filePath": "/home/u/ap/main.py"}` is written again.
"""

PARAMS = {
    "mode": SHADOW,
    "checks": option(
        "array",
        "What is looked for.",
        ["outside", "read_only", "unread"],
        items={"type": "string", "enum": ["outside", "read_only", "unread"]},
    ),
    "inside": option(
        "array",
        "Folders besides the project that may be written to, as absolute paths.",
        [],
        items={"type": "string", "minLength": 1},
    ),
    "marker": option(
        "string", "How a line of the system prompt that lists read-only files begins.", "read-only-files:", minLength=3
    ),
    "outside": text_option(
        "What the model reads about a path outside the project.",
        "This call was not run: it writes outside the project, whose folder is {root}. Write it again with a path "
        "inside that folder. If it really must be elsewhere, do not call it: say in your answer which file it is and "
        "why, and let the user decide.",
        "name",
        "root",
    ),
    "read_only": text_option(
        "What the model reads about a file that is declared read-only.",
        "This call was not run: the project's rules declare the file read-only (pattern {pattern}). Leave it as it is "
        "and solve the task without changing it, or say in your answer why it would have to change.",
        "name",
        "pattern",
    ),
    "unread": text_option(
        "What the model reads about a file that it has not seen.",
        "This call was not run: the file that {name} is to change has not been read in this session, so its content is "
        "not known. Read the file first, alone, and then write the edit with the text exactly as it stands there. If "
        "the file is meant to be new, write it whole.",
        "name",
    ),
    "give_up": text_option(
        "What the client reads when the model can't be asked again.",
        "[Tandem stopped here: a call of {name} would have changed a file that it should not have, or had not seen. It "
        "was not run.]",
        "name",
    ),
}

REMEMBERED = 4_000
"""Paths a session remembers; the oldest go first."""


def check(event: RequestEvent | ToolCallEvent, task: Task, sup: Supervision) -> Action | None:
    """Before the prefill: remember which files the session's calls have named. At a call: judge it."""
    if isinstance(event, RequestEvent):
        _remember(event, task, sup)
        return None
    if event.tool is None or event.arguments is None:
        return None
    project, wish = _project(task, sup), asked(sup.request)
    for path in _written(event.tool, event.arguments):
        place = project.at(path)
        if asks_for(wish, (path, place, posixpath.relpath(place, project.root))):
            continue
        if "outside" in task.params["checks"] and project.outside(place):
            root = project.root if project.known else "the one that you work in"
            return again(event, task, "outside", text="outside", root=root)
        if pattern := _read_only(place, project, task, sup):
            return again(event, task, "read_only", text="read_only", pattern=pattern)
    if "unread" in task.params["checks"] and _is_unread(event, project, sup):
        return again(event, task, "unread", text="unread")
    return None


def _project(task: Task, sup: Supervision) -> Project:
    if "project" not in sup.memo:
        sup.memo["project"] = project_of(sup.request.system, task.params["inside"])
    found: Project = sup.memo["project"]
    return found


def _written(tool: Tool, arguments: Mapping[str, Any]) -> Iterator[str]:
    """The paths that a call writes to, as far as its text says them."""
    command = command_of(tool, arguments)
    if command is None:
        path = written_path(tool, arguments)
        yield from [path] if path else []
        return
    for run in runs(command, folder_of(arguments)):
        for word in written_words(run, deleted=True):
            path = path_of(word, run.folder)
            yield from [path] if path else []


# ------------------------------------------------------------------------------------------------------ read-only


def _read_only(place: str, project: Project, task: Task, sup: Supervision) -> str | None:
    """The pattern that declares a place read-only."""
    if "read_only" not in task.params["checks"] or not below(place, project.root):
        return None
    if "patterns" not in sup.memo:
        sup.memo["patterns"] = _patterns(sup.request.system, task.params["marker"])
    path = posixpath.relpath(place, project.root)
    return next((pattern for pattern in sup.memo["patterns"] if matches(path, pattern)), None)


def _patterns(system: str, marker: str) -> list[str]:
    lines = re.findall(rf"^[^\w\n]*{re.escape(marker)}[ \t]*(.*)$", system, re.IGNORECASE | re.MULTILINE)
    parts = [part.strip(" \t`\"'") for line in lines for part in line.partition("-->")[0].split(",")]
    return [part for part in parts if part]


def matches(path: str, pattern: str) -> bool:
    """Whether a path, relative to the project's folder, fits a pattern as in a .gitignore: `*` stays within a part,
    `**` crosses parts, a pattern without `/` is a name anywhere, and a folder stands for all that is in it."""
    return _pattern(pattern).fullmatch(path) is not None


@cache
def _pattern(pattern: str) -> re.Pattern[str]:
    anchored = "/" in pattern.rstrip("/")
    parts = pattern.strip("/").split("/")
    written = ""
    for place, part in enumerate(parts):
        last = place == len(parts) - 1
        if part == "**":
            written += ".*" if last else "(?:.*/)?"
        else:
            # `translate` wraps its pattern in (?s:...)\Z; within a part `.` must not cross a `/`
            written += re.sub(r"(?<!\\)\.\*", "[^/]*", translate(part)[4:-3]) + ("" if last else "/")
    return re.compile(("" if anchored else "(?:.*/)?") + written + "(?:/.*)?", re.DOTALL)


# --------------------------------------------------------------------------------------------------------- unread


def _is_unread(event: ToolCallEvent, project: Project, sup: Supervision) -> bool:
    """Whether an edit goes to a file that the session does not know."""
    assert event.tool is not None
    assert event.arguments is not None
    before, named = before_parameter(event.tool), path_parameter(event.tool)
    path = event.arguments.get(named) if named else None
    if before is None or not event.arguments.get(before) or not isinstance(path, str) or not path:
        return False
    place = project.at(path)
    name = posixpath.basename(place)
    if not name or _mark(place) in sup.session.data.get("paths", {}):
        return False
    return not (_is_mentioned(name, sup.request) or any(_shows(call, name, sup) for call in sup.request.calls))


def _is_mentioned(name: str, request: RequestEvent) -> bool:
    """Whether a message other than a tool's names the file: the user may have pasted it, a summary may tell of it."""
    return any(name in text_of(message) for message in request.messages if message.get("role") != "tool")


def _shows(call: PastCall, name: str, sup: Supervision) -> bool:
    """Whether an earlier call has read or written the file, or shown lines of it. A list of names shows none."""
    if name in call.written:
        return True
    result = call.result or ""
    is_shell = any(tool.name == call.name and shell_parameter(tool) for tool in sup.request.tools)
    return name in result if is_shell else f"{name}:" in result or f"{name}<" in result


def _remember(event: RequestEvent, task: Task, sup: Supervision) -> None:
    new = [call for call in event.new_calls if call.arguments]
    if not new:
        return
    project = project_of(event.system, task.params["inside"])
    paths: dict[str, int] = sup.session.data.setdefault("paths", {})
    for call in new:
        for name, value in (call.arguments or {}).items():
            if loose(name) in PATHS and isinstance(value, str) and value:
                mark = _mark(project.at(value))
                paths.pop(mark, None)
                paths[mark] = 1
    while len(paths) > REMEMBERED:
        del paths[next(iter(paths))]


def _mark(place: str) -> str:
    return hashlib.blake2b(place.encode("utf-8", "replace"), digest_size=8).hexdigest()


def holds(request: RequestEvent, task: Task) -> bool:
    """Only shells and tools with a path are looked at."""
    return any(shell_parameter(tool) or path_parameter(tool) for tool in request.tools)


@hookimpl
def tandem_rules() -> list[Rule]:
    return [Rule("project", (SafePoint.SP4, SafePoint.SP3), check, PARAMS, DOC, holds)]
