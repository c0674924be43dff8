"""What every door does with a request: read it, ask the host, write the answer whole or as a stream."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence as Seq
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from tandem.core.plugin import AnswerEvent, Host, RequestError, Waiting
from tandem.plugins.doors._body import read_body
from tandem.plugins.doors._names import Names

log = logging.getLogger("tandem.doors")

T = TypeVar("T")
Sent = dict[str, Any]
"""An event of a stream, as it is sent. Its `type` is the event's name."""

CLIENT_GONE = 499
"""Nobody reads it; it stands in the metrics."""
KEEP_ALIVE = b": keep-alive\n\n"
QUIET_S = 10.0
"""So long a stream may be silent while the model writes what the client does not get to see (hidden thinking)."""
STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # nginx would hold the stream back
}


@dataclass(frozen=True, slots=True)
class Ask:
    """A request as a door understood it."""

    chat: Mapping[str, Any]
    """The chat request."""
    names: Names
    stream: bool
    own: Mapping[str, Any] = field(default_factory=dict)
    """What the door's writer needs to know besides."""


class Writer(Protocol):
    """Writes one answer. The whole answer and the stream come out of the same steps, so they can't differ."""

    def begin(self) -> Seq[Sent]:
        """What goes out before the first event of the answer."""
        ...

    def add(self, event: AnswerEvent) -> Seq[Sent]:
        """What goes out for an event of the answer; for `Waiting` nothing, where a comment will do."""
        ...

    def broke(self, error: RequestError) -> Seq[Sent]:
        """What goes out last when the answer breaks."""
        ...

    def whole(self) -> dict[str, Any]:
        """The answer so far, as the body of a plain response."""
        ...


@dataclass(frozen=True, slots=True)
class Door:
    """One API over a host."""

    host: Host
    read: Callable[[Mapping[str, Any]], Ask]
    """Raises RequestError in the door's own names."""
    writer: Callable[[Ask], Writer]
    error: Callable[[RequestError], dict[str, Any]]
    """The body of an error in this API's shape."""

    async def handle(self, request: Request) -> Response | Stream:
        """The route's handler."""
        try:
            ask = self.read(await read_body(request))
            headers = dict(request.headers)
            if ask.stream:
                return Stream(self, ask, headers)
            whole = await unless_left(self._whole(ask, headers), request.receive)
        except RequestError as error:
            return self.refusal(error)
        except ClientDisconnect:
            whole = None
        return Response(status_code=CLIENT_GONE) if whole is None else JSONResponse(whole)

    async def _whole(self, ask: Ask, headers: Mapping[str, str]) -> dict[str, Any]:
        writer = self.writer(ask)
        writer.begin()
        async with self.answer(ask, headers) as events:
            async for event in events:
                writer.add(event)
        return writer.whole()

    @asynccontextmanager
    async def answer(self, ask: Ask, headers: Mapping[str, str]) -> AsyncIterator[AsyncIterator[AnswerEvent]]:
        """The host's answer. Leaving the block ends it; its errors come out in the door's names."""
        events = self.host.chat(ask.chat, headers)
        try:
            async with aclosing(events):
                yield events
        except RequestError as error:
            raise ask.names.told(error) from None

    def refusal(self, error: RequestError) -> Response:
        """A response that says why there is no answer."""
        retry = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
        return JSONResponse(self.error(error), error.status, retry)


class Stream:
    """An ASGI response that streams one answer.

    Its headers go out with the first event of the answer, so a request that is refused gets a proper status. The
    answer is closed as soon as the client has left, whether or not there was something to send.
    """

    def __init__(self, door: Door, ask: Ask, headers: Mapping[str, str]) -> None:
        self._door = door
        self._ask = ask
        self._headers = headers
        self._writer = door.writer(ask)
        self._open = False
        self._sent_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await unless_left(self._run(scope, receive, send), receive)

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._follow(send)
        except RequestError as error:
            if not self._open:
                await self._door.refusal(error)(scope, receive, send)
                return
            await self._send(send, self._writer.broke(error))
        except Exception:
            if not self._open:
                raise
            # Half an answer is out already, so its reader gets an end that it can read.
            log.exception("%s: the stream broke", scope["path"])
            await self._send(send, self._writer.broke(RequestError(500, "the server failed while it wrote the answer")))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _follow(self, send: Send) -> None:
        async with self._door.answer(self._ask, self._headers) as events:
            async for event in events:
                if not self._open:
                    self._open = True
                    head = [(name.encode(), value.encode()) for name, value in STREAM_HEADERS.items()]
                    await send({"type": "http.response.start", "status": 200, "headers": head})
                    await self._send(send, self._writer.begin())
                sent = self._writer.add(event)
                if sent or isinstance(event, Waiting) or time.monotonic() - self._sent_at > QUIET_S:
                    await self._send(send, sent)

    async def _send(self, send: Send, events: Seq[Sent]) -> None:
        self._sent_at = time.monotonic()
        body = b"".join(map(frame, events)) or KEEP_ALIVE
        await send({"type": "http.response.body", "body": body, "more_body": True})


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}
"""Line ends of Unicode, at which some readers of streams would cut an event."""


def frame(event: Sent) -> bytes:
    """One server-sent event."""
    data = _encode(event)
    return f"event: {event['type']}\ndata: {data if data.isascii() else data.translate(_LINE_ENDS)}\n\n".encode()


async def unless_left(work: Coroutine[Any, Any, T], receive: Receive) -> T | None:
    """The work's result, or None when the client left before it was done; the work is cancelled then, and has ended
    when this returns. The request's body must have been read."""
    running = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait({running, gone}, return_when=asyncio.FIRST_COMPLETED)
        return running.result() if running.done() else None
    finally:
        running.cancel()
        gone.cancel()
        await asyncio.gather(running, gone, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
