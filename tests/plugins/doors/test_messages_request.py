"""How a Messages request becomes a chat request, and what of it is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tandem.core.plugin import RequestError
from tandem.plugins.doors.messages.request import read_request

USER = {"role": "user", "content": "Hi"}
TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}, "cache_control": {}}
OFF = {"type": "disabled"}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def use(call_id: str = "c1") -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "look", "input": {"q": 1}}


def result(content: Any, call_id: str = "c1", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 9, "messages": [USER], **fields}


def chat(**fields: Any) -> Any:
    return read_request(body(**fields)).chat


def messages(*given: Any, **fields: Any) -> Any:
    return chat(messages=list(given), **fields)["messages"]


def refusal(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read_request(body(**fields))
    assert caught.value.status == 400
    return caught.value


def test_a_plain_request_is_the_same_chat_with_thinking_off() -> None:
    assert chat() == {"messages": [USER], "model": "m", "max_tokens": 9, "thinking": OFF}


def test_the_system_prompt_comes_first_and_each_block_of_it_is_a_message() -> None:
    assert messages(USER, system="Be brief.") == [{"role": "system", "content": "Be brief."}, USER]
    assert messages(USER, system=[text("Be brief.", cache_control={"type": "ephemeral"}), text("Be kind.")]) == [
        {"role": "system", "content": "Be brief."},
        {"role": "system", "content": "Be kind."},
        USER,
    ]


def test_a_billing_tag_that_changes_with_every_request_is_no_part_of_the_prompt() -> None:
    tag = text("x-anthropic-billing-header: cc_version=2.1.37; cch=fa690;")
    assert messages(USER, system=[tag, text("Be brief.")]) == [{"role": "system", "content": "Be brief."}, USER]
    assert messages(USER, system=tag["text"]) == [USER]
    assert messages({"role": "user", "content": [tag]})[0]["content"] == tag["text"]


def test_what_the_model_did_in_one_turn_is_one_message_before_its_results() -> None:
    turn = [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "redacted_thinking", "data": "xxx"},
        text("I look."),
        use("c1"),
        use("c2"),
    ]
    results = [result("found", "c1"), result([text("al"), text("so")], "c2"), text("And?")]
    function = {"name": "look", "arguments": {"q": 1}}
    assert messages(USER, {"role": "assistant", "content": turn}, {"role": "user", "content": results}) == [
        USER,
        {
            "role": "assistant",
            "reasoning_content": "Hm.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": function},
                {"id": "c2", "type": "function", "function": function},
            ],
            "content": "I look.",
        },
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
        {"role": "tool", "tool_call_id": "c2", "content": "also"},
        {"role": "user", "content": "And?"},
    ]


def test_results_stand_behind_their_calls_wherever_they_are_sent() -> None:
    roles = [m["role"] for m in messages(USER, {"role": "user", "content": [text("So:"), result("found")]})]
    assert roles == ["user", "tool", "user"]


@pytest.mark.parametrize(
    ("content", "written"),
    [("no such file", "Error: no such file"), (None, "Error: "), ([text("gone")], "Error: gone")],
)
def test_a_result_of_a_call_that_failed_says_so(content: Any, written: str) -> None:
    [tool] = messages({"role": "user", "content": [result(content, is_error=True)]})
    assert tool["content"] == written


@pytest.mark.parametrize(
    ("source", "url"),
    [
        ({"type": "base64", "media_type": "image/png", "data": "AAAA"}, "data:image/png;base64,AAAA"),
        ({"type": "url", "url": "https://host/a.png"}, "https://host/a.png"),
    ],
)
def test_images_become_parts(source: Any, url: str) -> None:
    image = {"type": "image", "source": source}
    part = {"type": "image_url", "image_url": {"url": url}}
    assert messages({"role": "user", "content": [text("See:"), image]})[0]["content"] == [text("See:"), part]
    [tool] = messages({"role": "user", "content": [result([image], is_error=True)]})
    assert tool["content"] == [text("Error: "), part]


@pytest.mark.parametrize(
    ("choice", "wanted", "parallel"),
    [
        ({"type": "auto"}, "auto", None),
        ({"type": "any"}, "required", None),
        ({"type": "none"}, "none", None),
        ({"type": "tool", "name": "look"}, {"type": "function", "function": {"name": "look"}}, None),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        ({"type": "any", "disable_parallel_tool_use": False}, "required", True),
    ],
)
def test_tools_and_the_choice_among_them_get_the_chats_words(choice: Any, wanted: Any, parallel: Any) -> None:
    read = chat(tools=[TOOL, {**TOOL, "type": "custom"}], tool_choice=choice)
    function = {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}
    assert read["tools"] == [{"type": "function", "function": function}] * 2
    assert (read["tool_choice"], read.get("parallel_tool_calls")) == (wanted, parallel)


@pytest.mark.parametrize(
    ("thinking", "thinks", "handed", "shown"),
    [
        (None, False, OFF, "hidden"),
        (None, True, None, "shown"),
        (OFF, True, OFF, "hidden"),
        ({"type": "enabled", "budget_tokens": 5}, False, {"type": "enabled", "budget_tokens": 5}, "shown"),
        ({"type": "adaptive"}, False, {"type": "adaptive"}, "shown"),
        ({"type": "adaptive", "display": "omitted"}, False, {"type": "adaptive", "display": "omitted"}, "omitted"),
    ],
)
def test_only_who_asks_for_thinking_gets_it(thinking: Any, thinks: bool, handed: Any, shown: str) -> None:
    ask = read_request(body(thinking=thinking), thinks=thinks)
    assert (ask.chat.get("thinking"), ask.own["thinking"]) == (handed, shown)


def test_effort_and_format_of_the_output_become_the_chats() -> None:
    read = chat(output_config={"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}})
    assert read["reasoning_effort"] == "low"
    assert read["response_format"]["json_schema"]["schema"] == {"type": "object"}


def test_everything_that_is_the_same_in_a_chat_is_handed_on() -> None:
    given = {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "seed": 7, "metadata": {"user_id": "u"}}
    read = chat(**given, stop_sequences=["x", "y"])
    assert {name: read[name] for name in given} == given
    assert read["stop"] == ["x", "y"]


def test_what_agents_send_by_habit_is_taken() -> None:
    habits = {
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "cache_control": {"type": "ephemeral"},
        "container": None,
        "mcp_servers": [],
        "betas": ["x"],
    }
    assert chat(**habits) == chat()


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"max_tokens": None}, "max_tokens", "missing"),
        ({"messages": None}, "messages", "missing"),
        ({"messages": [USER, 5]}, "messages[1]", "an object"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "assistant"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0]", "an object"),
        ({"messages": [{"role": "user", "content": [use()]}]}, "messages[0].content[0].type", "tool_use"),
        (
            {"messages": [{"role": "user", "content": [{"type": "document"}]}]},
            "messages[0].content[0].type",
            "document",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}]},
            "messages[0].content[0].type",
            "server_tool_use",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{**use(), "input": "x"}]}]},
            "messages[0].content[0].input",
            "an object",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}]},
            "messages[0].content[0].source.type",
            "stores no files",
        ),
        (
            {"messages": [{"role": "user", "content": [result([{"type": "tool_reference"}])]}]},
            "messages[0].content[0].content[0].type",
            "tool_reference",
        ),
        ({"system": 5}, "system", "content blocks"),
        ({"system": [{"type": "image"}]}, "system[0].type", "text"),
        (
            {"tools": [TOOL, {"type": "web_search_20250305", "name": "web_search"}]},
            "tools[1].type",
            "web_search_20250305",
        ),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema", "missing"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "needs tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type", "auto"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name", "missing"),
        ({"stop_sequences": "x"}, "stop_sequences", "a list"),
        ({"stop_sequences": ["x", 5]}, "stop_sequences[1]", "a string"),
        ({"thinking": "on"}, "thinking", "an object"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type", "json_schema"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers", "not supported"),
        ({"container": "c"}, "container", "not supported"),
        ({"stream": 1}, "stream", "true or false"),
    ],
)
def test_what_is_wrong_or_not_there_is_refused_by_its_name(fields: Any, param: str, words: str) -> None:
    error = refusal(**fields)
    assert error.param == param
    assert str(error).startswith(param)
    assert words in str(error)


def test_the_hosts_complaints_come_back_in_this_apis_names() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "x"}}
    ask = read_request(
        body(
            system=[text("Be brief."), text("Be kind.")],
            messages=[
                USER,
                {"role": "assistant", "content": [text("I look."), use()]},
                {"role": "user", "content": [result("found"), text("See:"), image]},
                {"role": "system", "content": "Late."},
            ],
            tools=[TOOL],
            tool_choice={"type": "tool", "name": "look"},
            stop_sequences=["x"],
            thinking={"type": "enabled", "budget_tokens": 5},
            output_config={"effort": "low", "format": {"type": "json_schema", "schema": {}}},
            temperature=0,
        )
    )
    known = {
        "messages": "messages",
        "messages[1].content": "system[1]",
        "messages[2].content": "messages[0].content",
        "messages[3].tool_calls[0].function.name": "messages[1].content[1].name",
        "messages[4].content": "messages[2].content[0].content",
        "messages[5].content[0].text": "messages[2].content[1]",
        "messages[5].content[1].image_url.url": "messages[2].content[2]",
        "messages[6].role": "messages[3].role",
        "tools[0].function.parameters": "tools[0].input_schema",
        "tools[0].function.parameters.properties": "tools[0].input_schema.properties",
        "tool_choice.function.name": "tool_choice.name",
        "stop[0]": "stop_sequences[0]",
        "thinking.budget_tokens": "thinking.budget_tokens",
        "reasoning_effort": "output_config.effort",
        "response_format.json_schema.schema.properties.a": "output_config.format.schema.properties.a",
        "response_format.json_schema.name": "output_config.format",
        "max_tokens": "max_tokens",
        "top_logprobs": None,
    }
    assert {param: ask.names.of(param) for param in known} == known


WORDS = st.sampled_from(
    ["type", "role", "content", "name", "text", "user", "assistant", "tool_use", "thinking", "source"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    "messages",
    "system",
    "tools",
    "tool_choice",
    "thinking",
    "output_config",
    "stop_sequences",
    "max_tokens",
    "stream",
)


@settings(max_examples=400)
@given(wrong=st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_no_body_does_worse_than_a_refusal_that_names_a_field(wrong: dict[str, Any]) -> None:
    refused = []
    try:
        read_request(wrong)
    except RequestError as error:
        refused.append((error.status, (error.param or "").partition(".")[0].partition("[")[0]))
    assert all(status == 400 and field in FIELDS for status, field in refused)
