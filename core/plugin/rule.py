"""The rule contract: a small function that stands at a safe point of the generation and may act there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from tandem.core.plugin.part import option


class SafePoint(Enum):
    """Where a rule may stand. Between two safe points nothing can interrupt the model."""

    SP4 = "sp4"
    """Before the prefill. The event is a `RequestEvent`."""
    SP1 = "sp1"
    """Between two blocks of the generation. The event is a `BlockEvent`."""
    SP2 = "sp2"
    """The end token was drawn (or a stop string matched). The event is a `FinishEvent`."""


@dataclass(frozen=True, slots=True)
class RequestEvent:
    """A request that is about to be prefilled."""

    messages: tuple[Mapping[str, Any], ...]
    """The client's messages; empty for a plain completion. A content is a text, or with pictures a list of parts."""
    prompt_tokens: int
    max_tokens: int
    client: str
    """The client shape's name, `plain` when none was recognised."""


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """A block of tokens was just accepted."""

    answer: str
    """The answer's text so far, this block included; reasoning and calls are not in it."""
    new: str
    """What this block added to it."""
    tokens: int
    """Tokens generated so far, reasoning included."""


@dataclass(frozen=True, slots=True)
class FinishEvent:
    """The model has ended its answer."""

    answer: str
    tokens: int
    reason: str
    """`stop`, `length` or `tool_calls`."""


Event = RequestEvent | BlockEvent | FinishEvent


class ActionKind(Enum):
    PASS = "pass"
    NOTIFY = "notify"
    GIVE_UP = "give_up"


@dataclass(frozen=True, slots=True)
class Action:
    """What a rule wants done. Use the constructors."""

    kind: ActionKind
    text: str = ""
    reason: str = ""

    @classmethod
    def passed(cls, reason: str = "") -> Action:
        """Nothing is done; with a reason the observation is journaled."""
        return cls(ActionKind.PASS, reason=reason)

    @classmethod
    def notify(cls, reason: str) -> Action:
        """Journal `reason`; the generation goes on untouched."""
        return cls(ActionKind.NOTIFY, reason=reason)

    @classmethod
    def give_up(cls, text: str, reason: str = "") -> Action:
        """End the answer here: the client reads `text` after what it has, with `finish_reason` `stop`."""
        return cls(ActionKind.GIVE_UP, text=text, reason=reason)


@dataclass(frozen=True, slots=True)
class Task:
    """A rule as the manifest switched it on."""

    name: str
    mode: str
    """`act` or `shadow`. In shadow the rule's actions are journaled and not done."""
    params: Mapping[str, Any]


class Supervision(Protocol):
    """What a rule sees of its surroundings."""

    request: RequestEvent
    memo: dict[str, Any]
    """Scratch space of this rule for this request."""


Check = Callable[[Any, Task, Supervision], Action | None]

MODE = option(
    "string",
    "What a finding does: `act` (`on` means the same), `shadow` (journaled only) or `off`.",
    "act",
    enum=["act", "on", "shadow", "off"],
)


@dataclass(frozen=True)
class Rule:
    """A monitor rule. `check(event, task, sup)` returns an `Action`, or None to pass.

    A check that raises counts as passed; the fault is journaled, and after 3 faults in a minute the rule is
    switched off and listed as failed.
    """

    name: str
    at: SafePoint
    check: Check
    params: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Parameter name -> its JSON Schema, as `option(...)` writes it. Every rule has `mode` besides."""
    doc: str = ""

    @property
    def options(self) -> Mapping[str, Mapping[str, Any]]:
        return {"mode": MODE, **self.params}

    @property
    def summary(self) -> str:
        return self.doc.strip().splitlines()[0] if self.doc.strip() else ""
