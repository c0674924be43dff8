"""What a plugin may ask of the running platform (`tandem.core.plugin.Host`)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence as Seq
from typing import Any

from tandem.api.errors import ApiError, cut_off, failed, waited_too_long
from tandem.api.plain import ABANDONED, LAST_WORD_S, Choices
from tandem.api.presenting import Message, Presenter
from tandem.api.readers import FieldError
from tandem.api.record import Record
from tandem.api.replay import RecordedListener
from tandem.api.service import Service
from tandem.api.usage import usage
from tandem.api.watching import MODE_HEADER
from tandem.api.work import Work, chat_work
from tandem.core.conductor import RAW
from tandem.core.engine.request import CallPiece, Failed, Finished, Piece, Refused
from tandem.core.plugin import (
    AnswerEnd,
    AnswerEvent,
    CallDelta,
    ClientMatch,
    ContentDelta,
    ReasoningDelta,
    RequestError,
    Waiting,
)

CLIENT = ClientMatch("host", reasoning_format="hidden")
"""Who asks when a plugin generates; it reads answers, not thoughts."""


class ServedHost:
    """The platform as a plugin sees it while it is served."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @property
    def served_name(self) -> str | None:
        return self._service.served_name

    def plugins(self) -> list[dict[str, Any]]:
        return self._service.platform.records()

    async def generate(self, messages: Seq[Mapping[str, Any]], *, max_tokens: int = 256, **sampling: Any) -> str:
        """One answer's text. Runs on the server's event loop; dropped in the engine when the caller is cancelled.

        Raises ValueError for a wrong argument, RuntimeError when the engine can't take or finish the request.
        """
        service = self._service
        record: Record | None = None
        try:
            service.check_open()
            body = {**sampling, "messages": [dict(message) for message in messages], "max_tokens": max_tokens}
            ask = await service.read_chat(body)
            work = await chat_work(service, ask, CLIENT, {MODE_HEADER: RAW})
            record = Record("-", "host", CLIENT.kind, None, stream=False, reason=ABANDONED)
            choices = Choices(
                service.engine,
                work.requests[:1],
                service.presenter(ask, CLIENT),
                width=1,
                patience_s=service.options["queue_timeout_s"],
                record=record,
            )
            done = await choices.run()
            record.reason = done[0].reason
            return done[0].message.text
        except FieldError as error:
            raise ValueError(str(error)) from None
        except Refused as refusal:
            record = None
            service.refused("host", refusal.code, CLIENT)
            raise RuntimeError(str(refusal)) from None
        except ApiError as error:
            if record is not None:
                record.reason = "error"
            raise RuntimeError(str(error)) from None
        finally:
            if record is not None:
                service.ended(record)

    async def chat(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> AsyncGenerator[AnswerEvent]:
        """The answer to a chat request, event by event."""
        service = self._service
        listener: RecordedListener | None = None
        client = service.clients.recognise(dict(headers), body)
        record = Record("-", "host", client.kind, client.session, stream=True, reason=ABANDONED)
        try:
            service.check_open()
            ask = await service.read_chat(body)
            if ask.n != 1:
                raise FieldError("n", "n must be 1 here")
            work = await chat_work(service, ask, client, headers)
            presenter = Presenter("reasoning_content", service.ids)
            record.watched(work.watch, presenter)
            listener = RecordedListener(service.engine, work.requests[0])
            async for event in self._events(listener, presenter, record, ask.stream, work):
                yield event
        except FieldError as error:
            raise RequestError(400, str(error), error.param) from None
        except ApiError as error:
            record.reason = "error"
            raise RequestError(error.status, error.message, error.param, error.code, error.retry_after) from None
        except Refused as refusal:
            service.refused("host", refusal.code, client)
            raise RequestError(503, str(refusal), None, refusal.code, refusal.retry_after) from None
        finally:
            if listener is not None:
                try:
                    await _last_word(listener, record)
                finally:
                    service.ended(record)

    async def _events(
        self, listener: RecordedListener, presenter: Presenter, record: Record, streamed: bool, work: Work
    ) -> AsyncGenerator[AnswerEvent]:
        options = self._service.options
        quiet: float = options["keepalive_s"]
        patience: float = options["request_timeout_s" if streamed else "queue_timeout_s"]
        message = Message(presenter)
        while True:
            try:
                # Not `wait_for`: Python 3.11's forgets that it was cancelled where the events come at that moment, and
                # an answer that nobody reads would be written to its end.
                async with asyncio.timeout(min(quiet, patience)):
                    events = await listener.events()
            except TimeoutError:
                if listener.waiting and record.total_s >= patience:
                    raise waited_too_long(patience) from None
                yield Waiting()
                continue
            if events and isinstance(events[-1], Finished | Failed):
                record.heard(events[-1])  # now: whoever reads may leave before this loop is there
            for event in events:
                if isinstance(event, Piece):
                    message.add(event)
                    if text := presenter.reasoning(event):
                        yield ReasoningDelta(text)
                    if text := presenter.content(event):
                        record.spoke()
                        yield ContentDelta(text)
                elif isinstance(event, CallPiece):
                    call = message.add(event)
                    yield CallDelta(event.index, event.arguments, call.get("id"), event.name)
                elif isinstance(event, Failed):
                    raise failed(event)
                elif isinstance(event, Finished):
                    record.reason = event.reason
                    if event.reason == ABANDONED:
                        raise cut_off()
                    if work.recorder is not None:
                        work.recorder.ended(message, listener.tokens, event, listener.hidden)
                    cost = usage([event.stats], images=work.requests[0].images)
                    yield AnswerEnd(event.reason, cost, event.detail, event.stop)
                    return


async def _last_word(listener: RecordedListener, record: Record) -> None:
    """The engine's counts of an answer whose reader left, where they are not there yet."""
    listener.cancel()
    if not record.stats:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORD_S):
                record.heard(await listener.last())
