"""Reasoning, budgets, tool calls and structured output as a client meets them, streamed and not."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tandem.testing.answer import Answer
from tandem.testing.box import Box

Ask = Callable[..., Answer]


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with Box({"formats": ["qwen_xml"]}) as made:
        yield made


@pytest.fixture(params=["plain", "streamed"])
def ask(box: Box, request: pytest.FixtureRequest) -> Ask:
    return box.chat if request.param == "plain" else box.stream


def tool(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


WRITE = tool(
    "write_file",
    {
        "type": "object",
        "required": ["path", "content"],
        "properties": {"path": {"type": "string"}, "content": {"type": "string"}, "mode": {"type": "integer"}},
    },
)
LOOK = tool("look", {"type": "object", "required": ["q"], "properties": {"q": {"type": "string"}}})


def call(name: str, **values: str) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


# -------------------------------------------------------------------------------------------------- the reasoning


def test_the_reasoning_has_a_field_of_its_own(ask: Ask) -> None:
    answer = ask(script=["I think", " so\n", "</think>\n\n", "Yes", "."])
    assert (answer.reasoning, answer.text) == ("I think so\n", "Yes.")
    assert answer.usage["completion_tokens_details"]["reasoning_tokens"] == len("I think so\n</think>")
    answer.assert_finish("stop")


@pytest.mark.parametrize(
    ("form", "content", "reasoning"),
    [
        ("tags", "<think>\nhm\n</think>\n\nYes", ""),
        ("reasoning_content", "Yes", "hm\n"),
        ("both", "<think>\nhm\n</think>\n\nYes", "hm\n"),
        ("hidden", "Yes", ""),
    ],
)
def test_the_request_says_how_it_reads_reasoning(ask: Ask, form: str, content: str, reasoning: str) -> None:
    answer = ask(script=["hm\n", "</think>\n\n", "Yes"], reasoning_format=form)
    assert (answer.text, answer.reasoning) == (content, reasoning)


def test_a_json_answer_is_json_alone_also_when_the_model_thinks(ask: Ask) -> None:
    answer = ask(script=["hm\n</think>\n\n", '{"a": 1}'], response_format={"type": "json_object"})
    assert json.loads(answer.text) == {"a": 1}
    assert answer.reasoning == "hm\n"


def test_thinking_off_leaves_an_answer_alone(ask: Ask) -> None:
    answer = ask(script=["Yes"], enable_thinking=False)
    assert (answer.text, answer.reasoning) == ("Yes", "")
    assert answer.usage["completion_tokens_details"]["reasoning_tokens"] == 0


def test_an_answer_cut_inside_the_reasoning_is_reasoning_alone(ask: Ask) -> None:
    answer = ask(script=["I think and think", "</think>\n\n", "Yes"], max_tokens=7)
    assert (answer.text, answer.reasoning) == ("", "I think")
    answer.assert_finish("length")


def test_a_model_may_open_the_block_itself(ask: Ask) -> None:
    answer = ask(script=["<think>", "hm", "</thi", "nk>\nYes"], chat_template_kwargs={"add_generation_prompt": False})
    # The prompt was not opened by the template here; the model's own tag counts.
    assert (answer.text, answer.reasoning) == ("Yes", "hm")


def test_a_stop_string_inside_the_reasoning_does_not_end_the_answer(ask: Ask) -> None:
    answer = ask(script=["I see X in the thinking", "\n</think>\n\n", "answer before ", "X", " after"], stop=["X"])
    assert (answer.text, answer.reasoning) == ("answer before ", "I see X in the thinking\n")
    answer.assert_finish("stop")


def test_the_blank_lines_before_the_answer_are_no_stop_string(ask: Ask) -> None:
    assert ask(script=["hm\n</think>\n\n", "one\n\ntwo"], stop=["\n\n"]).text == "one"


def test_a_stop_string_split_over_blocks_never_shows(ask: Ask) -> None:
    parts = ["</think>\n\n", "alpha", " beta", " gam", "ma", " delta"]
    assert ask(script=parts, stop=["beta gamma"]).text == "alpha "
    near = ["</think>\n\n", "alpha", " beta", " gam", "bol", " delta"]
    assert ask(script=near, stop=["beta gamma"]).text == "alpha beta gambol delta"


def test_a_lone_close_tag_in_the_answer_is_left_out(ask: Ask) -> None:
    assert ask(script=["hm</think>\n\n", "one\n</think>\ntwo </think> three"]).text == "one\ntwo </think> three"


# ---------------------------------------------------------------------------------------------------- the budgets


def test_a_budget_closes_the_reasoning_and_the_answer_follows(ask: Ask) -> None:
    words = "thinking " * 200
    answer = ask(script=[words, "</think>\n\n", "Yes"], max_reasoning_tokens=50, max_tokens=600)
    counted = answer.usage["completion_tokens_details"]["reasoning_tokens"]
    assert answer.reasoning.startswith(words[:50])
    assert 50 < counted < 50 + 120, "the closing phrase is counted"
    assert answer.text == "Yes"


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking": {"type": "enabled", "budget_tokens": 20}},
        {"reasoning": {"max_tokens": 20}},
        {"thinking_token_budget": 20},
        {"chat_template_kwargs": {"thinking_budget": 20}},
    ],
)
def test_every_shape_of_budget_is_kept(box: Box, fields: dict[str, Any]) -> None:
    free = box.chat(script=["x" * 300, "</think>\n\nYes"])
    kept = box.chat(script=["x" * 300, "</think>\n\nYes"], **fields)
    assert free.reasoning == "x" * 300
    assert kept.reasoning.startswith("x" * 20)
    assert not kept.reasoning.startswith("x" * 21)


def test_a_budget_leaves_room_for_the_answer(box: Box) -> None:
    answer = box.chat(script=["x" * 2000, "</think>\n\n", "Yes"], reasoning_effort="medium", max_tokens=1000)
    assert answer.usage["completion_tokens_details"]["reasoning_tokens"] <= 750
    assert answer.text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
        ({"thinking": {"budget_tokens": -1}}, "thinking.budget_tokens"),
    ],
)
def test_a_wish_that_cannot_be_read_names_its_field(ask: Ask, fields: dict[str, Any], param: str) -> None:
    answer = ask("hi", **fields)
    assert answer.status == 400
    assert answer.body["error"]["param"] == param


def test_a_running_reasoning_can_be_ended_by_the_answers_id(box: Box) -> None:
    script = ["begun ", *[{"sleep_ms": 30}, "and on "] * 100, "</think>\n\nnever reached"]
    with box.streaming(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": json.dumps({"script": script})}], "stream": True, "max_tokens": 400},
    ) as (_, data):
        first = json.loads(next(data))
        done = box.post("/v1/chat/completions/control", {"id": first["id"], "action": "end_thinking"})
        assert done.status_code == 200
        chunks = [json.loads(text) for text in data if text != "[DONE]"]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    reasoning = "".join(delta.get("reasoning_content") or "" for delta in deltas)
    assert reasoning.count("and on") < 50
    assert "".join(delta.get("content") or "" for delta in deltas), "the answer did not follow"


def test_an_answer_that_does_not_run_cannot_be_controlled(box: Box) -> None:
    assert box.post("/v1/chat/completions/control", {"id": "chatcmpl-none"}).status_code == 404
    assert box.post("/v1/chat/completions/control", {"action": "end_thinking"}).json()["error"]["param"] == "id"
    wrong = box.post("/v1/chat/completions/control", {"id": "x", "action": "explode"})
    assert wrong.json()["error"]["param"] == "action"


# ----------------------------------------------------------------------------------------------------------- calls


@pytest.mark.parametrize("content", ['{"a": 1}', "123", "true", "null", '"quoted"', "[1, 2]"])
def test_text_that_looks_like_json_stays_text_where_the_schema_says_string(ask: Ask, content: str) -> None:
    written = call("write_file", path="a.json", content=content, mode="420")
    answer = ask(script=["</think>\n\n", written[:60], written[60:]], tools=[WRITE])
    assert answer.calls == [("write_file", {"path": "a.json", "content": content, "mode": 420})]
    assert answer.text == ""
    answer.assert_finish("tool_calls")


def test_a_long_argument_goes_out_while_it_is_written(box: Box) -> None:
    text = "".join(f'line {i}: ü😀 "quoted" \\ tab\t\n' for i in range(70))
    written = call("write_file", path="a", content=text, mode="7")
    answer = box.stream(
        script=["</think>\n\n", *[written[i : i + 7] for i in range(0, len(written), 7)]], tools=[WRITE]
    )
    pieces = [
        piece
        for chunk in answer.chunks
        for choice in chunk["choices"]
        for piece in choice["delta"].get("tool_calls") or []
    ]
    assert pieces[0]["id"].startswith("call_")
    assert pieces[0]["function"]["name"] == "write_file"
    assert all("id" not in piece for piece in pieces[1:])
    assert len(pieces) > 100
    arguments = "".join(piece["function"]["arguments"] for piece in pieces)
    assert json.loads(arguments) == {"path": "a", "content": text.rstrip("\n"), "mode": 7} or json.loads(arguments) == {
        "path": "a",
        "content": text,
        "mode": 7,
    }


def test_a_call_quoted_in_the_thinking_is_not_run(ask: Ask) -> None:
    quoted, real = call("bash", command="rm -rf build"), call("bash", command="ls")
    bash = tool("bash", {"type": "object", "properties": {"command": {"type": "string"}}})
    answer = ask(script=["I could write ", quoted, " but no.", "\n</think>\n\n", real], tools=[bash])
    assert answer.calls == [("bash", {"command": "ls"})]
    assert quoted in answer.reasoning


def test_two_calls_have_two_indices_and_two_ids(box: Box) -> None:
    script = ["</think>\n\n", call("look", q="one"), "\n", call("look", q="two")]
    assert box.stream(script=script, tools=[LOOK]).calls == [("look", {"q": "one"}), ("look", {"q": "two"})]
    body = box.chat(script=script, tools=[LOOK]).body
    ids = [made["id"] for made in body["choices"][0]["message"]["tool_calls"]]
    assert len(set(ids)) == 2
    assert body["choices"][0]["message"]["content"] is None


def test_parallel_calls_can_be_turned_off(ask: Ask) -> None:
    script = ["</think>\n\n", call("look", q="one"), "\n", call("look", q="two")]
    assert ask(script=script, tools=[LOOK], parallel_tool_calls=False).calls == [("look", {"q": "one"})]


def test_no_tools_offered_no_calls_out(ask: Ask) -> None:
    answer = ask(script=["</think>\n\n", "Well. ", call("look", q="one")])
    assert answer.calls == []
    assert answer.text.strip() == "Well."
    answer.assert_finish("stop")
    refused = ask(script=["</think>\n\n", call("look", q="one")], tools=[LOOK], tool_choice="none")
    assert refused.calls == []
    refused.assert_finish("stop")


def test_a_call_cut_by_the_limit_is_no_content(ask: Ask) -> None:
    script = [
        "</think>\n\n<tool_call>\n<function=write_file>\n<parameter=path>\na.txt\n</parameter>\n<parameter=content>\nvery"
    ]
    answer = ask(script=[*script, " long text that does not end " * 20], tools=[WRITE], max_tokens=150)
    assert answer.text == ""
    answer.assert_finish("length")


def test_a_history_with_arguments_that_do_not_parse_is_served(ask: Ask) -> None:
    history = [
        {"role": "user", "content": "write it"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "write_file", "arguments": '{"path": "a.txt", "co'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "Error: the arguments do not parse"},
        {"role": "user", "content": "again"},
    ]
    assert ask(history, script=["</think>\n\n", "done"], tools=[WRITE]).text == "done"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
def test_a_forced_call_is_made_whatever_the_model_would_rather_say(ask: Ask, choice: Any) -> None:
    wish = call("hook", q="it")  # a name that is not offered
    answer = ask(script=["hm</think>\n\n", wish], tools=[LOOK], tool_choice=choice, max_tokens=400)
    assert answer.calls == [("look", {"q": "it"})]
    answer.assert_finish("tool_calls")
    assert answer.text == ""


# ------------------------------------------------------------------------------------------------------- documents

SCHEMA = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}, "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "r", "schema": SCHEMA}}


@pytest.mark.parametrize("wish", ['{"n": 7}', '```json\n{"n": 7}\n```', "Sure! Here it is."])
def test_a_document_fits_its_schema(ask: Ask, wish: str) -> None:
    answer = ask(script=["</think>\n\n", wish], response_format=FORMAT, max_tokens=300)
    jsonschema.validate(json.loads(answer.text), SCHEMA)
    answer.assert_finish("stop")


@pytest.mark.parametrize(
    ("outputs", "wish", "expected"),
    [
        ({"choice": ["red", "green"]}, "green", "green"),
        ({"regex": "[0-9]{4}"}, "2024", "2024"),
        ({"json": SCHEMA}, '{"n": 3}', '{"n": 3}'),
    ],
)
def test_the_other_forms_of_structured_output(ask: Ask, outputs: Any, wish: str, expected: str) -> None:
    assert ask(script=[wish], structured_outputs=outputs).text == expected


@pytest.mark.parametrize(
    ("wish", "branch"),
    [
        (call("look", q="it"), "calls"),
        ('{"n": 1}', "document"),
        ('```json\n{"n": 1}', "document"),
        ("I think", "document"),
    ],
)
def test_with_tools_the_models_first_token_picks_calls_or_document(ask: Ask, wish: str, branch: str) -> None:
    answer = ask(script=["hm</think>\n\n", wish], tools=[LOOK], response_format=FORMAT, max_tokens=400)
    if branch == "calls":
        assert answer.calls == [("look", {"q": "it"})]
        assert answer.text == ""
    else:
        assert answer.calls == []
        jsonschema.validate(json.loads(answer.text), SCHEMA)


def nested(levels: int) -> str:
    return '{"type":"object","properties":{"a":' * levels + '{"type":"string"}' + "}}" * levels


@pytest.mark.parametrize(
    ("schema", "words"),
    [({"type": "strange"}, "strange"), ({"$ref": "#"}, "itself"), ({"$ref": "#/$defs/x"}, "nowhere")],
)
def test_a_schema_that_cannot_be_used_is_a_400_that_says_why(ask: Ask, schema: Any, words: str) -> None:
    answer = ask("hi", response_format={"type": "json_schema", "json_schema": {"name": "r", "schema": schema}})
    assert answer.status == 400
    assert answer.body["error"]["param"] == "response_format.json_schema.schema"
    assert words in answer.body["error"]["message"]


def test_a_schema_ten_thousand_levels_deep_is_refused_and_the_server_lives(box: Box) -> None:
    body = (
        '{"messages": [{"role": "user", "content": "hi"}], "response_format": {"type": "json_schema", "json_schema": '
        '{"name": "r", "schema": ' + nested(10_000) + "}}}"
    )
    response = box._client.post(
        "/v1/chat/completions", content=body.encode(), headers={"content-type": "application/json"}
    )
    assert response.status_code == 400
    assert box.chat(script=["still here"]).text == "still here"


# ---------------------------------------------------------------------------------------------------- continuation


def test_a_history_that_ends_with_the_assistant_is_continued(ask: Ask) -> None:
    script = json.dumps({"script": ["one two three"]})
    history = [{"role": "user", "content": script}, {"role": "assistant", "content": "Zero and"}]
    answer = ask(history)
    assert answer.status == 200
    assert answer.text == "one two three"


# --------------------------------------------------------------------------------------------- streamed equals plain

THINKS = "</think>"
"""Said beside the script, so that the turn opens inside the reasoning however the script is split."""
FRAGMENTS = st.sampled_from(
    [
        "</think>",
        "\n\n",
        "<think>",
        "text ",
        "ü",
        "😀",
        call("look", q="x y"),
        "<tool_call>",
        "</tool_call>",
        "{",
        "}",
        "```\n",
    ]
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(FRAGMENTS, min_size=1, max_size=6).map("".join), st.lists(st.integers(1, 200), max_size=5), st.booleans()
)
def test_any_split_gives_the_same_answer_streamed_and_plain(box: Box, text: str, cuts: list[int], offers: bool) -> None:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    more: dict[str, Any] = {"tools": [LOOK]} if offers else {}
    whole, split, streamed = (
        box.chat(THINKS, script=[text], **more),
        box.chat(THINKS, script=pieces, **more),
        box.stream(THINKS, script=pieces, **more),
    )
    for other in (split, streamed):
        assert (other.text, other.reasoning, other.calls) == (whole.text, whole.reasoning, whole.calls)
        assert other.finish_reason == whole.finish_reason
        for count in ("completion_tokens", "completion_tokens_details"):
            assert other.usage[count] == whole.usage[count]


# ---------------------------------------------------------------------------------------------------------- images


@pytest.mark.parametrize("role", ["user", "assistant", "tool"])
def test_a_model_that_reads_text_only_refuses_an_image_by_name(ask: Ask, role: str) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    message = {"role": role, "content": [{"type": "text", "text": "see"}, picture], "tool_call_id": "c"}
    answer = ask([{"role": "user", "content": "hi"}, message, {"role": "user", "content": "and?"}])
    assert answer.status == 400
    assert answer.body["error"]["param"].startswith("messages[1].content[1]")
    assert "image" in answer.body["error"]["message"]


# ------------------------------------------------------------------------------------------------------ regenerate


def test_asking_again_in_one_conversation_samples_anew() -> None:
    headers = {"x-session-id": "ses_1", "user-agent": "opencode/1.18.33"}
    with Box({"formats": ["qwen_xml"], "clients": ["opencode"]}) as box:
        for asked in range(3):
            assert box.chat(script=["one"], headers=headers).text == "one"
            told = box.get("/health").json()["sampling"]["regenerate"]
            assert (told["seen"], told["sampled"]) == (asked, asked)


def test_a_client_gets_the_finish_words_that_it_knows() -> None:
    script = ["a" * 20, {"sleep_ms": 400}, "b" * 20, {"sleep_ms": 400}, "c"]
    with Box({"clients": ["opencode"], "server": {"request_timeout_s": 0.2}}) as box:
        box.stream(script=script).assert_finish("timeout")
        box.stream(script=script, headers={"user-agent": "opencode/1.18.33"}).assert_finish("length")
