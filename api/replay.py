"""Turns that come back: kept when they are written, and found again in a request's messages.

A turn comes back when the assistant's message says what the client was given: the same text, and calls of the same ids
and names with equal arguments. Blanks around the text, the order of keys and the spelling of the JSON don't matter, and
the reasoning may be left out. Anything else is an edit, and is read as it is sent.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tandem.api.listener import Listener
from tandem.api.messages import content_text, messages as read_messages
from tandem.api.presenting import Message
from tandem.api.readers import Place
from tandem.core.answer.detokenizer import Detokenizer
from tandem.core.engine.replay import ReplayStore, Written
from tandem.core.engine.request import Calls, Channel, Failed, Finished
from tandem.core.engine.splice import Splicer
from tandem.core.plugin import CallPart, Tokenizer

if TYPE_CHECKING:
    from tandem.core.engine.generation import Generation

EXACT_UP_TO = 2**53
"""Whole floats are exact up to here; a client that has one kind of number sends them back as whole numbers."""

Tags = tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of a request's messages."""

    turns: Mapping[int, Written]
    """Index of a message -> what the model wrote there."""
    contexts: tuple[bytes, ...]
    """For each message a digest of the conversation through it."""

    @property
    def context(self) -> bytes:
        """The whole conversation: what the next answer answers."""
        return self.contexts[-1] if self.contexts else b""


class Replays:
    """The served model's turns. Thread-safe."""

    def __init__(
        self, store: ReplayStore, splicer: Splicer, tags: Tags, tokenizer: Tokenizer, unkept: frozenset[int]
    ) -> None:
        """`tags` open and close the reasoning. A turn in which one of the `unkept` tokens stands is not kept."""
        self.store = store
        self.splicer = splicer
        self.tags = tags
        self.tokenizer = tokenizer
        self.unkept = unkept

    def find(self, messages: Seq[Mapping[str, Any]]) -> Found:
        """The turns of the model among a request's messages.

        The last message is never one: an answer goes on with it, or answers it.
        """
        turns: dict[int, Written] = {}
        context = b""
        contexts: list[bytes] = []
        for index, message in enumerate(messages):
            said = _said(message, self.tags)
            if message["role"] == "assistant" and index < len(messages) - 1:
                thoughts = _digest(said.thoughts) if said.thoughts else None
                turn = self.store.find(*_keys(context, message, said), context, thoughts)
                if turn is not None:
                    turns[index] = turn
            context = _digest([context.hex(), message["role"], said.content, _calls(message, with_ids=False)])
            contexts.append(context)
        return Found(turns, tuple(contexts))

    def keep(self, context: bytes, message: Mapping[str, Any], turn: Written) -> None:
        """`message` is the turn as the client was given it, read as the messages of a request are."""
        self.store.put(turn, *_keys(context, message, _said(message, self.tags)), context)


@dataclass(frozen=True, slots=True)
class Recorder:
    """Keeps the answers to one prompt."""

    replays: Replays
    context: bytes
    """The digest of the conversation that is answered."""
    opening: str
    """What the prompt writes behind the assistant's header."""
    calls: Calls | None
    """How calls are read out of the answers."""

    def ended(
        self, message: Message, tokens: Seq[int], last: Finished | Failed, hidden: tuple[range, ...] = ()
    ) -> None:
        """An answer is over: `message` has all of it, and `tokens` are what the model wrote, with what stands at the
        `hidden` places put between.

        It is kept unless the client has something else in hands: a text that was cut at a stop string, a rule's
        sentence, one call of several. Nor is one kept that ended inside its reasoning, which templates would close.
        """
        if isinstance(last, Failed) or last.reason == "abandoned" or last.detail == "stop_string":
            return
        if last.detail.startswith("rule:") or not tokens or not self.replays.unkept.isdisjoint(tokens):
            return
        opened, closed = Channel.OPEN in message.channels, Channel.CLOSE in message.channels
        if (opened and not closed) or self._dropped_calls(message, tokens, last.reason == "length", hidden):
            return
        thoughts = "".join(message.thoughts).strip()
        turn = Written.of(
            tokens, self.opening, opened or bool(self.opening.strip()), _digest(thoughts) if thoughts else b"", hidden
        )
        given = [{"role": "user", "content": ""}, message.object()]
        self.replays.keep(self.context, read_messages(given, Place("messages", 0))[1], turn)

    def _dropped_calls(self, message: Message, tokens: Seq[int], cut: bool, hidden: tuple[range, ...]) -> bool:
        """Whether the model wrote calls that the client was not given."""
        if self.calls is None or (self.calls.wanted and self.calls.limit is None):
            return False
        detokenizer = Detokenizer(self.replays.tokenizer)
        unseen = {place for places in hidden for place in places}
        text = "".join(detokenizer.feed(token) for place, token in enumerate(tokens) if place not in unseen)
        if self.replays.tags is not None and Channel.CLOSE in message.channels:
            text = text.partition(self.replays.tags[1])[2]
        parser = self.calls.parser()
        parts = [*parser.feed(text), *parser.end(cut)]
        return len({part.index for part in parts if isinstance(part, CallPart)}) != len(message.calls)


class RecordedListener(Listener):
    """A listener that can tell the tokens of the answer."""

    @property
    def tokens(self) -> Seq[int]:
        """What the model has written; whole when the last event was heard, empty when it never ran."""
        generation: Generation | None = getattr(self._job, "generation", None)
        return generation.output if generation is not None else getattr(self._job, "retold", ())

    @property
    def hidden(self) -> tuple[range, ...]:
        """Which of them the client does not see."""
        generation: Generation | None = getattr(self._job, "generation", None)
        return tuple(generation.hidden) if generation is not None else ()


# ------------------------------------------------------------------------------------------------- what is compared


@dataclass(frozen=True, slots=True)
class _Said:
    """A message's words."""

    content: Any
    """Text without the reasoning and the blanks around it; a list of parts where there are pictures."""
    thoughts: str
    """The reasoning; empty when there is none."""


def _said(message: Mapping[str, Any], tags: Tags) -> _Said:
    """The words of a message; an assistant's reasoning may stand in a field or between tags before the answer."""
    content = message["content"]
    if message["role"] != "assistant":
        return _Said(content, "")
    text = content_text(message).strip()
    thoughts = message.get("reasoning_content") or ""
    if tags is not None and text.startswith(tags[0]):
        block, closed, behind = text[len(tags[0]) :].partition(tags[1])
        if closed:
            text, thoughts = behind.strip(), thoughts or block
    return _Said(text, thoughts.strip() if isinstance(thoughts, str) else json.dumps(thoughts, default=str))


def _keys(context: bytes, message: Mapping[str, Any], said: _Said) -> tuple[bytes, bytes | None]:
    """The exact key of an assistant's message, and the loose one of a message with calls.

    A call's id is proof enough of where a turn comes from. A text is not: two conversations may hold the same answer
    with other thoughts behind it, so all that was said before belongs to its key.
    """
    calls = _calls(message, with_ids=True)
    exact = _digest([context.hex(), said.content, calls])
    return exact, _digest([said.content, calls]) if calls else None


def _calls(message: Mapping[str, Any], *, with_ids: bool) -> list[list[Any]]:
    return [
        [call.get("id") if with_ids else None, call["function"]["name"], _written(call["function"]["arguments"])]
        for call in message.get("tool_calls") or ()
    ]


def _written(arguments: Mapping[str, Any]) -> str:
    """Arguments as text that is equal for equal ones."""
    try:
        return json.dumps(_numbers(arguments), sort_keys=True, default=str)
    except RecursionError:  # nested too deeply to be compared: equal to nothing
        return secrets.token_hex(16)


def _numbers(value: Any) -> Any:
    """The value with every number as a client of JavaScript writes it: 2.0 is 2. Types stay apart otherwise: 2 is
    neither "2" nor true."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= EXACT_UP_TO:
        return int(value)
    if isinstance(value, Mapping):
        return {key: _numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return value


def _digest(value: Any) -> bytes:
    """Of the value's JSON text, keys sorted. JSON's own quoting keeps neighbours apart."""
    written = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(written.encode("utf-8", "surrogatepass"), digest_size=16).digest()
