"""What a plugin may ask of the running platform."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence as Seq
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of a tool call: `id` and `name` on its first piece, then JSON text of its arguments."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing was written for the server's keep-alive time; a stream should say that it lives."""


@dataclass(frozen=True, slots=True)
class AnswerEnd:
    """The answer is over. Comes last, once."""

    reason: str
    """`stop`, `length`, `tool_calls` or `timeout`."""
    usage: Mapping[str, Any]
    """The `usage` object of a chat completion."""
    detail: str = ""
    """Why exactly: `eos`, `stop_string`, `max_tokens`, `constraint`, `rule:NAME`."""
    stop: str | None = None
    """The stop string that ended the answer, when one did."""


AnswerEvent = ContentDelta | ReasoningDelta | CallDelta | Waiting | AnswerEnd


class RequestError(Exception):
    """A request that can't be served. The message is fit for the client."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status that says it: 400 for the client's fault, 503 when there is no room."""
        self.param = param
        """The field that is wrong, in the chat request's names."""
        self.code = code
        self.retry_after = retry_after
        """Seconds after which another try makes sense."""


class Host(Protocol):
    """The narrow view of the platform that routes, stages and narrators get."""

    @property
    def served_name(self) -> str | None:
        """The served model's name; None without a model."""
        ...

    def plugins(self) -> list[dict[str, Any]]:
        """Every installed plugin with its state, as `GET /v1/plugins` lists them."""
        ...

    async def generate(self, messages: Seq[Mapping[str, Any]], *, max_tokens: int = 256, **sampling: Any) -> str:
        """Run one chat generation and return its whole text.

        `sampling` takes the request's own names (`temperature`, `seed`, `stop`, ...). Raises RuntimeError with the
        reason when the engine can't take or finish it. Waits in the same queue as every client.
        """
        ...

    def chat(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> AsyncGenerator[AnswerEvent]:
        """Answer a chat completion request, as it is written: another door to the same room.

        `body` has the fields of `POST /v1/chat/completions`; `headers` (lower-case names) tell which client asks.
        Raises RequestError before the first event, or later when the answer breaks: also when a request that is
        not streamed (`stream` is not true) waited too long in the queue. Closing the generator frees the engine.
        """
        ...
