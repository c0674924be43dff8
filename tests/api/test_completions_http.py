"""Plain completions over a real socket."""

from __future__ import annotations

import json
from typing import Any

import openai

from tandem.testing import sse
from tandem.testing.box import Box


def scripted(*entries: Any) -> str:
    return json.dumps({"script": entries})


def test_a_completion_has_openais_fields(sdk: openai.OpenAI) -> None:
    answer = sdk.completions.create(model="any", prompt=scripted("abc"), max_tokens=10)
    assert answer.id.startswith("cmpl-")
    assert (answer.object, answer.model) == ("text_completion", "TandemLLM")
    [choice] = answer.choices
    assert (choice.text, choice.finish_reason, choice.index) == ("abc", "stop", 0)


def test_token_ids_and_their_text_are_the_same_prompt(sdk: openai.OpenAI) -> None:
    prompt = scripted("abc")
    by_text = sdk.completions.create(model="", prompt=prompt)
    by_ids = sdk.completions.create(model="", prompt=list(prompt.encode()))
    assert by_ids.choices[0].text == by_text.choices[0].text == "abc"
    assert by_ids.usage == by_text.usage


def test_a_batch_gives_its_choices_in_order_and_counts_every_prompt(sdk: openai.OpenAI) -> None:
    prompts = [scripted("first"), scripted("2nd"), scripted("third!")]
    answer = sdk.completions.create(model="", prompt=prompts, n=2)
    assert [choice.text for choice in answer.choices] == ["first", "first", "2nd", "2nd", "third!", "third!"]
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == sum(map(len, prompts))
    assert answer.usage.completion_tokens == 2 * (5 + 3 + 6)


def test_a_batch_larger_than_the_queue_is_served(sdk: openai.OpenAI) -> None:
    prompts = [scripted(str(number)) for number in range(30)]
    answer = sdk.completions.create(model="", prompt=prompts)
    assert [choice.text for choice in answer.choices] == [str(number) for number in range(30)]


def test_a_streamed_batch_runs_through_its_choices(box: Box) -> None:
    body = {"prompt": [scripted("ab"), scripted("c")], "stream": True}
    chunks = [event.json() for event in sse.events([box.post("/v1/completions", body).content])[:-1]]
    texts = [(chunk["choices"][0]["index"], chunk["choices"][0]["text"]) for chunk in chunks]
    assert texts == [(0, "a"), (0, "b"), (0, ""), (1, "c"), (1, "")]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "stop", None, "stop"]
    assert [("usage" in chunk) for chunk in chunks] == [False, False, False, False, True]
    assert chunks[-1]["usage"]["completion_tokens"] == 3
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}


def test_logprobs_in_the_older_shape(sdk: openai.OpenAI, box: Box) -> None:
    prompt = scripted("aé", "b")
    logprobs = sdk.completions.create(model="", prompt=prompt, logprobs=2).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["a", "\\xc3", "\\xa9", "b"]
    assert logprobs.text_offset == [0, 1, 1, 2]
    assert logprobs.token_logprobs is not None
    assert logprobs.top_logprobs is not None
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert top[token] == logprob
        assert len(top) == 2
    body = {"prompt": prompt, "logprobs": 2, "stream": True}
    chunks = [event.json()["choices"][0] for event in sse.events([box.post("/v1/completions", body).content])[:-1]]
    offsets = [offset for chunk in chunks if chunk["logprobs"] for offset in chunk["logprobs"]["text_offset"]]
    assert offsets == logprobs.text_offset


def test_logprobs_of_the_drawn_tokens_alone(sdk: openai.OpenAI) -> None:
    logprobs = sdk.completions.create(model="", prompt=scripted("ab"), logprobs=0).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["a", "b"]
    assert logprobs.top_logprobs == [None, None]
