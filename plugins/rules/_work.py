"""What a call of the conversation did: wrote a file, ran something, passed or failed a gate.

Read off the tool's declaration, the shell command and the form of the result. No word of the model's own text counts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence as Seq
from dataclasses import dataclass
from typing import Any

from tandem.core.plugin import PastCall, RequestEvent, Supervision, Task, Tool
from tandem.core.plugin.rule import canonical, text_of
from tandem.plugins.rules._effects import (
    BODIES,
    Effect,
    body_parameters,
    command_of,
    effect,
    folder_of,
    loose,
    path_parameter,
    shell_parameter,
    verb_of,
)
from tandem.plugins.rules._paths import temporary
from tandem.plugins.rules._runs import Run, runs
from tandem.plugins.rules._words import words
from tandem.plugins.rules._writes import written_words

NEWEST = 64
"""So many new calls of a request are read, the newest: more come only with a conversation that began elsewhere."""
LONGEST_COMMAND = 8_000
"""Characters of a shell command that are read."""
ENDS = 800
"""Characters at a result's beginning and end where an exit code may stand: the middle is the program's own output."""

QUIET = words(
    """
    [ [[ alias awk basename bat cat cd chmod chown clear cp cut date declare df diff dirname du echo env exit
    export expr false fd file find getconf git grep egrep fgrep head hostname id jobs jq kill killall less let
    ln ls lsof md5sum mkdir more mv nl nproc pgrep pkill popd printenv printf ps pushd pwd read readlink
    realpath rg rm rmdir sed set sha256sum shift sleep sort source stat tail tee test touch tr tree true
    truncate type tty ulimit umask uname unalias uniq unset uptime wait wc whatis whereis which who whoami xxd
    yes
    """
)
"""Programs that look, print or move files: running them tests nothing."""
ASKING = words(
    """
    curl wget nc ping ss netstat docker systemctl journalctl pip pip3 npx
    """
)
"""Programs that ask or fetch something. To have run one is evidence, but its failure is no gate's."""
RUNNING = words(
    """
    run execute exec eval test build compile launch start play browser navigate click press type screenshot render
    """
)
"""A tool whose name has one of these words runs something."""


# ----------------------------------------------------------------------------------------------------------- tools


def writes_files(tool: Tool) -> bool:
    """A tool that puts a text into a file: a path with a body, or a patch."""
    if tool.annotations.get("readOnlyHint") is True or shell_parameter(tool):
        return False
    bodies = body_parameters(tool)
    if path_parameter(tool) and bodies:
        return effect(tool) is not None
    return any("patch" in loose(name) for name in tool.properties) or (not tool.properties and _is_write(tool))


def _is_write(tool: Tool) -> bool:
    """By the name alone, for a tool that is not offered any more."""
    return effect(tool) is Effect.WRITE


def runs_things(tool: Tool) -> bool:
    """A tool, not a shell, that runs or operates something."""
    if writes_files(tool):
        return False
    parts = {part.lower() for part in re.findall(r"[A-Z]?[a-z]+", tool.name)}
    return bool(parts & RUNNING) or (verb_of(tool.name) == "" and "code" in {loose(name) for name in tool.properties})


def can_write(request: RequestEvent) -> bool:
    """Whether the request offers a way to write a file: a tool for it, or a shell."""
    return any(writes_files(tool) or shell_parameter(tool) for tool in request.tools)


def is_work(request: RequestEvent) -> bool:
    """A turn of a session that works with tools."""
    return bool(request.tools) and request.side is None


def in_project(request: RequestEvent, pattern: str) -> bool:
    """Whether the system prompt says what a project with state files says: it matches `pattern`."""
    return bool(re.search(pattern, request.system))


def may_note(task: Task, sup: Supervision) -> bool:
    """Whether a note that is returned now would be written, in shadow: would count."""
    return task.mode != "act" or sup.room


# ----------------------------------------------------------------------------------------------------------- calls


@dataclass(frozen=True, slots=True)
class Deed:
    """What one call did."""

    writes: bool = False
    """A file was written; not when the result says that it failed."""
    runs: bool = False
    """Something of the project was run or operated."""


def deed(call: PastCall, tools: Mapping[str, Tool]) -> Deed:
    """What a call did. `tools` are the offered ones by name; one that is not offered is read by its name."""
    tool = tools.get(call.name) or Tool(call.name)
    command = command_of(tool, call.arguments)
    if command is None:
        return Deed(writes_files(tool) and not failed(call.result), runs_things(tool))
    found = list(runs(command[:LONGEST_COMMAND]))
    written = any(_writes(run) for run in found) and not failed(call.result)
    return Deed(written, any(run.name and run.name not in QUIET for run in found))


def _writes(run: Run) -> bool:
    """Whether a program writes a file that lasts."""
    if run.name == "mkdir":
        return False
    places = [word.text for word in written_words(run)]
    return any(not place.startswith("/dev/") and not place.isdigit() and not temporary(place) for place in places)


def new_deeds(request: RequestEvent) -> list[tuple[PastCall, Deed]]:
    """The newest of the calls whose results this request brought first, with what they did."""
    tools = {tool.name: tool for tool in request.tools}
    return [(call, deed(call, tools)) for call in request.new_calls[-NEWEST:]]


def names_file(call: PastCall, name: str) -> bool:
    """Whether a call's arguments, bodies aside, name a file: as a path, or as a word of a command."""
    pattern = rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)"
    return any(re.search(pattern, text) for text in _texts(call.arguments or {}, 2))


def _texts(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield value[:LONGEST_COMMAND]
    elif isinstance(value, Mapping) and depth:
        for key, inner in value.items():
            if loose(str(key)) not in BODIES:
                yield from _texts(inner, depth - 1)
    elif isinstance(value, list) and depth:
        for inner in value[:50]:
            yield from _texts(inner, depth - 1)


def digest(text: str) -> str:
    """A short hash, to know a text again without keeping it."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


# ----------------------------------------------------------------------------------------------------- compactions

FIRST = 4096
"""Hashes of so many messages are kept, the first ones."""


def was_compacted(request: RequestEvent, data: MutableMapping[str, Any]) -> bool:
    """Whether a compaction lies between this turn and the session's last one: the client asked for one in the session,
    or the conversation was shortened. `data` is the session's memory, where the messages' hashes are kept."""
    if request.side == "compaction":
        data["compaction"] = True
    if not is_work(request):
        return False
    now = [_hash(message) for message in request.messages if message.get("role") not in ("system", "developer")][:FIRST]
    before, data["messages"] = data.get("messages", []), now
    return bool(data.pop("compaction", False)) or is_shortened(before, now)


def is_shortened(before: Seq[str], now: Seq[str]) -> bool:
    """Whether a conversation was shortened other than by going back to one of its messages."""
    if not before or len(now) >= len(before):
        return False
    same = next((place for place, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), len(now))
    return same < len(now) - 1


def _hash(message: Mapping[str, Any]) -> str:
    """A message's role, text and calls; reasoning may get lost on the way and does not count."""
    calls = [[call.get("id"), call.get("function")] for call in message.get("tool_calls") or ()]
    return digest(canonical([message.get("role"), text_of(message), calls]))


# --------------------------------------------------------------------------------------------------------- results

CODES = ("exit_code", "exitCode", "exit_status", "exitStatus", "returncode", "return_code", "returnCode")
_GAP = r"[^\w\n]"
EXIT_LINE = re.compile(
    rf"^{_GAP}*(?:(?:command|process|shell|program)\b[^\n:]{{0,40}}[ \t])?(?:exit(?:ed)?|return(?:ed)?[ _]?code|rc)"
    rf"(?:{_GAP}|_){{0,3}}(?:with{_GAP}+)?(?:exit{_GAP}+)?(?:code|status)?{_GAP}{{0,3}}(-?\d{{1,3}}){_GAP}*"
    rf"(?:exit_code{_GAP}*)?$",
    re.IGNORECASE | re.MULTILINE,
)
"""A line that says an exit code and nothing else: `Exit code: 1`, `[exit 1]`, `Process exited with code 1`."""
SHORTENED = re.compile(r"-> exit (-?\d{1,3})\b")
"""How Hermes shortens a terminal call in a compacted history."""
GATE_LINE = re.compile(r"^[ \t]*RESULT: (PASS|FAIL) <- ([^\n]{1,200}?)[ \t\r]*$", re.MULTILINE)
ERROR_HEAD = re.compile(
    r"^\W*(?:error|failed|failure|fatal|exception|traceback|schemaerror|invalid|permission denied|no such file"
    r"|(?:could|can|did) ?(?:not|n['’]t)|cannot|unable to|old_?string\b.{0,40}not found"
    r"|the \w+ tool was called with invalid|the arguments provided to the tool are invalid)",
    re.IGNORECASE,
)
"""How a result begins that says the call did not work."""


def _read(result: str) -> Mapping[str, Any] | None:
    """A result that is a JSON object."""
    if not result.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(result)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, Mapping) else None


def exit_code(result: str | None) -> int | None:
    """The exit code that a result tells, in the forms of the known clients; None when it tells none.

    A JSON object's own field (`exit_code`, `exitCode`, `returncode`, ...; in `metadata` too), or a line of its own near
    the result's beginning or end.
    """
    if not result:
        return None
    told = _read(result)
    if told is not None:
        inner = told.get("metadata")
        for place in (told, inner if isinstance(inner, Mapping) else {}):
            for name in CODES:
                value = place.get(name)
                if isinstance(value, int) and not isinstance(value, bool):
                    return value
        return None
    found = EXIT_LINE.findall(result[-ENDS:]) or EXIT_LINE.findall(result[:ENDS]) or SHORTENED.findall(result[:ENDS])
    return int(found[-1]) if found else None


def failed(result: str | None) -> bool:
    """Whether a result says that the call did not work; one that says nothing worked."""
    if not result:
        return False
    told = _read(result)
    if told is not None:
        status = str(told.get("status") or "").lower()
        if told.get("error") or told.get("success") is False or status in ("error", "failed"):
            return True
    return bool(exit_code(result)) or (told is None and bool(ERROR_HEAD.match(result[:400])))


# ----------------------------------------------------------------------------------------------------------- gates


@dataclass(frozen=True, slots=True)
class Gate:
    """One run of a check of the project."""

    key: str
    """Equal for runs of the same gate."""
    passed: bool
    name: str = ""
    """As its result line tells; empty for a command."""


def gates(call: PastCall, tool: Tool | None, runs_something: bool) -> list[Gate]:
    """The gates that a call ran: each name of the lines `RESULT: PASS|FAIL <- NAME` in its result with its last
    outcome, else the shell command itself when it runs something and the result tells its exit code."""
    if call.result is None:
        return []
    told = _read(call.result)
    text = "\n".join(v for v in told.values() if isinstance(v, str)) if told is not None else call.result
    lines = {name.strip(): outcome == "PASS" for outcome, name in GATE_LINE.findall(text)} if "RESULT: " in text else {}
    if lines:
        return [Gate(digest(name), passed, name) for name, passed in lines.items()]
    command = command_of(tool, call.arguments)
    if command is None or not runs_something:
        return []
    code = exit_code(call.result)
    if code is None or not any(r.name and r.name not in QUIET | ASKING for r in runs(command[:LONGEST_COMMAND])):
        return []
    return [Gate(digest(" ".join([folder_of(call.arguments), *command.split()])), code == 0)]
