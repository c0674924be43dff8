"""A request of the Messages API, read into a chat request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.core.plugin import RequestError
from tandem.plugins.doors._door import Ask
from tandem.plugins.doors._names import COMMON, Names
from tandem.plugins.doors._node import Node, refuse, shown
from tandem.plugins.doors.messages.conversation import Conversation

REFUSED: Mapping[str, str] = {
    "container": "this server runs no tools itself",
    "mcp_servers": "let the client connect to them and offer their tools",
}
"""Field -> what to do instead."""

UNTHREADED = "thread_unsupported_request"
"""The code that makes Anthropic's SDK go on without a thread that the server holds."""

HANDED_ON = (*COMMON, "model", "metadata", "service_tier")
"""Fields that are the same in a chat request."""

CHOICES = {"auto": "auto", "any": "required", "none": "none"}
OFF = {"type": "disabled"}


def read_request(body: Mapping[str, Any], *, thinks: bool = False) -> Ask:
    """`thinks`: a request that says nothing about thinking leaves it to the model's template.

    Raises RequestError for what is wrong or not supported.
    """
    root = Node(body)
    refuse(root, REFUSED)
    if root.key("thread").given:
        raise RequestError(400, "thread is not kept here: send the whole conversation", "thread", UNTHREADED)
    if not root.key("max_tokens").given:
        raise root.key("max_tokens").error("is missing; say how many tokens the answer may have")
    names = Names()
    chat = {"messages": _messages(root, names), **names.hand_on(root, (*HANDED_ON, "max_tokens"))}
    if root.key("stop_sequences").given:
        chat["stop"] = [stop.text() for stop in root.key("stop_sequences").each()]
        names.put("stop", "stop_sequences", same=True)
    if root.key("tools").given:
        _tools(root.key("tools"), chat, names)
    if root.key("tool_choice").given:
        _tool_choice(root.key("tool_choice"), chat, names)
    if root.key("output_config").given:
        _output(root.key("output_config"), chat, names)
    shown_as = _thinking(root, chat, names, thinks)
    own = {"thinking": shown_as}
    return Ask(chat, names, root.key("stream").flag(), own)


def _messages(root: Node, names: Names) -> list[dict[str, Any]]:
    names.put("messages", "messages")
    conversation = Conversation(names)
    if root.key("system").given:
        conversation.system(root.key("system"))
    for message in root.key("messages").each():
        conversation.add(message)
    return conversation.messages


def _thinking(root: Node, chat: dict[str, Any], names: Names, thinks: bool) -> str:
    """Sets the chat request's thinking and returns what becomes of the reasoning: who did not ask gets none."""
    node = root.key("thinking")
    if not node.given:
        if not thinks:
            chat["thinking"] = OFF
        return "shown" if thinks else "hidden"
    chat["thinking"] = dict(node.object())
    names.put("thinking", "thinking", same=True)
    if node.key("type").value == "disabled":
        return "hidden"
    return "omitted" if node.key("display").value == "omitted" else "shown"


def _output(node: Node, chat: dict[str, Any], names: Names) -> None:
    """`output_config`: how much work goes into the answer, and what form it has."""
    node.object()
    if node.key("effort").given:
        chat["reasoning_effort"] = node.key("effort").value
        names.put("reasoning_effort", node.key("effort").path)
    form = node.key("format")
    if not form.given:
        return
    if form.object().get("type") != "json_schema":
        raise form.key("type").error(f"must be json_schema, not {shown(form.key('type').value)}")
    named = {"name": "answer", "schema": dict(form.key("schema").object())}
    chat["response_format"] = {"type": "json_schema", "json_schema": named}
    names.put("response_format", form.path)
    names.put("response_format.json_schema.schema", form.key("schema").path, same=True)


def _tools(node: Node, chat: dict[str, Any], names: Names) -> None:
    names.put("tools", node.path)
    chat["tools"] = []
    for index, tool in enumerate(node.each()):
        kind = tool.object().get("type")
        if kind not in (None, "custom"):
            raise tool.key("type").error(f"must be custom, not {shown(kind)}: this server runs no tools itself")
        function: dict[str, Any] = {"name": tool.key("name").value, "parameters": tool.key("input_schema").object()}
        if tool.key("description").given:
            function["description"] = tool.key("description").text()
        chat["tools"].append({"type": "function", "function": function})
        at = f"tools[{index}]"
        names.put(at, tool.path)
        names.put(f"{at}.function.name", f"{tool.path}.name")
        names.put(f"{at}.function.parameters", f"{tool.path}.input_schema", same=True)


def _tool_choice(node: Node, chat: dict[str, Any], names: Names) -> None:
    names.put("tool_choice", node.path)
    kind = node.object().get("type")
    if kind in ("any", "tool") and not chat.get("tools"):
        raise node.error(f"of the type {kind} needs tools")
    if kind == "tool":
        chat["tool_choice"] = {"type": "function", "function": {"name": node.key("name").text()}}
        names.put("tool_choice.function.name", node.key("name").path)
    else:
        chat["tool_choice"] = CHOICES[node.key("type").one_of(*CHOICES, "tool")]
    if node.key("disable_parallel_tool_use").given:
        chat["parallel_tool_calls"] = not node.key("disable_parallel_tool_use").flag()
