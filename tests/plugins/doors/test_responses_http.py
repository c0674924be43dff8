"""`POST /v1/responses` over a real socket, as OpenAI's own client sees it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import given, settings, strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tandem.core.plugin import AnswerEnd, CallDelta, ContentDelta, RequestError, Waiting
from tandem.testing import sse
from tandem.testing.box import Box

Script = Callable[..., str]
Call = Callable[[str], str]

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TOOLS: Any = [
    {
        "type": "function",
        "name": "look",
        "description": "Looks something up.",
        "strict": False,
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    }
]
USAGE = {
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "total_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 1},
    "completion_tokens_details": {"reasoning_tokens": 0},
}


def stream(box: Box, **body: Any) -> list[dict[str, Any]]:
    """The stream's events, each checked against the SDK's own types and numbered without a gap."""
    response = box.post("/v1/responses", {"stream": True, **body})
    assert response.status_code == 200, response.text
    return checked(response.content)


def checked(content: bytes) -> list[dict[str, Any]]:
    events = []
    for place, event in enumerate(sse.events([content])):
        data = event.json()
        assert event.name == data["type"]
        assert data["sequence_number"] == place
        assert EVENT.validate_python(data).type == data["type"]
        events.append(data)
    return events


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """The events' names in order, each run of deltas once."""
    return [kind.removeprefix("response.") for kind, _ in itertools.groupby(event["type"] for event in events)]


def joined(events: list[dict[str, Any]], kind: str) -> str:
    return "".join(event["delta"] for event in events if event["type"] == f"response.{kind}.delta")


def shape(output: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Kind, status and text of each output item."""
    return [
        (item["type"], item["status"], item["content"][0]["text"] if "content" in item else item["arguments"])
        for item in output
    ]


def test_an_answer_is_a_complete_response_object(gpt: openai.OpenAI, script: Script) -> None:
    answer = gpt.responses.create(
        model="any", input=script("one ", "two"), instructions="Count.", metadata={"a": "b"}, temperature=0.5
    )
    assert isinstance(answer, Response)
    Response.model_validate(json.loads(answer.model_dump_json()))
    assert answer.id.startswith("resp_")
    assert (answer.object, answer.status, answer.model, answer.output_text) == (
        "response",
        "completed",
        "TandemLLM",
        "one two",
    )
    [message] = answer.output
    assert message.id is not None
    assert message.id.startswith("msg_")
    assert (answer.instructions, answer.metadata, answer.temperature) == ("Count.", {"a": "b"}, 0.5)
    assert (answer.tools, answer.tool_choice, answer.parallel_tool_calls) == ([], "auto", True)
    assert answer.usage is not None
    assert answer.usage.output_tokens == len("one two")
    assert answer.usage.total_tokens == answer.usage.input_tokens + len("one two")
    assert answer.error is None
    assert answer.incomplete_details is None


def test_a_text_is_told_in_the_documented_order(box: Box, script: Script) -> None:
    events = stream(box, input=script("one ", "two"))
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert joined(events, "output_text") == "one two"
    assert events[0]["response"]["status"] == events[1]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == []
    assert events[-1]["response"]["output"] == [events[-2]["item"]]
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1


def test_reasoning_text_and_calls_are_items_in_the_order_of_writing(box: Box, script: Script, call: Call) -> None:
    told = script("Hm", "m.</think>\n\n", "I look.", call("a"), call("b"))
    events = stream(box, input=told, tools=TOOLS)
    text = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
    a_call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert kinds(events) == [
        "created",
        "in_progress",
        *[kind.replace("output_text", "reasoning_text") for kind in text],
        "output_item.done",
        *text,
        "output_item.done",
        *a_call,
        *a_call,
        "completed",
    ]
    final = events[-1]["response"]
    assert shape(final["output"]) == [
        ("reasoning", "completed", "Hmm."),
        ("message", "completed", "I look."),
        ("function_call", "completed", '{"query": "a"}'),
        ("function_call", "completed", '{"query": "b"}'),
    ]
    assert joined(events, "reasoning_text") == "Hmm."
    assert final["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    indexes = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    assert indexes == [0, 1, 2, 3]
    assert len({item["call_id"] for item in final["output"][2:]}) == 2


def test_the_sdks_stream_helper_follows_and_parses_the_arguments(
    gpt: openai.OpenAI, script: Script, call: Call
) -> None:
    tools = [{**TOOLS[0], "strict": True}]
    told = script("Hm.</think>\n\n", "Wait. ", call("tea"))
    with gpt.responses.stream(model="any", input=told, tools=tools) as events:
        seen = [event.type for event in events]
        final = events.get_final_response()
    assert seen[-1] == "response.completed"
    [reasoning, message, wanted] = final.output
    assert (reasoning.type, message.type) == ("reasoning", "message")
    assert final.output_text == "Wait. "
    assert wanted.type == "function_call"
    assert wanted.parsed_arguments == {"query": "tea"}


def test_parse_gives_the_typed_answer(gpt: openai.OpenAI, script: Script) -> None:
    class River(BaseModel):
        name: str
        km: int

    answer = gpt.responses.parse(model="any", input=script('{"name": "Rhine", "km": 1233}'), text_format=River)
    assert answer.output_parsed == River(name="Rhine", km=1233)
    assert answer.text is not None
    assert answer.text.format is not None
    assert answer.text.format.type == "json_schema"


def test_an_answer_goes_back_as_it_came_and_the_conversation_goes_on(
    gpt: openai.OpenAI, script: Script, call: Call
) -> None:
    first = gpt.responses.create(model="any", input=script("Hm.</think>\n\n", "I look.", call("a")), tools=TOOLS)
    wanted = first.output[-1]
    assert wanted.type == "function_call"
    items: Any = [
        {"role": "user", "content": "Look."},
        *[item.to_dict() for item in first.output],
        {"type": "function_call_output", "call_id": wanted.call_id, "output": "tea"},
        {"role": "user", "content": script("It is ", "tea.")},
    ]
    second = gpt.responses.create(model="any", input=items, tools=TOOLS)
    assert second.output_text == "It is tea."


@pytest.mark.parametrize("streamed", [False, True])
def test_the_length_limit_leaves_a_response_incomplete(box: Box, script: Script, streamed: bool) -> None:
    body = {"input": script("abc", end=False), "max_output_tokens": 5}
    answer = stream(box, **body)[-1]["response"] if streamed else box.post("/v1/responses", body).json()
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert shape(answer["output"]) == [("message", "incomplete", "abcab")]
    assert answer["usage"]["output_tokens"] == answer["max_output_tokens"] == 5


def test_a_call_that_was_cut_is_incomplete_and_a_whole_one_before_it_is_not(
    box: Box, script: Script, call: Call
) -> None:
    told = script(call("a"), call("b" * 50))
    limit = len(call("a")) + len(call("")) + 10 - len("\n</parameter>\n</function>\n</tool_call>")
    events = stream(box, input=told, tools=TOOLS, max_output_tokens=limit)
    assert events[-1]["type"] == "response.incomplete"
    [whole, cut] = shape(events[-1]["response"]["output"])
    assert whole == ("function_call", "completed", '{"query": "a"}')
    assert cut[:2] == ("function_call", "incomplete")
    assert cut[2].startswith('{"query": "b')
    assert joined(events, "function_call_arguments") == whole[2] + cut[2]


def test_reasoning_that_is_cut_is_incomplete(box: Box, script: Script) -> None:
    answer = box.post("/v1/responses", {"input": script("Hmmmmm</think>\n\nyes"), "max_output_tokens": 4}).json()
    assert shape(answer["output"]) == [("reasoning", "incomplete", "Hmmm")]


def test_an_answer_without_a_word_has_no_items(box: Box, script: Script) -> None:
    events = stream(box, input=script())
    assert kinds(events) == ["created", "in_progress", "completed"]
    assert events[-1]["response"]["output"] == []


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="<"), min_size=1, max_size=12)


@settings(max_examples=40)
@given(thought=TEXT, text=TEXT, query=TEXT, cuts=st.lists(st.integers(0, 400), max_size=8))
def test_any_split_of_a_script_gives_one_answer_streamed_and_plain(
    box: Box, script: Script, call: Call, thought: str, text: str, query: str, cuts: list[int]
) -> None:
    raw = f"{thought}</think>\n\n{text}{call(query)}".encode()
    places = sorted({min(cut, len(raw)) for cut in cuts} | {0, len(raw)})
    split = script(*({"hex": raw[start:end].hex()} for start, end in itertools.pairwise(places)))
    whole, plain = (
        shape(box.post("/v1/responses", {"input": told, "tools": TOOLS}).json()["output"])
        for told in (script({"hex": raw.hex()}), split)
    )
    events = stream(box, input=split, tools=TOOLS)
    assert whole == plain == shape(events[-1]["response"]["output"])
    texts = {kind: "".join(item[2] for item in whole if item[0] == kind) for kind, _, _ in whole}
    assert joined(events, "reasoning_text") == texts.get("reasoning", "")
    assert joined(events, "output_text") == texts.get("message", "")
    assert joined(events, "function_call_arguments") == texts["function_call"]
    assert json.loads(texts["function_call"]) == {"query": query}


# -------------------------------------------------------------------------------------------- by hand, and broken


def test_the_host_is_asked_with_the_chat_request_and_the_clients_headers(hand: Any) -> None:
    url, host = hand(ContentDelta("ok"), AnswerEnd("stop", USAGE))
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", default_headers={"X-Who": "me"}) as client:
        answer = client.responses.create(model="any", input="Hi")
    assert answer.output_text == "ok"
    assert answer.model == "by-hand"
    assert answer.usage is not None
    assert answer.usage.input_tokens_details.cached_tokens == 1
    [(body, headers)] = host.asked
    assert body == {"messages": [{"role": "user", "content": "Hi"}], "model": "any"}
    assert headers["x-who"] == "me"


def test_text_behind_a_call_is_a_message_of_its_own(hand: Any) -> None:
    _, events = posted(
        hand,
        CallDelta(0, "{}", "call_1", "look"),
        ContentDelta("Done."),
        AnswerEnd("stop", USAGE),
    )
    assert [kind for kind, _, _ in shape(events[-1]["response"]["output"])] == ["function_call", "message"]


@pytest.mark.parametrize(
    ("arguments", "reason", "status"),
    [("{}", "length", "completed"), ('{"a"', "length", "incomplete"), ('{"a"', "stop", "incomplete")],
)
def test_a_call_is_complete_exactly_when_its_arguments_are(hand: Any, arguments: str, reason: str, status: str) -> None:
    _, events = posted(hand, CallDelta(0, arguments, "call_1", "look"), AnswerEnd(reason, USAGE))
    assert shape(events[-1]["response"]["output"]) == [("function_call", status, arguments)]


def posted(hand: Any, *events: Any) -> tuple[Any, list[dict[str, Any]]]:
    url, host = hand(*events)
    response = httpx2.post(f"{url}/v1/responses", json={"input": "Hi", "stream": True}, timeout=20)
    assert response.status_code == 200
    return host, checked(response.content)


def test_a_stream_that_waits_begins_and_says_that_it_lives(hand: Any) -> None:
    url, _ = hand(Waiting(), ContentDelta("a"), Waiting(), AnswerEnd("stop", USAGE))
    response = httpx2.post(f"{url}/v1/responses", json={"input": "Hi", "stream": True}, timeout=20)
    read = [
        "comment" if isinstance(item, sse.Comment) else item.name.removeprefix("response.")
        for item in sse.read([response.content])
    ]
    assert read[:3] == ["created", "in_progress", "comment"]
    assert read.count("comment") == 2
    assert read[-1] == "completed"


def test_an_answer_that_breaks_fails_behind_what_was_written(hand: Any) -> None:
    host, events = posted(hand, ContentDelta("hal"), RequestError(500, "the engine broke", code="internal_error"))
    assert kinds(events)[-3:] == ["output_text.delta", "error", "failed"]
    assert (events[-2]["code"], events[-2]["message"]) == ("internal_error", "the engine broke")
    final = events[-1]["response"]
    assert (final["status"], final["error"]) == ("failed", {"code": "server_error", "message": "the engine broke"})
    assert shape(final["output"]) == [("message", "incomplete", "hal")]
    assert host.closed == 1


def test_a_fault_of_the_host_ends_the_stream_without_its_words(hand: Any, caplog: pytest.LogCaptureFixture) -> None:
    _, events = posted(hand, ContentDelta("hal"), KeyError("secret"))
    assert events[-1]["type"] == "response.failed"
    assert "secret" not in json.dumps(events)
    assert "secret" in caplog.text


def test_the_servers_own_time_limit_leaves_a_response_incomplete_without_a_reason(hand: Any) -> None:
    _, events = posted(hand, ContentDelta("a"), AnswerEnd("timeout", USAGE))
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": None}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (RequestError(400, "messages holds nothing", "messages"), 400, "invalid_request_error"),
        (RequestError(429, "waited too long", code="queue_timeout", retry_after=10), 429, "rate_limit_error"),
        (RequestError(503, "the queue is full", code="queue_full", retry_after=5), 503, "service_unavailable"),
        (RequestError(500, "broken"), 500, "server_error"),
    ],
)
def test_a_refusal_before_the_first_event_is_a_status_in_openais_shape(
    hand: Any, streamed: bool, error: RequestError, status: int, kind: str
) -> None:
    url, host = hand(error)
    response = httpx2.post(f"{url}/v1/responses", json={"input": "Hi", "stream": streamed}, timeout=20)
    assert response.status_code == status
    body = response.json()["error"]
    assert body["type"] == kind
    assert body["param"] == ("input" if error.param else None)
    assert body["message"] == str(error).replace("messages", "input")
    retry = error.retry_after
    assert response.headers.get("retry-after") == (str(retry) if retry else None)
    assert host.closed == 1
