"""A relay between a client and the server that keeps what it passes on."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tandem.testing import sse
from tandem.testing.server import serving

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "content-length"}
PATIENCE_S = 120.0


@dataclass
class Exchange:
    """One request and its answer."""

    method: str
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    text: bytes
    """The request's body."""
    started: float = field(default_factory=time.monotonic)
    status: int = 0
    answered: Mapping[str, str] = field(default_factory=dict)
    """The answer's headers, names in lower case."""
    reply: bytes = b""

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.text) if self.text else {}

    @property
    def tools(self) -> list[str]:
        """The names of the tools on offer."""
        return [tool["function"]["name"] for tool in self.body.get("tools") or []]

    @property
    def replayed_calls(self) -> list[tuple[str, str]]:
        """The tool calls of the history: name, and arguments as the client wrote them."""
        calls = [call for message in self.body["messages"] for call in message.get("tool_calls") or []]
        return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]

    @property
    def finish_reasons(self) -> list[str]:
        """The finish reasons that the client got, of a stream or a whole answer."""
        if self.answered.get("content-type", "").startswith("text/event-stream"):
            chunks = [event.json() for event in sse.events([self.reply]) if not event.done]
        else:
            chunks = [json.loads(self.reply)]
        choices = [choice for chunk in chunks for choice in chunk.get("choices") or []]
        return [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]


class Wire:
    """All exchanges since the last `clear()`, in the order in which they began."""

    def __init__(self, upstream: str) -> None:
        self.url = ""
        """Where clients find the relay."""
        self.exchanges: list[Exchange] = []
        self._upstream = upstream
        self.app = Starlette(routes=[Route("/{path:path}", self._relay, methods=["GET", "POST"])])

    def clear(self) -> None:
        self.exchanges = []

    @property
    def chats(self) -> list[Exchange]:
        return [exchange for exchange in self.exchanges if exchange.path == "/v1/chat/completions"]

    @property
    def turns(self) -> list[Exchange]:
        """The chat requests that offer tools: what an agent asks for the person."""
        return [exchange for exchange in self.chats if exchange.tools]

    @property
    def asides(self) -> list[Exchange]:
        """The chat requests without tools: what an agent asks for itself."""
        return [exchange for exchange in self.chats if not exchange.tools]

    async def _relay(self, request: Request) -> Response:
        exchange = Exchange(request.method, request.url.path, dict(request.headers), await request.body())
        self.exchanges.append(exchange)
        client = httpx2.AsyncClient(timeout=PATIENCE_S, trust_env=False)
        sent = {name: value for name, value in request.headers.items() if name not in HOP_BY_HOP}
        url = self._upstream + exchange.path
        asked = client.build_request(request.method, url, headers=sent, content=exchange.text)
        try:
            answer = await client.send(asked, stream=True)
        except BaseException:
            await client.aclose()
            raise
        exchange.status = answer.status_code
        exchange.answered = {name.lower(): value for name, value in answer.headers.items()}
        passed = {name: value for name, value in exchange.answered.items() if name not in HOP_BY_HOP}

        async def parts() -> AsyncIterator[bytes]:
            try:
                async for part in answer.aiter_raw():
                    exchange.reply += part
                    yield part
            finally:
                await client.aclose()

        return StreamingResponse(parts(), answer.status_code, passed)


@contextmanager
def tapped(upstream: str) -> Iterator[Wire]:
    """A relay to the server at `upstream`."""
    wire = Wire(upstream)
    with serving(wire.app) as wire.url:
        yield wire
