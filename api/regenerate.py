"""A conversation that is sent again gets another answer.

A chat's "regenerate" button sends the very same request once more, without a flag. Greedy decoding would give the very
same answer, so such a request is sampled. What a request must look like to count:

| what a person did | what is sent | counts |
|---|---|---|
| regenerate the last answer, or any earlier one | an answered conversation again, up to its user message | yes |
| stop, then regenerate | the same; what had arrived by then counts as its answer | yes |
| regenerate with other instructions to the model, or without its reasoning | the same but for them | yes |
| regenerate with a suggestion | the old answer, and behind it a user message of its own | no |
| edit a message and send it | another text in its place | no |
| continue an answer | the conversation ends in the assistant's message | no |
| nothing: a program's tool loop tries again | the conversation ends in a tool's result | no |
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence as Seq
from dataclasses import replace
from typing import Any, TypeVar

from tandem.api.messages import SYSTEM
from tandem.api.record import Record
from tandem.api.request import SAMPLING_FIELDS, ChatRequest, GenerationRequest
from tandem.core.engine.request import Sampling
from tandem.core.plugin import ClientMatch

log = logging.getLogger("tandem.api")

KEPT = 32
"""Answered conversations of a session."""
KEPT_S = 24 * 3600.0
SESSIONS = 1024
"""With `KEPT` it bounds the memory: 32,768 hashes of 16 bytes and their times, a few megabytes."""

HEADER = "x-tandem-regenerate"
"""`1`: this request is a regenerate. `0`: it is none. Without it the conversation tells."""

PROGRAMS = frozenset({"plain", "curl", "openai_sdk", "host"})
"""Clients that say nothing about who sits there. A program that asks twice expects the same answer twice, so one of
these counts only with a session id of its own, as a chat sends it."""

ANSWERED = ("stop", "length", "tool_calls", "timeout")
"""How an answered request ends. One that was abandoned is answered when text had gone out."""

Messages = Seq[Mapping[str, Any]]
Ask = TypeVar("Ask", bound=GenerationRequest)


class Regenerations:
    """Which conversations were answered, session by session. Holds hashes, never text. Lives on the event loop."""

    def __init__(self, options: Mapping[str, Any], now: Callable[[], float] = time.monotonic) -> None:
        """`options` are those of the `server` section; `now` is a clock in seconds."""
        self._on = options["regenerate"] == "on"
        self._sampling = {
            "temperature": options["regenerate_temperature"],
            "top_p": options["regenerate_top_p"],
            "top_k": options["regenerate_top_k"],
        }
        self._now = now
        self._sessions: OrderedDict[str, OrderedDict[bytes, float]] = OrderedDict()
        """Session -> conversation -> when it was answered; of both, the latest last."""
        self._counts: Counter[str] = Counter()

    # ---------------------------------------------------------------------------------------- for a whole request

    def read(self, ask: Ask, body: Mapping[str, Any], client: ClientMatch, headers: Mapping[str, str]) -> Ask:
        """`ask`, with the sampling of a regenerate if it is one. `body` is the request's own."""
        wish = {"1": True, "0": False}.get(headers.get(HEADER, "").strip())
        if not isinstance(ask, ChatRequest) or not self._concerns(client, wish):
            return ask
        client_set_sampling = any(body.get(name) is not None for name in SAMPLING_FIELDS)
        sampling = self.sampling_for(client.session, ask.messages, ask.sampling, client_set_sampling, wish)
        return ask if sampling is ask.sampling else replace(ask, sampling=sampling, regenerated=True)

    def ended(self, ask: GenerationRequest, client: ClientMatch, record: Record) -> None:
        """A request that `read` saw is over; remember it when it was answered."""
        answered = record.reason in ANSWERED or (record.reason == "abandoned" and record.first_text is not None)
        if answered and isinstance(ask, ChatRequest) and self._concerns(client, None):
            self.answered(client.session, ask.messages)

    @staticmethod
    def _concerns(client: ClientMatch, wish: bool | None) -> bool:
        """Whether somebody may have pressed a button."""
        if client.side is not None:
            return False
        return wish is not None or client.session is not None or client.kind not in PROGRAMS

    # ------------------------------------------------------------------------------------------------- the memory

    def sampling_for(
        self,
        session: str | None,
        messages: Messages,
        sampling: Sampling,
        client_set_sampling: bool,
        wish: bool | None = None,
    ) -> Sampling:
        """The sampling of a request: `sampling` itself, unless it is a greedy regenerate.

        `session` is the client's own id of the conversation; without one, conversations that begin with the same
        message are one session. `wish` is what the request says about it: it is one, it is none, or nothing.
        """
        if not self._on or wish is False or not (wish or self._knows(session, messages)):
            return sampling
        self._counts["seen"] += 1
        if client_set_sampling or sampling.temperature > 0:
            return sampling
        self._counts["sampled"] += 1
        log.info("a regenerate: sampled with %s", " ".join(f"{k}={v:g}" for k, v in self._sampling.items()))
        return replace(sampling, **self._sampling, seed=None)

    def answered(self, session: str | None, messages: Messages) -> None:
        """The conversation got an answer; when it comes again, it is a regenerate."""
        if not self._on or not _asks(messages):
            return
        key, conversation = _session_key(session, messages), _conversation(messages)
        kept = self._sessions.setdefault(key, OrderedDict())
        self._sessions.move_to_end(key)
        kept[conversation] = self._now()
        kept.move_to_end(conversation)
        while len(kept) > KEPT:
            kept.popitem(last=False)
        while len(self._sessions) > SESSIONS:
            self._sessions.popitem(last=False)

    def _knows(self, session: str | None, messages: Messages) -> bool:
        if not _asks(messages):
            return False
        key = _session_key(session, messages)
        kept = self._sessions.get(key, OrderedDict())
        while kept and next(iter(kept.values())) < self._now() - KEPT_S:
            kept.popitem(last=False)
        return _conversation(messages) in kept

    def told(self) -> dict[str, Any]:
        """The settings and the counts, for `/health`: `seen` regenerates, and those of them that were `sampled`."""
        return {
            "mode": "on" if self._on else "off",
            **self._sampling,
            "seen": self._counts["seen"],
            "sampled": self._counts["sampled"],
            "sessions": len(self._sessions),
        }


# ------------------------------------------------------------------------------------------------------- the hashes


def _spoken(messages: Messages) -> list[Mapping[str, Any]]:
    """All but the system's: a client may render that anew for each request."""
    return [message for message in messages if message.get("role") not in SYSTEM]


def _asks(messages: Messages) -> bool:
    """Whether the conversation ends with a person's words."""
    spoken = _spoken(messages)
    return bool(spoken) and spoken[-1].get("role") == "user"


def _session_key(session: str | None, messages: Messages) -> str:
    """The client's id, or the hash of the first message: it stays the same however the conversation goes on."""
    if session is not None:
        return f"id:{session}"
    return f"head:{_hash(_spoken(messages)[:1]).hex()}"


def _conversation(messages: Messages) -> bytes:
    return _hash(_spoken(messages))


def _hash(messages: Iterable[Mapping[str, Any]]) -> bytes:
    """Of roles, contents and calls. What else a message holds (reasoning, ids, names) differs between two sendings."""
    hashed = hashlib.blake2b(digest_size=16)
    for message in messages:
        for text in (str(message.get("role")), _text(message.get("content")), _text(_calls(message))):
            data = text.encode("utf-8", "surrogatepass")
            # The length in front: otherwise words could move from one text to the next unnoticed.
            hashed.update(len(data).to_bytes(8, "big"))
            hashed.update(data)
    return hashed.digest()


def _calls(message: Mapping[str, Any]) -> list[Any]:
    calls = message.get("tool_calls")
    functions = [call.get("function") for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    return [[f.get("name"), f.get("arguments")] for f in functions if isinstance(f, Mapping)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
