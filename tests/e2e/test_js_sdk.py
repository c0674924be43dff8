"""The JavaScript SDK of OpenAI against the server: each use is a function of `sdk.mjs`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .clients import INSTALLED, ended, installed, started
from .conftest import Served

pytestmark = pytest.mark.e2e

PROGRAM = Path(__file__).parent / "sdk.mjs"

Use = Callable[[str], Any]


@pytest.fixture
def use(server: Served, tmp_path: Path) -> Use:
    installed("node_modules/openai/package.json", "the JavaScript SDK")
    node = shutil.which("node")
    if node is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("there is no node here")

    def run(name: str) -> Any:
        done = ended(started([str(node), PROGRAM, name, f"{server.url}/v1", INSTALLED], tmp_path, {}, said=""))
        assert done.code == 0, done.errors
        return json.loads(done.out)

    return run


def test_a_chat(use: Use) -> None:
    answer = use("chat")
    assert (answer["text"], answer["finish"]) == ("Hello ü😀.", "stop")
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]


def test_a_stream_with_its_usage(use: Use) -> None:
    answer = use("stream")
    assert answer["text"] == "one two three"
    assert answer["usage"]["completion_tokens"] == len("</think>one two three")


def test_the_stream_helper_gathers_the_answer(use: Use) -> None:
    assert use("helper") == {"pieces": "one two three", "text": "one two three", "finish": "stop"}


def test_reasoning_has_its_own_field(use: Use) -> None:
    assert use("reasoning") == {"reasoning": "I think.\n", "content": "I say."}


def test_the_tool_runner_calls_until_there_is_an_answer(use: Use) -> None:
    done = use("tools")
    assert (done["text"], done["calls"]) == ("It is 20736.", [12, 144])
    assert done["roles"] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]


def test_the_streamed_tool_runner_makes_both_calls_of_an_answer(use: Use) -> None:
    assert use("streamedTools") == {"text": "Four and nine.", "calls": [2, 3]}


def test_a_document_is_parsed_even_where_the_model_would_rather_write_a_fence(use: Use) -> None:
    document = use("parse")
    assert sorted(document) == ["age", "name"]
    assert isinstance(document["age"], int)
    assert isinstance(document["name"], str)


def test_a_streamed_document(use: Use) -> None:
    assert use("streamedDocument") == {"name": "Ada", "age": 36}


def test_log_probabilities_are_one_entry_a_token(use: Use) -> None:
    entries = use("logprobs")
    assert [entry["token"] for entry in entries[:3]] == ["a", "b", "c"]
    assert all(entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 2 for entry in entries)
    assert entries[0]["bytes"] == [97]


def test_several_choices(use: Use) -> None:
    assert use("choices") == [[0, "same"], [1, "same"], [2, "same"]]


def test_a_plain_completion(use: Use) -> None:
    assert use("completion") == {"text": "plain", "finish": "stop"}


def test_the_list_of_models(use: Use) -> None:
    assert use("models") == {"names": ["TandemLLM"], "one": "TandemLLM"}


def test_errors_are_exceptions_of_their_kind(use: Use) -> None:
    assert use("errors") == {
        "badRequest": {"kind": "BadRequestError", "status": 400, "param": "temperature", "code": None},
        "notFound": {"kind": "NotFoundError", "status": 404, "param": "model", "code": "model_not_found"},
        "noRoute": {"kind": "NotFoundError", "status": 404, "param": None, "code": "not_found"},
        "schema": {
            "kind": "BadRequestError",
            "status": 400,
            "param": "response_format.json_schema.schema",
            "code": None,
        },
    }


def test_leaving_a_stream_frees_its_place(use: Use, server: Served) -> None:
    assert use("leaving") == {"pieces": 3}
    server.idle(5)


def test_a_response_and_a_parsed_one(use: Use) -> None:
    assert use("responses") == {
        "text": "Hello there.",
        "status": "completed",
        "parsed": {"name": "Ada", "age": 36},
    }


def test_a_streamed_response(use: Use) -> None:
    answer = use("streamedResponses")
    assert (answer["text"], answer["final"]) == ("one two", "one two")
    assert answer["items"] == ["reasoning", "message"]
    assert answer["types"][0] == "response.created"
    assert answer["types"][-1] == "response.completed"


def test_a_tool_round_over_responses(use: Use) -> None:
    assert use("responsesTools") == {"arguments": {"of": 12}, "name": "square", "text": "It is 144."}
