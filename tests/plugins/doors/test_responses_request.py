"""How a Responses request becomes a chat request, and what of it is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tandem.core.plugin import RequestError
from tandem.plugins.doors.responses.request import read_request

USER = {"role": "user", "content": "Hi"}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"q": 1}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "found"}
TOOL = {"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object"}, "strict": True}


def chat(**body: Any) -> Any:
    return read_request({"input": "Hi", **body}).chat


def messages(*items: Any, **body: Any) -> Any:
    return chat(input=list(items), **body)["messages"]


def refusal(**body: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read_request({"input": "Hi", **body})
    assert caught.value.status == 400
    return caught.value


def said(text: str) -> dict[str, Any]:
    return {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }


def thought(*texts: str) -> dict[str, Any]:
    steps = [{"type": "reasoning_text", "text": text} for text in texts]
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": steps}


def test_a_string_is_one_user_message_behind_the_instructions() -> None:
    assert chat(instructions="Be brief.")["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]


def test_messages_may_be_short_or_long_and_their_parts_of_any_text_kind() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}]
    assert messages(
        {"role": "developer", "content": "Be brief."}, {"type": "message", "role": "user", "content": parts}
    ) == [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "ab"},
    ]


def test_an_image_stays_a_part_among_the_text() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}
    assert messages({"role": "user", "content": [{"type": "input_text", "text": "See:"}, image]})[0]["content"] == [
        {"type": "text", "text": "See:"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]


def test_what_the_model_did_in_one_turn_is_one_message_before_its_results() -> None:
    again = {**CALL, "call_id": "c2"}
    [_, turn, first, second] = messages(
        USER, thought("Hm", "m."), said("I look."), CALL, again, RESULT, {**RESULT, "call_id": "c2"}
    )
    function = {"name": "look", "arguments": '{"q": 1}'}
    assert turn == {
        "role": "assistant",
        "reasoning_content": "Hmm.",
        "content": "I look.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": function},
            {"id": "c2", "type": "function", "function": function},
        ],
    }
    assert first == {"role": "tool", "tool_call_id": "c1", "content": "found"}
    assert second["tool_call_id"] == "c2"


def test_text_behind_a_call_does_not_come_between_the_call_and_its_result() -> None:
    roles = [message["role"] for message in messages(USER, CALL, said("There."), thought("Later."), RESULT)]
    assert roles == ["user", "assistant", "tool"]


def test_two_answers_in_a_row_stay_two_messages() -> None:
    assert [m.get("content") for m in messages(USER, said("a"), said("b"))] == ["Hi", "a", "b"]
    assert [m.get("reasoning_content") for m in messages(USER, thought("1"), said("a"), thought("2"), said("b"))] == [
        None,
        "1",
        "2",
    ]


def test_reasoning_that_only_its_maker_can_read_is_left_out() -> None:
    sealed = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
    assert messages(USER, sealed, said("a")) == [USER, {"role": "assistant", "content": "a"}]


def test_a_result_may_be_parts() -> None:
    output = [{"type": "input_text", "text": "fo"}, {"type": "input_text", "text": "und"}]
    assert messages(USER, CALL, {**RESULT, "output": output})[-1]["content"] == "found"


def test_tools_and_the_choice_among_them_get_the_chats_nesting() -> None:
    read = chat(tools=[TOOL], tool_choice={"type": "function", "name": "look"}, parallel_tool_calls=False)
    assert read["tools"] == [{"type": "function", "function": {key: TOOL[key] for key in TOOL if key != "type"}}]
    assert read["tool_choice"] == {"type": "function", "function": {"name": "look"}}
    assert read["parallel_tool_calls"] is False
    assert chat(tools=[TOOL], tool_choice="required")["tool_choice"] == "required"


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ({"type": "text"}, {"type": "text"}),
        ({"type": "json_object"}, {"type": "json_object"}),
        (
            {"type": "json_schema", "name": "n", "strict": True, "schema": {"type": "object"}},
            {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {"type": "object"}}},
        ),
    ],
)
def test_the_texts_format_is_the_chats_response_format(form: Any, wanted: Any) -> None:
    assert chat(text={"format": form})["response_format"] == wanted


def test_everything_that_is_the_same_in_a_chat_is_handed_on() -> None:
    given = {
        "model": "m",
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 7,
        "top_k": 3,
        "stop": ["x"],
        "metadata": {"a": "b"},
        "prompt_cache_key": "k",
        "reasoning": {"effort": "low", "summary": "auto"},
    }
    read = chat(**given, max_output_tokens=9)
    assert {name: read[name] for name in given} == given
    assert read["max_completion_tokens"] == 9


def test_what_agents_send_by_habit_is_taken() -> None:
    """The fields of a coding agent's request that ask this server for nothing."""
    body = {
        "include": ["reasoning.encrypted_content"],
        "store": False,
        "background": False,
        "truncation": "disabled",
        "previous_response_id": None,
        "top_logprobs": 0,
        "stream_options": {"include_obfuscation": False},
        "max_tool_calls": 3,
        "text": {"verbosity": "medium"},
        "service_tier": "auto",
        "client_metadata": {"whatever": 1},
    }
    assert set(chat(**body)) == {"messages", "service_tier", "store"}


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "stores no responses"),
        ({"conversation": "conv_1"}, "conversation", "input"),
        ({"background": True}, "background", "not supported"),
        ({"prompt": {"id": "p"}}, "prompt", "templates"),
        ({"include": ["file_search_call.results"]}, "include[0]", "reasoning.encrypted_content"),
        ({"include": ["message.output_text.logprobs"]}, "include[0]", "only"),
        ({"top_logprobs": 3}, "top_logprobs", "chat completions"),
        ({"truncation": "auto"}, "truncation", "dropped"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "medium"),
        ({"moderation": {"model": "m"}}, "moderation", "moderation model"),
        ({"context_management": [{"type": "compaction"}]}, "context_management", "compacts"),
        *(
            ({"tools": [TOOL, {"type": kind}]}, "tools[1].type", kind)
            for kind in (
                "web_search",
                "file_search",
                "computer",
                "code_interpreter",
                "mcp",
                "image_generation",
                "custom",
            )
        ),
        ({"tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice.type", "function"),
        ({"input": None}, "input", "missing"),
        ({"input": 5}, "input", "a string or a list of items"),
        ({"input": [USER, 5]}, "input[1]", "an object"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type", "stores no items"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type", "web_search_call"),
        ({"input": [{"content": "x"}]}, "input[0].type", "missing"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "developer"),
        ({"input": [{"role": "user"}]}, "input[0].content", "missing"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type", "input_file"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text", "missing"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0].file_id",
            "stores no files",
        ),
        ({"input": [{**CALL, "arguments": {}}]}, "input[0].arguments", "a string"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id", "missing"),
        ({"instructions": ["x"]}, "instructions", "a string"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"text": "json"}, "text", "an object"),
        ({"tools": {}}, "tools", "a list"),
    ],
)
def test_what_is_wrong_or_needs_a_store_is_refused_by_its_name(body: Any, param: str, words: str) -> None:
    error = refusal(**body)
    assert error.param == param
    assert str(error).startswith(param)
    assert words in str(error)


def test_the_hosts_complaints_come_back_in_this_apis_names() -> None:
    picture = {"type": "input_image", "image_url": "data:x"}
    ask = read_request(
        {
            "instructions": "Be brief.",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "a"}, picture]},
                thought("Hm."),
                CALL,
                RESULT,
                {"role": "developer", "content": "Late."},
            ],
            "tools": [TOOL],
            "tool_choice": {"type": "function", "name": "look"},
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
            "reasoning": {"effort": "low"},
            "max_output_tokens": 5,
            "temperature": 0,
        }
    )
    known = {
        "messages": "input",
        "messages[0].content": "instructions",
        "messages[1].content": "input[0].content",
        "messages[1].content[1]": "input[0].content[1]",
        "messages[1].content[1].image_url.url": "input[0].content[1]",
        "messages[2].tool_calls[0].function.name": "input[2].name",
        "messages[3].content": "input[3].output",
        "messages[4].role": "input[4].role",
        "tools[0].function.parameters": "tools[0].parameters",
        "tools": "tools",
        "tool_choice": "tool_choice",
        "tool_choice.function.name": "tool_choice.name",
        "response_format.json_schema.schema": "text.format.schema",
        "response_format.json_schema.name": "text.format.name",
        "reasoning.effort": "reasoning.effort",
        "max_completion_tokens": "max_output_tokens",
        "temperature": "temperature",
        "n": None,
    }
    assert {param: ask.names.of(param) for param in known} == known
    told = ask.names.told(RequestError(400, "max_completion_tokens must be higher", "max_completion_tokens", "c", 3))
    assert (str(told), told.param, told.code, told.retry_after) == (
        "max_output_tokens must be higher",
        "max_output_tokens",
        "c",
        3,
    )


WORDS = st.sampled_from(["type", "role", "content", "format", "name", "message", "user", "function", "function_call"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "text",
    "reasoning",
    "include",
    "stream",
    "metadata",
    "prompt",
)


@settings(max_examples=400)
@given(body=st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_no_body_does_worse_than_a_refusal_that_names_a_field(body: dict[str, Any]) -> None:
    refused = []
    try:
        read_request(body)
    except RequestError as error:
        refused.append((error.status, (error.param or "").partition(".")[0].partition("[")[0]))
    assert all(status == 400 and field in FIELDS for status, field in refused)
