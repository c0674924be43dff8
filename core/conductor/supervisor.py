"""The supervisor: stands at the safe points, asks the rules, and keeps their faults away from the request."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tandem.core.conductor.acts import FREE, HIDDEN, NEEDED, Act, Plan, Verdict, name_of, planned
from tandem.core.conductor.desk import Answerer, Check, Desk, Line
from tandem.core.conductor.journal import Entry, Journal, Label, Outcome, checker_result
from tandem.core.conductor.roster import ON, RAW, SHADOW, Caps, Post, Roster, lowest
from tandem.core.conductor.sessions import Sessions, SessionState
from tandem.core.conductor.soundness import actions_of, fault_of_messages
from tandem.core.plugin import Action, ActionKind, AskError, IdleEvent, RequestEvent, SafePoint, Task, WrittenCall
from tandem.core.plugin.rule import ALLOWED, Event

log = logging.getLogger("tandem.conductor")

FAULTS = 3
"""This many faults of a rule within FAULT_WINDOW_S seconds switch it off."""
FAULT_WINDOW_S = 60.0

Fail = Callable[[str, str], None]
ReadCalls = Callable[[str], tuple[list[WrittenCall], str]]


class Supervisor:
    """Asks rules on behalf of requests. `fail(rule, reason)` is called when one is switched off. Thread-safe."""

    def __init__(
        self,
        journal: Journal,
        fail: Fail = lambda name, reason: None,
        *,
        sessions: Sessions | None = None,
        tokens: Callable[[str], int] = len,
        budget_s: float = 0.02,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.journal = journal
        self.sessions = sessions or Sessions()
        self.tokens = tokens
        self.clock = clock
        self.desk = Desk(budget_s)
        self.off: set[str] = set()
        """The rules that were switched off."""
        self._fail = fail
        self._faults: dict[str, deque[float]] = defaultdict(deque)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def begin(self, request: RequestEvent, roster: Roster, mode: str = ON) -> Watch:
        """The supervision of one request, in `mode` at most. Several choices are never acted on."""
        mode = lowest(mode, SHADOW if request.n > 1 else ON)
        roster = roster.without(self.off).lowered(mode)
        session = self.sessions.of(request.session) if request.session else SessionState("")
        return Watch(self, next(self._numbers), request, roster, mode, session)

    def rewritten(self, messages: Seq[Mapping[str, Any]], roster: Roster, mode: str) -> Seq[Mapping[str, Any]]:
        """The messages as the rules that act want them read."""
        for post in roster.without(self.off).lowered(mode).posts:
            if post.rule.rewrite is None or not post.acts:
                continue
            [outcome] = self.desk.ask([Check(partial(_with_task, post.rule.rewrite, post.task))], messages)
            wrong = outcome.fault or ("" if outcome.value is None else fault_of_messages(outcome.value))
            if wrong:
                self.fault(Entry(0, post.rule.name, SafePoint.SP4.value, "fault", wrong, False, post.task.name))
            elif outcome.value is not None:
                messages = outcome.value
        return messages

    def fault(self, entry: Entry) -> None:
        """Journal a rule's fault; the third within a minute switches the rule off."""
        self.journal.write(entry)
        with self._lock:
            now, faults = self.clock(), self._faults[entry.rule]
            faults.append(now)
            while now - faults[0] > FAULT_WINDOW_S:
                faults.popleft()
            if len(faults) < FAULTS or entry.rule in self.off:
                return
            self.off.add(entry.rule)
        why = f"{len(faults)} faults in {FAULT_WINDOW_S:g} s, the last: {entry.reason}"
        log.warning("rule %s is switched off: %s", entry.rule, why)
        self._fail(entry.rule, why)

    def close(self) -> None:
        self.desk.close()


@dataclass(frozen=True, slots=True)
class _Duty:
    """The rules that are asked at a point, made ready once a request: a safe point comes with every block."""

    posts: list[Post]
    checks: list[Check]
    off: int
    """How many rules were switched off then."""


@dataclass(slots=True)
class _Place:
    """One task's view of its session."""

    key: str
    data: dict[str, Any]


class _Surroundings:
    """What a rule sees besides its event (`Supervision`)."""

    def __init__(self, watch: Watch, post: Post) -> None:
        self._watch, self._post = watch, post
        self.line = Line()
        self.memo: dict[str, Any] = watch.memos[post.task.name]
        self.session = _Place(watch.session.key, watch.session.of(post.task.name))

    def check(self) -> Check:
        """The rule's check in these surroundings."""
        function, task = self._post.rule.check, self._post.task
        return Check(lambda event: function(event, task, self), self.line)  # type: ignore[arg-type]

    @property
    def request(self) -> RequestEvent:
        return self._watch.request

    @property
    def now(self) -> float:
        return self._watch.supervisor.clock()

    @property
    def room(self) -> bool:
        return self._post.acts and self._watch.room

    def tokens(self, text: str) -> int:
        return self._watch.supervisor.tokens(text)

    def read_calls(self, text: str) -> tuple[list[WrittenCall], str]:
        return self._watch.read_calls(text)

    def ask(self, question: str, options: Seq[str]) -> list[float]:
        journal = self._watch.supervisor.journal
        try:
            odds = self.line.ask(question, options)
        except AskError:
            journal.asked(self._post.task.name, failed=True)
            raise
        journal.asked(self._post.task.name, failed=False)
        return odds


@dataclass(slots=True)
class Watch:
    """One request's supervision; a choice of several has its own (`fork`)."""

    supervisor: Supervisor
    number: int
    request: RequestEvent
    roster: Roster
    mode: str
    session: SessionState
    memos: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    acts: int = 0
    """Acts that were done, as the caps count them."""
    acted: bool = False
    """Something was done that changed the answer."""
    read_calls: ReadCalls = lambda text: ([], text)
    _last: tuple[str, ActionKind, str] | None = None
    """The hidden action that was done last."""
    _posts: dict[SafePoint, list[Post]] = field(default_factory=dict)
    _duties: dict[tuple[SafePoint, bool], _Duty] = field(default_factory=dict)

    def fork(self) -> Watch:
        """The supervision of another choice of the same request."""
        return replace(self, memos=defaultdict(dict), acts=0, acted=False, _last=None, _posts={}, _duties={})

    @property
    def acting(self) -> bool:
        """Rules watch over this request, and may act."""
        return self.mode == ON and bool(self.roster.posts)

    @property
    def shown_mode(self) -> str:
        """The mode as the client is told: where no rule watches, the answer is the engine's own."""
        return self.mode if self.roster.posts else RAW

    def wants(self, point: SafePoint) -> bool:
        """Whether any rule stands there; spares building an event for nobody."""
        return bool(self._at(point))

    @property
    def holds(self) -> bool:
        """Whether the answer's calls have to wait for its end: a task that acts may want to see them first."""
        if self.request.constrained or not self.request.tools:
            return False
        return any(post.acts and self._held_by(post) for post in self._at(SafePoint.SP3))

    @property
    def room(self) -> bool:
        """Whether the caps leave room for another act."""
        caps: Caps = self.roster.caps
        hour = self.session.acted(self.supervisor.clock()) if self.session.key else 0
        return self.acts < caps.acts_per_request and hour < caps.acts_per_session_hour

    # ------------------------------------------------------------------------------------------ the safe points

    def plan(self) -> Plan:
        """Ask at LABEL and at SP4. Called once, before the prefill."""
        for post, action in self._ask(SafePoint.LABEL, self.request):
            self._seen(post, SafePoint.LABEL, action)
        plan = Plan()
        for post, action in self._ask(SafePoint.SP4, self.request):
            wanted = self._allowed(post, SafePoint.SP4, action)
            if plan.give_up is not None or not wanted or not self._may(post, action):
                self._seen(post, SafePoint.SP4, action)
                continue
            further = planned(plan, post, action, self.request)
            read = self.supervisor.tokens(action.text) if further and action.kind is ActionKind.PROMPT_TAIL_NOTE else 0
            self._journal(post, SafePoint.SP4, action, done=further is not None, tokens=read)
            plan = further or plan
        return plan

    def at(self, point: SafePoint, event: Event, answer: Answerer | None = None) -> Act | None:
        """Ask every rule at SP1 or SP2. The first that wants something done gets it; the others are journaled.

        `answer` puts questions to the model. A hidden action beyond the caps, or the same one twice in a row, becomes
        giving up. The caller says with `done` what it did.
        """
        chosen: Act | None = None
        for post, action in self._ask(point, event, answer):
            if chosen is None and self._allowed(post, point, action) and self._may(post, action, quiet=True):
                chosen = Act(post, self._capped(post, action))
            else:
                self._seen(post, point, action, event)
        return chosen

    def calls(self, events: Seq[Event], write: Callable[[str], bool]) -> Verdict:
        """Ask every rule at SP3 about each held call. None goes out before all are checked.

        `write` puts a reminder to the model so that it writes the calls again; False when there is no room for it.
        """
        repairs: dict[int, Act] = {}
        again: list[Act] = []
        for place, event in enumerate(events):
            for post, action in self._ask(SafePoint.SP3, event):
                if not self._allowed(post, SafePoint.SP3, action) or not self._may(post, action, quiet=True):
                    self._seen(post, SafePoint.SP3, action)
                elif action.kind is ActionKind.REPAIR_CALL:
                    repairs[place] = Act(post, action)
                elif action.kind is ActionKind.GIVE_UP:
                    self.done(Act(post, action), SafePoint.SP3)
                    return Verdict(give_up=action.text, by=post.task.name)
                else:
                    again.append(Act(post, action))
        if not again:
            return self._released(repairs)
        text = "\n\n".join(dict.fromkeys(act.action.text for act in again))
        reason = self._hindrance(again[0], events)
        if not reason and not write(text):
            reason = "no room"
        if not reason:
            for act in again:
                self.done(act, SafePoint.SP3, tokens=self.supervisor.tokens(act.action.text))
            return Verdict(again=True, by=again[0].post.task.name)
        must = [act for act in again if act.action.detail.get("fallback") != "release"]
        for act in again:
            end = "give_up" if act in must else "release"
            told = replace(act.action, detail={**act.action.detail, "instead": f"{end}({reason})"})
            self._journal(act.post, SafePoint.SP3, told, done=False)
        if not must:
            return self._released(repairs)
        parting = str(must[0].action.detail.get("give_up") or self.roster.give_up)
        act = Act(must[0].post, Action.give_up(parting, f"{must[0].action.reason}, {reason}"))
        self.done(act, SafePoint.SP3)
        return Verdict(give_up=act.action.text, by=act.post.task.name)

    def _released(self, repairs: Mapping[int, Act]) -> Verdict:
        """The calls go out, and these of them repaired."""
        for act in repairs.values():
            self.done(act, SafePoint.SP3)
        return Verdict({place: act.action.detail["arguments"] for place, act in repairs.items()})

    def look(self, events: Seq[Event]) -> None:
        """Ask the rules at SP3 that do not act about calls that have gone out, and journal what they say."""
        for event in events:
            for post, action in self._ask(SafePoint.SP3, event, acting=False):
                self._allowed(post, SafePoint.SP3, action)
                self._seen(post, SafePoint.SP3, action)

    def _hindrance(self, act: Act, events: Seq[Event]) -> str:
        """Why the calls can't be written again; empty when they can."""
        if any(getattr(event, "final", False) for event in events):
            return "ended"
        return "caps" if not self.room else "twice" if self._is_twice(act) else ""

    def idle(self, event: IdleEvent, push: Callable[[Action], str]) -> None:
        """Ask at WATCH. `push` tells somebody outside, and says what became of it."""
        for post, action in self._ask(SafePoint.WATCH, event):
            if action.kind is ActionKind.NOTIFY and post.acts and action.text:
                action = replace(action, detail={**action.detail, "push": push(action)})
            self._seen(post, SafePoint.WATCH, action)

    def done(self, act: Act, point: SafePoint, event: Event | None = None, *, tokens: int = 0) -> None:
        """An act was done; `tokens` of it are hidden. Journaled, and counted by the caps."""
        self._journal(act.post, point, act.action, done=True, event=event, tokens=tokens)

    def undone(self, act: Act, point: SafePoint, why: str, event: Event | None = None) -> None:
        """An act could not be done."""
        told = replace(act.action, detail={**act.action.detail, "not_done": why})
        self._journal(act.post, point, told, done=False, event=event)

    def note(self, task: str, action: Action, tokens: int, *, position: int, reasoning_tokens: int) -> None:
        """Journal something that was done for a task that is no rule's: a client's own budget, say."""
        self.acted = True
        self.supervisor.journal.write(
            replace(
                self._entry("", SafePoint.SP1, action, done=True, tokens=tokens),
                task=task,
                mode="act",
                position=position,
                reasoning_tokens=reasoning_tokens,
            )
        )

    def begun(self) -> None:
        """The request was taken."""
        self.session.running += 1
        self.session.client, self.session.profile = self.request.client, self.request.profile
        said = [said for call in self.request.new_calls if (said := checker_result(call.result or ""))]
        if said and self.session.key:
            self.supervisor.journal.labelled(Label(self.session.key, self.number, said[-1]))

    def dropped(self) -> None:
        """The engine did not take the request."""
        self.session.running = max(0, self.session.running - 1)
        self.outcome("", "refused", 0)

    def ended(self, call_ids: Seq[str] = ()) -> None:
        """The request is over; its answer has these calls."""
        self.supervisor.sessions.ended(self.session, call_ids)

    def outcome(self, answer: str, reason: str, completion_tokens: int) -> None:
        """Journal what became of the request: the answer's id, how it ended, its length."""
        self.supervisor.journal.ended(Outcome(self.number, answer, reason, completion_tokens))

    # ------------------------------------------------------------------------------------------------- its parts

    def _at(self, point: SafePoint) -> list[Post]:
        posts = self._posts.get(point)
        if posts is None:
            posts = self._posts[point] = self.roster.at(point)
        return posts

    def _held_by(self, post: Post) -> bool:
        if post.rule.holds is None:
            return True
        [outcome] = self.supervisor.desk.ask([Check(partial(_with_task, post.rule.holds, post.task))], self.request)
        if outcome.fault:
            self._fault(post, SafePoint.SP3, outcome.fault)
        return bool(outcome.value)

    def _ask(
        self, point: SafePoint, event: Event, answer: Answerer | None = None, *, acting: bool = True
    ) -> list[tuple[Post, Action]]:
        """What the rules at this point want, in order; without `acting` those that only look."""
        duty = self._duty(point, acting)
        if not duty.posts:
            return []
        desk, journal = self.supervisor.desk, self.supervisor.journal
        wanted: list[tuple[Post, Action]] = []
        for post, outcome in zip(duty.posts, desk.ask(duty.checks, event, answer), strict=True):
            if outcome.fault:
                self._duties.clear()  # one that hangs keeps its line and its surroundings
                self._fault(post, point, outcome.fault)
                continue
            if outcome.seconds > desk.budget_s:
                self._late(post, point, outcome.seconds)
            actions = [] if outcome.value is None else actions_of(outcome.value)
            if isinstance(actions, str):
                self._fault(post, point, actions)
                continue
            if not actions:
                journal.passed(post.task.name, post.task.mode)
            wanted += [(post, action) for action in actions]
        return wanted

    def _duty(self, point: SafePoint, acting: bool) -> _Duty:
        off = self.supervisor.off
        duty = self._duties.get((point, acting))
        if duty is None or duty.off != len(off):
            posts = [post for post in self._at(point) if post.rule.name not in off and (acting or not post.acts)]
            duty = _Duty(posts, [_Surroundings(self, post).check() for post in posts], len(off))
            self._duties[point, acting] = duty
        return duty

    def _allowed(self, post: Post, point: SafePoint, action: Action) -> bool:
        """Whether there is anything to do. An action that can't be done here is the rule's fault."""
        if action.kind in (ActionKind.PASS, ActionKind.NOTIFY):
            return False
        if action.kind in ALLOWED[point]:
            return True
        self._fault(post, point, f"{action.kind.value} can't be done at {point.value}")
        return False

    def _may(self, post: Post, action: Action, *, quiet: bool = False) -> bool:
        """Whether the task may act, and (unless something else is done beyond them) the caps leave room."""
        if not post.acts or action.detail.get("mode") == SHADOW:
            return False
        return quiet or action.kind in FREE or action.kind is ActionKind.GIVE_UP or self.room

    def _capped(self, post: Post, action: Action) -> Action:
        if action.kind not in HIDDEN:
            return action
        why = "caps" if not self.room else "twice" if self._is_twice(Act(post, action)) else ""
        return Action.give_up(self.roster.give_up, f"{action.reason}, {why}") if why else action

    def _is_twice(self, act: Act) -> bool:
        return self._last == name_of(act)

    def _seen(self, post: Post, point: SafePoint, action: Action, event: Event | None = None) -> None:
        """Journal what nothing came of but the entry; a note to the journal is done by that."""
        self._journal(post, point, action, done=post.acts and action.kind is ActionKind.NOTIFY, event=event)

    def _journal(
        self, post: Post, point: SafePoint, action: Action, *, done: bool, event: Event | None = None, tokens: int = 0
    ) -> None:
        if action.kind is ActionKind.PASS and not action.reason:
            self.supervisor.journal.passed(post.task.name, post.task.mode)
            return
        if done and action.kind is not ActionKind.NOTIFY:
            self.acted = True
            if action.kind in HIDDEN:
                self._last = name_of(Act(post, action))
            if action.kind not in FREE:
                self.acts += 1
                if self.session.key:
                    self.session.acts.append(self.supervisor.clock())
        entry = self._entry(post.rule.name, point, action, done=done, tokens=tokens)
        self.supervisor.journal.write(
            replace(
                entry,
                task=post.task.name,
                mode=post.task.mode,
                position=getattr(event, "tokens", 0),
                reasoning_tokens=getattr(event, "reasoning_tokens", 0),
            )
        )

    def _entry(self, rule: str, point: SafePoint, action: Action, *, done: bool, tokens: int = 0) -> Entry:
        return Entry(
            self.number,
            rule,
            point.value,
            action.kind.value,
            action.reason,
            done,
            session=self.session.key,
            client=self.request.client,
            detail={k: v for k, v in action.detail.items() if k not in NEEDED},
            score=action.score,
            hidden=action.text if action.kind not in (ActionKind.GIVE_UP, ActionKind.NOTIFY) else "",
            hidden_tokens=tokens,
        )

    def _fault(self, post: Post, point: SafePoint, reason: str) -> None:
        self.supervisor.fault(
            Entry(
                self.number,
                post.rule.name,
                point.value,
                "fault",
                reason,
                done=False,
                task=post.task.name,
                mode=post.task.mode,
                session=self.session.key,
                client=self.request.client,
            )
        )

    def _late(self, post: Post, point: SafePoint, seconds: float) -> None:
        """Journal that a check took longer than it may, once a request."""
        memo = self.memos["_late"]
        if post.task.name not in memo:
            memo[post.task.name] = True
            ms = round(seconds * 1e3)
            self._journal(post, point, Action.passed(f"overrun({ms} ms)", ms=ms), done=False)


def _with_task(function: Callable[[Any, Task], Any], task: Task, about: Any) -> Any:
    return function(about, task)
