"""What both doors have in common: the body, the queue, the keep-alives, and clients that leave."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from tandem.plugins.doors._body import read_body
from tandem.testing import sse
from tandem.testing.box import Box
from tandem.testing.server import until

Script = Callable[..., str]
PATHS = ["/v1/responses", "/v1/messages"]
ENDLESS = {"plugin": "scripted", "reply": "word " * 4000, "tokens_per_s": 200}
"""A model whose answer takes minutes."""


def asking(path: str, text: str, **fields: Any) -> dict[str, Any]:
    if path == "/v1/responses":
        return {"input": text, **fields}
    return {"max_tokens": 100_000, "messages": [{"role": "user", "content": text}], **fields}


def error(response: httpx2.Response) -> dict[str, Any]:
    told: dict[str, Any] = response.json()["error"]
    return told


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("wrong", [b"", b"{", b"[]", b'{"temperature": NaN}', b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_a_400(box: Box, path: str, wrong: bytes) -> None:
    headers = {"content-type": "application/json"}
    response = httpx2.post(f"{box.url}{path}", content=wrong, headers=headers, timeout=20)
    assert response.status_code == 400
    assert "body" in error(response)["message"]


@pytest.mark.parametrize("path", PATHS)
def test_a_body_of_another_kind_is_a_400_that_says_what_to_send(box: Box, path: str) -> None:
    response = httpx2.post(f"{box.url}{path}", content=b"{}", headers={"content-type": "text/plain"}, timeout=20)
    assert response.status_code == 400
    assert "application/json" in error(response)["message"]


@pytest.mark.parametrize("path", PATHS)
def test_half_of_an_emoji_is_read_as_a_replacement_character(box: Box, path: str) -> None:
    told = json.dumps(asking(path, json.dumps({"script": ["ok"], "note": "PLACE"}))).replace("PLACE", "\\ud83d")
    headers = {"content-type": "application/json"}
    assert httpx2.post(f"{box.url}{path}", content=told.encode(), headers=headers, timeout=20).status_code == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_field_that_the_engine_refuses_is_named_as_this_api_calls_it(box: Box, path: str, streamed: bool) -> None:
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    response = box.post(path, asking(path, "Hi", stream=streamed) | {limit: 0})
    assert response.status_code == 400
    assert error(response)["message"].startswith(f"{limit} must be an integer of at least 1")


@pytest.mark.parametrize("path", PATHS)
def test_a_prompt_that_does_not_fit_is_refused(path: str) -> None:
    with Box(routes=["responses", "messages"], server={"max_len": 64}) as box:
        response = box.post(path, asking(path, "x" * 100))
    assert response.status_code == 400
    assert "64" in error(response)["message"]
    if path == "/v1/responses":
        assert (error(response)["param"], error(response)["code"]) == ("input", "context_length_exceeded")


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_says_that_it_lives_while_the_model_is_silent(script: Script, path: str) -> None:
    told = script({"sleep_ms": 300}, "ab", {"sleep_ms": 300}, "cd")
    with Box(routes=["responses", "messages"], server={"keepalive_s": 0.1}) as box:
        content = box.post(path, asking(path, told, stream=True)).content
    items = list(sse.read([content]))
    alive = [place for place, item in enumerate(items) if isinstance(item, sse.Comment) or item.name == "ping"]
    assert len(alive) >= 4
    assert 0 not in alive
    deltas = [place for place, item in enumerate(items) if isinstance(item, sse.Event) and "delta" in item.name]
    assert min(alive) < min(deltas) < max(alive)


@pytest.fixture(scope="module")
def narrow() -> Any:
    """One place, no queue, and answers that take minutes."""
    with Box(routes=["responses", "messages"], model=ENDLESS, server={"parallel": 1, "max_queue": 0}) as box:
        yield box


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_leaves_frees_the_engine(narrow: Box, path: str, streamed: bool) -> None:
    def abandoned() -> float:
        return narrow.engine.snapshot()["totals"].get("requests_abandoned", 0)

    before = abandoned()
    if streamed:
        with narrow.streaming(path, asking(path, "Talk.", stream=True)) as (response, data):
            assert response.status_code == 200
            for _ in range(6):
                next(data)
            assert not narrow.engine.idle
    else:
        with pytest.raises(httpx2.ReadTimeout):
            httpx2.post(f"{narrow.url}{path}", json=asking(path, "Talk."), timeout=0.5)
    until(lambda: narrow.engine.idle and abandoned() == before + 1, 5)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_full_queue_is_a_503_that_says_when_to_come_back(narrow: Box, path: str, streamed: bool) -> None:
    with narrow.streaming("/v1/responses", {"input": "Talk.", "stream": True}) as (_, data):
        next(data)
        response = narrow.post(path, asking(path, "Hi", stream=streamed))
    until(lambda: narrow.engine.idle, 5)
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) > 0
    assert error(response)["type"] in ("service_unavailable", "overloaded_error")


@pytest.mark.parametrize("size", [2_000, 20_000])
def test_a_body_that_is_too_large_is_refused_after_it_was_read(size: int) -> None:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route
    from starlette.testclient import TestClient

    from tandem.core.plugin import RequestError

    async def handle(request: Request) -> Response:
        try:
            await read_body(request, limit=1_500)
        except RequestError as error:
            return JSONResponse({"message": str(error)}, error.status)
        return JSONResponse({})

    client = TestClient(Starlette(routes=[Route("/", handle, methods=["POST"])]))
    response = client.post("/", json={"x": "y" * size})
    assert response.status_code == 413
    assert "1500 bytes" in response.json()["message"]
    assert client.post("/", json={"x": "y" * 100}).status_code == 200


def test_the_doors_are_light_until_they_are_built() -> None:
    """A manifest is checked without Starlette."""
    import subprocess
    import sys

    code = (
        "import sys; import tandem.plugins.doors.responses, tandem.plugins.doors.messages; "
        "print([name for name in ('starlette', 'torch', 'openai', 'anthropic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
