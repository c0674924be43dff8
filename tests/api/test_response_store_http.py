"""The response store over HTTP: with it and without it a client reads the same, streamed or whole."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tandem.core.engine.ledger import read
from tandem.testing.box import Box
from tandem.testing.server import until

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
CALL = "<tool_call>\n<function=write>\n<parameter=path>\na.md\n</parameter>\n</function>\n</tool_call>"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "write",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
DOCUMENT = {"type": "json_schema", "json_schema": {"name": "d", "schema": SCHEMA}}
FORMATS = {"qwen_xml": {}, "hermes_json": {}}


@pytest.fixture(scope="module")
def known() -> Iterator[Box]:
    with Box(caches={"resident": {}, "response": {}}, formats=FORMATS, clients={"curl": {}, "plain": {}}) as box:
        yield box


@pytest.fixture(scope="module")
def fresh() -> Iterator[Box]:
    with Box(formats=FORMATS, clients={"curl": {}, "plain": {}}) as box:
        yield box


def script(*entries: Any, end: bool = True, **fields: Any) -> dict[str, Any]:
    said = json.dumps({"script": entries, "end": end})
    return {"messages": [{"role": "user", "content": said}], **fields}


CASES: dict[str, dict[str, Any]] = {
    "text": script("Hello, ", "you. ", "é\U0001f600 done."),
    "a reply": {"messages": [{"role": "user", "content": "hello"}]},
    "bytes that are no text": script({"hex": "f09f"}, " and ", {"hex": "ff"}),
    "nothing": script(),
    "thinking": script("hm, ", "so\n</think>\n\n", "Yes."),
    "thinking in a field": script("hm\n</think>\n\n", "Yes.", reasoning_format="reasoning_content"),
    "thinking that is hidden": script("hm\n</think>\n\n", "Yes.", reasoning_format="hidden"),
    "a budget": script("thinking " * 40, "</think>\n\nYes", max_reasoning_tokens=20, max_tokens=300),
    "a limit": script("one two three four", max_tokens=9),
    "a limit inside the thinking": script("a long thought</think>\n\n", "x", max_tokens=5),
    "without an end": script("again ", end=False, max_tokens=50),
    "a stop string": script("one ", "two ", "three", stop=["two"]),
    "stop strings that are not there": script("one ", "two ", stop=["four", "thr"]),
    "a stop string in the thinking": script("X in it</think>\n\n", "answer X more", stop=["X"]),
    "a call": script("I write.\n\n", CALL, tools=TOOLS),
    "two calls": script(CALL, "\n", CALL, tools=TOOLS),
    "one call of two": script(CALL, "\n", CALL, tools=TOOLS, parallel_tool_calls=False),
    "a call that is cut": script(CALL, tools=TOOLS, max_tokens=60),
    "a call that nobody offered": script("Hm. ", CALL),
    "a forced call": script("no", tools=TOOLS, tool_choice="required", max_tokens=200),
    "a document": script('{"n": 17}', response_format=DOCUMENT),
    "a document that the model would not write": script("no", response_format=DOCUMENT, max_tokens=60),
    "a call or a document": script(CALL, tools=TOOLS, response_format=DOCUMENT),
    "a choice": script("maybe", structured_outputs={"choice": ["yes", "no"]}),
    "thinking and a document": script("hm\n</think>\n\n", '{"n": 1}', response_format=DOCUMENT),
    "bias": script("abc", logit_bias={"98": -100}, max_tokens=20),
    "penalties": script("aaaa", end=False, frequency_penalty=2.0, presence_penalty=1.0, max_tokens=40),
    "repetition": script("aaaa", repetition_penalty=1.5, no_repeat_ngram_size=2, max_tokens=20),
    "a seed": script("same", seed=7),
    "usage apart": script("apart", stream_options={"include_usage": True}, stream=True),
}


def bodies(box: Box, path: str, body: Mapping[str, Any], stream: bool) -> list[Any]:
    """The answer as the client reads it: one object, or every event's data; and the finish of it."""
    body = {**body, "stream": stream}
    if not stream:
        body.pop("stream_options", None)
        answer = box.post(path, body)
        assert answer.status_code == 200, answer.text
        return [answer.json()]
    with box.streaming(path, body) as (response, data):
        assert response.status_code == 200
        return [json.loads(text) if text != "[DONE]" else text for text in data]


def same_for_all(sent: list[Any]) -> list[Any]:
    """Without what differs from one answer to the next: ids, times, and where the prompt came from."""
    text = re.sub(r'"(chatcmpl|cmpl|call)[-_][0-9a-f]{24}"', '"id"', json.dumps(sent))
    out = json.loads(text)
    for body in out:
        if isinstance(body, dict):
            for name in ("created", "timings", "metrics"):
                body.pop(name, None)
            if body.get("usage"):
                body["usage"]["prompt_tokens_details"].pop("cached_tokens")
    return list(out)


def told(sent: list[Any], name: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = [body[name] for body in sent if isinstance(body, dict) and body.get(name)]
    return found[-1]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("case", CASES)
def test_a_client_reads_the_same_with_and_without_it(known: Box, fresh: Box, case: str, stream: bool) -> None:
    known.post("/v1/cache/clear")
    wanted = same_for_all(bodies(fresh, CHAT, CASES[case], stream))
    first = bodies(known, CHAT, CASES[case], stream)
    again = bodies(known, CHAT, CASES[case], stream)
    assert same_for_all(first) == wanted
    assert same_for_all(again) == wanted
    assert told(first, "timings")["cache_source"] != "response"
    assert told(again, "timings")["cache_source"] == "response"
    usage = told(again, "usage")
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"]
    assert told(again, "timings")["prompt_n"] == told(again, "timings")["blocks"] == 0


def test_a_streamed_answer_serves_a_whole_one_and_other_tools_words(known: Box, fresh: Box) -> None:
    known.post("/v1/cache/clear")
    bodies(known, CHAT, CASES["two calls"], True)
    for case in ("two calls", "one call of two"):
        again = bodies(known, CHAT, CASES[case], False)
        assert told(again, "timings")["cache_source"] == "response"
        assert same_for_all(again) == same_for_all(bodies(fresh, CHAT, CASES[case], False))
    ids = [bodies(known, CHAT, CASES["two calls"], False)[0]["choices"][0]["message"]["tool_calls"] for _ in "ab"]
    assert {call["id"] for call in ids[0]}.isdisjoint(call["id"] for call in ids[1])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_plain_completions_too_prompt_by_prompt(known: Box, fresh: Box, stream: bool) -> None:
    known.post("/v1/cache/clear")
    body = {"prompt": ["tell me", "tell him"], "max_tokens": 20, "stop": ["me"]}
    bodies(known, COMPLETIONS, {**body, "prompt": "tell me"}, stream)
    mixed = bodies(known, COMPLETIONS, body, stream)
    assert same_for_all(mixed) == same_for_all(bodies(fresh, COMPLETIONS, body, stream))
    assert told(mixed, "usage")["prompt_tokens_details"]["cached_tokens"] >= len("tell me")
    again = bodies(known, COMPLETIONS, body, stream)
    usage = told(again, "usage")
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"]


HELLO = script("one ", "two ", "three")
OTHERS: dict[str, dict[str, Any]] = {
    "another word": script("one ", "two ", "four"),
    "sampled": {**HELLO, "temperature": 0.7, "seed": 1},
    "with logprobs": {**HELLO, "logprobs": True},
    "several choices": {**HELLO, "n": 2},
    "no cache": {**HELLO, "cache_prompt": False},
    "a penalty": {**HELLO, "presence_penalty": 0.1},
    "a bias": {**HELLO, "logit_bias": {"120": -1}},
    "a document": {**HELLO, "response_format": {"type": "json_object"}, "max_tokens": 30},
    "tools": {**HELLO, "tools": TOOLS},
    "thinking": {**HELLO, "enable_thinking": True},
    "a system prompt": {"messages": [{"role": "system", "content": "s"}, *HELLO["messages"]]},
}


@pytest.mark.parametrize("case", OTHERS)
def test_another_request_is_answered_by_the_model(known: Box, fresh: Box, case: str) -> None:
    known.post("/v1/cache/clear")
    bodies(known, CHAT, HELLO, False)
    kept = known.get("/v1/cache/stats").json()["tiers"]["response"]["entries"]
    answer = bodies(known, CHAT, OTHERS[case], False)
    assert "response" not in json.dumps(answer[0].get("timings", {}))
    assert same_for_all(answer) == same_for_all(bodies(fresh, CHAT, OTHERS[case], False))
    again = bodies(known, CHAT, OTHERS[case], False)
    out = case in ("sampled", "with logprobs", "several choices", "no cache")
    assert ("response" in json.dumps(again[0].get("timings", {}))) is not out
    now = known.get("/v1/cache/stats").json()["tiers"]["response"]["entries"]
    assert now == kept + (not out)


@pytest.mark.parametrize("fields", [{"store": False}, {"cache_prompt": False}], ids=["store", "cache_prompt"])
def test_an_answer_that_is_not_to_be_kept_is_not(known: Box, fields: dict[str, Any]) -> None:
    known.post("/v1/cache/clear")
    bodies(known, CHAT, {**HELLO, **fields}, False)
    assert known.get("/v1/cache/stats").json()["tiers"]["response"]["entries"] == 0
    assert told(bodies(known, CHAT, HELLO, False), "timings")["cache_source"] != "response"


def test_a_shorter_answer_and_another_stop_string_are_served_where_the_tokens_suffice(known: Box, fresh: Box) -> None:
    known.post("/v1/cache/clear")
    bodies(known, CHAT, {**HELLO, "max_tokens": 9}, False)
    for fields, source in (
        ({"max_tokens": 5}, "response"),
        ({"max_tokens": 9, "stop": ["wo"]}, "response"),
        ({"max_tokens": 10}, "resident"),
        ({"max_tokens": 10}, "response"),
        ({"max_tokens": 99}, "resident"),
        ({"max_tokens": 10}, "response"),
        ({"max_tokens": 999, "stop": ["thr"]}, "response"),
    ):
        answer = bodies(known, CHAT, {**HELLO, **fields}, False)
        assert told(answer, "timings")["cache_source"] == source, fields
        assert same_for_all(answer) == same_for_all(bodies(fresh, CHAT, {**HELLO, **fields}, False))


def test_another_picture_is_another_request() -> None:
    def shows(colour: str) -> dict[str, Any]:
        data = BytesIO()
        Image.new("RGB", (256, 256), colour).save(data, "PNG")
        url = "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
        said = {"type": "text", "text": json.dumps({"script": [{"picture": 0}]})}
        return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}, said]}]}

    with Box(model={"plugin": "scripted", "vision": True}, caches={"response": {}}) as box:
        red, blue = (bodies(box, CHAT, shows(colour), False) for colour in ("#c00000", "#0000c0"))
        assert "#c00000" in json.dumps(red)
        assert "#0000c0" in json.dumps(blue)
        again = bodies(box, CHAT, shows("#c00000"), False)
        assert same_for_all(again) == same_for_all(red)
        assert told(again, "timings")["cache_source"] == "response"


def test_the_stats_the_ledger_and_the_metrics_tell_of_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Box(caches={"response": {"entries": 5}}, server={"ledger": str(path)}) as box:
        first, again = box.chat("hello"), box.chat("hello")
        assert again.text == first.text
        stats = box.get("/v1/cache/stats").json()["tiers"]["response"]
        assert (stats["entries"], stats["hits"], stats["misses"]) == (1, 1, 1)
        assert stats["bytes"] > 0
        assert box.get("/health").json()["caches"]["response"] == stats
        assert 'tandem_cache_hits_total{cache="response"} 1.0' in box.get("/metrics").text
        cleared = box.post("/v1/cache/clear").json()
        assert cleared["before"]["response"] == stats
        assert box.get("/v1/cache/stats").json()["tiers"]["response"]["entries"] == 0
        assert box.chat("hello").timings["cache_source"] == "none"
        until(lambda: len(read(path)) == 3)
    rows = read(path)
    assert [row["cache_source"] for row in rows] == ["none", "response", "none"]
    assert rows[1]["cached_tokens"] == rows[1]["prompt_tokens"] > 0
    assert (rows[1]["forwarded_tokens"], rows[1]["rounds"], rows[1]["prefill_ms"]) == (0, 0, 0.0)
    assert rows[1]["completion_tokens"] == rows[0]["completion_tokens"]


def test_a_turn_that_was_told_again_is_replayed_in_the_next_prompt(known: Box) -> None:
    """The second answer has call ids of its own, and they name a turn like the first's."""
    known.post("/v1/cache/clear")
    asked = {"role": "user", "content": json.dumps({"turns": [[CALL], ["end"]]})}
    for _ in range(2):
        body = {"messages": [asked], "tools": TOOLS}
        [answer] = bodies(known, CHAT, body, False)
        message = answer["choices"][0]["message"]
        [call] = message["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": "ok"}
        following = known.post(CHAT, {**body, "messages": [asked, {**message, "content": ""}, result]})
        assert following.headers["x-tandem-replayed-turns"] == "1"
    assert answer["timings"]["cache_source"] == "response"
