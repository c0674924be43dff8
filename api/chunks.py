"""The events of a streamed answer, and the objects of a plain one, in OpenAI's shapes.

A `Writer` belongs to one answer. What is the same in each of its chunks is encoded once, so a token costs one JSON
string and one join.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass
from typing import Any

from tandem.api import sse
from tandem.api.logprobs import ChatLogprobs, CompletionLogprobs
from tandem.core.engine.request import TokenLogprob
from tandem.core.plugin import Tokenizer

Extra = Mapping[str, Any]
"""Top-level keys besides the chunk's own: `usage`, `timings`, `error`."""


@dataclass(frozen=True, slots=True)
class Head:
    """What every object of one answer says about it."""

    id: str
    created: int
    model: str
    fingerprint: str


class ChatWriter:
    """Chunks of `POST /v1/chat/completions`."""

    PREFIX = "chatcmpl"

    def __init__(self, head: Head, tokenizer: Tokenizer) -> None:
        self._head = _head(head, "chat.completion.chunk")
        # Everything before the text and behind it.
        self._before = f'data: {self._head[:-1]},"choices":[{{"index":0,"delta":{{"content":'.encode()
        self._after = b'},"logprobs":null,"finish_reason":null}]}\n\n'
        self._logprobs = ChatLogprobs(tokenizer)

    def opening(self) -> bytes:
        """The first chunk: who speaks."""
        return self._chunk({"role": "assistant", "content": ""}, None, None, {})

    def piece(self, text: str, logprobs: Seq[TokenLogprob] = ()) -> bytes:
        """One chunk of text."""
        if logprobs:
            return self._chunk({"content": text}, self._logprobs.object(logprobs), None, {})
        return b"%b%b%b" % (self._before, sse.dumps(text).encode(), self._after)

    def delta(self, delta: Mapping[str, Any]) -> bytes:
        """One chunk of anything but content: reasoning, a piece of a call."""
        return self._chunk(delta, None, None, {})

    def finish(self, reason: str, logprobs: Seq[TokenLogprob], extra: Extra) -> bytes:
        """The last chunk of a choice; `logprobs` are those whose characters never became whole."""
        return self._chunk({}, self._logprobs.object(logprobs) if logprobs else None, reason, extra)

    def closing(self, extra: Extra) -> bytes:
        """The chunk behind the last choice that carries usage on its own."""
        return b'data: %b,"choices":[]%b}\n\n' % (self._head[:-1].encode(), _tail(extra))

    def _chunk(self, delta: Mapping[str, Any], logprobs: Any, reason: str | None, extra: Extra) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return b'data: %b,"choices":[%b]%b}\n\n' % (self._head[:-1].encode(), sse.dumps(choice).encode(), _tail(extra))


class CompletionWriter:
    """Chunks of `POST /v1/completions`, choice after choice."""

    PREFIX = "cmpl"

    def __init__(self, head: Head, tokenizer: Tokenizer) -> None:
        self._head = _head(head, "text_completion")
        self._tokenizer = tokenizer
        self._start(0)

    def _start(self, index: int) -> None:
        self._index = index
        self._before = f'data: {self._head[:-1]},"choices":[{{"index":{index},"text":'.encode()
        self._after = b',"logprobs":null,"finish_reason":null}]}\n\n'
        self._logprobs = CompletionLogprobs(self._tokenizer)

    def opening(self) -> bytes:
        return b""

    def piece(self, text: str, logprobs: Seq[TokenLogprob] = ()) -> bytes:
        if logprobs:
            return self._chunk(text, self._logprobs.object(logprobs), None, {})
        return b"%b%b%b" % (self._before, sse.dumps(text).encode(), self._after)

    def delta(self, delta: Mapping[str, Any]) -> bytes:
        """A completion has nothing but text."""
        return b""

    def finish(self, reason: str, logprobs: Seq[TokenLogprob], extra: Extra) -> bytes:
        """The last chunk of this choice; what follows belongs to the next one."""
        written = self._chunk("", self._logprobs.object(logprobs) if logprobs else None, reason, extra)
        self._start(self._index + 1)
        return written

    def closing(self, extra: Extra) -> bytes:
        return b'data: %b,"choices":[]%b}\n\n' % (self._head[:-1].encode(), _tail(extra))

    def _chunk(self, text: str, logprobs: Any, reason: str | None, extra: Extra) -> bytes:
        choice = {"index": self._index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        return b'data: %b,"choices":[%b]%b}\n\n' % (self._head[:-1].encode(), sse.dumps(choice).encode(), _tail(extra))


Writer = ChatWriter | CompletionWriter


def chat_body(head: Head, choices: Seq[Mapping[str, Any]], extra: Extra) -> dict[str, Any]:
    """The plain answer. A choice is `{message, logprobs, reason}` with `logprobs` in the chat's shape or None."""
    written = [
        {
            "index": index,
            "message": choice["message"].object(),
            "logprobs": choice["logprobs"],
            "finish_reason": choice["reason"],
        }
        for index, choice in enumerate(choices)
    ]
    return {**json.loads(_head(head, "chat.completion")), "choices": written, **extra}


def completion_body(head: Head, choices: Seq[Mapping[str, Any]], extra: Extra) -> dict[str, Any]:
    written = [
        {
            "index": index,
            "text": choice["message"].text,
            "logprobs": choice["logprobs"],
            "finish_reason": choice["reason"],
        }
        for index, choice in enumerate(choices)
    ]
    return {**json.loads(_head(head, "text_completion")), "choices": written, **extra}


def _head(head: Head, kind: str) -> str:
    return sse.dumps(
        {
            "id": head.id,
            "object": kind,
            "created": head.created,
            "model": head.model,
            "system_fingerprint": head.fingerprint,
        }
    )


def _tail(extra: Extra) -> bytes:
    """`,"usage":{...}` and the like, to stand behind `choices`."""
    return ("," + sse.dumps(extra)[1:-1]).encode() if extra else b""
