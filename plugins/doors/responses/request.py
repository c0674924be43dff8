"""A request of the Responses API, read into a chat request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.plugins.doors._door import Ask
from tandem.plugins.doors._names import COMMON, Names
from tandem.plugins.doors._node import Node, refuse, shown
from tandem.plugins.doors.responses.items import Conversation

REFUSED: Mapping[str, str] = {
    "previous_response_id": "this server stores no responses; send the conversation's items as input",
    "conversation": "this server stores no conversations; send the conversation's items as input",
    "background": "keep the connection open, or stream",
    "prompt": "this server stores no prompt templates; send instructions and input",
    "context_management": "this server compacts no conversation; send the input that the model is to read",
    "moderation": "this server has no moderation model",
    "top_logprobs": "chat completions have log-probabilities",
}
"""Field -> what to do instead."""

INCLUDED = "reasoning.encrypted_content"
"""The one kind of `include` that is taken: reasoning is always in the output, and in the clear."""

HANDED_ON = (
    *COMMON,
    "model",
    "parallel_tool_calls",
    "reasoning",  # its `summary` is without effect: the whole reasoning comes back
    "metadata",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "service_tier",
    "store",
    # Words of this server that OpenAI's API has no field for.
    "stop",
    "chat_template_kwargs",
)
"""Fields that are the same in a chat request."""

ECHOED = (
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "prompt_cache_key",
    "safety_identifier",
    "temperature",
    "top_p",
    "user",
)
"""Fields that the response repeats as they are, null where they were left out."""


def read_request(body: Mapping[str, Any]) -> Ask:
    """Raises RequestError for what is wrong or not supported."""
    root = Node(body)
    refuse(root, REFUSED)
    for kind in root.key("include").each() if root.key("include").given else []:
        if kind.value != INCLUDED:
            raise kind.error(f"is supported as {INCLUDED} only, not {shown(kind.value)}")
    if root.key("truncation").value not in (None, "disabled"):
        raise root.key("truncation").error(
            f"is supported as disabled only, not {shown(root.key('truncation').value)}: nothing of the input is dropped"
        )
    for name in ("reasoning", "metadata"):
        if root.key(name).given:
            root.key(name).object()
    names = Names()
    chat = {"messages": _messages(root, names), **names.hand_on(root, HANDED_ON)}
    if root.key("max_output_tokens").given:
        chat["max_completion_tokens"] = root.key("max_output_tokens").value
        names.put("max_completion_tokens", "max_output_tokens")
    if root.key("text").given:
        _text(root.key("text"), chat, names)
    if root.key("tools").given:
        _tools(root.key("tools"), chat, names)
    if root.key("tool_choice").given:
        _tool_choice(root.key("tool_choice"), chat, names)
    return Ask(chat, names, root.key("stream").flag(), _echo(root))


def _messages(root: Node, names: Names) -> list[dict[str, Any]]:
    names.put("messages", "input")
    conversation = Conversation(names)
    if root.key("instructions").given:
        conversation.say("system", root.key("instructions").text(), "instructions")
    given = root.key("input")
    if isinstance(given.value, str):
        conversation.say("user", given.value, "input")
    elif isinstance(given.value, list):
        for item in given.each():
            conversation.add(item)
    else:
        raise given.wrong("a string or a list of items")
    return conversation.end()


def _text(node: Node, chat: dict[str, Any], names: Names) -> None:
    node.object()
    # `medium` is what an answer has that nobody gave a length.
    if node.key("verbosity").value not in (None, "medium"):
        raise node.key("verbosity").error(
            "is supported as medium only; say in the instructions how long the answer should be"
        )
    form = node.key("format")
    if not form.given:
        return
    names.put("response_format", form.path, same=True)
    if form.object().get("type") != "json_schema":
        chat["response_format"] = dict(form.object())
        return
    chat["response_format"] = {
        "type": "json_schema",
        "json_schema": {key: value for key, value in form.object().items() if key != "type"},
    }
    names.put("response_format.json_schema", form.path, same=True)


def _tools(node: Node, chat: dict[str, Any], names: Names) -> None:
    names.put("tools", node.path)
    chat["tools"] = []
    for index, tool in enumerate(node.each()):
        kind = tool.object().get("type")
        if kind != "function":
            raise tool.key("type").error(f"must be function, not {shown(kind)}: this server runs no tools itself")
        function = {key: value for key, value in tool.object().items() if key != "type"}
        chat["tools"].append({"type": "function", "function": function})
        names.put(f"tools[{index}]", tool.path)
        names.put(f"tools[{index}].function", tool.path, same=True)


def _tool_choice(node: Node, chat: dict[str, Any], names: Names) -> None:
    names.put("tool_choice", node.path)
    chat["tool_choice"] = node.value
    if isinstance(node.value, Mapping):
        if node.key("type").value != "function":
            raise node.key("type").error(f"must be function, not {shown(node.key('type').value)}")
        chat["tool_choice"] = {"type": "function", "function": {"name": node.key("name").value}}
        names.put("tool_choice.function", node.path, same=True)


def _echo(root: Node) -> dict[str, Any]:
    """What the response says about its request, with what a field that was left out amounts to."""
    body: Mapping[str, Any] = root.value
    tools = [{"description": None, "parameters": None, "strict": None, **tool} for tool in body.get("tools") or []]
    reasoning = {"effort": None, "summary": None, **(body.get("reasoning") or {})}
    given = {key: value for key, value in (body.get("text") or {}).items() if value is not None}
    text = {"format": {"type": "text"}, "verbosity": "medium", **given}
    return {
        **{name: body.get(name) for name in ECHOED},
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "reasoning": reasoning,
        "text": text,
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": tools,
        "background": False,
        "previous_response_id": None,
        "service_tier": "default",
        "store": False,
        "top_logprobs": 0,
        "truncation": "disabled",
    }
