"""A gate that fails several runs in a row gets one note."""

from __future__ import annotations

from typing import Any

from tandem.core.plugin import ActionKind, RequestEvent, Tool
from tandem.plugins.rules.gate_fails import tandem_rules
from tandem.testing.rules import Stand, call, only, request

(RULE,) = tandem_rules()
BASH = Tool("bash", "", {"properties": {"command": {"type": "string"}}, "required": ["command"]})
SYSTEM = {"role": "system", "content": "Keep PROGRESS.yaml up to date."}


def after(*results: str, command: str = "make check", system: dict[str, Any] = SYSTEM, **fields: Any) -> RequestEvent:
    messages = [system, {"role": "user", "content": "Go on."}]
    for place, result in enumerate(results):
        messages += call("bash", {"command": command}, result, id=f"c{place}")
    return request(messages, **{"tools": [BASH], **fields})


def session(*results: str, stand: Stand | None = None, **fields: Any) -> list[Any]:
    """What the rule says to each request of a session whose gate runs end like this."""
    stand = stand or Stand(RULE)
    return [stand.next_request(after(*results[: place + 1], **fields)) for place in range(len(results))]


FAIL, PASS = "boom\nExit code: 2", "fine\nExit code: 0"


def test_the_third_failure_in_a_row_gets_the_note_once() -> None:
    said = session(FAIL, FAIL, FAIL, FAIL, FAIL)
    assert [action is not None for action in said] == [False, False, True, False, False]
    note = only(said[2])
    assert (note.kind, note.reason) == (ActionKind.PROMPT_TAIL_NOTE, "gate_fails(3)")
    assert "3 times" in note.text


def test_a_pass_ends_the_row_and_the_silence() -> None:
    assert not any(session(FAIL, FAIL, PASS, FAIL, FAIL))
    assert [bool(action) for action in session(FAIL, FAIL, FAIL, PASS, FAIL, FAIL, FAIL)].count(True) == 2


def test_result_lines_name_the_gate_and_each_gate_has_its_own_row() -> None:
    unit, lint = "RESULT: FAIL <- unit", "RESULT: FAIL <- lint"
    said = session(unit, lint, unit, lint, unit)
    assert [bool(action) for action in said] == [False, False, False, False, True]
    note = only(said[4])
    assert "unit" in note.text
    assert "unit" not in str(note.detail), "names of a result stay out of the journal's detail"


def test_two_gates_that_are_due_at_once_get_their_notes_one_after_the_other() -> None:
    both = "RESULT: FAIL <- unit\nRESULT: FAIL <- lint"
    assert [bool(action) for action in session(both, both, both, both, both)] == [False, False, True, True, False]


def test_a_request_that_is_sent_again_counts_nothing_twice() -> None:
    stand = Stand(RULE)
    assert [stand.next_request(after(FAIL)) for _ in range(5)] == [None] * 5


def test_it_is_silent_without_tools_in_side_requests_and_in_other_projects() -> None:
    assert not any(session(FAIL, FAIL, FAIL, tools=[]))
    assert not any(session(FAIL, FAIL, FAIL, side="title"))
    assert not any(session(FAIL, FAIL, FAIL, system={"role": "system", "content": "Be good."}))
    other = Stand(RULE, requires=r"STATE\.md")
    assert not any(session(FAIL, FAIL, FAIL, stand=other))


def test_a_note_for_which_there_is_no_room_comes_later() -> None:
    stand = Stand(RULE)
    stand.room = False
    assert not any(session(FAIL, FAIL, FAIL, stand=stand))
    stand.room = True
    assert only(stand.next_request(after(FAIL, FAIL, FAIL, FAIL))).reason == "gate_fails(4)"


def test_what_tells_no_outcome_changes_nothing() -> None:
    assert [bool(a) for a in session(FAIL, FAIL, "still running", FAIL)] == [False, False, False, True]
    assert not any(session(FAIL, FAIL, FAIL, command="grep -c x a.py"))
    stand = Stand(RULE)
    session(*[FAIL] * 4, stand=stand)
    assert "make" not in str(stand.session.data)
