"""`POST /v1/chat/completions` and `POST /v1/completions`: from the body to the answer."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tandem.api import sse
from tandem.api.body import read_json
from tandem.api.chunks import ChatWriter, CompletionWriter, Head, chat_body, completion_body
from tandem.api.errors import ApiError, refused
from tandem.api.listener import Listener
from tandem.api.logprobs import ChatLogprobs, CompletionLogprobs
from tandem.api.plain import ABANDONED, Choice, Choices, run_unless_left
from tandem.api.readers import FieldError
from tandem.api.record import Record
from tandem.api.request import (
    ChatRequest,
    CompletionRequest,
    Defaults,
    GenerationRequest,
    choice_seed,
    read_chat,
    read_completion,
)
from tandem.api.service import Service
from tandem.api.stream import AnswerStream
from tandem.api.usage import timings, usage
from tandem.core.engine.request import Generate, Refused, SharedPrompt
from tandem.core.plugin import ClientMatch, Tokenizer

CLIENT_HEADER = "x-tandem-client"
CLIENT_GONE = 499
"""Nobody reads it; it stands in the metrics."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What the two routes do differently."""

    route: str
    param: str
    """The field that holds the prompt."""
    read: Callable[[Mapping[str, Any], int, Defaults], GenerationRequest]
    prompts: Callable[[Service, Any], Awaitable[list[list[int]]]]
    """The token ids of each prompt of the request."""
    writer: type[ChatWriter] | type[CompletionWriter]
    logprobs: Callable[[Tokenizer], ChatLogprobs | CompletionLogprobs]
    body: Callable[[Head, Seq[Mapping[str, Any]], Mapping[str, Any]], dict[str, Any]]


async def _chat_prompts(service: Service, ask: ChatRequest) -> list[list[int]]:
    return [await service.chat_prompt(ask)]


async def _completion_prompts(service: Service, ask: CompletionRequest) -> list[list[int]]:
    return [await service.plain_prompt(prompt) for prompt in ask.prompts]


CHAT = Kind("chat", "messages", read_chat, _chat_prompts, ChatWriter, ChatLogprobs, chat_body)
COMPLETIONS = Kind(
    "completions", "prompt", read_completion, _completion_prompts, CompletionWriter, CompletionLogprobs, completion_body
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
            self._refuse(refusal.code, client)
            return refused(refusal).response({CLIENT_HEADER: client.kind})
        except ApiError as error:
            return error.response({CLIENT_HEADER: client.kind})

    async def _answer(self, request: Request, body: Mapping[str, Any], client: ClientMatch) -> Response | AnswerStream:
        service, kind = self._service, self._kind
        tokenizer = service.model().tokenizer
        try:
            ask = kind.read(body, tokenizer.vocab_size, service.defaults)
        except FieldError as error:
            raise ApiError(400, str(error), param=error.param) from None
        prompts = await kind.prompts(service, ask)
        work = generations(service, ask, prompts, kind.param, client.kind)
        head = Head(
            service.new_id(kind.writer.PREFIX), int(time.time()), service.served_name or "", service.fingerprint
        )
        record = Record(head.id, kind.route, client.kind, client.session, ask.stream, ask.n)
        if ask.stream:
            return AnswerStream(
                service,
                record,
                kind.writer(head, tokenizer),
                work,
                Listener(service.engine, work[0]),
                include_usage=ask.include_usage,
                headers={CLIENT_HEADER: client.kind},
            )
        choices = await self._choices(request, record, work)
        if choices is None:
            return Response(status_code=CLIENT_GONE)
        written = [
            {
                "text": choice.text,
                "logprobs": kind.logprobs(tokenizer).object(choice.logprobs) if choice.logprobs else None,
                "reason": choice.reason,
            }
            for choice in choices
        ]
        extra: dict[str, Any] = {"usage": usage([choice.stats for choice in choices], len(prompts))}
        if len(choices) == 1:
            extra["timings"] = timings(choices[0].stats, record.total_s * 1e3)
        answer = sse.dumps(kind.body(head, written, extra)).encode()
        return Response(answer, media_type="application/json", headers={CLIENT_HEADER: client.kind})

    async def _choices(self, request: Request, record: Record, work: Seq[Generate]) -> list[Choice] | None:
        """Every choice, or None when the client left. The record is closed in any case but a refusal."""
        service = self._service
        choices = Choices(
            service.engine,
            work,
            width=service.options["parallel"],
            patience_s=service.options["queue_timeout_s"],
            record=record,
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

    def _refuse(self, code: str, client: ClientMatch) -> None:
        """Count a request that the engine did not take."""
        record = Record("-", self._kind.route, client.kind, client.session, False, reason="refused")
        self._service.metrics.refused(code)
        self._service.ended(record)


def generations(
    service: Service, ask: GenerationRequest, prompts: Seq[Seq[int]], param: str, client: str
) -> list[Generate]:
    """What the engine is asked: for each prompt in order its `n` choices, each with a seed of its own.

    Raises ApiError when a prompt does not fit.
    """
    work = []
    for prompt in prompts:
        if not prompt:
            raise ApiError(400, "the prompt renders to no token", param=param)
        room = service.fitting(len(prompt), ask.max_tokens, param)
        shared = SharedPrompt() if ask.n > 1 else None
        for index in range(ask.n):
            work.append(
                Generate(
                    prompt=prompt,
                    max_tokens=room,
                    sampling=replace(ask.sampling, seed=choice_seed(ask.sampling.seed, index)),
                    stop=ask.stop,
                    messages=ask.messages if isinstance(ask, ChatRequest) else (),
                    client=client,
                    cache=ask.cache,
                    shared=shared,
                )
            )
    return work
