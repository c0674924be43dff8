"""`POST /v1/messages` over a real socket, as Anthropic's own client sees it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given, settings, strategies as st
from pydantic import BaseModel, TypeAdapter

from tandem.core.plugin import AnswerEnd, CallDelta, ContentDelta, ReasoningDelta, RequestError, Waiting
from tandem.testing import sse
from tandem.testing.box import Box

Script = Callable[..., str]
Call = Callable[[str], str]

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
TOOLS: Any = [
    {
        "name": "look",
        "description": "Looks something up.",
        "input_schema": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    }
]
THINKING: Any = {"type": "enabled", "budget_tokens": 1024}
USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 2,
    "total_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 1},
}


def asking(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "any", "max_tokens": 2000, "messages": [{"role": "user", "content": text}], **fields}


def checked(content: bytes) -> list[dict[str, Any]]:
    """The events, each checked against the SDK's own types."""
    events = []
    for event in sse.events([content]):
        data = event.json()
        assert event.name == data["type"]
        if data["type"] not in ("ping", "error"):
            assert EVENT.validate_python(data).type == data["type"]
        events.append(data)
    return events


def stream(box: Box, text: str, **fields: Any) -> list[dict[str, Any]]:
    response = box.post("/v1/messages", asking(text, stream=True, **fields))
    assert response.status_code == 200, response.text
    return checked(response.content)


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """What the events tell, each run of deltas once."""
    told = [
        event["delta"]["type"]
        if event["type"] == "content_block_delta"
        else f"start {event['content_block']['type']}"
        if event["type"] == "content_block_start"
        else event["type"]
        for event in events
    ]
    return [kind for kind, _ in itertools.groupby(told)]


def blocks(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The content blocks, put together from their deltas."""
    content: list[dict[str, Any]] = []
    inputs: dict[int, str] = {}
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(content)
            content.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            block, delta = content[event["index"]], event["delta"]
            if delta["type"] == "input_json_delta":
                inputs[event["index"]] = inputs.get(event["index"], "") + delta["partial_json"]
            else:
                field = delta["type"].removesuffix("_delta")
                block[field] += delta[field]
    for index, written in inputs.items():
        content[index]["input"] = json.loads(written)
    return content


def without_ids(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in block.items() if key != "id"} for block in content]


def test_an_answer_is_a_complete_message(claude: anthropic.Anthropic, script: Script) -> None:
    answer = claude.messages.create(
        model="any", max_tokens=100, system="Count.", messages=[{"role": "user", "content": script("one ", "two")}]
    )
    Message.model_validate(json.loads(answer.model_dump_json()))
    assert answer.id.startswith("msg_")
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "TandemLLM")
    assert [(block.type, block.text) for block in answer.content if block.type == "text"] == [("text", "one two")]
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    assert answer.usage.output_tokens == len("one two")
    assert answer.usage.input_tokens > 0
    assert answer.usage.cache_read_input_tokens == 0


def test_a_text_is_told_in_the_documented_order(box: Box, script: Script) -> None:
    events = stream(box, script("one ", "two"))
    assert kinds(events) == [
        "message_start",
        "start text",
        "text_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert blocks(events) == [{"type": "text", "text": "one two"}]
    assert events[0]["message"]["content"] == []
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == len("one two")


def test_thinking_text_and_calls_are_blocks_in_the_order_of_writing(box: Box, script: Script, call: Call) -> None:
    told = script("Hm", "m.</think>\n\n", "I look.", call("a"), call("b"))
    events = stream(box, told, tools=TOOLS, thinking=THINKING)
    a_call = ["start tool_use", "input_json_delta", "content_block_stop"]
    assert kinds(events) == [
        "message_start",
        "start thinking",
        "thinking_delta",
        "signature_delta",
        "content_block_stop",
        "start text",
        "text_delta",
        "content_block_stop",
        *a_call,
        *a_call,
        "message_delta",
        "message_stop",
    ]
    whole = box.post("/v1/messages", asking(told, tools=TOOLS, thinking=THINKING)).json()
    assert without_ids(whole["content"]) == without_ids(blocks(events))
    assert without_ids(whole["content"]) == [
        {"type": "thinking", "thinking": "Hmm.", "signature": ""},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "name": "look", "input": {"query": "a"}},
        {"type": "tool_use", "name": "look", "input": {"query": "b"}},
    ]
    assert len({block["id"] for block in whole["content"][2:]}) == 2
    assert whole["stop_reason"] == events[-2]["delta"]["stop_reason"] == "tool_use"
    assert whole["usage"] == events[-2]["usage"]
    assert whole["usage"]["output_tokens_details"]["thinking_tokens"] > 0


def test_the_sdks_stream_helper_follows(claude: anthropic.Anthropic, script: Script, call: Call) -> None:
    told: Any = [{"role": "user", "content": script("Hm.</think>\n\n", "Wait.", call("tea"))}]
    with claude.messages.stream(model="any", max_tokens=2000, messages=told, tools=TOOLS, thinking=THINKING) as events:
        text = "".join(events.text_stream)
        final = events.get_final_message()
    assert text == "Wait."
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
    wanted = final.content[-1]
    assert wanted.type == "tool_use"
    assert wanted.input == {"query": "tea"}
    assert final.usage.input_tokens > 0


def test_parse_gives_the_typed_answer(claude: anthropic.Anthropic, script: Script) -> None:
    class River(BaseModel):
        name: str
        km: int

    answer = claude.messages.parse(
        model="any",
        max_tokens=200,
        messages=[{"role": "user", "content": script('{"name": "Rhine", "km": 1233}')}],
        output_format=River,
    )
    assert answer.parsed_output == River(name="Rhine", km=1233)


def test_an_answer_goes_back_as_it_came_and_the_conversation_goes_on(
    claude: anthropic.Anthropic, script: Script, call: Call
) -> None:
    told: Any = [{"role": "user", "content": script("Hm.</think>\n\n", "I look.", call("a"))}]
    first = claude.messages.create(model="any", max_tokens=2000, messages=told, tools=TOOLS, thinking=THINKING)
    wanted = first.content[-1]
    assert wanted.type == "tool_use"
    told += [
        first.to_param(),
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": wanted.id, "content": "tea"},
                {"type": "text", "text": script("It is ", "tea.")},
            ],
        },
    ]
    second = claude.messages.create(model="any", max_tokens=100, messages=told, tools=TOOLS)
    assert [block.text for block in second.content if block.type == "text"] == ["It is tea."]


def test_a_forced_tool_is_called(claude: anthropic.Anthropic, script: Script, call: Call) -> None:
    answer = claude.messages.create(
        model="any",
        max_tokens=2000,
        messages=[{"role": "user", "content": script(call("tea"))}],
        tools=TOOLS,
        tool_choice={"type": "tool", "name": "look"},
    )
    assert [block.type for block in answer.content] == ["tool_use"]
    assert answer.stop_reason == "tool_use"


@pytest.mark.parametrize(("stops", "named"), [(["wo"], "wo"), (["x", "wo"], "wo")])
def test_a_stop_sequence_ends_the_message_and_is_named_when_there_is_one(
    box: Box, script: Script, stops: list[str], named: str | None
) -> None:
    answer = box.post("/v1/messages", asking(script("one ", "two"), stop_sequences=stops)).json()
    assert answer["content"] == [{"type": "text", "text": "one t"}]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", named)


def test_the_length_limit_ends_a_message(box: Box, script: Script) -> None:
    answer = box.post("/v1/messages", {**asking(script("abc", end=False)), "max_tokens": 5}).json()
    assert (answer["content"], answer["stop_reason"]) == ([{"type": "text", "text": "abcab"}], "max_tokens")


def test_a_call_that_was_cut_shows_what_of_its_input_is_whole(box: Box, script: Script, call: Call) -> None:
    tools = [{"name": "look", "input_schema": {"type": "object", "properties": {"query": {}, "more": {}}}}]
    told = call("a").replace("\n</function>", "\n<parameter=more>\nmany words\n</parameter>\n</function>")
    limit = told.index("words")
    answer = box.post("/v1/messages", {**asking(script(told), tools=tools), "max_tokens": limit}).json()
    assert answer["stop_reason"] == "max_tokens"
    assert without_ids(answer["content"]) == [{"type": "tool_use", "name": "look", "input": {"query": "a"}}]


@pytest.mark.parametrize("thinking", [None, {"type": "disabled"}])
def test_who_did_not_ask_for_thinking_gets_a_model_that_does_not_think(box: Box, script: Script, thinking: Any) -> None:
    """The prompt closes the reasoning, so all that this model writes is answer."""
    answer = box.post("/v1/messages", asking(script("Hm.</think>\n\nyes"), thinking=thinking)).json()
    assert [block["type"] for block in answer["content"]] == ["text"]
    assert answer["usage"]["output_tokens_details"]["thinking_tokens"] == 0


def test_a_route_that_leaves_thinking_to_the_template_sends_it(script: Script) -> None:
    with Box(formats=["qwen_xml"], routes={"messages": {"thinking": "auto"}}) as box:
        answer = box.post("/v1/messages", asking(script("Hm.</think>\n\nyes"))).json()
    assert [block["type"] for block in answer["content"]] == ["thinking", "text"]


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="<"), min_size=1, max_size=12)


@settings(max_examples=40)
@given(thought=TEXT, text=TEXT, query=TEXT, cuts=st.lists(st.integers(0, 400), max_size=8))
def test_any_split_of_a_script_gives_one_answer_streamed_and_plain(
    box: Box, script: Script, call: Call, thought: str, text: str, query: str, cuts: list[int]
) -> None:
    raw = f"{thought}</think>\n\n{text}{call(query)}".encode()
    places = sorted({min(cut, len(raw)) for cut in cuts} | {0, len(raw)})
    split = script(*({"hex": raw[start:end].hex()} for start, end in itertools.pairwise(places)))
    asked = {"tools": TOOLS, "thinking": THINKING}
    whole, plain = (
        without_ids(box.post("/v1/messages", asking(told, **asked)).json()["content"])
        for told in (script({"hex": raw.hex()}), split)
    )
    assert whole == plain == without_ids(blocks(stream(box, split, **asked)))
    assert whole[-1] == {"type": "tool_use", "name": "look", "input": {"query": query}}


# -------------------------------------------------------------------------------------------- by hand, and broken


def posted(hand: Any, *events: Any, **fields: Any) -> tuple[Any, list[dict[str, Any]]]:
    url, host = hand(*events)
    response = httpx2.post(f"{url}/v1/messages", json=asking("Hi", stream=True, **fields), timeout=20)
    assert response.status_code == 200
    return host, checked(response.content)


def test_waiting_is_a_ping_and_never_comes_before_the_message(hand: Any) -> None:
    _, events = posted(hand, Waiting(), ContentDelta("a"), Waiting(), AnswerEnd("stop", USAGE))
    assert kinds(events) == [
        "message_start",
        "ping",
        "start text",
        "text_delta",
        "ping",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_cached_tokens_are_counted_apart(hand: Any) -> None:
    _, events = posted(hand, AnswerEnd("stop", USAGE))
    usage = events[-2]["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (1, 4, 2)


@pytest.mark.parametrize(
    ("thinking", "kept"),
    [
        ({"type": "enabled", "budget_tokens": 5}, [{"type": "thinking", "thinking": "Hm.", "signature": ""}]),
        ({"type": "adaptive", "display": "omitted"}, [{"type": "thinking", "thinking": "", "signature": ""}]),
        ({"type": "disabled"}, []),
        (None, []),
    ],
)
def test_thinking_is_shown_omitted_or_hidden_as_asked(hand: Any, thinking: Any, kept: Any) -> None:
    written = (ReasoningDelta("H"), ReasoningDelta("m."), ContentDelta("yes"), AnswerEnd("stop", USAGE))
    _, events = posted(hand, *written, thinking=thinking)
    assert blocks(events) == [*kept, {"type": "text", "text": "yes"}]
    url, _ = hand(*written)
    plain = httpx2.post(f"{url}/v1/messages", json=asking("Hi", thinking=thinking), timeout=20).json()
    assert plain["content"] == blocks(events)


def test_text_behind_a_call_is_a_block_of_its_own(hand: Any) -> None:
    _, events = posted(
        hand, CallDelta(0, "{}", "call_1", "look"), ContentDelta("Done."), AnswerEnd("tool_calls", USAGE)
    )
    assert [block["type"] for block in blocks(events)] == ["tool_use", "text"]
    assert blocks(events)[0]["id"] == "call_1"


def test_the_servers_own_time_limit_is_told_as_a_limit(hand: Any) -> None:
    _, events = posted(hand, ContentDelta("a"), AnswerEnd("timeout", USAGE))
    assert events[-2]["delta"]["stop_reason"] == "max_tokens"


def test_an_answer_that_breaks_ends_in_an_error_that_the_sdk_raises(hand: Any) -> None:
    host, events = posted(hand, ContentDelta("hal"), RequestError(503, "the server stopped", code="draining"))
    assert events[-1] == {"type": "error", "error": {"type": "overloaded_error", "message": "the server stopped"}}
    assert host.closed == 1
    url, _ = hand(ContentDelta("hal"), RequestError(500, "broken"))
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        told = client.messages.create(**asking("Hi", stream=True))
        with pytest.raises(anthropic.APIStatusError, match="broken"):
            list(told)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (RequestError(400, "stop takes at most 16 strings", "stop"), 400, "invalid_request_error"),
        (RequestError(413, "too large"), 413, "request_too_large"),
        (RequestError(429, "waited too long", retry_after=10), 429, "rate_limit_error"),
        (RequestError(503, "the queue is full", retry_after=5), 503, "overloaded_error"),
        (RequestError(500, "broken"), 500, "api_error"),
    ],
)
def test_a_refusal_before_the_first_event_is_a_status_in_anthropics_shape(
    hand: Any, streamed: bool, error: RequestError, status: int, kind: str
) -> None:
    url, _ = hand(error)
    asked = asking("Hi", stream=streamed, stop_sequences=["x"])
    response = httpx2.post(f"{url}/v1/messages", json=asked, timeout=20)
    assert response.status_code == status
    message = str(error).replace("stop takes", "stop_sequences takes")
    assert response.json() == {"type": "error", "error": {"type": kind, "message": message}}
    retry = error.retry_after
    assert response.headers.get("retry-after") == (str(retry) if retry else None)


def test_the_sdk_raises_its_own_kind_of_error_with_the_fields_name(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="temperature") as caught:
        claude.messages.create(**asking("Hi"), extra_body={"temperature": 9})
    assert caught.value.type == "invalid_request_error"


def test_a_thread_is_refused_with_the_code_that_the_sdk_knows(box: Box) -> None:
    body = {"max_tokens": 50, "messages": [{"role": "user", "content": "hi"}], "thread": {"type": "create"}}
    answer = box.post("/v1/messages", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
