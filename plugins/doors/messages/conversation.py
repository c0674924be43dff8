"""The messages of Anthropic's API: content blocks become the messages of a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

from tandem.core.plugin import RequestError
from tandem.plugins.doors._names import Names
from tandem.plugins.doors._node import Node, shown

Message = dict[str, Any]

ROLES = ("user", "assistant", "system")
TAG = "x-anthropic-billing-header:"
"""Claude Code puts a system block that starts so in front of its prompt. It is no text for a model, and it changes with
every request, so that no cache could ever match what follows."""
FAILED = "Error: "
"""Stands before the result of a call that failed: a chat has no other place for it."""


@dataclass(slots=True)
class Conversation:
    """The messages of a chat, made of the API's messages one by one."""

    names: Names
    messages: list[Message] = field(default_factory=list)

    def system(self, node: Node) -> None:
        """The system prompt: one text, or blocks that become a message each."""
        if isinstance(node.value, str):
            if not node.value.startswith(TAG):
                self._put({"role": "system", "content": node.value}, node.path, {"content": node.path})
            return
        for block in _blocks(node):
            if _kind(block, ("text",)) and not block.key("text").text().startswith(TAG):
                self._put({"role": "system", "content": block.key("text").text()}, block.path, {"content": block.path})

    def add(self, message: Node) -> None:
        """The next message. Raises RequestError for one that is wrong, or holds a block that has no place here."""
        message.object()
        role, content = message.key("role").one_of(*ROLES), message.key("content")
        self.names.put(f"messages[{len(self.messages)}].role", message.key("role").path)
        if isinstance(content.value, str):
            self._put({"role": role, "content": content.value}, message.path, {"content": content.path})
        elif role == "assistant":
            self._assistant(message, _blocks(content))
        else:
            self._user(role, message, _blocks(content))

    def _user(self, role: str, message: Node, blocks: Seq[Node]) -> None:
        """Results stand right behind their calls, so they come first; what the user says follows."""
        said = []
        for block in blocks:
            if _kind(block, ("text", "image", "tool_result")) == "tool_result":
                self._result(block)
            else:
                said.append(block)
        if said or not blocks:
            self._put_parts({"role": role}, message, said)

    def _result(self, block: Node) -> None:
        content = block.key("content")
        message: Message = {"role": "tool", "tool_call_id": block.key("tool_use_id").text()}
        failed = block.key("is_error").flag()
        if isinstance(content.value, str) or not content.given:
            written = content.value or ""
            message["content"] = FAILED + written if failed else written
            self._put(message, block.path, {"content": content.path})
            return
        parts = _blocks(content)
        for part in parts:
            _kind(part, ("text", "image"))
        self._put_parts(message, block, parts, before=FAILED if failed else "")

    def _assistant(self, message: Node, blocks: Seq[Node]) -> None:
        said: list[Node] = []
        reasoning: list[str] = []
        calls: list[Mapping[str, Any]] = []
        places: dict[str, str] = {}
        for block in blocks:
            match _kind(block, ("text", "thinking", "redacted_thinking", "tool_use")):
                case "text":
                    said.append(block)
                case "thinking":
                    reasoning.append(block.key("thinking").text())
                case "tool_use":
                    at = f"tool_calls[{len(calls)}]"
                    places |= {at: block.path, f"{at}.function.name": f"{block.path}.name"}
                    function = {"name": block.key("name").text(), "arguments": dict(block.key("input").object())}
                    calls.append({"id": block.key("id").text(), "type": "function", "function": function})
                case _:
                    pass  # redacted thinking is for its own maker alone
        chat: Message = {"role": "assistant"}
        if any(reasoning):
            chat["reasoning_content"] = "".join(reasoning)
        if calls:
            chat["tool_calls"] = calls
        self._put_parts(chat, message, said, places=places)

    def _put_parts(
        self, chat: Message, node: Node, parts: Seq[Node], *, before: str = "", places: Mapping[str, str] | None = None
    ) -> None:
        """A message with these blocks as its content; text alone is one string."""
        written = [_part(part) for part in parts]
        if all(part["type"] == "text" for part in written):
            chat["content"] = before + "".join(part["text"] for part in written)
            self._put(chat, node.path, {"content": f"{node.path}.content", **(places or {})})
            return
        lead = [{"type": "text", "text": before}] if before else []
        chat["content"] = [*lead, *written]
        inside = {f"content[{index + len(lead)}]": part.path for index, part in enumerate(parts)}
        self._put(chat, node.path, {"content": f"{node.path}.content", **inside, **(places or {})})

    def _put(self, message: Message, path: str, places: Mapping[str, str]) -> None:
        at = f"messages[{len(self.messages)}]"
        self.names.put(at, path)
        for inside, place in places.items():
            self.names.put(f"{at}.{inside}", place)
        self.messages.append(message)


def _blocks(node: Node) -> list[Node]:
    if not isinstance(node.value, list):
        raise node.wrong("a string or a list of content blocks")
    return node.each()


def _kind(block: Node, known: Seq[str]) -> str:
    """The block's type, which must be one of the `known`."""
    block.object()
    kind = block.key("type")
    if kind.value not in known:
        raise kind.error(f"must be {' or '.join(known)} here, not {shown(kind.value)}")
    return str(kind.value)


def _part(block: Node) -> dict[str, Any]:
    """A text or image block as the part of a chat message."""
    if block.key("type").value == "text":
        return {"type": "text", "text": block.key("text").text()}
    return {"type": "image_url", "image_url": {"url": _url(block.key("source"))}}


def _url(source: Node) -> str:
    source.object()
    match source.key("type").value:
        case "base64":
            return f"data:{source.key('media_type').text()};base64,{source.key('data').text()}"
        case "url":
            return source.key("url").text()
        case other:
            raise _no_source(source, other)


def _no_source(source: Node, kind: Any) -> RequestError:
    hint = ": this server stores no files" if kind == "file" else ""
    return source.key("type").error(f"must be base64 or url, not {shown(kind)}{hint}")
