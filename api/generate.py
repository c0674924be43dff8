"""`POST /v1/chat/completions` and `POST /v1/completions`: from the body to the answer."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence as Seq
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tandem.api import sse
from tandem.api.body import read_json
from tandem.api.chunks import ChatWriter, CompletionWriter, Head, chat_body, completion_body
from tandem.api.errors import ApiError, refused
from tandem.api.images import LEFT_OUT_HEADER
from tandem.api.logprobs import ChatLogprobs, CompletionLogprobs
from tandem.api.plain import ABANDONED, Choice, Choices, run_unless_left
from tandem.api.presenting import Presenter
from tandem.api.readers import FieldError
from tandem.api.record import Record
from tandem.api.replay import RecordedListener, Recorder
from tandem.api.request import ChatRequest, GenerationRequest
from tandem.api.service import Service
from tandem.api.stream import AnswerStream
from tandem.api.usage import metrics, timings, usage
from tandem.api.watching import MODE_HEADER, PROFILE_HEADER
from tandem.api.work import Work, chat_work, completion_work
from tandem.core.engine.request import Generate, Refused
from tandem.core.plugin import ClientMatch, Tokenizer

CLIENT_HEADER = "x-tandem-client"
REPLAYED_HEADER = "x-tandem-replayed-turns"
"""How many earlier turns the prompt shows as the model wrote them; absent when there are none."""
CLIENT_GONE = 499
"""Nobody reads it; it stands in the metrics."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What the two routes do differently."""

    route: str
    read: Callable[[Service, Mapping[str, Any]], Awaitable[GenerationRequest]]
    work: Callable[[Service, Any, ClientMatch, Mapping[str, str]], Awaitable[Work]]
    """What the engine is asked, prompt by prompt."""
    writer: type[ChatWriter] | type[CompletionWriter]
    logprobs: Callable[[Tokenizer], ChatLogprobs | CompletionLogprobs]
    body: Callable[[Head, Seq[Mapping[str, Any]], Mapping[str, Any]], dict[str, Any]]


CHAT = Kind("chat", Service.read_chat, chat_work, ChatWriter, ChatLogprobs, chat_body)
COMPLETIONS = Kind(
    "completions", Service.read_completion, completion_work, CompletionWriter, CompletionLogprobs, completion_body
)


class GenerateRoute:
    """The handler of one of the two routes."""

    def __init__(self, service: Service, kind: Kind) -> None:
        self._service = service
        self._kind = kind

    async def handle(self, request: Request) -> Response | AnswerStream:
        client = ClientMatch("plain")
        try:
            self._service.check_open()
            body = await read_json(request)
            client = self._service.clients.recognise(dict(request.headers), body)
            return await self._answer(request, body, client)
        except ClientDisconnect:
            return Response(status_code=CLIENT_GONE)
        except Refused as refusal:
            self._service.refused(self._kind.route, refusal.code, client)
            return refused(refusal).response({CLIENT_HEADER: client.kind})
        except ApiError as error:
            return error.response({CLIENT_HEADER: client.kind})

    async def _answer(self, request: Request, body: Mapping[str, Any], client: ClientMatch) -> Response | AnswerStream:
        service, kind = self._service, self._kind
        service.model()  # without one nothing of the request matters
        try:
            ask = await kind.read(service, body)
            ask = service.regenerations.read(ask, body, client, request.headers)
            planned = await kind.work(service, ask, client, request.headers)
        except FieldError as error:
            raise ApiError(400, str(error), param=error.param) from None
        presenter = service.presenter(ask, client)
        head = Head(
            service.new_id(kind.writer.PREFIX), int(time.time()), service.served_name or "", service.fingerprint
        )
        record = Record(head.id, kind.route, client.kind, client.session, ask.stream, ask.n)
        record.watched(planned.watch, presenter)
        try:
            return await self._sent(request, ask, client, planned, presenter, head, record)
        except Refused:
            if planned.watch is not None:
                planned.watch.dropped()
            raise

    async def _sent(
        self,
        request: Request,
        ask: GenerationRequest,
        client: ClientMatch,
        planned: Work,
        presenter: Presenter,
        head: Head,
        record: Record,
    ) -> Response | AnswerStream:
        """The answer to a request that was understood. Raises Refused when the engine does not take it."""
        service, kind, work = self._service, self._kind, planned.requests
        tokenizer = service.model().tokenizer
        headers = {CLIENT_HEADER: client.kind, **_mode(planned), **_left_out(ask), **_replayed(planned)}
        record.image_tokens = sum(placed.picture.rows for placed in work[0].images)
        record.on_end = partial(service.regenerations.ended, ask, client)
        if ask.stream:
            return AnswerStream(
                service,
                record,
                kind.writer(head, tokenizer),
                work,
                RecordedListener(service.engine, work[0]),
                presenter,
                include_usage=ask.include_usage,
                headers=headers,
                recorder=planned.recorder,
            )
        choices = await self._choices(request, record, work, presenter, planned.recorder)
        if choices is None:
            return Response(status_code=CLIENT_GONE)
        written = [
            {
                "message": choice.message,
                "logprobs": kind.logprobs(tokenizer).object(choice.logprobs) if choice.logprobs else None,
                "reason": presenter.finish(choice.reason),
            }
            for choice in choices
        ]
        stats = [choice.stats for choice in choices]
        extra: dict[str, Any] = {"usage": usage(stats, len(work) // ask.n, work[0].images)}
        if len(choices) == 1:
            extra["timings"] = timings(stats[0], record.total_s * 1e3)
            extra["metrics"] = metrics(stats[0])
        answer = sse.dumps(kind.body(head, written, extra)).encode()
        return Response(answer, media_type="application/json", headers=headers)

    async def _choices(
        self,
        request: Request,
        record: Record,
        work: Seq[Generate],
        presenter: Presenter,
        recorder: Recorder | None,
    ) -> list[Choice] | None:
        """Every choice, or None when the client left. The record is closed in any case but a refusal."""
        service = self._service
        choices = Choices(
            service.engine,
            work,
            presenter,
            width=service.options["parallel"],
            patience_s=service.options["queue_timeout_s"],
            record=record,
            recorder=recorder,
        )
        try:
            done = await run_unless_left(choices, request.receive)
        except Refused:
            raise
        except ApiError as error:
            service.metrics.error(error.code or error.kind)
            service.ended(record)
            raise
        except Exception:
            service.metrics.error("internal_error")
            service.ended(record)
            raise
        record.reason = ABANDONED if done is None else done[0].reason
        record.first_text = None  # the text went out at once, at the end
        service.ended(record)
        return done


def _left_out(ask: GenerationRequest) -> dict[str, str]:
    """The header that says how many images the prompt does not show, when there are any."""
    return {LEFT_OUT_HEADER: str(ask.left_out)} if isinstance(ask, ChatRequest) and ask.left_out else {}


def _mode(work: Work) -> dict[str, str]:
    """The headers that say in which mode rules watched the answer, and under which profile."""
    if work.watch is None:
        return {}
    return {MODE_HEADER: work.watch.shown_mode, PROFILE_HEADER: work.watch.request.profile}


def _replayed(work: Work) -> dict[str, str]:
    return {REPLAYED_HEADER: str(work.replayed)} if work.replayed else {}
