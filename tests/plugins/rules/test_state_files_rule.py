"""After a compaction the state files have to be read again."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.core.plugin import RequestEvent, Tool
from tandem.plugins.rules._work import is_shortened
from tandem.plugins.rules.state_files import tandem_rules
from tandem.testing.rules import Stand, call, only, request

(RULE,) = tandem_rules()


def tool(name: str, *names: str) -> Tool:
    return Tool(name, "", {"properties": {key: {"type": "string"} for key in names}, "required": list(names)})


TOOLS = [tool("read", "filePath"), tool("write", "content", "filePath"), tool("bash", "command")]
SYSTEM = {"role": "system", "content": "State is in PROGRESS.yaml. Day: 1"}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def steps(count: int, first: int = 0, path: str = "a.py") -> list[dict[str, Any]]:
    messages = []
    for place in range(first, first + count):
        messages += call("read", {"filePath": path}, f"text {place}", id=f"c{place}")
    return messages


def asked(*messages: dict[str, Any], system: dict[str, Any] = SYSTEM, **fields: Any) -> RequestEvent:
    return request([system, *messages], **{"tools": TOOLS, **fields})


LONG = [user("Build it."), *steps(6)]
SHORT = [user("What did we do?"), {"role": "assistant", "content": "A summary."}, user("Continue.")]


def compacted(stand: Stand, **fields: Any) -> None:
    assert stand.next_request(asked(*LONG)) is None
    assert stand.next_request(asked(*SHORT, **fields)) is None


@pytest.mark.parametrize("count", [8, 11])
def test_a_file_that_was_not_read_gets_one_note(count: int) -> None:
    stand = Stand(RULE)
    compacted(stand)
    assert stand.next_request(asked(*SHORT, *steps(7, 10))) is None
    note = only(stand.next_request(asked(*SHORT, *steps(count, 10))))
    assert "PROGRESS.yaml" in note.text
    assert note.reason == "state_files_unread(1)"
    assert stand.next_request(asked(*SHORT, *steps(count + 5, 10))) is None


@pytest.mark.parametrize(
    "reading",
    [
        call("read", {"filePath": "/home/u/app/PROGRESS.yaml"}, "step: 3", id="r"),
        call("bash", {"command": "cat PROGRESS.yaml"}, "step: 3", id="r"),
    ],
)
def test_a_file_that_was_read_is_journaled_and_no_note_comes(reading: list[dict[str, Any]]) -> None:
    stand = Stand(RULE)
    compacted(stand)
    said = stand.next_request(asked(*SHORT, *steps(2, 10), *reading))
    assert only(said).reason == "state_files_read(3)"
    assert stand.next_request(asked(*SHORT, *steps(2, 10), *reading, *steps(20, 20))) is None


def test_writing_the_file_is_not_reading_it() -> None:
    stand = Stand(RULE)
    compacted(stand)
    writing = call("write", {"filePath": "PROGRESS.yaml", "content": "x"}, "ok", id="w")
    assert only(stand.next_request(asked(*SHORT, *writing, *steps(8, 10)))).reason == "state_files_unread(1)"


def test_the_clients_own_compaction_request_is_one_even_when_nothing_shrank() -> None:
    stand = Stand(RULE)
    stand.next_request(asked(user("Hi.")))
    stand.check(request("Summarise.", side="compaction"))
    stand.next_request(asked(*SHORT))
    assert only(stand.next_request(asked(*SHORT, *steps(9, 10)))).reason == "state_files_unread(1)"


def test_what_the_system_prompt_names_is_a_state_file_too() -> None:
    stand = Stand(RULE)
    told = {"role": "system", "content": "Keep PROGRESS.yaml and docs/PLAN.md. See README.md."}
    stand.next_request(asked(*LONG, system=told))
    stand.next_request(asked(*SHORT, system=told))
    reading = call("read", {"filePath": "PROGRESS.yaml"}, "x", id="r")
    note = only(stand.next_request(asked(*SHORT, *reading, *steps(8, 10), system=told)))
    assert note.detail["files"] == ["PLAN.md"]


def test_what_is_still_in_the_conversation_need_not_be_read_again() -> None:
    stand = Stand(RULE)
    stand.next_request(asked(*LONG, *steps(3, 10)))
    kept = [user("Summary."), *call("read", {"filePath": "PROGRESS.yaml"}, "x", id="k"), *steps(1, 12)]
    assert stand.next_request(asked(*kept)) is None
    assert stand.next_request(asked(*kept, *steps(12, 20))) is None


def test_going_back_to_a_message_is_no_compaction() -> None:
    old = ["u1", "a1", "u2", "a2", "u3", "a3"]
    assert not is_shortened(old, old[:3])  # regenerated
    assert not is_shortened(old, ["u1", "a1", "other"])  # edited
    assert not is_shortened(old, [*old, "u4"])
    assert not is_shortened([], ["u1"])
    assert is_shortened(old, ["s", "b", "u3"])
    assert is_shortened(old, ["u1", "a1", "s", "a3"])


def test_a_new_date_in_the_system_prompt_is_none_and_other_projects_are_left_alone() -> None:
    stand = Stand(RULE)
    stand.next_request(asked(*LONG))
    stand.next_request(asked(*LONG, system={"role": "system", "content": "State is in PROGRESS.yaml. Day: 2"}))
    assert "missing" not in stand.session.data
    plain = {"role": "system", "content": "Be good."}
    other = Stand(RULE)
    other.next_request(asked(*LONG, system=plain))
    other.next_request(asked(*SHORT, system=plain))
    assert other.next_request(asked(*SHORT, *steps(20, 10), system=plain)) is None
    assert "Build" not in str(stand.session.data)
