from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tandem.core.conductor import Act, Caps, Journal, Roster, Supervisor, Watch
from tandem.core.conductor.desk import LOST, Check, Desk
from tandem.core.plugin import (
    Action,
    ActionKind,
    BlockEvent,
    FinishEvent,
    RequestEvent,
    Rule,
    SafePoint,
    Tool,
    ToolCallEvent,
)
from tandem.core.plugin.rule import ALLOWED
from tandem.testing.server import until

REQUEST = RequestEvent((), 3, 10, "plain", session="s", tools=(Tool("f"),))
BLOCK = BlockEvent("text", "t", 1, reasoning_tokens=1, inside=True)
FINISH = FinishEvent("text", 1, "stop")
SP1, SP2, SP3, SP4 = SafePoint.SP1, SafePoint.SP2, SafePoint.SP3, SafePoint.SP4


def rule(name: str, answer: Any, at: Any = SP1, **more: Any) -> Rule:
    """A rule that always says the same, or what a function says."""
    return Rule(name, at=at, check=answer if callable(answer) else lambda event, task, sup: answer, **more)


class Room:
    """A supervisor with a roster."""

    def __init__(self, *rules: Rule | tuple[Rule, str], caps: Caps | None = None, budget_s: float = 0.5) -> None:
        pairs = [given if isinstance(given, tuple) else (given, "act") for given in rules]
        self.roster = Roster.of([(r.name.upper(), r, {"mode": mode}) for r, mode in pairs], caps=caps or Caps())
        self.failed: list[tuple[str, str]] = []
        self.now = 0.0
        self.journal = Journal()
        self.supervisor = Supervisor(
            self.journal, lambda n, why: self.failed.append((n, why)), clock=lambda: self.now, budget_s=budget_s
        )

    def begin(self, request: RequestEvent = REQUEST, mode: str = "on") -> Watch:
        return self.supervisor.begin(request, self.roster, mode)

    def entries(self, *names: str) -> list[Any]:
        rows = [tuple(entry[name] for name in names) for entry in self.journal.entries()]
        return rows if len(names) > 1 else [row[0] for row in rows]


class Told(list[str]):
    """What was put to the model; `room` False: nothing can be."""

    def __init__(self, room: bool = True) -> None:
        super().__init__()
        self.room = room

    def __call__(self, text: str) -> bool:
        self.append(text)
        return self.room


def call_event(**fields: Any) -> ToolCallEvent:
    return ToolCallEvent(
        **{"name": "f", "arguments": {}, "written": "{}", "index": 0, "calls": (), "tool": None, **fields}
    )


# ------------------------------------------------------------------------------------------------------ faults


def test_faults_far_apart_do_not_switch_a_rule_off() -> None:
    def check(event: Any, task: Any, sup: Any) -> None:
        raise ValueError("x")

    room = Room(rule("r", check))
    watch = room.begin()
    for _ in range(10):
        watch.at(SP1, BLOCK)
        room.now += 31.0
    assert room.failed == []
    for _ in range(3):
        watch.at(SP1, BLOCK)
    assert [name for name, _ in room.failed] == ["r"]
    before = len(room.journal.entries())
    watch.at(SP1, BLOCK)
    assert len(room.journal.entries()) == before
    assert not room.begin().wants(SP1)


@pytest.mark.parametrize("nonsense", ["stop", 3, {"kind": "give_up"}, object(), [1]])
def test_nonsense_from_a_rule_counts_as_a_fault(nonsense: Any) -> None:
    room = Room(rule("r", nonsense))
    assert room.begin().at(SP1, BLOCK) is None
    (entry,) = room.journal.entries()
    assert entry["action"] == "fault"
    assert type(nonsense).__name__ in entry["reason"]


@pytest.mark.parametrize("kind", list(ActionKind))
@pytest.mark.parametrize("point", [SP1, SP2])
def test_an_action_where_it_can_not_be_done_is_a_fault(kind: ActionKind, point: SafePoint) -> None:
    room = Room(rule("r", Action(kind, "text", "why"), at=point))
    act = room.begin().at(point, BLOCK if point is SP1 else FINISH)
    assert (act is not None) == (kind in ALLOWED[point])
    allowed_anywhere = kind in (ActionKind.PASS, ActionKind.NOTIFY)
    assert ("fault" in room.entries("action")) == (act is None and not allowed_anywhere)


def test_a_rule_that_hangs_is_left_behind_and_the_others_are_asked() -> None:
    room = Room(rule("sleeps", lambda e, t, s: time.sleep(3)), rule("ends", Action.give_up("end")), budget_s=0.01)
    watch = room.begin()
    start = time.monotonic()
    act = watch.at(SP1, BLOCK)
    assert time.monotonic() - start < 2
    assert act is not None
    assert act.post.rule.name == "ends"
    assert room.entries("rule", "action") == [("sleeps", "fault")]


def test_nonsense_from_one_rule_keeps_no_other_from_acting() -> None:
    nonsense: Any = 5
    room = Room(rule("bad", Action.give_up(nonsense, "x")), rule("good", Action.give_up("Stop.", "y")))
    act = room.begin().at(SP1, BLOCK)
    assert act is not None
    assert act.action.text == "Stop."
    assert room.entries("rule", "action")[0] == ("bad", "fault")


def test_messages_that_a_rule_rewrote_into_nonsense_stay_as_they_were() -> None:
    messages = [{"role": "user", "content": "hi"}]
    room = Room(rule("r", None, rewrite=lambda given, task: "nonsense"))
    assert room.supervisor.rewritten(messages, room.roster, "on") is messages
    assert room.entries("action", "reason") == [("fault", "rewrote the messages into str")]


def test_a_rule_that_hangs_three_times_is_switched_off() -> None:
    room = Room(rule("sleeps", lambda e, t, s: time.sleep(3)), budget_s=0.005)
    watch = room.begin()
    for _ in range(3):
        watch.at(SP1, BLOCK)
    assert [name for name, _ in room.failed] == ["sleeps"]
    assert "still runs" in room.failed[0][1]


def test_a_rule_that_hung_can_be_asked_again_while_its_first_check_still_runs() -> None:
    free = threading.Event()
    asked: list[Any] = []

    def check(event: Any, task: Any, sup: Any) -> Action:
        asked.append(sup)
        if len(asked) == 1:
            free.wait(5)
        return Action.notify(str(sup.ask("q", ["A"])))

    room = Room(rule("r", check, at=SP2), budget_s=0.02)
    watch = room.begin()
    watch.at(SP2, FINISH, lambda question, options: [1.0])
    assert room.entries("action") == ["fault"]
    watch.at(SP2, FINISH, lambda question, options: [1.0])
    free.set()
    watch.at(SP2, FINISH, lambda question, options: [0.5])
    assert room.entries("action", "reason")[1:] == [("notify", "[1.0]"), ("notify", "[0.5]")]
    assert asked[0] is not asked[1], "the one that hangs shares what is around it with the next"
    assert asked[1] is asked[2], "what is around a rule is made anew at every block"


def test_when_too_many_hang_no_rule_is_asked_until_they_come_back(caplog: pytest.LogCaptureFixture) -> None:
    gate = threading.Event()
    desk = Desk(0.002)
    hangs, answers = Check(lambda about: gate.wait(20)), Check(lambda about: "here")
    for _ in range(LOST):
        assert desk.ask([hangs], None)[0].fault
    assert desk.ask([answers], None)[0].value is None
    assert "rules hang" in caplog.text
    gate.set()
    until(lambda: desk.ask([answers], None)[0].value == "here")


def test_a_check_that_takes_long_is_done_and_told_once_a_request() -> None:
    room = Room(rule("slow", lambda e, t, s: (time.sleep(0.05), Action.notify("n"))[1]), budget_s=0.02)
    watch = room.begin()
    watch.at(SP1, BLOCK)
    watch.at(SP1, BLOCK)
    assert [reason.partition("(")[0] for reason in room.entries("reason")] == ["overrun", "n", "n"]


def test_an_exit_is_a_fault_like_any_other() -> None:
    def leave(event: Any, task: Any, sup: Any) -> None:
        raise SystemExit("bye")

    room = Room(rule("r", leave))
    room.begin().at(SP1, BLOCK)
    assert room.entries("action", "reason") == [("fault", "SystemExit: bye")]


# ------------------------------------------------------------------------------------------- who acts, and who not


def test_a_notice_is_journaled_and_ends_nothing() -> None:
    room = Room(rule("a", Action.notify("look at this")), rule("b", Action.give_up("end")))
    watch = room.begin()
    act = watch.at(SP1, BLOCK)
    assert act is not None
    assert act.post.task.name == "B"
    watch.done(act, SP1, BLOCK)
    assert room.entries("action", "done") == [("notify", True), ("give_up", True)]


def test_on_means_act_and_off_means_not_there() -> None:
    room = Room((rule("a", Action.give_up("x")), "on"), (rule("b", Action.give_up("y")), "off"))
    assert [post.rule.name for post in room.roster.at(SP1)] == ["a"]
    assert room.begin().at(SP1, BLOCK) is not None


@pytest.mark.parametrize(
    ("task", "request_mode", "n", "acts"),
    [
        ("act", "on", 1, True),
        ("act", "shadow", 1, False),
        ("act", "raw", 1, False),
        ("shadow", "on", 1, False),
        ("act", "on", 2, False),
    ],
)
def test_the_most_careful_mode_counts(task: str, request_mode: str, n: int, acts: bool) -> None:
    room = Room((rule("r", Action.give_up("x", "why")), task))
    watch = room.begin(RequestEvent((), 3, 10, "plain", n=n), request_mode)
    assert (watch.at(SP1, BLOCK) is not None) == acts
    assert len(room.journal.entries()) == (0 if acts or request_mode == "raw" else 1)


def test_one_finding_can_be_shadowed_by_its_rule() -> None:
    room = Room(rule("r", Action.give_up("x", "unsure", mode="shadow")))
    assert room.begin().at(SP1, BLOCK) is None
    assert room.entries("action", "done") == [("give_up", False)]


def test_the_memo_is_the_tasks_own_for_one_request_and_choice() -> None:
    def count(event: Any, task: Any, sup: Any) -> Action:
        sup.memo["n"] = sup.memo.get("n", 0) + 1
        return Action.notify(str(sup.memo["n"]))

    room = Room(rule("r", count), rule("s", count))
    first, second = room.begin(), room.begin()
    for watch in (first, first, second, first.fork()):
        watch.at(SP1, BLOCK)
    assert [reason for name, reason in room.entries("rule", "reason") if name == "r"] == ["1", "2", "1", "1"]


def test_a_session_is_remembered_by_task_and_by_nobody_else() -> None:
    def count(event: Any, task: Any, sup: Any) -> Action:
        sup.session.data["n"] = sup.session.data.get("n", 0) + 1
        return Action.notify(f"{sup.session.key} {sup.session.data['n']}")

    room = Room(rule("r", count), rule("s", count))
    for key in ("a", "b", "a"):
        room.begin(RequestEvent((), 3, 10, "plain", session=key)).at(SP1, BLOCK)
    assert [reason for name, reason in room.entries("rule", "reason") if name == "s"] == ["a 1", "b 1", "a 2"]


def test_a_pass_with_a_reason_is_an_observation() -> None:
    room = Room(rule("r", Action.passed("3 of 5")), rule("s", Action.passed()))
    assert room.begin().at(SP1, BLOCK) is None
    assert room.entries("rule", "done") == [("r", False)]


# --------------------------------------------------------------------------------------------------------- caps


def acts(room: Room, watch: Watch, count: int) -> list[str]:
    """What a hidden action becomes, `count` times."""
    kinds = []
    for _ in range(count):
        act = watch.at(SP2, FINISH)
        assert act is not None
        kinds.append(act.action.kind.value)
        watch.done(act, SP2, FINISH)
    return kinds


def numbered() -> Any:
    numbers = iter(range(100))
    return lambda e, t, s: Action.go_on("on", f"reason{next(numbers)}(1)")


def test_beyond_the_acts_of_a_request_a_hidden_action_becomes_giving_up() -> None:
    room = Room(rule("r", numbered(), at=SP2), caps=Caps(acts_per_request=2))
    assert acts(room, room.begin(), 3) == ["continue", "continue", "give_up"]
    assert "caps" in room.journal.entries()[-1]["reason"]


def test_beyond_the_acts_of_a_sessions_hour_too_and_the_hour_ends() -> None:
    room = Room(rule("r", numbered(), at=SP2), caps=Caps(acts_per_session_hour=3))
    assert acts(room, room.begin(), 2) == ["continue", "continue"]
    assert acts(room, room.begin(), 2) == ["continue", "give_up"]
    other = RequestEvent((), 3, 10, "plain", session="other")
    assert acts(room, room.begin(other), 1) == ["continue"]
    room.now += 3601
    assert acts(room, room.begin(), 1) == ["continue"]


def test_the_same_hidden_action_twice_in_a_row_becomes_giving_up() -> None:
    room = Room(rule("r", Action.go_on("on", "empty(0)"), at=SP2))
    assert acts(room, room.begin(), 2) == ["continue", "give_up"]
    assert "twice" in room.journal.entries()[-1]["reason"]


def test_a_note_beyond_the_caps_is_left_out_and_nothing_is_given_up() -> None:
    room = Room(rule("r", Action.tail_note("note", "n"), at=SP4), caps=Caps(acts_per_request=0))
    plan = room.begin().plan()
    assert (plan.note, plan.give_up) == ("", None)
    assert room.entries("action", "done") == [("prompt_tail_note", False)]


def test_a_rule_knows_whether_there_is_room_to_act() -> None:
    seen: list[bool] = []
    room = Room(
        rule("r", lambda e, t, s: seen.append(s.room) or Action.go_on("x", str(len(seen))), at=SP2),
        caps=Caps(acts_per_request=1),
    )
    acts(room, room.begin(), 2)
    room.begin(mode="shadow").at(SP2, FINISH)
    assert seen == [True, False, False]


# ---------------------------------------------------------------------------------------------------------- SP4


def test_a_plan_has_what_each_rule_wants_and_one_note() -> None:
    room = Room(
        rule("a", [Action.tail_note("first", "n"), Action.sample("s", temperature=0.7)], at=SP4),
        rule("b", [Action.tail_note("second", "n"), Action.think_budget(5, "t", "enough")], at=SP4),
        rule("c", Action.mask({"sk-1": "x"}, "m"), at=SP4),
        rule("d", [Action.mask({"sk-2": "y"}, "m"), Action.constrain({"regex": "a+"}, "c")], at=SP4),
    )
    plan = room.begin().plan()
    assert plan.note == "first"
    assert plan.think == (5, "enough")
    assert plan.sampling == {"temperature": 0.7}
    assert plan.masks == {"sk-1": "x", "sk-2": "y"}
    assert plan.document == {"regex": "a+"}
    assert plan.give_up is None
    assert room.entries("task", "action", "done")[2] == ("B", "prompt_tail_note", False)
    assert not any("sk-" in str(entry) for entry in room.journal.entries()), "a secret is in the journal"


def test_nothing_is_planned_behind_giving_up() -> None:
    room = Room(rule("a", Action.give_up("no", "why"), at=SP4), rule("b", Action.tail_note("note", "n"), at=SP4))
    plan = room.begin().plan()
    assert (plan.give_up, plan.by, plan.note) == ("no", "A", "")


def test_a_clients_own_sampling_and_grammar_stay() -> None:
    room = Room(rule("a", [Action.sample("s", temperature=1), Action.constrain({"regex": "a"}, "c")], at=SP4))
    plan = room.begin(RequestEvent((), 3, 10, "plain", sampling_asked=True, constrained=True)).plan()
    assert (plan.sampling, plan.document) == (None, None)


def test_outcomes_are_asked_for_before_the_plan_and_never_done() -> None:
    order: list[str] = []

    def check(event: RequestEvent, task: Any, sup: Any) -> Action | None:
        order.append("label" if not order else "sp4")
        return Action.passed("fixed") if len(order) == 1 else None

    room = Room(rule("r", check, at=(SP4, SafePoint.LABEL)))
    room.begin().plan()
    assert order == ["label", "sp4"]
    assert room.entries("point", "reason", "done") == [("label", "fixed", False)]


# ---------------------------------------------------------------------------------------------------------- SP3


def test_calls_go_out_when_nobody_objects() -> None:
    room = Room(rule("r", None, at=SP3))
    verdict = room.begin().calls([call_event()], Told())
    assert (verdict.again, verdict.give_up, verdict.repairs) == (False, None, {})
    assert room.journal.entries() == []


def test_a_repair_of_calls_that_are_written_again_is_not_counted_as_done() -> None:
    mends, objects = Action.repair_call({"x": 1}, "fixed"), Action.regenerate_call("again", "bad")
    room = Room(rule("a", mends, at=SP3), rule("b", objects, at=SP3))
    watch = room.begin()
    assert watch.calls([call_event()], Told()).again
    assert ("a", True) not in room.entries("rule", "done")
    assert watch.acts == 1


def test_one_bad_call_sends_all_of_them_back_with_every_reminder_once() -> None:
    room = Room(
        rule("a", Action.regenerate_call("do b first", "x"), at=SP3),
        rule("c", Action.regenerate_call("no", "y"), at=SP3),
    )
    told = Told()
    verdict = room.begin().calls([call_event(), call_event(index=1)], told)
    assert verdict.again
    assert told == ["do b first\n\nno"]


def test_a_repair_is_for_its_call_alone() -> None:
    def fix(event: ToolCallEvent, task: Any, sup: Any) -> Action | None:
        return Action.repair_call({"x": 1}, "fixed") if event.index == 1 else None

    verdict = Room(rule("r", fix, at=SP3)).begin().calls([call_event(), call_event(index=1)], Told())
    assert verdict.repairs == {1: {"x": 1}}


@pytest.mark.parametrize(("fallback", "given_up"), [("give_up", True), ("release", False)])
def test_what_can_not_be_written_again_is_given_up_or_released(fallback: str, given_up: bool) -> None:
    room = Room(rule("r", Action.regenerate_call("again", "bad", fallback=fallback), at=SP3))
    verdict = room.begin().calls([call_event(final=True)], Told())
    assert not verdict.again
    assert (verdict.give_up is not None) == given_up
    assert f"{fallback}(ended)" in str(room.journal.entries()[0]["detail"])


def test_without_room_for_a_reminder_the_calls_are_given_up_or_released() -> None:
    for fallback in ("give_up", "release"):
        room = Room(rule("r", Action.regenerate_call("again", "bad", fallback=fallback), at=SP3))
        verdict = room.begin().calls([call_event()], Told(room=False))
        assert (verdict.give_up is None) == (fallback == "release")
        assert f"{fallback}(no room)" in str(room.journal.entries()[0]["detail"])


def test_calls_that_went_out_are_looked_at_by_those_who_only_look() -> None:
    bad = Action.regenerate_call("again", "bad")
    room = Room((rule("a", bad, at=SP3), "shadow"), rule("b", bad, at=SP3))
    room.begin().look([call_event()])
    assert room.entries("rule", "action", "done") == [("a", "regenerate_call", False)]


def test_the_same_reminder_twice_in_a_row_gives_up() -> None:
    room = Room(rule("r", Action.regenerate_call("again", "bad(1)"), at=SP3))
    watch = room.begin()
    assert watch.calls([call_event()], Told()).again
    assert watch.calls([call_event()], Told()).give_up is not None


def test_calls_are_held_only_for_a_task_that_acts_and_wants_it() -> None:
    wants = rule("w", None, at=SP3, holds=lambda event, task: len(event.messages) > 0)
    assert not Room((rule("r", None, at=SP3), "shadow")).begin().holds
    assert Room(rule("r", None, at=SP3)).begin().holds
    assert not Room(wants).begin().holds
    assert Room(wants).begin(RequestEvent(({"role": "user", "content": "x"},), 1, 1, "p", tools=(Tool("f"),))).holds
    assert (
        not Room(rule("r", None, at=SP3)).begin(RequestEvent((), 1, 1, "p", tools=(Tool("f"),), constrained=True)).holds
    )
    assert not Room(rule("r", None, at=SP3)).begin(RequestEvent((), 1, 1, "p")).holds


def test_a_holds_that_raises_is_a_fault_and_holds_nothing() -> None:
    room = Room(rule("r", None, at=SP3, holds=lambda event, task: 1 / 0 > 0))
    assert not room.begin().holds
    assert room.entries("action") == ["fault"]


# ----------------------------------------------------------------------------------------------------- questions


def test_a_rule_asks_and_reads_the_odds() -> None:
    asked: list[tuple[str, list[str]]] = []

    def answer(question: str, options: Any) -> list[float]:
        asked.append((question, list(options)))
        return [0.9, 0.1]

    def check(event: Any, task: Any, sup: Any) -> Action:
        return Action.notify(f"{sup.ask('done?', ['A', 'B'])[0]}")

    room = Room(rule("r", check, at=SP2))
    room.begin().at(SP2, FINISH, answer)
    assert asked == [("done?", ["A", "B"])]
    assert room.entries("reason") == ["0.9"]


def test_the_time_of_a_question_is_not_the_rules() -> None:
    def answer(question: str, options: Any) -> list[float]:
        time.sleep(0.1)
        return [1.0]

    room = Room(rule("r", lambda e, t, s: Action.notify(str(s.ask("q", ["A"]))), at=SP2), budget_s=0.02)
    room.begin().at(SP2, FINISH, answer)
    assert room.entries("reason") == ["[1.0]"]


def test_where_nobody_can_be_asked_the_rule_is_told() -> None:
    room = Room(rule("r", lambda e, t, s: s.ask("q", ["A"]), at=(SP1, SP2)))
    room.begin().at(SP1, BLOCK)
    assert "AskError" in room.journal.entries()[0]["reason"]


# ----------------------------------------------------------------------------------------------------- rewriting


def test_rules_that_act_rewrite_the_messages_in_turn() -> None:
    def longer(messages: Any, task: Any) -> Any:
        return [*messages, {"role": "user", "content": task.name}]

    room = Room(
        rule("a", None, rewrite=longer), (rule("b", None, rewrite=longer), "shadow"), rule("c", None, rewrite=longer)
    )
    told = room.supervisor.rewritten([], room.roster, "on")
    assert [message["content"] for message in told] == ["A", "C"]
    assert list(room.supervisor.rewritten([], room.roster, "shadow")) == []


def test_a_rewrite_that_fails_leaves_the_messages_as_they_are() -> None:
    room = Room(rule("a", None, rewrite=lambda messages, task: 1 / 0))
    assert list(room.supervisor.rewritten([{"role": "user", "content": "x"}], room.roster, "on")) != []
    assert room.entries("action") == ["fault"]


def test_an_act_that_could_not_be_done_is_journaled_with_the_reason() -> None:
    room = Room(rule("r", Action.go_on("on", "empty"), at=SP2))
    watch = room.begin()
    act = watch.at(SP2, FINISH)
    assert isinstance(act, Act)
    watch.undone(act, SP2, "no room", FINISH)
    (entry,) = room.journal.entries()
    assert (entry["done"], entry["detail"]["not_done"], watch.acts) == (False, "no room", 0)
