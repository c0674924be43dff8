"""The messages of a chat, checked and brought to the form that a chat template reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tandem.api.readers import Place, Schema, mapping, shown, takes, text
from tandem.core.plugin.rule import UNREADABLE

SYSTEM = ("system", "developer")
"""OpenAI's developer role is the system prompt of its newer models."""
ROLES = (*SYSTEM, "user", "assistant", "tool")
BETWEEN_SYSTEM_MESSAGES = "\n\n"

Messages = tuple[Mapping[str, Any], ...]
Part = dict[str, Any]

CONTENT: Schema = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type"],
                "properties": {"type": {"enum": ["text", "input_text", "output_text", "refusal", "image_url"]}},
            },
        },
    ]
}
"""A message's text, or its parts: `text` in text parts, `image_url.url` in images."""
FUNCTION_CALL: Schema = {
    "type": "object",
    "required": ["function"],
    "properties": {
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "minLength": 1},
                "arguments": {"type": ["string", "object", "null"]},
            },
        }
    },
}
MESSAGES: Schema = {
    "type": "array",
    "contains": {"properties": {"role": {"const": "user"}}},
    "items": {
        "type": "object",
        "required": ["role"],
        "anyOf": [
            {
                "properties": {"role": {"enum": [role for role in ROLES if role != "assistant"]}, "content": CONTENT},
                "required": ["content"],
            },
            {
                "properties": {
                    "role": {"const": "assistant"},
                    "content": {"anyOf": [CONTENT, {"type": "null"}]},
                    "tool_calls": {"type": ["array", "null"], "items": FUNCTION_CALL},
                }
            },
        ],
    },
}


@takes(MESSAGES)
def messages(value: Any, place: Place) -> Messages:
    """The conversation: at most one system message, first; every content a string, or a list of parts where there is a
    picture among them.

    System and developer messages at the start become one, because a template reads one. Text parts are joined with
    nothing between them, as the templates that read parts themselves write them. A picture is an `image` part, which
    takes the place of a client's `image_url` before (`api/images`).
    """
    if not isinstance(value, list) or not value:
        raise place.wrong("a list with at least one message", value)
    read = [_message(item, place.item(index)) for index, item in enumerate(value)]
    start = next((index for index, message in enumerate(read) if message["role"] not in SYSTEM), len(read))
    for index, message in enumerate(read[start:], start):
        if message["role"] in SYSTEM:
            raise (
                place.item(index)
                .key("role")
                .error(f"is {message['role']}, but the conversation began with an earlier message; put it first")
            )
    if not any(message["role"] == "user" for message in read):
        raise place.error("holds no user message to answer")
    if start == 0:
        return tuple(read)
    joined = BETWEEN_SYSTEM_MESSAGES.join(message["content"] for message in read[:start])
    return ({**read[0], "role": "system", "content": joined}, *read[start:])


def content_text(message: Mapping[str, Any]) -> str:
    """The text of a message that `messages` has read, without its pictures."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _message(value: Any, place: Place) -> dict[str, Any]:
    message = dict(mapping(value, place))
    role = message.get("role")
    if role not in ROLES:
        hint = "; a function's result is a tool message" if role == "function" else ""
        raise place.key("role").error(f"must be one of {', '.join(ROLES)}, not {shown(role)}{hint}")
    calls = message.pop("tool_calls", None)
    if role == "assistant" and calls is not None and (read := _calls(calls, place.key("tool_calls"))):
        message["tool_calls"] = read
    content = message.get("content")
    if content is None:
        if role != "assistant":
            raise place.key("content").error("is missing")
        message["content"] = ""
    else:
        message["content"] = _content(content, place.key("content"))
    return message


def _content(value: Any, place: Place) -> str | list[Part]:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise place.wrong("a string or a list of parts", value)
    parts: list[Part] = []
    for index, item in enumerate(value):
        part = _part(item, place.item(index))
        if not isinstance(part, str):
            parts.append(part)
        elif parts and parts[-1]["type"] == "text":
            parts[-1]["text"] += part
        else:
            parts.append({"type": "text", "text": part})
    if any(part["type"] != "text" for part in parts):
        return parts
    return parts[0]["text"] if parts else ""


def _part(value: Any, place: Place) -> str | Part:
    """A part's text, or the part itself when it is a picture."""
    part = mapping(value, place)
    kind = part.get("type")
    match kind:
        case "image":
            return {name: part[name] for name in ("type", "id") if name in part}
        case "text" | "input_text" | "output_text":
            return text()(part.get("text"), place.key("text"))
        case "refusal":
            return text()(part.get("refusal"), place.key("refusal"))
        case "image_url" | "input_audio" | "video_url" | "file":
            raise place.key("type").error(f"is {kind}; the served model reads text only")
        case _:
            raise place.key("type").error(f"must be text, not {shown(kind)}")


def _calls(value: Any, place: Place) -> list[Mapping[str, Any]]:
    """An assistant's tool calls of an earlier turn, with the arguments as a mapping.

    Clients send arguments as JSON text, and a call that was cut off comes back as it was. It is served all the same:
    its text stands under `unreadable_arguments`.
    """
    if not isinstance(value, list):
        raise place.wrong("a list of tool calls", value)
    calls: list[Mapping[str, Any]] = []
    for index, item in enumerate(value):
        at = place.item(index)
        function = mapping(mapping(item, at).get("function"), at.key("function"))
        text(empty=False)(function.get("name"), at.key("function").key("name"))
        arguments = function.get("arguments", "")
        if not isinstance(arguments, str | dict | None):
            raise at.key("function").key("arguments").wrong("a string", arguments)
        calls.append({**item, "function": {**function, "arguments": _arguments(arguments)}})
    return calls


def _arguments(written: str | Mapping[str, Any] | None) -> Mapping[str, Any]:
    if not isinstance(written, str):
        return written or {}
    if not written.strip():
        return {}
    try:
        parsed = json.loads(written)
    except (ValueError, RecursionError):
        parsed = None
    return parsed if isinstance(parsed, dict) else {UNREADABLE: written}
