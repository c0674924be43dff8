"""No progress for long gets a note; a client that has gone is told of outside."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.core.plugin import ActionKind, IdleEvent, RequestEvent, Tool
from tandem.plugins.rules.progress import tandem_rules
from tandem.testing.rules import Stand, call, only, request

(RULE,) = tandem_rules()


def tool(name: str, *names: str) -> Tool:
    return Tool(name, "", {"properties": {key: {"type": "string"} for key in names}, "required": list(names)})


TOOLS = [tool("read", "filePath"), tool("write", "content", "filePath"), tool("bash", "command")]
START = [{"role": "system", "content": "See PROGRESS.yaml."}, {"role": "user", "content": "Work."}]
READ = ("read", {"filePath": "a"}, "text")
WRITE = ("write", {"filePath": "a", "content": "b"}, "ok")


class Session:
    """A session at work, minute by minute."""

    def __init__(self, start: list[dict[str, Any]] = START, **params: Any) -> None:
        self.stand, self.messages, self.minute, self.count = Stand(RULE, **params), list(start), 0.0, 0
        self.stand.next_request(self.event)

    @property
    def event(self) -> RequestEvent:
        return request(self.messages, tools=TOOLS)

    def at(self, minute: float, *calls: tuple[str, dict[str, Any], str]) -> Any:
        self.stand.now += 60 * (minute - self.minute)
        self.minute = minute
        for name, arguments, result in calls:
            self.count += 1
            self.messages += call(name, arguments, result, id=f"c{self.count}")
        return self.stand.next_request(self.event)


def test_half_an_hour_without_a_write_or_a_pass_gets_one_note() -> None:
    work = Session()
    assert work.at(29, READ) is None
    note = only(work.at(31, READ))
    assert (note.kind, note.reason) == (ActionKind.PROMPT_TAIL_NOTE, "no_progress(31 min)")
    assert "31 minutes" in note.text
    assert work.at(80, READ) is None, "one note until something moves"
    assert work.at(81, WRITE) is None
    assert only(work.at(112, READ)).reason == "no_progress(31 min)"


@pytest.mark.parametrize(
    ("moved", "progress"),
    [
        (WRITE, True),
        (("write", {"filePath": "a", "content": "b"}, "Error: disk full"), False),
        (("bash", {"command": "echo x > a.txt"}, ""), True),
        (("bash", {"command": "make check"}, "RESULT: PASS <- unit"), True),
        (("bash", {"command": "make check"}, "RESULT: FAIL <- unit"), False),
        (("bash", {"command": "make check"}, "Exit code: 0"), True),
        (("bash", {"command": "ls"}, "Exit code: 0"), False),
    ],
)
def test_what_counts_as_progress(moved: tuple[str, dict[str, Any], str], progress: bool) -> None:
    work = Session()
    work.at(20, moved)
    assert (work.at(31, READ) is None) is progress


def test_a_gate_that_passed_before_is_no_progress() -> None:
    work = Session()
    passing = ("bash", {"command": "make check"}, "Exit code: 0")
    work.at(10, passing)
    work.at(30, passing)
    assert work.at(41, READ) is not None


def test_the_users_own_time_does_not_count() -> None:
    work = Session()
    work.at(5, READ)
    work.messages += [{"role": "assistant", "content": "And now?"}, {"role": "user", "content": "Go on."}]
    assert work.at(600) is None
    assert work.at(620, READ) is None
    assert work.at(626, READ) is not None


def test_a_project_without_state_files_is_left_alone() -> None:
    work = Session([{"role": "user", "content": "Work."}])
    assert work.at(100, READ) is None
    assert work.stand.check(IdleEvent("s", 9999)) is None


def test_the_watch_tells_once_for_each_end_of_a_turn() -> None:
    work = Session(minutes=10)
    stand = work.stand
    ended = stand.now
    for minute, expected in [(5, None), (11, "client_gone(11 min)"), (12, None), (40, None)]:
        stand.now = ended + 60 * minute
        said = stand.check(IdleEvent("s", 60 * minute))
        assert (said and said.reason) == expected
        assert said is None or said.kind is ActionKind.PASS
    assert stand.check(IdleEvent("s", 700, running=True)) is None
    again = stand.check(IdleEvent("s", 700))
    assert again.reason == "client_gone(11 min)", "another turn has ended since"


def test_somebody_is_told_when_the_policy_wants_it() -> None:
    work = Session(minutes=10, notify=True)
    said = work.stand.check(IdleEvent("s", 660))
    assert said.kind is ActionKind.NOTIFY
    assert said.text.startswith("[Tandem]")
    assert "11 minutes" in said.text
