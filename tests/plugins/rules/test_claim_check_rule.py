"""A claim that the results do not carry is sent back; everything else leaves the answer as it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tandem.core.plugin import Action, ActionKind, FinishEvent, RequestEvent, Tool, WrittenCall
from tandem.plugins.rules.claim_check import NOTES, tandem_rules
from tandem.testing.rules import Stand, call, only, request

(RULE,) = tandem_rules()


def tool(name: str, *names: str) -> Tool:
    return Tool(name, "", {"properties": {key: {"type": "string"} for key in names}, "required": list(names)})


TOOLS = [tool("read", "filePath"), tool("write", "content", "filePath"), tool("bash", "command")]
USER = [{"role": "user", "content": "Fix it."}]
WRITE = call("write", {"filePath": "a.py", "content": "x"}, "ok", id="w1")
RUN = call("bash", {"command": "pytest"}, "9 passed", id="r1")
LOOK = call("read", {"filePath": "a.py"}, "x", id="l1")
DONE = FinishEvent("Done, all tests pass.", 8, "stop")
CLAIM, NONE = [0.95, 0.05], [0.4, 0.6]
ODDS = {word: [0.9 if place == n else 0.025 for n in range(5)] for place, word in enumerate(["supported", *NOTES])}


def turn(*parts: list[dict[str, Any]], **fields: Any) -> RequestEvent:
    return request([*USER, *[message for part in parts for message in part]], **{"tools": TOOLS, **fields})


def stand(*parts: list[dict[str, Any]], mode: str = "act", fields: Any = None, **params: Any) -> Stand:
    """A session that has come to the end of an answer."""
    where = Stand(RULE, mode=mode, **params)
    assert not where.check(turn(*(parts or (WRITE,)), **(fields or {})))
    return where


def said(where: Stand, *answers: list[float], event: FinishEvent = DONE) -> Action:
    where.answers = list(answers)
    return only(where.check(event))


@pytest.mark.parametrize("word", NOTES)
def test_each_kind_of_evidence_has_its_note(word: str) -> None:
    where = stand(WRITE, RUN)
    action = said(where, CLAIM, ODDS[word])
    assert (action.kind, action.reason) == (ActionKind.CONTINUE, f"claim_check({word})")
    assert action.text == where.params[NOTES[word]]
    assert action.detail["claim"] == 0.95
    assert action.detail["evidence"][word] == 0.9


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([NONE], "no_claim"),
        ([[0.849, 0.151]], "no_claim"),
        ([CLAIM, ODDS["supported"]], "supported"),
        ([CLAIM, [0.2, 0.59, 0.1, 0.1, 0.01]], "unsure"),
        ([], "error:not_asked"),
        ([CLAIM], "error:not_asked"),
    ],
)
def test_everything_else_leaves_the_answer(answers: list[list[float]], reason: str) -> None:
    action = said(stand(), *answers)
    assert (action.kind, action.reason) == (ActionKind.PASS, f"claim_check({reason})")


def test_the_thresholds_are_reached_by_their_own_value() -> None:
    assert said(stand(), [0.85, 0.15], [0.1, 0.6, 0.1, 0.1, 0.1]).kind is ActionKind.CONTINUE


def test_the_question_names_the_tools_since_the_last_write_and_the_twin_says_what_they_say_alone() -> None:
    where = stand(RUN, WRITE, LOOK)
    action = said(where, CLAIM, ODDS["no_run_after_last_write"])
    assert "since then: read." in where.asked[1]
    assert (action.detail["since"], action.detail["twin"]) == (["read"], "no_run_after_last_write")
    where = stand(WRITE, RUN, call("bash", {"command": "make"}, "ok", id="r2"))
    action = said(where, CLAIM, ODDS["supported"])
    assert "bash (2 times)" in where.asked[1]
    assert action.detail["twin"] == "ran"
    where = stand(WRITE)
    said(where, CLAIM, ODDS["supported"])
    assert "since then: none." in where.asked[1]


@pytest.mark.parametrize(
    "event",
    [
        replace(DONE, answer="  "),
        replace(DONE, reason="length"),
        replace(DONE, ended=False),
        replace(DONE, inside=True),
        replace(DONE, reason="tool_calls", calls=(WrittenCall("bash", "{}"),)),
    ],
)
def test_an_answer_of_another_form_is_not_asked_about(event: FinishEvent) -> None:
    where = stand()
    assert where.check(event) is None
    assert where.asked == []


@pytest.mark.parametrize(
    ("fields", "params", "asked"),
    [
        ({}, {}, True),
        ({"cls": "debug"}, {}, True),
        ({"cls": "chat"}, {}, False),
        ({"cls": "chat"}, {"any_class": True}, True),
        ({"cls": "chat"}, {"classes": ["chat"]}, True),
        ({"tools": []}, {}, False),
        ({"tools": [TOOLS[0]]}, {}, False),
        ({"tools": [TOOLS[0]]}, {"any_class": True}, True),
        ({"constrained": True}, {}, False),
        ({"side": "title"}, {}, False),
    ],
)
def test_which_turns_are_checked(fields: Any, params: Any, asked: bool) -> None:
    where = Stand(RULE, **params)
    where.check(turn(WRITE))
    where.next_request(turn(WRITE, **fields))
    where.answers = [NONE]
    assert bool(where.check(DONE)) is asked


def test_a_session_without_a_write_is_not_asked_and_one_whose_write_was_compacted_is() -> None:
    assert stand(LOOK, RUN).check(DONE) is None
    where = stand(WRITE)
    where.next_request(turn(LOOK))
    assert said(where, NONE).reason == "claim_check(no_claim)"


def test_it_is_asked_once_a_request() -> None:
    where = stand()
    assert said(where, CLAIM, ODDS["test_faked"]).kind is ActionKind.CONTINUE
    assert where.check(DONE) is None


def test_a_session_gets_so_many_notes() -> None:
    where, reasons = stand(), []
    for _ in range(4):
        where.next_request(turn(WRITE))
        where.answers = [CLAIM, ODDS["test_faked"]]
        result = where.check(DONE)
        reasons.append((result[-1] if isinstance(result, list) else result).reason)
    assert reasons == ["claim_check(test_faked)"] * 2 + ["claim_check_exhausted"] * 2
    assert len(where.asked) == 4, "nothing is asked any more"


def test_without_room_nothing_is_asked_and_in_shadow_it_is_asked_all_the_same() -> None:
    where = stand()
    where.room = False
    assert said(where, CLAIM, ODDS["test_faked"]).reason == "claim_check(no_room)"
    assert where.asked == []
    where = stand(mode="shadow")
    where.room = False
    assert said(where, CLAIM, ODDS["test_faked"]).kind is ActionKind.CONTINUE


def calls(*kinds: str, first: int = 0) -> list[dict[str, Any]]:
    made = {
        "write": ({"filePath": "a", "content": "b"}, "ok"),
        "bash": ({"command": "pytest"}, "ok"),
        "read": ({"filePath": "a"}, "ok"),
    }
    return [m for n, kind in enumerate(kinds) for m in call(kind, *made[kind], id=f"n{first + n}")]


@pytest.mark.parametrize(
    ("kinds", "outcome"),
    [
        (["bash", "write"], "fixed"),
        (["bash"], "ran_no_fix"),
        (["read"], "no_run"),
        (["write"], "no_run"),
    ],
)
def test_the_outcome_of_a_note_is_journaled_after_its_calls(kinds: list[str], outcome: str) -> None:
    where = stand()
    said(where, CLAIM, ODDS["no_run_after_last_write"])
    rest = ["read"] * (8 - len(kinds))
    assert where.next_request(turn(WRITE, calls(*kinds))) == []
    row = only(where.next_request(turn(WRITE, calls(*kinds, *rest))))
    assert (row.kind, row.reason) == (ActionKind.PASS, f"claim_outcome({outcome})")
    assert row.detail["evidence"] == "no_run_after_last_write"
    assert where.next_request(turn(WRITE, calls(*kinds, *rest, "read"))) == []


def test_the_next_check_closes_a_note_and_says_whether_the_claim_came_again() -> None:
    where = stand()
    said(where, CLAIM, ODDS["no_run_after_last_write"])
    where.next_request(turn(WRITE, calls("bash")))
    where.answers = [CLAIM, ODDS["supported"]]
    outcome, now = where.check(DONE)
    assert (outcome.reason, outcome.detail["again"]) == ("claim_outcome(ran_no_fix)", True)
    assert now.reason == "claim_check(supported)"


def test_it_starts_in_shadow_and_keeps_no_text() -> None:
    assert RULE.options["mode"]["default"] == "shadow"
    where = stand(call("bash", {"command": "echo secret > a.py"}, "secret", id="s"))
    action = said(where, CLAIM, ODDS["test_faked"])
    assert "secret" not in str(where.session.data) + str(action.detail) + action.reason
