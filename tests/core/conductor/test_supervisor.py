from __future__ import annotations

from typing import Any

import pytest

from tandem.core.conductor import Journal, Supervisor
from tandem.core.plugin import Action, BlockEvent, RequestEvent, Rule, SafePoint

REQUEST = RequestEvent((), 3, 10, "plain")
BLOCK = BlockEvent("text", "t", 1)


def supervisor(*rules: tuple[Rule, dict[str, Any]], clock: Any = None) -> tuple[Supervisor, list[tuple[str, str]]]:
    failed: list[tuple[str, str]] = []
    made = [(rule, {"mode": "act", **options}) for rule, options in rules]
    more = {"clock": clock} if clock else {}
    return Supervisor(made, Journal(), lambda name, reason: failed.append((name, reason)), **more), failed


def rule(name: str, answer: Any, at: SafePoint = SafePoint.SP1) -> Rule:
    return Rule(name, at=at, check=lambda event, task, sup: answer)


def test_faults_far_apart_do_not_switch_a_rule_off() -> None:
    now = [0.0]

    def check(event: Any, task: Any, sup: Any) -> None:
        raise ValueError("x")

    sup, failed = supervisor((Rule("r", at=SafePoint.SP1, check=check), {}), clock=lambda: now[0])
    watch = sup.begin(REQUEST)
    for _ in range(10):
        watch.at(SafePoint.SP1, BLOCK)
        now[0] += 31.0
    assert failed == []
    watch.at(SafePoint.SP1, BLOCK)
    watch.at(SafePoint.SP1, BLOCK)
    watch.at(SafePoint.SP1, BLOCK)
    assert [name for name, _ in failed] == ["r"]
    assert not watch.wants(SafePoint.SP1)


@pytest.mark.parametrize("nonsense", ["stop", 3, {"kind": "give_up"}, object()])
def test_nonsense_from_a_rule_counts_as_a_fault(nonsense: Any) -> None:
    sup, _ = supervisor((rule("r", nonsense), {}))
    assert sup.begin(REQUEST).at(SafePoint.SP1, BLOCK) is None
    (entry,) = sup.journal.entries()
    assert entry["action"] == "fault"
    assert type(nonsense).__name__ in entry["reason"]


def test_a_notice_is_journaled_and_ends_nothing() -> None:
    sup, _ = supervisor((rule("a", Action.notify("look at this")), {}), (rule("b", Action.give_up("end")), {}))
    act = sup.begin(REQUEST).at(SafePoint.SP1, BLOCK)
    assert act is not None
    assert act[0] == "b"
    assert [e["action"] for e in sup.journal.entries()] == ["notify", "give_up"]


def test_on_means_act_and_off_means_not_there() -> None:
    sup, _ = supervisor(
        (rule("a", Action.give_up("x")), {"mode": "on"}), (rule("b", Action.give_up("y")), {"mode": "off"})
    )
    watch = sup.begin(REQUEST)
    assert [post.rule.name for post in sup.posts(SafePoint.SP1)] == ["a"]
    assert watch.at(SafePoint.SP1, BLOCK) is not None


def test_the_memo_is_the_rules_own_for_one_request() -> None:
    def count(event: Any, task: Any, sup: Any) -> Action:
        sup.memo["n"] = sup.memo.get("n", 0) + 1
        return Action.notify(str(sup.memo["n"]))

    sup, _ = supervisor((Rule("r", at=SafePoint.SP1, check=count), {}), (Rule("s", at=SafePoint.SP1, check=count), {}))
    first, second = sup.begin(REQUEST), sup.begin(REQUEST)
    first.at(SafePoint.SP1, BLOCK)
    first.at(SafePoint.SP1, BLOCK)
    second.at(SafePoint.SP1, BLOCK)
    assert [e["reason"] for e in sup.journal.entries() if e["rule"] == "r"] == ["1", "2", "1"]


def test_a_pass_with_a_reason_is_an_observation() -> None:
    sup, _ = supervisor((rule("r", Action.passed("3 of 5")), {}), (rule("s", Action.passed()), {}))
    assert sup.begin(REQUEST).at(SafePoint.SP1, BLOCK) is None
    assert [(e["rule"], e["done"]) for e in sup.journal.entries()] == [("r", False)]
