"""The supervisor: stands at the safe points, asks the rules, and keeps their faults away from the request."""

from __future__ import annotations

import itertools
import logging
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

from tandem.core.conductor.journal import Entry, Journal
from tandem.core.plugin import Action, ActionKind, RequestEvent, Rule, SafePoint, Task
from tandem.core.plugin.rule import Event

log = logging.getLogger("tandem.conductor")

FAULTS = 3
"""This many faults of a rule within FAULT_WINDOW_S seconds switch it off."""
FAULT_WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class _Post:
    """A rule on duty."""

    rule: Rule
    task: Task


class Supervisor:
    """Holds the rules that are on. `fail(name, reason)` is called when one is switched off."""

    def __init__(
        self,
        rules: Seq[tuple[Rule, Mapping[str, Any]]],
        journal: Journal,
        fail: Callable[[str, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.journal = journal
        self._fail = fail
        self._clock = clock
        self._faults: dict[str, deque[float]] = defaultdict(deque)
        self._numbers = itertools.count(1)
        self._posts: dict[SafePoint, list[_Post]] = defaultdict(list)
        for rule, options in rules:
            mode = "act" if options["mode"] == "on" else options["mode"]
            if mode != "off":
                params = {name: value for name, value in options.items() if name != "mode"}
                self._posts[rule.at].append(_Post(rule, Task(rule.name, mode, params)))

    def begin(self, request: RequestEvent) -> Watch:
        """The supervision of one request."""
        return Watch(self, next(self._numbers), request)

    def posts(self, point: SafePoint) -> list[_Post]:
        return self._posts[point]

    def fault(self, number: int, post: _Post, point: SafePoint, reason: str) -> None:
        """Journal a rule's fault; the third within a minute switches the rule off."""
        self.journal.write(Entry(number, post.rule.name, point.value, "fault", reason, done=False))
        now, faults = self._clock(), self._faults[post.rule.name]
        faults.append(now)
        while now - faults[0] > FAULT_WINDOW_S:
            faults.popleft()
        if len(faults) >= FAULTS:
            self._posts[point] = [p for p in self._posts[point] if p is not post]
            why = f"{len(faults)} faults in {FAULT_WINDOW_S:g} s, the last: {reason}"
            log.warning("rule %s is switched off: %s", post.rule.name, why)
            self._fail(post.rule.name, why)


@dataclass(slots=True)
class _Surroundings:
    """What a rule sees besides its event (`Supervision`)."""

    request: RequestEvent
    memo: dict[str, Any]


@dataclass(slots=True)
class Watch:
    """One request's supervision."""

    supervisor: Supervisor
    number: int
    request: RequestEvent
    memos: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))

    def wants(self, point: SafePoint) -> bool:
        """Whether any rule stands there; spares building an event for nobody."""
        return bool(self.supervisor.posts(point))

    def at(self, point: SafePoint, event: Event) -> tuple[str, Action] | None:
        """Ask every rule at this point. The first act that ends the answer wins: `(rule's name, action)`."""
        for post in list(self.supervisor.posts(point)):
            action = self._ask(post, point, event)
            if action is None or (action.kind is ActionKind.PASS and not action.reason):
                continue
            done = post.task.mode == "act" and action.kind is not ActionKind.PASS
            self.supervisor.journal.write(
                Entry(self.number, post.rule.name, point.value, action.kind.value, action.reason, done)
            )
            if done and action.kind is ActionKind.GIVE_UP:
                return post.rule.name, action
        return None

    def _ask(self, post: _Post, point: SafePoint, event: Event) -> Action | None:
        try:
            action = post.rule.check(event, post.task, _Surroundings(self.request, self.memos[post.rule.name]))
        except Exception as error:
            reason = traceback.format_exception_only(error)[-1].strip()
            self.supervisor.fault(self.number, post, point, reason)
            return None
        if action is not None and not isinstance(action, Action):
            self.supervisor.fault(self.number, post, point, f"returned {type(action).__name__}, not an Action or None")
            return None
        return action
