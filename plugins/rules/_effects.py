"""What a call of a tool does to the world, read off the tool's declaration: its name, its parameters, its annotations.
No message is read, and no call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

from tandem.core.plugin import Tool
from tandem.plugins.rules._words import words


class Effect(Enum):
    SEND = "send"
    SCHEDULE = "schedule"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"


def effect(tool: Tool) -> Effect | None:
    """What a tool changes. None = nothing, or it can't be told.

    In this order: the annotations `readOnlyHint` and `destructiveHint`; a shell changes nothing that can be told; a
    name that opens with a reading verb reads; a recipient with a message sends; a time with a subject schedules; a path
    with a body writes; then the verb that the name opens with, or, when it has none, the description's first word.
    """
    if tool.annotations.get("readOnlyHint") is True:
        return None
    if tool.annotations.get("destructiveHint") is True:
        return Effect.DELETE
    verb = verb_of(tool.name)
    if shell_parameter(tool) or verb in READS:
        return None
    names = {loose(name) for name in tool.properties}
    if names & RECIPIENTS and names & MESSAGES:
        return Effect.SEND
    if names & TIMES and names & SUBJECTS:
        return Effect.SCHEDULE
    if path_parameter(tool) and body_parameters(tool):
        return Effect.WRITE
    return VERBS.get(verb or _first_word(tool.description))


def verb_of(name: str) -> str:
    """The verb that a tool's name opens with, in lower case; empty without one.

    A server's name in front is passed over: `mcp__mail__delete_thread`, `github.create_issue`, `linear_create_issue`.
    Words that are nouns as often as verbs (`post`, `set`, `record`) count at the very beginning only.
    """
    own = re.split(r"__|[./:]", name)[-1] or name
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", own)]
    for place, word in enumerate(words[:3]):
        if (word in READS or word in VERBS) and (place == 0 or word not in NOUNS_TOO):
            return word
    return ""


def _first_word(description: str) -> str:
    found = re.match(r"\W*([A-Za-z]+)", str(description))
    word = found[1].lower() if found else ""
    return word if word in VERBS else word.removesuffix("s")  # "Creates a file."


READS = words(
    """
    get list search read fetch find query lookup look show view describe count check browse retrieve download
    inspect glob grep load peek preview summarize validate verify compare analyze calculate compute convert
    translate explain diff is has can exists status help ask estimate monitor resolve select scan
    """
)
VERBS: Mapping[str, Effect] = {
    **dict.fromkeys(words("send reply forward notify publish tweet"), Effect.SEND),
    **dict.fromkeys(words("schedule remind"), Effect.SCHEDULE),
    **dict.fromkeys(words("write edit patch append overwrite save store"), Effect.WRITE),
    **dict.fromkeys(
        words(
            """
            create add set update insert put post make modify change replace rename move copy upload submit book order
            buy pay transfer register assign merge commit push deploy upsert record log attach invite enable disable
            toggle approve reject close reopen archive mark apply install import
            """
        ),
        Effect.CREATE,
    ),
    **dict.fromkeys(
        words(
            """
            delete remove cancel drop clear erase purge destroy uninstall revoke trash unsubscribe wipe kill terminate
            reset
            """
        ),
        Effect.DELETE,
    ),
}
NOUNS_TOO = words(
    """
    set post record log order book schedule patch store save make mark transfer change update copy move trash
    reset import merge commit push close clear drop reply forward invite apply can is has look view query
    status help count check scan list load show preview tweet upload download kill monitor
    """
)

# ---------------------------------------------------------------------------------------------------- parameters

RECIPIENTS = words(
    """
    to recipient recipients channel channelid chatid touser userid phone phonenumber email emailaddress
    receiver threadid conversationid toaddress tonumber
    """
)
MESSAGES = words(
    """
    body message text content messagebody messagetext html
    """
)
TIMES = words(
    """
    date datetime start starttime startdate due duedate time when remindat at scheduledat scheduledtime
    startat startdatetime deadline end endtime cron
    """
)
SUBJECTS = words(
    """
    title summary subject message text
    """
)
PATHS = words(
    """
    path filepath filename file absolutepath targetfile targetpath relativepath notebookpath
    relativeworkspacepath
    """
)
BODIES = words(
    """
    content contents body text newstring newstr newtext filetext filecontent codeedit patch diff data
    newsource edits replace replacement insertedtext code
    """
)
BEFORES = words(
    """
    oldstring oldstr oldtext search find original oldsource oldcontent
    """
)
COMMANDS = words(
    """
    command cmd shellcommand commandline
    """
)
FOLDERS = words(
    """
    workdir cwd workingdirectory workingdir directory
    """
)


def loose(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()


def shell_parameter(tool: Tool) -> str | None:
    """The parameter of a shell that is the command: a text without which the tool can't be called. None for a tool that
    is no shell."""
    for name, schema in tool.properties.items():
        needed = name in tool.required or not tool.required
        kind = schema.get("type") if isinstance(schema, Mapping) else None
        if loose(name) in COMMANDS and needed and kind in (None, "string"):
            return name
    return None


def path_parameter(tool: Tool) -> str | None:
    return _parameter(tool, PATHS)


def body_parameters(tool: Tool) -> list[str]:
    """The parameters that may hold what is written."""
    return [name for name in tool.properties if loose(name) in BODIES]


def before_parameter(tool: Tool) -> str | None:
    """The parameter of an editing tool that quotes what is in the file now."""
    return _parameter(tool, BEFORES)


def _parameter(tool: Tool, names: frozenset[str]) -> str | None:
    return next((name for name in tool.properties if loose(name) in names), None)


def command_of(tool: Tool | None, arguments: Mapping[str, Any] | None) -> str | None:
    """The shell command of a call; None when the call is none of a shell."""
    name = shell_parameter(tool) if tool is not None else None
    value = (arguments or {}).get(name) if name else None
    return value if isinstance(value, str) else None


def folder_of(arguments: Mapping[str, Any] | None) -> str:
    """The folder that a call of a shell says it is to run in; empty when it says none."""
    for name, value in (arguments or {}).items():
        if loose(name) in FOLDERS and isinstance(value, str):
            return value
    return ""


def written_path(tool: Tool | None, arguments: Mapping[str, Any] | None) -> str | None:
    """The path that a call writes to; None when it writes no file."""
    if tool is None or arguments is None or effect(tool) not in (Effect.WRITE, Effect.DELETE, Effect.CREATE):
        return None
    name = path_parameter(tool)
    value = arguments.get(name) if name else None
    return value if isinstance(value, str) and value else None
