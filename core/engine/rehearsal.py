"""What a rule would have done in a recorded conversation: its checks at the safe points of each recorded answer.

The answer is written again, token by token, through the chain that a served answer goes through, and the real
supervisor asks the rule. There is no model: what would have come after an act can't be known, so the rest of that
answer is left out, or of its reasoning where that was closed. Tokens are counted by a rule of thumb.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence as Seq
from dataclasses import dataclass
from typing import Any

from tandem.core.answer import Answer
from tandem.core.conductor import Caps, Journal, Post, Roster, Sessions, Supervisor, Watch
from tandem.core.conductor.history import calls_of_turn, past_calls
from tandem.core.engine.request import Calls, Event, Thinking
from tandem.core.engine.safe_points import LiveBlock, call_events, call_reader, finish_event
from tandem.core.plugin import ActionKind, AnswerFormat, RequestEvent, Rule, SafePoint, Task, Tool
from tandem.core.plugin.rule import text_of

TAGS = ("<think>", "</think>")
PATIENCE_S = 5.0
"""How long one check may take; nobody waits for the answer."""
ROOM = 1 << 30
"""No answer is too long here."""

Message = Mapping[str, Any]


class TranscriptError(ValueError):
    """The file is no transcript; the message says what would be one."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A recorded request, and the answer that it got."""

    messages: tuple[Message, ...]
    answer: Message | None
    """None for the last request of a recording that ends with it."""
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that the rule wanted, or saw."""

    message: int
    """The message's place in the conversation: the last one of the request before the prompt is read, else the
    answer."""
    point: str
    action: str
    reason: str
    done: bool
    """It would have been done; otherwise it is an observation, a fault, or beyond the caps."""
    tokens: int = 0
    """How far the answer was."""
    counted: str = "message"
    """What `message` counts."""


# ------------------------------------------------------------------------------------------------- reading a file


def read_turns(values: Seq[Any]) -> list[Turn]:
    """The turns of the JSON values of a file, each once, in order: requests with their `messages`, or the messages of
    one conversation. Raises TranscriptError."""
    if values and all(isinstance(value, Mapping) and "role" in value for value in values):
        values = [{"messages": list(values)}]
    requests = [_request(value, place) for place, value in enumerate(values, 1)]
    answered = {digests[i] for messages, _, digests in requests for i, m in enumerate(messages) if _is_answer(m)}
    seen: set[tuple[str, str]] = set()
    turns: list[Turn] = []
    for messages, tools, digests in requests:
        for place, message in enumerate(messages):
            key = digests[place], digests[place + 1]
            if _is_answer(message) and key not in seen:
                seen.add(key)
                turns.append(Turn(messages[:place], message, tools))
        last = digests[len(messages)], ""
        if messages and not _is_answer(messages[-1]) and last[0] not in answered and last not in seen:
            seen.add(last)
            turns.append(Turn(messages, None, tools))
    return turns


def _request(value: Any, place: int) -> tuple[tuple[Message, ...], tuple[Tool, ...], list[str]]:
    messages = value.get("messages") if isinstance(value, Mapping) else None
    if not isinstance(messages, list) or not all(isinstance(m, Mapping) and "role" in m for m in messages):
        raise TranscriptError(
            f"value {place} is no request: it needs `messages`, a list of objects with a `role`; a file of one "
            "conversation may be the list of its messages, or hold one message a line"
        )
    return tuple(messages), _tools(value.get("tools"), messages), _digests(messages)


def _tools(offered: Any, messages: Seq[Message]) -> tuple[Tool, ...]:
    """What the request offered; what the conversation called, when it does not say."""
    if isinstance(offered, list):
        functions = [tool["function"] for tool in offered if isinstance(tool, Mapping) and tool.get("function")]
        return tuple(
            Tool(str(f.get("name")), f.get("description") or "", f.get("parameters") or {})
            for f in functions
            if isinstance(f, Mapping)
        )
    return tuple(Tool(name) for name in dict.fromkeys(call.name for call in past_calls(messages)))


def _is_answer(message: Message) -> bool:
    return message.get("role") == "assistant"


def _digests(messages: Seq[Message]) -> list[str]:
    """A digest of the first 0, 1, ... messages. Reasoning does not count: many clients do not send it back."""
    running = hashlib.blake2b(digest_size=16)
    found = [running.hexdigest()]
    for message in messages:
        told = [message.get("role"), text_of(message), message.get("tool_calls"), message.get("tool_call_id")]
        running.update(json.dumps(told, default=str).encode())
        found.append(running.hexdigest())
    return found


# --------------------------------------------------------------------------------------------------- the rehearsal


class Pieces:
    """A tokenizer by a rule of thumb: words in pieces of at most five letters, blanks and signs (about four characters
    a token in prose, less in code)."""

    PIECE = re.compile(r" ?\w{1,5}|\s+|[^\w\s]")
    vocab_size = 1 << 30
    eos_ids: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._bytes: list[bytes] = []

    def encode(self, text: str) -> list[int]:
        return [self._id(piece) for piece in self.PIECE.findall(text)]

    def count(self, text: str) -> int:
        return len(self.encode(text))

    def token_bytes(self, token: int) -> bytes:
        return self._bytes[token]

    def _id(self, piece: str) -> int:
        known = self._ids.setdefault(piece, len(self._bytes))
        if known == len(self._bytes):
            self._bytes.append(piece.encode("utf-8", "replace"))
        return known


class Rehearsal:
    """One rule in front of recorded turns."""

    def __init__(
        self, rule: Rule, params: Mapping[str, Any], notation: AnswerFormat, *, block: int = 4, caps: Caps | None = None
    ) -> None:
        """`block` tokens come at once, as drafts make it on a server."""
        self._post = Post(Task(rule.name, "act", params), rule)
        self._roster = Roster((self._post,), caps or Caps())
        self._notation = notation
        self._tags = notation.thinking or TAGS
        self._block = block
        self._tokenizer = Pieces()
        self._sessions = Sessions()
        self._supervisor = Supervisor(
            Journal(),
            sessions=self._sessions,
            tokens=lambda text: len(self._tokenizer.encode(text)),
            budget_s=PATIENCE_S,
        )

    @property
    def is_off(self) -> bool:
        """The rule failed so often that a server would have switched it off."""
        return bool(self._supervisor.off)

    def close(self) -> None:
        self._supervisor.close()

    def turns(self, turns: Iterable[Turn]) -> Iterator[Finding]:
        """What the rule would have done, turn by turn."""
        for turn in turns:
            self._supervisor.journal = Journal()
            place = len(turn.messages)
            messages = self._supervisor.rewritten(turn.messages, self._roster, "on")
            if list(messages) != list(turn.messages):
                yield Finding(place - 1, SafePoint.SP4.value, "rewrite", "", True)
            self._play(tuple(messages), turn)
            for entry in self._supervisor.journal.entries():
                before = entry["point"] in (SafePoint.SP4.value, SafePoint.LABEL.value)
                yield Finding(
                    place - 1 if before else place,
                    entry["point"],
                    entry["action"],
                    entry["reason"],
                    entry["done"] and entry["action"] != ActionKind.NOTIFY.value,
                    entry["position"],
                )

    def _play(self, messages: tuple[Message, ...], turn: Turn) -> None:
        watch = self._supervisor.begin(self._event(messages, turn), self._roster)
        watch.begun()
        if watch.plan().give_up is None and turn.answer is not None:
            self._answer(turn.answer, turn.tools, watch)
        watch.ended([str(call.get("id")) for call in _calls(turn.answer)])

    def _event(self, messages: tuple[Message, ...], turn: Turn) -> RequestEvent:
        key = self._sessions.key("replay", None, messages)
        calls = past_calls(messages)
        timed, new = self._sessions.begun(self._sessions.of(key), calls)
        return RequestEvent(
            messages=messages,
            prompt_tokens=sum(self._tokenizer.count(text_of(message)) for message in messages),
            max_tokens=ROOM,
            client="replay",
            tools=turn.tools,
            thinking=bool(_reasoning(turn.answer)),
            session=key,
            calls=timed,
            turn_calls=calls_of_turn(messages, timed),
            new_calls=new,
        )

    # ------------------------------------------------------------------------------------------------- an answer

    def _answer(self, message: Message, tools: Seq[Tool], watch: Watch) -> None:
        reasoning, (rest, whole) = _reasoning(message), _written(message, self._notation)
        calls = None
        if tools and self._notation.opener is not None:
            calls = Calls(lambda: self._notation.parser(tools), True, None, self._notation.opener)
            watch.read_calls = call_reader(calls)
        thinking = Thinking(self._tags, opened=True) if reasoning else None
        answer = Answer(self._tokenizer, (), thinking, calls, hold=calls is not None)
        output: list[int] = []
        if reasoning:
            done = self._stream(reasoning, answer, output, watch)
            if done is ActionKind.CLOSE_REASONING:
                answer.close_reasoning()
            elif done is not None:
                return
            else:
                rest = f"\n{self._tags[1]}\n\n{rest}"
        if self._stream(rest, answer, output, watch) is not None:
            return
        answer.end(cut=not whole)
        detail = "eos" if whole else "max_tokens"
        finish = finish_event(answer, len(output), "stop" if whole else "length", detail)
        if (act := watch.at(SafePoint.SP2, finish)) is not None:
            watch.done(act, SafePoint.SP2, finish)
            return
        if answer.at_gate and watch.wants(SafePoint.SP3) and watch.holds:
            problem = "unreadable" if whole else "cut_by_limit"
            watch.calls(call_events(answer.at_gate, tools, final=not whole, problem=problem), write=lambda text: True)

    def _stream(self, text: str, answer: Answer, output: list[int], watch: Watch) -> ActionKind | None:
        """Write the text, block by block; what was done at a block ends it."""
        tokens = self._tokenizer.encode(text)
        for start in range(0, len(tokens), self._block):
            block = tokens[start : start + self._block]
            events: list[Event] = []
            for token in block:
                output.append(token)
                events.extend(answer.feed(token))
            if watch.wants(SafePoint.SP1):
                event = LiveBlock(answer, output, len(block), len(output), events)
                act = watch.at(SafePoint.SP1, event)
                if act is not None:
                    watch.done(act, SafePoint.SP1, event)
                    return act.action.kind
        return None


def _reasoning(message: Message | None) -> str:
    told = (message or {}).get("reasoning_content") or (message or {}).get("reasoning")
    return told if isinstance(told, str) else ""


def _calls(message: Message | None) -> list[Mapping[str, Any]]:
    calls = (message or {}).get("tool_calls")
    return [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []


def _written(message: Message, notation: AnswerFormat) -> tuple[str, bool]:
    """The answer as the model wrote it, and whether all of it is there: a call whose arguments do not parse was cut."""
    parts = [text_of(message)]
    for call in _calls(message):
        function = call.get("function") if isinstance(call.get("function"), Mapping) else {}
        assert isinstance(function, Mapping)
        name, sent = str(function.get("name") or ""), function.get("arguments")
        try:
            arguments = json.loads(sent or "{}") if isinstance(sent, str) else sent or {}
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, Mapping):
            head = notation.render(name, {}).rpartition("{}")[0] or notation.opener or ""
            return "\n".join(part for part in (*parts, f"{head}{sent}") if part), False
        parts.append(notation.render(name, arguments))
    return "\n".join(part for part in parts if part), True
