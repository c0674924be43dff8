"""Wrong requests over a real socket: the status, the shape, the words."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import httpx2
import openai
import pytest

from tandem.api.app import build_app
from tandem.api.body import MAX_BODY
from tandem.core.engine.engine import Engine
from tandem.core.engine.options import SECTIONS
from tandem.core.kernel import assemble, load_manifest
from tandem.testing.box import Box
from tandem.testing.server import serving

CHAT = "/v1/chat/completions"
HELLO: Any = [{"role": "user", "content": "Hello"}]
Script = Callable[..., Any]


def post(http: httpx2.Client, content: bytes, content_type: str | None = "application/json") -> Any:
    headers = {"content-type": content_type} if content_type else {}
    return http.post(CHAT, content=content, headers=headers)


def error_of(response: Any, status: int) -> dict[str, Any]:
    """The error object, which is the whole body."""
    assert response.status_code == status, response.text
    assert list(response.json()) == ["error"]
    error: dict[str, Any] = response.json()["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert "Traceback" not in error["message"]
    return error


def test_a_wrong_field_is_a_typed_exception_of_the_sdk(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.chat.completions.create(model="", messages=[{"role": "robot", "content": "x"}])  # type: ignore[list-item,misc]
    assert caught.value.param == "messages[0].role"
    assert caught.value.type == "invalid_request_error"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"{", "not JSON"),
        (b'{"messages": [}', "line 1, column 15"),
        (b"[1]", "a list"),
        (b"null", "null"),
        (b"true", "a boolean"),
        (b'"text"', "a string"),
        (b"12", "a number"),
        (b'{"temperature": NaN}', "NaN"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "not JSON"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused_in_words(http: httpx2.Client, content: bytes, words: str) -> None:
    assert words in error_of(post(http, content), 400)["message"]


def test_a_body_of_another_type_is_refused_and_the_right_one_named(http: httpx2.Client) -> None:
    body = json.dumps({"messages": HELLO}).encode()
    for wrong in ("application/x-www-form-urlencoded", "text/plain; charset=utf-8", "multipart/form-data; boundary=x"):
        message = error_of(post(http, body, wrong), 400)["message"]
        assert "application/json" in message
        assert wrong.split(";")[0] in message
    for right in ("application/json", "application/json; charset=utf-8", "application/vnd.api+json", None):
        assert post(http, body, right).status_code == 200


def test_half_a_surrogate_pair_is_read_as_the_replacement_character(http: httpx2.Client) -> None:
    answer = post(http, b'{"messages": [{"role": "user", "content": "cut \\ud83d"}]}').json()
    whole = post(http, '{"messages": [{"role": "user", "content": "cut \ufffd"}]}'.encode()).json()
    assert answer["usage"] == whole["usage"]


def test_a_body_over_the_limit_is_a_413(http: httpx2.Client) -> None:
    def endless() -> Any:
        for _ in range(MAX_BODY // 2**20 + 1):
            yield b" " * 2**20

    assert error_of(http.post(CHAT, content=endless()), 413)["code"] == "body_too_large"


def test_a_client_that_asks_before_it_sends_too_much_is_told_at_once(box: Box) -> None:
    host, _, port = box.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {MAX_BODY + 1}\r\nExpect: 100-continue\r\n\r\n"
        connection.sendall(head.encode())
        with connection.makefile("rb") as answer:
            assert b" 413 " in answer.readline()


def test_a_prompt_that_does_not_fit_names_both_numbers() -> None:
    with Box(server={"max_len": 50}) as small:
        error = error_of(small.post(CHAT, {"messages": [{"role": "user", "content": "x" * 60}]}), 400)
        assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
        assert "63 tokens" in error["message"]
        assert "50" in error["message"]
        assert error_of(small.post("/v1/completions", {"prompt": ["a", "x" * 50]}), 400)["param"] == "prompt"
        assert small.post("/v1/completions", {"prompt": "x" * 49}).json()["usage"]["completion_tokens"] == 1


def test_max_tokens_is_clamped_to_what_fits(script: Script) -> None:
    with Box(server={"max_len": 80}) as small:
        answer = small.post(CHAT, {"messages": script("abc", end=False), "max_tokens": 1000}).json()
        assert answer["usage"]["total_tokens"] == 80
        assert answer["choices"][0]["finish_reason"] == "length"


def test_unknown_paths_and_methods_have_the_same_shape(box: Box) -> None:
    assert "/v1" in error_of(box.get("/chat/completions"), 404)["message"]
    error = error_of(box.get(CHAT), 405)
    assert "GET" in error["message"]
    assert "POST" in error["message"]
    assert box.get(CHAT).headers["allow"] == "POST"


def test_another_models_page_is_a_404(sdk: openai.OpenAI) -> None:
    assert sdk.models.retrieve("TandemLLM").owned_by == "tandemllm"
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.models.retrieve("org/other")
    assert caught.value.code == "model_not_found"


def test_a_model_without_a_chat_format_says_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    platform = assemble(load_manifest("scripted", sections=SECTIONS))
    monkeypatch.setattr(platform.model, "template", None)
    engine = Engine(platform)
    engine.start()
    with serving(build_app(platform, engine)) as url:
        error = error_of(httpx2.post(url + CHAT, json={"messages": HELLO}, trust_env=False), 400)
        assert error["param"] == "messages"
        assert "/v1/completions" in error["message"]
        assert httpx2.post(f"{url}/v1/completions", json={"prompt": "x"}, trust_env=False).status_code == 200
    engine.stop()


def test_without_a_model_generation_is_a_503_and_the_lists_are_empty() -> None:
    platform = assemble(load_manifest({"tandem": 1}, sections=SECTIONS))
    engine = Engine(platform)
    engine.start()
    with (
        serving(build_app(platform, engine)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as sdk,
    ):
        assert sdk.models.list().data == []
        with pytest.raises(openai.InternalServerError) as caught:
            sdk.chat.completions.create(model="", messages=HELLO)
        assert caught.value.status_code == 503
        assert caught.value.code == "no_model"
        assert httpx2.get(f"{url}/health", trust_env=False).json()["status"] == "no_model"
    engine.stop()
