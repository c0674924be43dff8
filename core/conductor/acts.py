"""What is to be done: actions that were chosen, what they make of a request, and what of held calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tandem.core.conductor.roster import Post
from tandem.core.plugin import Action, ActionKind, RequestEvent

HIDDEN = frozenset({ActionKind.CLOSE_REASONING, ActionKind.CONTINUE, ActionKind.REGENERATE_CALL})
"""What makes the model write on hidden from the client. Beyond the caps the answer ends instead."""
NEEDED = frozenset({"words", "arguments", "then", "document", "give_up"})
"""Parts of an action's detail that are for the action alone, and not for the journal."""
FREE = frozenset({ActionKind.NOTIFY, ActionKind.MASK, ActionKind.SET_SAMPLING})
"""What the caps do not count."""


@dataclass(frozen=True, slots=True)
class Act:
    """An action that is to be done."""

    post: Post
    action: Action


@dataclass(frozen=True, slots=True)
class Plan:
    """What SP4 decided about a request."""

    note: str = ""
    """Added to the prompt's tail, hidden."""
    think: tuple[int, str] | None = None
    """The most reasoning tokens, and what closes the reasoning then."""
    document: Mapping[str, Any] | None = None
    """What constrains the answer."""
    sampling: Mapping[str, float] | None = None
    masks: Mapping[str, str] = field(default_factory=dict)
    give_up: str | None = None
    """The sentence that is the whole answer."""
    by: str = ""
    """The task that gave up."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of the calls that are held."""

    repairs: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Index -> the arguments to send instead."""
    again: bool = False
    """The model was told to write the calls again, and none of these goes out."""
    give_up: str | None = None
    by: str = ""


def name_of(act: Act) -> tuple[str, ActionKind, str]:
    """What makes two hidden actions the same: the task, the kind, and the word of the reason."""
    return act.post.task.name, act.action.kind, act.action.reason.partition("(")[0]


def actions_of(value: Any) -> list[Action] | str:
    """A check's result as a list, or what is wrong with it."""
    given = [value] if isinstance(value, Action) else value
    if not isinstance(given, list | tuple) or not all(isinstance(action, Action) for action in given):
        return f"returned {type(value).__name__}, not an Action or None"
    return list(given)


def planned(plan: Plan, post: Post, action: Action, request: RequestEvent) -> Plan | None:
    """The plan with the action in it; None when there is no place for it."""
    kind, detail = action.kind, action.detail
    if kind is ActionKind.GIVE_UP:
        return replace(plan, give_up=action.text, by=post.task.name)
    if kind is ActionKind.PROMPT_TAIL_NOTE:
        return replace(plan, note=action.text) if not plan.note and action.text.strip() else None
    if kind is ActionKind.SET_THINK_BUDGET:
        return replace(plan, think=(max(0, int(detail["tokens"])), action.text)) if plan.think is None else None
    if kind is ActionKind.SET_CONSTRAINT:
        return replace(plan, document=detail["document"]) if plan.document is None and not request.constrained else None
    if kind is ActionKind.SET_SAMPLING:
        free = plan.sampling is None and not request.sampling_asked
        return replace(plan, sampling={k: float(v) for k, v in detail.items() if k != "mode"}) if free else None
    return replace(plan, masks={**plan.masks, **detail["words"]}) if kind is ActionKind.MASK else None
