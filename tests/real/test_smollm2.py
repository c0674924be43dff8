"""The real model through the whole engine: drafts and neighbours change no token of its text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import torch

from tandem.core.engine.exactness import TIE_NATS, Case, Outcome, verify
from tandem.core.engine.options import SECTIONS
from tandem.core.engine.request import Sampling
from tandem.core.kernel import Platform, assemble, load_manifest
from tandem.testing.box import Box

COPY = "def area(width, height):\n    return width * height\n\n\ndef volume(width, height, depth):\n    return width *"
PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a small",
    "1 2 3 4 5 6 7 1 2 3 4 5 6 7 1 2 3",
    COPY,
    COPY + " height * depth\n\n\ndef area(width, height):\n    return",
    'users = ["ann", "bob", "cem"]\nfor user in ["ann", "bob",',
    "Roses are red, violets are",
    "Q: What is 2 + 2?\nA: 4\nQ: What is 3 + 3?\nA: 6\nQ: What is 4 + 4?\nA:",
    '{"name": "Ada", "age": 36}\n{"name": "Alan", "age": 41}\n{"name": "Grace", "age":',
    "- apples\n- pears\n- plums\n- apples\n- pears\n-",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "To be, or not to be, that is the",
    "import numpy as np\nimport pandas as",
    "Dear Sir or Madam,\n\nI am writing to",
    "In the beginning God created the heaven and the",
    "SELECT name, age FROM users WHERE age >",
    "Monday, Tuesday, Wednesday, Thursday,",
    "<html>\n<head>\n<title>Home</title>\n</head>\n<body>\n<h1>",
    "Water boils at one hundred degrees",
    "la la la la la la la la la",
]


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    manifest = {"tandem": 1, "extends": "default", "model": {"dtype": "float32", "weights": "dense"}}
    made = assemble(load_manifest(manifest, sections=SECTIONS))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield made
    torch.set_num_threads(before)
    made.close()


WAYS = ("lookup", "two at once")


@pytest.fixture(scope="module")
def outcomes(platform: Platform) -> dict[tuple[str, str], Outcome]:
    """All prompts greedily, a few of them sampled."""
    model = platform.model
    assert model is not None
    prompts = [model.tokenizer.encode(text) for text in PROMPTS]
    seeded = Case("seeded", Sampling(temperature=0.8, top_p=0.95, seed=7, repetition_penalty=1.05, logprobs=2))
    drafters = platform.build("drafters", model)
    found = [
        *verify(model, prompts, drafters, max_tokens=6, cases=[Case("greedy")], only=WAYS),
        *verify(model, prompts[2:6], drafters, max_tokens=6, cases=[seeded], only=WAYS),
    ]
    return {(outcome.way, outcome.case): outcome for outcome in found}


@pytest.mark.parametrize(("case", "prompts"), [("greedy", 20), ("seeded", 4)])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_writes_the_text_of_plain_decoding(
    outcomes: dict[tuple[str, str], Outcome], way: str, case: str, prompts: int
) -> None:
    outcome = outcomes[way, case]
    assert outcome.prompts == prompts
    assert outcome.passed(TIE_NATS), outcome
    assert outcome.identical >= prompts - 2, "near ties are rare in float32"


def test_lookup_saves_passes_on_text_that_repeats(outcomes: dict[tuple[str, str], Outcome]) -> None:
    lookup = outcomes["lookup", "greedy"]
    assert lookup.rounds < 0.9 * lookup.tokens


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with Box("default") as made:
        yield made


def test_the_shipped_default_answers_a_question(box: Box) -> None:
    answer = box.stream("What is the capital of France? Answer in one sentence.", max_tokens=40)
    answer.assert_status(200)
    assert "Paris" in answer.text
    answer.assert_finish("stop")
    assert answer.reasoning == ""
    assert answer.usage["completion_tokens_details"]["reasoning_tokens"] == 0


@pytest.mark.parametrize("model", [{}, {"dtype": "float32", "weights": "dense"}], ids=["packed", "float32"])
def test_a_seeded_answer_is_the_same_again_from_a_cached_prompt(model: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"temperature": 0.9, "seed": 11, "max_tokens": 24}
    with Box({"tandem": 1, "extends": "default", "model": model}) as box:
        first = box.chat("Write a line about rain.", **fields)
        again = box.chat("Write a line about rain.", **fields)
        assert again.text == first.text
        assert again.usage["prompt_tokens_details"]["cached_tokens"] > 0
        assert box.chat("Write a line about rain.", **{**fields, "seed": 12}).text != first.text


def test_a_json_schema_holds_a_real_model(box: Box) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer"}},
        "required": ["city", "people"],
        "additionalProperties": False,
    }
    answer = box.chat(
        "Name a big city and how many people live there, as JSON.",
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema}},
        max_tokens=200,
    )
    answer.assert_finish("stop")
    jsonschema.validate(json.loads(answer.text), schema)


def test_tools_offered_to_a_model_without_a_notation_leave_its_answers_alone(box: Box) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    answer = box.chat("Say hello.", tools=[tool], max_tokens=20)
    answer.assert_status(200)
    assert answer.text
    refused = box.chat("Say hello.", tools=[tool], tool_choice="required", max_tokens=20)
    assert refused.status == 400
    assert refused.body["error"]["param"] == "tool_choice"
