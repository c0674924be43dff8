"""The messages of a chat request."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.api.messages import messages
from tandem.api.readers import FieldError, Place

PLACE = Place("messages", 261)
USER = {"role": "user", "content": "Hi"}


def test_system_and_developer_messages_at_the_start_become_one() -> None:
    read = messages(
        [{"role": "system", "content": "A"}, {"role": "developer", "content": [{"type": "text", "text": "B"}]}, USER],
        PLACE,
    )
    assert read == ({"role": "system", "content": "A\n\nB"}, USER)


def test_a_lone_developer_message_is_a_system_message() -> None:
    assert messages([{"role": "developer", "content": "A"}, USER], PLACE)[0]["role"] == "system"


def test_text_parts_are_joined_with_nothing_between() -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    assert messages([{"role": "user", "content": parts}], PLACE)[0]["content"] == "a b"


def test_a_tool_turn_keeps_its_call_and_its_result() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    read = messages(
        [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "a tree"},
        ],
        PLACE,
    )
    assert (read[1]["role"], read[1]["content"]) == ("assistant", "")
    (kept,) = read[1]["tool_calls"]
    assert kept["function"] == {"name": "look", "arguments": {"at": 1}}, "templates read arguments as a mapping"
    assert read[2]["tool_call_id"] == "call_1"


@pytest.mark.parametrize(
    ("written", "read_as"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        (None, {}),
        ('{"path": "a.txt", "content": "cut of', {"unreadable_arguments": '{"path": "a.txt", "content": "cut of'}),
        ("[1, 2]", {"unreadable_arguments": "[1, 2]"}),
        ("[" * 100_000, {"unreadable_arguments": "[" * 100_000}),
    ],
)
def test_arguments_of_earlier_calls_are_served_whatever_they_hold(written: Any, read_as: dict[str, Any]) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "write", "arguments": written}}
    read = messages([USER, {"role": "assistant", "content": "", "tool_calls": [call]}], PLACE)
    assert read[1]["tool_calls"][0]["function"]["arguments"] == read_as


def test_the_clients_own_objects_are_left_alone() -> None:
    sent: list[dict[str, Any]] = [
        {"role": "developer", "content": "A"},
        {"role": "user", "content": [], "tool_calls": 1},
    ]
    before = [dict(message) for message in sent]
    messages(sent, PLACE)
    assert sent == before


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("messages", []),
        ("messages", "Hi"),
        ("messages", [{"role": "system", "content": "alone"}]),
        ("messages", [{"role": "tool", "content": "only a result"}]),
        ("messages[0]", ["Hi"]),
        ("messages[0].role", [{"content": "Hi"}]),
        ("messages[0].role", [{"role": "robot", "content": "Hi"}]),
        ("messages[0].role", [{"role": ["user"], "content": "Hi"}]),
        ("messages[1].role", [USER, {"role": "system", "content": "late"}]),
        ("messages[0].content", [{"role": "user"}]),
        ("messages[0].content", [{"role": "user", "content": 5}]),
        ("messages[0].content[0]", [{"role": "user", "content": ["Hi"]}]),
        (
            "messages[0].content[1].text",
            [{"role": "user", "content": [{"type": "text", "text": ""}, {"type": "text"}]}],
        ),
        ("messages[0].content[0].type", [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
        ("messages[0].content[0].type", [{"role": "user", "content": [{"text": "no type"}]}]),
        ("messages[1].tool_calls", [USER, {"role": "assistant", "tool_calls": {"name": "x"}}]),
        ("messages[1].tool_calls[0].function", [USER, {"role": "assistant", "tool_calls": [{}]}]),
        ("messages[1].tool_calls[0].function.name", [USER, {"role": "assistant", "tool_calls": [{"function": {}}]}]),
        (
            "messages[1].tool_calls[0].function.arguments",
            [USER, {"role": "assistant", "tool_calls": [{"function": {"name": "x", "arguments": 5}}]}],
        ),
    ],
)
def test_a_wrong_message_is_named_by_its_place(param: str, value: Any) -> None:
    with pytest.raises(FieldError) as caught:
        messages(value, PLACE)
    assert caught.value.param == param
