"""What the client shapes look at in a request. Bodies come unchecked, so nothing here trusts what it finds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tandem.core.plugin import option

Headers = Mapping[str, str]
"""Lower-case name -> value."""
Body = Mapping[str, Any]

HEAD = 400
"""Characters of a text that are looked at: what a client itself writes stands at the start."""
LONGEST_SESSION = 256
SYSTEM = ("system", "developer")
SESSION_HEADERS = ("x-conversation-id", "x-session-id", "x-session-affinity")
SESSION_FIELDS = ("conversation_id", "session_id", "user")
"""`user` comes last: it may name a person, and then that person's conversations count as one."""


def reasoning_option(default: str) -> dict[str, dict[str, Any]]:
    """The option that every shape has."""
    return {
        "reasoning_format": option(
            "string",
            "How this client gets the reasoning when neither its request nor the server's option says.",
            default,
            enum=["tags", "reasoning_content", "both", "hidden"],
        )
    }


@dataclass(frozen=True, slots=True)
class Sight:
    """A chat request at a glance. Texts are heads: the first `HEAD` characters, each run of whitespace one space."""

    system: str
    """The first message, when it is a system message; else empty."""
    only_user: str
    """The user's message, when there is exactly one and none of the assistant; else empty."""
    only_user_length: int
    """Characters of that whole message."""
    tools: frozenset[str]
    """The names of the tools on offer."""
    offers_tools: bool
    stream: bool


def look(body: Body) -> Sight:
    """What a body shows. A plain completion, or a body that is wrong, shows nothing."""
    given = body.get("messages")
    messages = [message for message in given if isinstance(message, Mapping)] if isinstance(given, list) else []
    system = messages[0] if messages and messages[0].get("role") in SYSTEM else None
    rest = [message for message in messages if message.get("role") not in SYSTEM]
    only = rest[0] if len(rest) == 1 and rest[0].get("role") == "user" else None
    only_text = _text(only)
    return Sight(
        system=_head(_text(system)),
        only_user=_head(only_text),
        only_user_length=len(only_text),
        tools=_tool_names(body.get("tools")),
        offers_tools=bool(body.get("tools")),
        stream=body.get("stream") is True,
    )


def begins(text: str, heads: Iterable[str]) -> bool:
    """Whether `text` starts with one of `heads`, in any case."""
    lowered = text.lower()
    return any(lowered.startswith(head.lower()) for head in heads)


def session(headers: Headers, body: Body, *own: str) -> str | None:
    """The id of the conversation: the client's own headers first, then what any client may send."""
    found = [headers.get(name) for name in (*own, *SESSION_HEADERS)] + [body.get(name) for name in SESSION_FIELDS]
    return next((name for value in found if (name := _session_name(value))), None)


def _session_name(value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**64:
        value = str(value)
    if not isinstance(value, str):
        return None
    name = value.strip()
    return name if 0 < len(name) <= LONGEST_SESSION and name.isprintable() else None


def _text(message: Mapping[str, Any] | None) -> str:
    """A message's text; that of its parts joined."""
    content = message.get("content") if message is not None else None
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _head(text: str) -> str:
    return " ".join(text[:HEAD].split())


def _tool_names(tools: Any) -> frozenset[str]:
    functions = [tool.get("function") for tool in tools if isinstance(tool, Mapping)] if isinstance(tools, list) else []
    names = [function.get("name") for function in functions if isinstance(function, Mapping)]
    return frozenset(name for name in names if isinstance(name, str))
