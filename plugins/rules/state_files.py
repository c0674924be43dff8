"""S2: after a compaction the project's state files have to be read again."""

from __future__ import annotations

import re
from collections.abc import MutableMapping, Sequence as Seq
from typing import Any

from tandem.core.plugin import Action, RequestEvent, Rule, SafePoint, Supervision, Task, hookimpl, option
from tandem.plugins.rules._gate import fill, text_option
from tandem.plugins.rules._work import in_project, is_work, may_note, names_file, was_compacted, writes_files

TANDEM_API = ">=0.2,<0.3"

DOC = """Notes to the model, once after a compaction, which of the project's state files it has not read again.

## Why

A compaction leaves a summary of the conversation. What was decided and how far the work is stands in the project's
state files; a model that goes on from the summary alone repeats or undoes work.

## When it acts

In a session with tools whose system prompt matches `requires`. A compaction is the client's own request for one in this
session, or a conversation that came back with fewer messages and with others than its first ones in between: what an
edited or regenerated message leaves is a beginning of the old conversation with at most one new message, and is none.
System messages do not count, so a new date in the prompt is none either. The state files are `files` and what `named`
finds in the system prompt. A call that names the file in its arguments and does not write it has read it. When `calls`
calls came after the compaction and a file was not read, the request gets one hidden note; when all were read, that is
journaled.

## Parameters

See the table. `text` may use {files}.

## Example

After the compaction the model edits for eight calls without a look at PROGRESS.yaml: the next prompt ends with a note
that asks for it to be read first.
"""

MOST_FILES = 8

PARAMS = {
    "files": option(
        "array", "The state files, by name.", ["PROGRESS.yaml"], items={"type": "string", "minLength": 1}, maxItems=8
    ),
    "named": option(
        "string",
        "A regular expression: what it finds in the system prompt is a state file too. Empty: none is.",
        r"\b[A-Z]*(?:PROGRESS|STATE|STATUS|PLAN|HANDOFF|TODO)[A-Z_-]*\.(?:ya?ml|md|json|toml|txt)\b",
        format="regex",
    ),
    "calls": option("integer", "So many tool calls after the compaction they have to be read.", 8, minimum=1),
    "requires": option(
        "string", "A regular expression that the system prompt has to match.", r"PROGRESS\.yaml", format="regex"
    ),
    "text": text_option(
        "The hidden note to the model.",
        "This conversation was compacted, and since then you have not read {files}. The summary may be incomplete. "
        "Read it now, compare it with what you are doing, and go on from there.",
        "files",
    ),
}


def check(event: RequestEvent, task: Task, sup: Supervision) -> Action | None:
    data = sup.session.data
    shortened = was_compacted(event, data)
    if not is_work(event) or not in_project(event, task.params["requires"]):
        return None
    if shortened:
        _begin(event, task, data)
        return None
    return _look(event, task, sup) if "missing" in data else None


def _begin(event: RequestEvent, task: Task, data: MutableMapping[str, Any]) -> None:
    """Watch from here on. What is still in the conversation need not be read again."""
    files = _files(event, task)
    data["steps"] = 0
    data["missing"] = [name for name in files if not _read(event, name, event.calls)]
    if not data["missing"]:
        del data["missing"]


def _look(event: RequestEvent, task: Task, sup: Supervision) -> Action | None:
    data = sup.session.data
    data["steps"] += len(event.new_calls)
    data["missing"] = [name for name in data["missing"] if not _read(event, name, event.new_calls)]
    steps, missing = data["steps"], data["missing"]
    if not missing:
        del data["missing"]
        return Action.passed(f"state_files_read({steps})", calls=steps)
    if steps < task.params["calls"] or not may_note(task, sup):
        return None
    del data["missing"]
    text = fill(task.params["text"], files=", ".join(missing))
    return Action.tail_note(text, f"state_files_unread({len(missing)})", calls=steps, files=list(missing))


def _files(event: RequestEvent, task: Task) -> list[str]:
    pattern = task.params["named"]
    named = [found.group() for found in re.finditer(pattern, event.system)] if pattern else []
    names = [name.rpartition("/")[2] for name in [*task.params["files"], *named]]
    return list(dict.fromkeys(name for name in names if name))[:MOST_FILES]


def _read(event: RequestEvent, name: str, calls: Seq[Any]) -> bool:
    writers = {tool.name for tool in event.tools if writes_files(tool)}
    return any(call.name not in writers and call.result is not None and names_file(call, name) for call in calls)


@hookimpl
def tandem_rules() -> list[Rule]:
    return [Rule("state_files", SafePoint.SP4, check, PARAMS, DOC)]
