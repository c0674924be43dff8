"""Several clients at once, over the real engine."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import openai
import pytest

from tandem.testing import sse
from tandem.testing.box import Box
from tandem.testing.server import raw_request, until

Script = Callable[..., Any]


def test_every_stream_gets_its_own_text(script: Script) -> None:
    def ask(number: int) -> tuple[str, str]:
        words = [f"{number}:{place} " for place in range(20)]
        stream = sdk.chat.completions.create(model="", messages=script(*words), stream=True)
        return "".join(words), "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    with (
        Box(server={"parallel": 4, "max_queue": 16}) as box,
        openai.OpenAI(base_url=f"{box.url}/v1", api_key="none", max_retries=0) as sdk,
        ThreadPoolExecutor(16) as pool,
    ):
        for wanted, got in pool.map(ask, range(16)):
            assert got == wanted


def test_a_full_queue_is_a_503_with_retry_after(script: Script) -> None:
    endless = script("a", end=False)
    with (
        Box(model={"plugin": "scripted", "tokens_per_s": 500}, server={"parallel": 1, "max_queue": 0}) as box,
        openai.OpenAI(base_url=f"{box.url}/v1", api_key="none", max_retries=0) as sdk,
    ):
        holder = sdk.chat.completions.create(model="", messages=endless, stream=True)
        next(holder)
        with pytest.raises(openai.InternalServerError) as caught:
            sdk.chat.completions.create(model="", messages=endless)
        assert caught.value.status_code == 503
        assert caught.value.code == "queue_full"
        assert caught.value.response.headers["retry-after"] == "5"
        holder.close()
        until(lambda: box.engine.idle)
        assert sdk.chat.completions.create(model="", messages=endless, max_tokens=2).choices[0].message.content == "aa"


@pytest.mark.parametrize("streamed", [True, False])
def test_a_batch_that_has_begun_is_not_refused_because_others_fill_the_queue(streamed: bool) -> None:
    prompts = [json.dumps({"script": [{"sleep_ms": 30}, str(number)]}) for number in range(6)]
    endless = {"prompt": json.dumps({"script": [{"sleep_ms": 5}, "a"], "end": False}), "max_tokens": 4, "stream": True}
    with (
        Box(server={"parallel": 1, "max_queue": 1, "side_lane": "off"}) as box,
        httpx2.Client(base_url=box.url, timeout=20, trust_env=False) as client,
        ThreadPoolExecutor(3) as pool,
    ):
        batch = pool.submit(client.post, "/v1/completions", json={"prompt": prompts, "stream": streamed})
        until(lambda: not box.engine.idle)
        statuses: list[int] = []

        def crowd() -> None:
            while not batch.done():
                statuses.append(client.post("/v1/completions", json=endless).status_code)

        for crowding in [pool.submit(crowd) for _ in range(2)]:
            crowding.result()
    body = batch.result()
    assert body.status_code == 200, body.text
    assert 503 in statuses, "the queue was never full"
    if streamed:
        chunks = [event.json()["choices"][0] for event in sse.events([body.content])[:-1]]
        assert "".join(chunk["text"] for chunk in chunks) == "012345"
    else:
        assert [choice["text"] for choice in body.json()["choices"]] == list("012345")


def test_a_client_that_does_not_read_holds_nobody_up(script: Script) -> None:
    body = {"messages": script("a" * 50, end=False), "stream": True, "max_tokens": 30_000}
    with Box() as box:
        host, _, port = box.url.removeprefix("http://").partition(":")
        with socket.socket() as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.settimeout(20)
            stalled.connect((host, int(port)))
            stalled.sendall(raw_request("/v1/chat/completions", json.dumps(body).encode()))
            until(lambda: box.engine.snapshot()["running"] == 1)
            for _ in range(5):
                assert box.chat(script=["quick"]).text == "quick"
            # Its answer is kept for it: everything arrives once it reads.
            until(lambda: box.engine.idle)
            received = bytearray()
            while b"[DONE]" not in received[-100:]:
                received += stalled.recv(1 << 20)
        assert received.count(b'"delta":{"content":') == 30_000
