"""The rule contract: a small function that stands at a safe point of the generation and may act there."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from tandem.core.plugin.part import option
from tandem.core.plugin.tools import Tool


class SafePoint(Enum):
    """Where a rule may stand. Between two safe points nothing can interrupt the model."""

    SP4 = "sp4"
    """Before the prefill. The event is a `RequestEvent`."""
    SP1 = "sp1"
    """Between two blocks of the generation. The event is a `BlockEvent`."""
    SP2 = "sp2"
    """The generation has ended: the end token was drawn, a stop string matched, or a limit was met. The event is a
    `FinishEvent`."""
    SP3 = "sp3"
    """The answer has calls, and none of them has gone out yet. Asked once for each call; the event is a
    `ToolCallEvent`."""
    WATCH = "watch"
    """Out of band, now and then, for each session that is known. The event is an `IdleEvent`; nothing but NOTIFY can be
    done here."""
    LABEL = "label"
    """A request has brought the results of earlier calls. Before SP4, with the same `RequestEvent`; what a rule returns
    here is journaled as the outcome of something it did before, and never done."""


# ---------------------------------------------------------------------------------------------------- what it sees


@dataclass(frozen=True, slots=True)
class PastCall:
    """A tool call of the conversation, and its result."""

    id: str
    name: str
    arguments: Mapping[str, Any] | None
    """None when what the client sent is no JSON object."""
    written: str
    """The arguments as JSON text: the client's own text when it is no object, else with sorted keys and no blanks."""
    result: str | None
    """The result's text, parts joined; None while there is none."""
    seconds: float | None = None
    """From the end of the answer that made the call to the request that first brought its result; None when this
    server did not see both."""

    @property
    def key(self) -> tuple[str, str]:
        """Equal for calls of one tool with equal arguments; the order of keys and blanks do not count."""
        return self.name, self.written


@dataclass(frozen=True, slots=True)
class RequestEvent:
    """A request that is about to be prefilled."""

    messages: tuple[Mapping[str, Any], ...]
    """The client's messages; empty for a plain completion. A content is a text, or with pictures a list of parts."""
    prompt_tokens: int
    max_tokens: int
    client: str
    """The client shape's name, `plain` when none was recognised."""
    tools: tuple[Tool, ...] = ()
    """What the request offers and may be called; empty with `tool_choice` none."""
    tool_choice: str = "auto"
    """`auto`, `none`, `required` or `function`."""
    n: int = 1
    constrained: bool = False
    """A grammar writes the answer or its calls."""
    thinking: bool = False
    """The prompt ends inside the reasoning."""
    thinking_asked: bool | None = None
    """Whether the client itself asked for reasoning (True) or for none (False); None = it said nothing."""
    budget: int | None = None
    """The client's own limit of reasoning tokens."""
    sampling_asked: bool = False
    """The client named temperature, top_p, top_k, min_p or seed."""
    regenerated: bool = False
    """A conversation that was answered is sent again, and another answer is drawn for it."""
    side: str | None = None
    """What kind of side request it is (`title`, `compaction`, ...); None = a turn."""
    session: str = ""
    """The session's key."""
    cls: str | None = None
    """The turn's class, when something decided one."""
    profile: str = ""
    """The profile that it runs under."""
    calls: tuple[PastCall, ...] = ()
    """The conversation's calls, oldest first."""
    turn_calls: tuple[PastCall, ...] = ()
    """Those after the last user message."""
    new_calls: tuple[PastCall, ...] = ()
    """Those whose results come for the first time in this session: each call once, however often it is sent."""

    @property
    def system(self) -> str:
        """The text of the system messages."""
        return "\n".join(text_of(m) for m in self.messages if m.get("role") in ("system", "developer"))


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message's content, parts joined."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, Seq):
        return ""
    return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))


UNREADABLE = "unreadable_arguments"
"""The one argument of an earlier call whose arguments do not parse; its value is their text."""


def canonical(arguments: Any) -> str:
    """Arguments as JSON text that is equal for equal values: keys sorted, no blanks."""
    return json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)


class OpenCall(Protocol):
    """A tool call that the model is writing."""

    @property
    def name(self) -> str: ...

    @property
    def tokens(self) -> int:
        """Tokens of the call so far."""
        ...

    @property
    def streamed(self) -> bool:
        """Part of it has gone to the client."""
        ...

    def tail(self, characters: int) -> str:
        """The end of what the model wrote of it, in the family's notation; all of it when it is shorter."""
        ...


class BlockEvent:
    """A block of tokens was just accepted.

    What is long is only put together when it is asked for, and is a view of the answer as it is then: read it in the
    check, and keep what you need of it.
    """

    def __init__(
        self,
        answer: str = "",
        new: str = "",
        tokens: int = 0,
        *,
        reasoning: str = "",
        new_reasoning: str = "",
        reasoning_tokens: int = 0,
        inside: bool = False,
        ids: Seq[int] = (),
        new_ids: Seq[int] = (),
        call: OpenCall | None = None,
    ) -> None:
        self._answer, self._reasoning = answer, reasoning
        self.new = new
        """What this block added to the answer."""
        self.tokens = tokens
        """Tokens generated so far, reasoning included, hidden ones not."""
        self.new_reasoning = new_reasoning
        """What this block added to the reasoning."""
        self.reasoning_tokens = reasoning_tokens
        self.inside = inside
        """The model is reasoning now."""
        self.ids = ids
        """All tokens behind the prompt, hidden ones included. A live view: do not keep it."""
        self.new_ids = new_ids
        """The tokens of this block."""
        self.call = call
        """The tool call that is being written."""

    @property
    def answer(self) -> str:
        """The answer's text so far, this block included; reasoning and calls are not in it."""
        return self._answer

    @property
    def reasoning(self) -> str:
        """The reasoning's text so far."""
        return self._reasoning


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call as the model wrote it."""

    name: str
    arguments: str
    """JSON text; no whole object when the call was cut."""
    done: bool = True


@dataclass(frozen=True, slots=True)
class FinishEvent:
    """The generation has ended."""

    answer: str
    tokens: int
    reason: str
    """`stop`, `length` or `tool_calls`."""
    ended: bool = True
    """The model drew its end token: it can be made to go on. False at a stop string, a limit or a fulfilled grammar."""
    inside: bool = False
    """The reasoning was never closed."""
    reasoning: str = ""
    reasoning_tokens: int = 0
    calls: tuple[WrittenCall, ...] = ()
    """The answer's calls, those that are held included."""


@dataclass(frozen=True, slots=True)
class ToolCallEvent:
    """A call that is held, or a block that looks like calls and could not be read."""

    name: str | None
    """None for a block that could not be read."""
    arguments: Mapping[str, Any] | None
    """None when they are no JSON object."""
    written: str
    """The arguments as JSON text, or the block's own text."""
    index: int
    """The call's place among the answer's calls and blocks."""
    calls: tuple[WrittenCall, ...]
    """All readable calls of the answer."""
    tool: Tool | None
    """The offered function; None when the request offers none of this name."""
    final: bool = False
    """Nothing can be written again: the answer did not end with its end token."""
    problem: str = ""
    """Why a block could not be read: `cut_by_stop`, `cut_by_limit` or `unreadable`; empty for a call."""


@dataclass(frozen=True, slots=True)
class IdleEvent:
    """A session, looked at from outside."""

    session: str
    idle_s: float
    """Since its last turn ended."""
    running: bool = False
    """A request of the session is being served now."""


Event = RequestEvent | BlockEvent | FinishEvent | ToolCallEvent | IdleEvent


# ---------------------------------------------------------------------------------------------------- what it wants


class ActionKind(Enum):
    PASS = "pass"
    NOTIFY = "notify"
    GIVE_UP = "give_up"
    CLOSE_REASONING = "close_reasoning"
    CONTINUE = "continue"
    REPAIR_CALL = "repair_call"
    REGENERATE_CALL = "regenerate_call"
    PROMPT_TAIL_NOTE = "prompt_tail_note"
    SET_THINK_BUDGET = "set_think_budget"
    SET_CONSTRAINT = "set_constraint"
    SET_SAMPLING = "set_sampling"
    MASK = "mask"


ALLOWED: Mapping[SafePoint, frozenset[ActionKind]] = {
    SafePoint.SP4: frozenset(
        {
            ActionKind.GIVE_UP,
            ActionKind.PROMPT_TAIL_NOTE,
            ActionKind.SET_THINK_BUDGET,
            ActionKind.SET_CONSTRAINT,
            ActionKind.SET_SAMPLING,
            ActionKind.MASK,
        }
    ),
    SafePoint.SP1: frozenset({ActionKind.CLOSE_REASONING, ActionKind.GIVE_UP}),
    SafePoint.SP2: frozenset({ActionKind.CONTINUE, ActionKind.GIVE_UP}),
    SafePoint.SP3: frozenset({ActionKind.REPAIR_CALL, ActionKind.REGENERATE_CALL, ActionKind.GIVE_UP}),
    SafePoint.WATCH: frozenset(),
    SafePoint.LABEL: frozenset(),
}
"""What can be done where; PASS and NOTIFY are possible everywhere."""


@dataclass(frozen=True, slots=True)
class Action:
    """What a rule wants done. Use the constructors."""

    kind: ActionKind
    text: str = ""
    reason: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """Numbers and short words for the journal, and what the action needs; never text of a prompt or an answer. With
    `"mode": "shadow"` this one finding is journaled only."""
    score: float | None = None
    """How sure the rule is, 0 to 1, when it can say."""

    @classmethod
    def passed(cls, reason: str = "", **detail: Any) -> Action:
        """Nothing is done; with a reason the observation is journaled."""
        return cls(ActionKind.PASS, reason=reason, detail=detail)

    @classmethod
    def notify(cls, reason: str, text: str = "", **detail: Any) -> Action:
        """Journal `reason`; the generation goes on untouched. At WATCH a message with `text` goes to the address that
        the policy names, when it names one."""
        return cls(ActionKind.NOTIFY, text, reason, detail)

    @classmethod
    def give_up(cls, text: str, reason: str = "", **detail: Any) -> Action:
        """End the answer here: the client reads `text` after what it has, with `finish_reason` `stop`. A call that is
        held or open is dropped. At SP4 nothing is generated at all."""
        return cls(ActionKind.GIVE_UP, text, reason, detail)

    @classmethod
    def close_reasoning(cls, text: str, reason: str = "", **detail: Any) -> Action:
        """Close the reasoning: the model reads `text` as its own last thought, the client sees the end of the reasoning
        and nothing of the text. The closing tag is added when `text` does not end with it."""
        return cls(ActionKind.CLOSE_REASONING, text, reason, detail)

    @classmethod
    def go_on(cls, text: str, reason: str = "", then: str = "", **detail: Any) -> Action:
        """Drop the end token and let the model go on, hidden from the client. Inside the reasoning `text` closes it as
        `close_reasoning` does; behind it, `text` is put to the model as a user's message and it answers without
        reasoning. With `then` that text is written as the model's own answer first, for the client to read."""
        return cls(ActionKind.CONTINUE, text, reason, {**detail, "then": then} if then else detail)

    @classmethod
    def repair_call(cls, arguments: Mapping[str, Any], reason: str = "", **detail: Any) -> Action:
        """Send the call with these arguments instead."""
        return cls(ActionKind.REPAIR_CALL, reason=reason, detail={**detail, "arguments": arguments})

    @classmethod
    def regenerate_call(cls, text: str, reason: str = "", fallback: str = "give_up", **detail: Any) -> Action:
        """Send none of the answer's calls, put `text` to the model as their result, hidden, and let it write them
        again. `fallback` says what is done when that is not possible: `give_up`, with the text `give_up` of the detail
        when it has one, or `release` the calls as they are."""
        return cls(ActionKind.REGENERATE_CALL, text, reason, {**detail, "fallback": fallback})

    @classmethod
    def tail_note(cls, text: str, reason: str = "", **detail: Any) -> Action:
        """Add `text` to the end of the last message, hidden from the client. Later turns keep it where it was."""
        return cls(ActionKind.PROMPT_TAIL_NOTE, text, reason, detail)

    @classmethod
    def think_budget(cls, tokens: int, reason: str = "", text: str = "", **detail: Any) -> Action:
        """Limit the reasoning to so many tokens, then close it hidden with `text`; 0 = no reasoning at all."""
        return cls(ActionKind.SET_THINK_BUDGET, text, reason, {**detail, "tokens": tokens})

    @classmethod
    def constrain(cls, document: Mapping[str, Any], reason: str = "", **detail: Any) -> Action:
        """Let a grammar write the answer, when the client asked for none: `{"json": {...}}` with a schema,
        `{"regex": "..."}` or `{"choice": [...]}`, as `structured_outputs` of a request takes it."""
        return cls(ActionKind.SET_CONSTRAINT, reason=reason, detail={**detail, "document": document})

    @classmethod
    def sample(cls, reason: str = "", **sampling: float) -> Action:
        """Draw with these settings (`temperature`, `top_p`, `top_k`, `min_p`) and a fresh seed; none = those that the
        checkpoint recommends. A client's own settings stay."""
        return cls(ActionKind.SET_SAMPLING, reason=reason, detail=dict(sampling))

    @classmethod
    def mask(cls, words: Mapping[str, str], reason: str = "", **detail: Any) -> Action:
        """Put another text in place of each of these words wherever the answer or the reasoning repeats it whole. The
        words are never journaled."""
        return cls(ActionKind.MASK, reason=reason, detail={**detail, "words": words})


# ------------------------------------------------------------------------------------------------------- the rule


@dataclass(frozen=True, slots=True)
class Task:
    """A rule at work: as the manifest or the policy switched it on."""

    name: str
    """The task's name in the policy; the rule's own name without one."""
    mode: str
    """`act` or `shadow`. In shadow the rule's actions are journaled and not done."""
    params: Mapping[str, Any]


class Session(Protocol):
    """What is remembered from one request of a session to the next."""

    @property
    def key(self) -> str: ...

    @property
    def data(self) -> dict[str, Any]:
        """This task's own memory of the session. Numbers, hashes and names; no text of a conversation."""
        ...


class Supervision(Protocol):
    """What a rule sees of its surroundings."""

    request: RequestEvent
    memo: dict[str, Any]
    """Scratch space of this task for this request; each choice has its own."""

    @property
    def session(self) -> Session: ...

    @property
    def now(self) -> float:
        """Seconds on a clock that never goes back."""
        ...

    @property
    def room(self) -> bool:
        """An action that this task returned now would be done: it acts, and the caps leave room."""
        ...

    def tokens(self, text: str) -> int:
        """How many tokens the model reads `text` as."""
        ...

    def read_calls(self, text: str) -> tuple[list[WrittenCall], str]:
        """The tool calls in a text that the model wrote, and the text that is left without them."""
        ...

    def ask(self, question: str, options: Seq[str]) -> list[float]:
        """Put a question to the model where it stands, at SP2: how likely each option is as its answer, summing to 1.

        Each option should begin with a token of its own; single letters do. The model's state is afterwards what it was
        before, and nobody else sees the question. The time does not count against the rule's. Raises AskError when it
        can't be asked: elsewhere than at SP2, or without room for the question.
        """
        ...


class AskError(Exception):
    """The model can't be asked here. The message says why."""


Result = Action | Seq[Action] | None
Check = Callable[[Any, Task, Supervision], Result]
Messages = Seq[Mapping[str, Any]]

MODE = option(
    "string",
    "What a finding does: `act` (`on` means the same), `shadow` (journaled only) or `off`.",
    "act",
    enum=["act", "on", "shadow", "off"],
)


@dataclass(frozen=True)
class Rule:
    """A monitor rule. `check(event, task, sup)` returns an `Action`, several at SP4, or None to pass.

    A check that raises or takes too long counts as passed; the fault is journaled, and after 3 faults in a minute the
    rule is switched off and listed as failed.
    """

    name: str
    at: SafePoint | tuple[SafePoint, ...]
    check: Check
    params: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Parameter name -> its JSON Schema, as `option(...)` writes it. Every rule has `mode` besides."""
    doc: str = ""
    """Markdown. The first line says in a sentence what it does; then `## Why`, `## When it acts`, `## Parameters` and
    `## Example`. `tandem explain NAME` prints it."""
    holds: Callable[[RequestEvent, Task], bool] | None = None
    """At SP3 only: whether this request's calls have to wait until the answer has ended. None = those of every request
    with tools. Calls that nobody holds stream while they are written, and SP3 is not asked about them."""
    rewrite: Callable[[Messages, Task], Messages | None] | None = None
    """Changes a request's messages before anything reads them; None = they are fine. Only while the task acts."""

    @property
    def points(self) -> tuple[SafePoint, ...]:
        return (self.at,) if isinstance(self.at, SafePoint) else self.at

    @property
    def options(self) -> Mapping[str, Mapping[str, Any]]:
        return {"mode": MODE, **self.params}

    @property
    def summary(self) -> str:
        return self.doc.strip().splitlines()[0] if self.doc.strip() else ""
