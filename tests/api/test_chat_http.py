"""Chat completions over a real socket, as OpenAI's own client sees them."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tandem.api.service import INLINE_CHARACTERS
from tandem.testing import sse
from tandem.testing.box import Box

HELLO: Any = [{"role": "user", "content": "Hello"}]
REPLY = "Hello from the scripted model. Send a JSON object with a script and I will write exactly that."
Script = Callable[..., Any]


def stream(box: Box, **body: Any) -> list[Any]:
    """The stream's events as JSON, without the [DONE] at its end."""
    response = box.post("/v1/chat/completions", {"stream": True, **body})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    read = sse.events([response.content])
    assert read[-1].done
    return [event.json() for event in read[:-1]]


def test_an_answer_has_openais_fields(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(model="any-name", messages=HELLO)
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model) == ("chat.completion", "TandemLLM")
    assert answer.system_fingerprint
    assert answer.system_fingerprint.startswith("fp_")
    [choice] = answer.choices
    assert (choice.index, choice.finish_reason, choice.message.role) == (0, "stop", "assistant")
    assert choice.message.content == REPLY
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(REPLY)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + len(REPLY)


def test_the_first_delta_says_who_speaks_and_the_last_why_it_ends(box: Box, script: Script) -> None:
    first, *middle, last = stream(box, messages=script("ab", "c"))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["delta"] for chunk in middle] == [{"content": "a"}, {"content": "b"}, {"content": "c"}]
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in [first, *middle])
    assert last["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in [first, *middle, last]}) == 1
    assert first["object"] == "chat.completion.chunk"


@pytest.mark.parametrize(("include", "carriers"), [(None, ["finish"]), (True, ["own"]), (False, [])])
def test_exactly_one_chunk_carries_usage(box: Box, script: Script, include: bool | None, carriers: list[str]) -> None:
    options = {} if include is None else {"stream_options": {"include_usage": include}}
    chunks = stream(box, messages=script("abc"), **options)
    carrying = ["own" if not chunk["choices"] else "finish" for chunk in chunks if "usage" in chunk]
    assert carrying == carriers
    assert chunks[-1]["choices"] == ([] if include else chunks[-1]["choices"])
    if carriers:
        assert chunks[-1]["usage"]["completion_tokens"] == 3


def test_timings_hold_the_counts_of_the_answer(box: Box, script: Script) -> None:
    plain = box.post("/v1/chat/completions", {"messages": script("abcd", "ef")}).json()
    streamed = stream(box, messages=script("abcd", "ef"))[-1]
    for answer in (plain, streamed):
        timings, usage = answer["timings"], answer["usage"]
        assert timings["predicted_n"] == usage["completion_tokens"] == 6
        assert timings["prompt_n"] + timings["cache_n"] == usage["prompt_tokens"]
        assert timings["blocks"] == 2
        assert timings["tokens_per_block"] == 3
        assert timings["draft_n"] == timings["draft_n_accepted"] == 4
        assert timings["ttft_ms"] == pytest.approx(timings["queue_ms"] + timings["prompt_ms"], abs=0.02)
        assert 0 < timings["predicted_ms"] < timings["total_ms"]
        assert timings["cache_source"] == "none"


def test_the_length_limit_ends_an_answer(sdk: openai.OpenAI, script: Script) -> None:
    answer = sdk.chat.completions.create(model="", messages=script("abc", end=False), max_completion_tokens=7)
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content == "abcabca"


def test_a_stop_string_ends_an_answer_and_is_not_sent(box: Box, sdk: openai.OpenAI, script: Script) -> None:
    told = script("one ", "two ", "three")
    answer = sdk.chat.completions.create(model="", messages=told, stop=["x", "wo t"])
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("one t", "stop")
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in stream(box, messages=told, stop="wo t"))
    assert text == "one t"


def test_several_choices_come_in_order_and_count_the_prompt_once(sdk: openai.OpenAI, script: Script) -> None:
    one = sdk.chat.completions.create(model="", messages=script("ab", "c"))
    many = sdk.chat.completions.create(model="", messages=script("ab", "c"), n=16)
    assert [choice.index for choice in many.choices] == list(range(16))
    assert {choice.message.content for choice in many.choices} == {"abc"}
    assert one.usage is not None
    assert many.usage is not None
    assert many.usage.prompt_tokens == one.usage.prompt_tokens
    assert many.usage.completion_tokens == 16 * 3


def test_a_seed_gives_the_same_choices_again_and_each_its_own(sdk: openai.OpenAI, script: Script) -> None:
    # A bias that makes the scripted letters and others equally likely leaves the noise to decide.
    drawn: dict[str, Any] = {"temperature": 2, "logit_bias": {"97": -50}, "max_tokens": 12, "n": 4, "seed": 5}
    told = script("aaaaaaaaaaaa")
    first, again = (sdk.chat.completions.create(model="", messages=told, **drawn) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in again.choices]
    assert len(set(texts)) > 1
    alone = sdk.chat.completions.create(model="", messages=told, **{**drawn, "n": 1})
    assert alone.choices[0].message.content == texts[0]


def test_logprobs_stand_beside_every_token(sdk: openai.OpenAI, script: Script) -> None:
    answer = sdk.chat.completions.create(model="", messages=script("hé", "!"), logprobs=True, top_logprobs=3)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [entry.token for entry in logprobs.content] == ["h", "\\xc3", "\\xa9", "!"]
    assert bytes(byte for entry in logprobs.content for byte in entry.bytes or ()).decode() == "hé!"
    for entry in logprobs.content:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token  # the script is what the model finds likeliest
        assert math.isclose(entry.top_logprobs[0].logprob, entry.logprob, abs_tol=1e-5)


def test_streamed_logprobs_are_those_of_the_plain_answer(box: Box, script: Script) -> None:
    ask = {"messages": script("hé", "!"), "logprobs": True, "top_logprobs": 1}
    plain = box.post("/v1/chat/completions", ask).json()["choices"][0]["logprobs"]["content"]
    chunks = [chunk["choices"][0] for chunk in stream(box, **ask)]
    streamed = [entry for choice in chunks if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in plain]
    # A character's chunk carries the log-probabilities of all its tokens.
    assert [len(c["logprobs"]["content"]) for c in chunks if c["delta"].get("content")] == [1, 2, 1]


def test_no_logprobs_without_asking(box: Box, script: Script) -> None:
    assert box.post("/v1/chat/completions", {"messages": script("a")}).json()["choices"][0]["logprobs"] is None


def test_line_ends_of_unicode_do_not_cut_an_event(box: Box, script: Script) -> None:
    text = "a\u2028b\u2029c\x85d\r\ne"
    response = box.post("/v1/chat/completions", {"messages": script(text), "stream": True})
    lines = [line for line in response.content.decode().splitlines() if line]
    assert all(line.startswith("data: ") for line in lines)
    chunks = [json.loads(line[6:]) for line in lines[:-1]]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == text


def test_tools_are_given_to_the_template(box: Box) -> None:
    tool = {"type": "function", "function": {"name": "look"}}
    counts = [
        box.post("/v1/chat/completions", {"messages": HELLO, **fields}).json()["usage"]["prompt_tokens"]
        for fields in ({}, {"tools": [tool]}, {"tools": [tool], "tool_choice": "none"})
    ]
    assert counts[1] > counts[0] == counts[2]


def test_the_clients_switches_reach_the_template(box: Box) -> None:
    fields = {"chat_template_kwargs": {"add_generation_prompt": False}}
    whole, without = (
        box.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 1, **more}).json()["usage"]["prompt_tokens"]
        for more in ({}, fields)
    )
    assert without == whole - 1


def test_a_long_prompt_is_read_on_a_thread_of_its_own_to_the_same_ids(box: Box) -> None:
    text = "x" * (INLINE_CHARACTERS + 1)
    answer = box.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}).json()
    assert answer["usage"]["prompt_tokens"] == len(text) + 3


def test_every_answer_has_its_own_id(box: Box, script: Script) -> None:
    ids = {box.post("/v1/chat/completions", {"messages": script("a")}).json()["id"] for _ in range(20)}
    assert len(ids) == 20
    assert {len(name) for name in ids} == {len("chatcmpl-") + 24}


def test_the_openai_client_streams(sdk: openai.OpenAI, script: Script) -> None:
    chunks = list(
        sdk.chat.completions.create(
            model="", messages=script("hello ", "world"), stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "hello world"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 11


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    # Code points that a script can hold: no surrogates, and not the byte-for-byte special tokens' names.
    text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 160), max_size=6),
)
def test_any_split_of_any_text_streams_back_as_the_plain_answer(
    box: Box, script: Script, text: str, cuts: list[int]
) -> None:
    raw = text.encode()
    places = sorted({min(cut, len(raw)) for cut in cuts} | {0, len(raw)})
    entries = [{"hex": raw[start:end].hex()} for start, end in itertools.pairwise(places)]
    told = script(*entries)
    plain = box.post("/v1/chat/completions", {"messages": told}).json()["choices"][0]
    chunks = stream(box, messages=told)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == text
    assert plain["message"]["content"] == text
    assert chunks[-1]["choices"][0]["finish_reason"] == plain["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["completion_tokens"] == len(raw)
