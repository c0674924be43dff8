"""The input of a response: items become the messages of a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

from tandem.plugins.doors._names import Names
from tandem.plugins.doors._node import Node, shown

Message = dict[str, Any]
Located = tuple[Mapping[str, Any], str]
"""A part of a message, and its path in the request."""

ROLES = ("user", "assistant", "system", "developer")
ITEMS = "message, function_call, function_call_output or reasoning"
TEXT_PARTS = ("input_text", "output_text", "text")


@dataclass(slots=True)
class _Turn:
    """What the model did between two messages of others: one assistant message. Each thing with its path."""

    path: str
    content_path: str = ""
    content: list[Located] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[Located] = field(default_factory=list)

    def takes(self, kind: str) -> bool:
        """Whether another item may join. A message holds reasoning, then text, then calls; once it has calls, all
        that comes before their results belongs to it, because the results must stand right behind it."""
        return bool(self.calls) or kind == "function_call" or not self.content


class Conversation:
    """Messages, made of items one by one."""

    def __init__(self, names: Names) -> None:
        self.messages: list[Message] = []
        self._names = names
        self._turn: _Turn | None = None

    def say(self, role: str, text: str, path: str) -> None:
        """A message that is one text, found at `path`."""
        self._close()
        self._put({"role": role, "content": text}, path, {"content": path})

    def add(self, item: Node) -> None:
        """The next item. Raises RequestError for one that is wrong, or of a kind that has no place here."""
        item.object()
        kind = item.key("type").value
        if kind is None and item.key("role").given:
            kind = "message"
        match kind:
            case "message":
                if item.key("role").one_of(*ROLES) == "assistant":
                    self._join(kind, item)
                else:
                    self._message(item)
            case "function_call" | "reasoning":
                self._join(kind, item)
            case "function_call_output":
                self._output(item)
            case "item_reference":
                raise item.key("type").error("is item_reference, but this server stores no items; send the item itself")
            case None:
                raise item.key("type").error(f"is missing; it must be {ITEMS}")
            case _:
                raise item.key("type").error(f"must be {ITEMS}, not {shown(kind)}")

    def end(self) -> list[Message]:
        """All messages."""
        self._close()
        return self.messages

    def _message(self, item: Node) -> None:
        self._close()
        content = item.key("content")
        places = {"role": item.key("role").path, "content": content.path}
        self._put_parts({"role": item.key("role").value}, item.path, _parts(content), places)

    def _output(self, item: Node) -> None:
        self._close()
        chat = {"role": "tool", "tool_call_id": item.key("call_id").text()}
        self._put_parts(chat, item.path, _parts(item.key("output")), {"content": f"{item.path}.output"})

    def _join(self, kind: str, item: Node) -> None:
        if self._turn is None or not self._turn.takes(kind):
            self._close()
            self._turn = _Turn(item.path)
        turn, content = self._turn, item.key("content")
        if kind == "message":
            turn.content_path = turn.content_path or content.path
            turn.content += _parts(content) if content.given else []
        elif kind == "function_call":
            function = {"name": item.key("name").text(), "arguments": item.key("arguments").text()}
            turn.calls.append(({"id": item.key("call_id").text(), "type": "function", "function": function}, item.path))
        elif content.given:
            # Encrypted content, the other form, is for its own maker alone.
            turn.reasoning += [step.key("text").text() for step in content.each()]

    def _close(self) -> None:
        turn, self._turn = self._turn, None
        if turn is None or not (turn.content or turn.calls or turn.reasoning):
            return
        chat: Message = {"role": "assistant"}
        if turn.reasoning:
            chat["reasoning_content"] = "".join(turn.reasoning)
        places = {"content": turn.content_path or turn.path}
        if turn.calls:
            chat["tool_calls"] = [call for call, _ in turn.calls]
        for index, (_, path) in enumerate(turn.calls):
            places[f"tool_calls[{index}]"] = path
            places[f"tool_calls[{index}].function.name"] = f"{path}.name"
            places[f"tool_calls[{index}].function.arguments"] = f"{path}.arguments"
        self._put_parts(chat, turn.path, turn.content, places)

    def _put_parts(self, chat: Message, path: str, parts: Seq[Located], places: Mapping[str, str]) -> None:
        """A message with these parts as its content; text alone is one string."""
        if all(part["type"] == "text" for part, _ in parts):
            chat["content"] = "".join(part["text"] for part, _ in parts)
            self._put(chat, path, places)
            return
        chat["content"] = [part for part, _ in parts]
        self._put(chat, path, {**places, **{f"content[{index}]": at for index, (_, at) in enumerate(parts)}})

    def _put(self, message: Message, path: str, places: Mapping[str, str]) -> None:
        at = f"messages[{len(self.messages)}]"
        self._names.put(at, path)
        for inside, place in places.items():
            self._names.put(f"{at}.{inside}", place)
        self.messages.append(message)


def _parts(content: Node) -> list[Located]:
    """The parts of a chat message's content."""
    if isinstance(content.value, str):
        return [({"type": "text", "text": content.value}, content.path)]
    if not isinstance(content.value, list):
        raise content.wrong("a string or a list of parts")
    return [(_part(part), part.path) for part in content.each()]


def _part(part: Node) -> Mapping[str, Any]:
    part.object()
    kind = part.key("type").value
    if kind in TEXT_PARTS:
        return {"type": "text", "text": part.key("text").text()}
    if kind == "refusal":
        return {"type": "text", "text": part.key("refusal").text()}
    if kind == "input_image":
        if part.key("file_id").given:
            raise part.key("file_id").error("is not supported: this server stores no files; send image_url")
        return {"type": "image_url", "image_url": {"url": part.key("image_url").text()}}
    raise part.key("type").error(f"must be input_text, output_text or input_image, not {shown(kind)}")
