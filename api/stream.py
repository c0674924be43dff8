"""A streamed answer: the engine's events, written to the socket as they come."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence as Seq
from dataclasses import replace
from typing import Any

from starlette.types import Receive, Scope, Send

from tandem.api import sse
from tandem.api.chunks import Writer
from tandem.api.errors import ApiError, broken, cut_off, failed, refused, waited_too_long
from tandem.api.plain import ABANDONED, LAST_WORD_S, until_gone
from tandem.api.presenting import Message, Presenter
from tandem.api.record import Record
from tandem.api.replay import RecordedListener, Recorder
from tandem.api.service import Service
from tandem.api.usage import metrics, timings, usage
from tandem.core.engine.request import (
    CallPiece,
    Failed,
    Finished,
    Generate,
    Piece,
    PrefillProgress,
    Refused,
    TokenLogprob,
)
from tandem.core.engine.waits import in_words

log = logging.getLogger("tandem.api")

PREFILL_QUIET_S = 5.0
"""A prefill says nothing before it has run for this long."""
PREFILL_EVERY_S = 1.0


class AnswerStream:
    """An ASGI response that streams one answer, or one after another for a batch of prompts.

    The headers go out with the first byte there is to say, so a request that breaks before that gets a proper status.
    Silence is measured by the wall clock: a stream that has sent nothing for `keepalive_s` sends a comment, whatever
    the engine does meanwhile.
    """

    def __init__(
        self,
        service: Service,
        record: Record,
        writer: Writer,
        work: Seq[Generate],
        first: RecordedListener,
        presenter: Presenter,
        *,
        include_usage: bool | None,
        headers: Mapping[str, str],
        recorder: Recorder | None = None,
    ) -> None:
        self._service = service
        self._record = record
        self._writer = writer
        self._work = work
        self._listener = first
        self._presenter = presenter
        self._include_usage = include_usage
        self._headers = headers
        self._recorder = recorder
        self._left = False
        self._opened = False
        self._spoke = False
        self._progress_at = 0.0
        self._sent_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._sent_at = self._loop.time()
        self._timer = self._loop.call_later(self._keepalive_s, self._tick)
        self._service.running[self._record.id] = self._listener
        watcher = asyncio.ensure_future(self._watch(receive))
        try:
            await self._run(scope, receive, send)
        finally:
            self._service.running.pop(self._record.id, None)
            watcher.cancel()
            self._timer.cancel()
            self._listener.cancel()
            self._service.ended(self._record)

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            for index, request in enumerate(self._work):
                if self._left:
                    self._record.reason = ABANDONED
                    return
                if index:
                    self._listener = RecordedListener(self._service.engine, replace(request, follows=True))
                if not await self._follow(last_choice=index == len(self._work) - 1):
                    return
        except Refused as refusal:
            await self._break_off(refused(refusal), scope, receive, send)
        except ApiError as error:
            await self._break_off(error, scope, receive, send)
        except Exception:
            # Whatever it was, the client gets an end that it can read.
            log.exception("%s: the stream broke", self._record.id)
            await self._break_off(broken("the server failed while it wrote the answer"), scope, receive, send)

    # -------------------------------------------------------------------------------------------- one choice

    async def _follow(self, *, last_choice: bool) -> bool:
        """Write one choice. False when the client left on the way."""
        listener, writer, presenter = self._listener, self._writer, self._presenter
        message = Message(presenter)
        orphans: list[TokenLogprob] = []  # of tokens whose characters are not whole yet
        while True:
            out: list[bytes] = []
            last: Finished | Failed | None = None
            for event in await listener.events():
                if isinstance(event, Piece):
                    orphans += event.logprobs
                    message.add(event)
                    if content := presenter.content(event):
                        out.append(writer.piece(content, orphans))
                        orphans = []
                    if reasoning := presenter.reasoning(event):
                        out.append(writer.delta({"reasoning_content": reasoning}))
                elif isinstance(event, CallPiece):
                    if event.arguments or event.name is not None:
                        out.append(writer.delta({"tool_calls": [message.add(event)]}))
                elif isinstance(event, PrefillProgress):
                    if self._tells(event):
                        await self._write([sse.comment(f"prefill {event.done}/{event.total}")])
                elif isinstance(event, Finished | Failed):
                    last = event
            if self._left:
                await self._abandon(listener, last)
                return False
            if out:
                self._record.spoke()
            if last is not None:
                self._record.heard(last)
                if isinstance(last, Failed) or last.reason == ABANDONED:
                    if out:
                        await self._speak(out)
                    raise failed(last) if isinstance(last, Failed) else cut_off()
                if self._recorder is not None:
                    self._recorder.ended(message, listener.tokens, last, listener.hidden)
                out.append(self._end(last, orphans, last_choice))
                await self._speak(out)
                return True
            if out:
                await self._speak(out)
            elif self._silent_for >= self._keepalive_s:
                await self._keep_alive()

    def _end(self, last: Finished, orphans: Seq[TokenLogprob], last_choice: bool) -> bytes:
        """The finish chunk of a choice and, behind the last choice, all that closes the stream."""
        self._record.reason = last.reason
        reason = self._presenter.finish(last.reason)
        if not last_choice:
            return self._writer.finish(reason, orphans, {})
        timed: dict[str, Any] = {}
        if len(self._work) == 1:
            timed = {"timings": timings(last.stats, self._record.total_s * 1e3), "metrics": metrics(last.stats)}
        if self._include_usage is False:
            return self._writer.finish(reason, orphans, timed) + sse.DONE
        cost = {"usage": usage(self._record.stats, len(self._work), self._work[0].images), **timed}
        if self._include_usage is None:
            return self._writer.finish(reason, orphans, cost) + sse.DONE
        return self._writer.finish(reason, orphans, {}) + self._writer.closing(cost) + sse.DONE

    def _tells(self, event: PrefillProgress) -> bool:
        """Whether a prefill comment is due."""
        now, started = time.perf_counter(), self._listener.started
        if started is None or now - started < PREFILL_QUIET_S or now - self._progress_at < PREFILL_EVERY_S:
            return False
        self._progress_at = now
        return True

    # ------------------------------------------------------------------------------------------------ the socket

    async def _speak(self, out: list[bytes]) -> None:
        """Chunks of the answer, all in one send."""
        if not self._spoke:
            self._spoke = True
            out.insert(0, self._writer.opening())
        await self._write(out)

    async def _write(self, out: Seq[bytes]) -> None:
        if not self._opened:
            await self._open()
        self._sent_at = self._loop.time()
        more = not out[-1].endswith(sse.DONE)
        await self._send({"type": "http.response.body", "body": b"".join(out), "more_body": more})

    async def _open(self) -> None:
        self._opened = True
        headers = {"content-type": f"{sse.MEDIA_TYPE}; charset=utf-8", **sse.HEADERS, **self._headers}
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": raw})

    async def _break_off(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        """The answer can't go on: a status if nothing was sent yet, else an error object beside the finish reason."""
        self._record.reason = "error"
        self._service.metrics.error(error.code or error.kind)
        if self._left:
            return
        if not self._opened:
            await error.response(self._headers)(scope, receive, send)
        else:
            told = {"error": error.error}
            last = self._writer.finish("error", (), told) if self._presenter.knows_error else sse.event(told)
            await self._speak([last + sse.DONE])

    # -------------------------------------------------------------------------------------------- silence, leaving

    @property
    def _silent_for(self) -> float:
        return self._loop.time() - self._sent_at

    @property
    def _keepalive_s(self) -> float:
        seconds: float = self._service.options["keepalive_s"]
        return seconds

    def _tick(self) -> None:
        """Wakes the writer when the stream has been silent for long enough."""
        left = self._keepalive_s - self._silent_for
        if left <= 0:
            self._listener.wake()
            left = self._keepalive_s
        self._timer = self._loop.call_later(left, self._tick)

    async def _keep_alive(self) -> None:
        limit: float = self._service.options["request_timeout_s"]
        if self._listener.waiting and self._record.total_s > limit:
            raise waited_too_long(limit)
        await self._write([sse.comment(self._waiting() or "keep-alive")])

    def _waiting(self) -> str | None:
        """Where the request stands in the queue, in words; None when it does not wait."""
        outlook = self._listener.outlook()
        if outlook is None:
            return None
        position, seconds = outlook
        about = "" if seconds is None else f", about {in_words(seconds)}"
        return f"waiting, position {position}{about}, {self._record.total_s:.0f} s so far"

    async def _watch(self, receive: Receive) -> None:
        """Cancels the job as soon as the client has gone."""
        await until_gone(receive)
        self._left = True
        self._listener.cancel()
        self._listener.wake()

    async def _abandon(self, listener: RecordedListener, last: Finished | Failed | None) -> None:
        """Wait for the engine's counts of the answer that nobody reads."""
        self._record.reason = ABANDONED
        listener.cancel()
        if last is None:
            with contextlib.suppress(TimeoutError):
                last = await asyncio.wait_for(listener.last(), LAST_WORD_S)
        if last is not None:
            self._record.heard(last)
