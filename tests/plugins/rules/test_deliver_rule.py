"""A long stretch of work gets notes: write, come to an end, leave the point; clean runs get none."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.core.plugin import RequestEvent, Tool
from tandem.plugins.rules.deliver import lead_of, stretch, tandem_rules
from tandem.testing.rules import Stand, call, request

(RULE,) = tandem_rules()


def tool(name: str, *names: str) -> Tool:
    return Tool(name, "", {"properties": {key: {"type": "string"} for key in names}, "required": list(names)})


TOOLS = [tool("read", "filePath"), tool("write", "content", "filePath"), tool("bash", "command")]
READ, RUN = ("read", {"filePath": "a"}, "text"), ("bash", {"command": "node bot.js"}, "x=436")
WRITE = ("write", {"filePath": "game.html", "content": "<html>"}, "ok")
TEST = ("bash", {"command": "pytest -q"}, "1 failed\nExit code: 1")
Call = tuple[str, dict[str, Any], str]
Step = tuple[float, str, Call]


class Session:
    """A session at work, minute by minute."""

    def __init__(self, tools: list[Tool] = TOOLS, **params: Any) -> None:
        self.stand, self.tools = Stand(RULE, **params), tools
        self.messages: list[dict[str, Any]] = []
        self.minute, self.count = 0.0, 0
        self.notes: list[tuple[str, float]] = []

    @property
    def event(self) -> RequestEvent:
        return request(self.messages, tools=self.tools)

    def ask(self, text: str = "Make a game.", minute: float | None = None) -> Session:
        self.messages.append({"role": "user", "content": text})
        return self._send(self.minute if minute is None else minute)

    def at(self, minute: float, said: str, done: Call) -> Session:
        self.count += 1
        asked, result = call(*done, id=f"c{self.count}")
        self.messages += [{**asked, "content": said}, result]
        return self._send(minute)

    def play(self, *steps: Step) -> Session:
        for step in steps:
            self.at(*step)
        return self

    def _send(self, minute: float) -> Session:
        self.stand.now += 60 * (minute - self.minute)
        self.minute = minute
        action = self.stand.next_request(self.event)
        if action is not None:
            self.notes.append((action.reason.partition("(")[0], minute))
        return self


STUCK = "The bot is stuck at x=436, so I raise its jump."


def test_the_chat_that_never_answered_gets_its_three_notes() -> None:
    """A game in an agent chat: planning for minutes, a first version, then 37 minutes at its own playtest bot."""
    steps: list[Step] = [(0.6 + 0.5 * n, f"I look at part {n} of the page.", READ) for n in range(5)]
    steps += [(3.1, "", READ), (4.4, "Let me write it.", READ), (6.0, "I write the game.", WRITE)]
    steps += [(7.0 + n, f"Level {n} of the game now loads in the page.", RUN) for n in range(11)]
    steps += [(18.0, "", RUN), (22.0, STUCK, RUN), (25.0, "The camera follows it well now.", WRITE)]
    steps += [(29.0, STUCK, RUN), (32.0, "", RUN), (36.0, "**The bot is stuck at x=436**, again", RUN)]
    steps += [(37.0 + n, STUCK, RUN) for n in range(6)]
    session = Session().ask().play(*steps)
    assert session.notes == [("first_write", 3.1), ("wrap_up", 18.0), ("repeat", 36.0)]


CLEAN: dict[str, list[Step]] = {
    "a bug fix": [
        (0.2, "I'll look at the failing test first.", READ),
        (0.4, "Let me run the tests.", TEST),
        (0.8, "The parser drops the last field when the line has no end.", READ),
        (1.3, "", ("edit", {"filePath": "a.py", "oldString": "x", "newString": "y"}, "ok")),
        (1.6, "Let me run the tests.", ("bash", {"command": "pytest -q"}, "3 passed\nExit code: 0")),
    ],
    "a refactor": [
        *[(0.2 * n, f"Now let me read module {n}.", READ) for n in range(1, 13)],
        *[(2.6 + 0.4 * n, "Now the next file.", WRITE) for n in range(20)],
        (11.0, "Let me run the tests.", TEST),
        (11.5, "Let me run the tests.", TEST),
        (12.0, "Let me run the tests.", TEST),
    ],
    "a duplicate finder": [
        (0.3, "", ("bash", {"command": "ls"}, "a b")),
        (2.0, "I write the script now.", WRITE),
        (2.5, "It finds two groups of files.", ("bash", {"command": "python dup.py ."}, "2 groups")),
        (4.0, "Symlinks should not be followed.", WRITE),
        (4.5, "", ("bash", {"command": "python dup.py ."}, "2 groups")),
    ],
    "a fix with tests": [
        (0.3, "Let me look at the code.", READ),
        (0.9, "The rounding is done twice, once too often.", READ),
        (1.4, "I'll write a test that shows it first.", WRITE),
        (1.8, "The new test fails as it should.", TEST),
        (2.6, "", WRITE),
        (3.0, "The new test passes and two old ones fail.", TEST),
        (4.5, "", WRITE),
        (5.0, "All of the tests pass now.", ("bash", {"command": "pytest -q"}, "9 passed\nExit code: 0")),
    ],
}


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_run_gets_none(name: str) -> None:
    edit = tool("edit", "filePath", "oldString", "newString")
    session = Session([*TOOLS, edit]).ask("Please do it.").play(*CLEAN[name])
    session.messages.append({"role": "assistant", "content": "Done: it works as you asked."})
    assert session.ask("Thanks!", 45).notes == []


def test_many_calls_without_a_write_get_the_first_note_and_only_once() -> None:
    session = Session().ask().play(*[(n / 60, "", READ) for n in range(40)])
    assert session.notes == [("first_write", 29 / 60)]


def test_a_shell_may_have_written_the_file() -> None:
    made = ("bash", {"command": "cat > game.html <<'EOF'\n<html>\nEOF"}, "")
    assert Session().ask().play((1, "", made), (9, "", READ)).notes == []


def test_a_session_that_can_not_write_is_left_alone() -> None:
    assert Session([TOOLS[0]]).ask().play(*[(n, "", READ) for n in range(60)]).notes == []


def test_a_question_that_follows_the_work_is_no_reason_to_write() -> None:
    session = Session().ask().play((1, "", WRITE))
    session.messages.append({"role": "assistant", "content": "Done."})
    session.ask("How does it work?", 10).play(*[(10 + n, "", READ) for n in range(1, 20)])
    assert session.notes == []


def test_a_new_message_of_the_user_begins_a_new_stretch() -> None:
    session = Session().ask().play((1, "", WRITE), (8, "", RUN))
    session.messages.append({"role": "assistant", "content": "Done."})
    session.ask("Make it blue.", 11).play((20, "", RUN), (21, "", WRITE), (32, "", RUN), (33.5, "", RUN))
    assert session.notes == [("wrap_up", 33.5)]


def test_the_clients_own_messages_between_calls_begin_none() -> None:
    session = Session().ask().play((1, "", WRITE), (5, "", READ))
    picture = [{"type": "text", "text": "Attached media"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    session.messages.append({"role": "user", "content": picture})
    session._send(6)
    assert len(stretch(session.messages)) == 5
    session.messages = [{"role": "user", "content": "So far?"}, {"role": "assistant", "content": "A summary."}]
    session.ask("Continue.", 8)._send(9).play((14, "", RUN))
    assert session.notes == [("wrap_up", 14)]


def test_a_first_message_that_is_sent_again_begins_no_new_stretch() -> None:
    session = Session().ask()
    session._send(2)
    assert session.play((3.5, "", READ)).notes == [("first_write", 3.5)]


PARAMS = Stand(RULE).params


@pytest.mark.parametrize(
    ("text", "lead"),
    [
        ("The bot is stuck at x=436. I change it.", "the bot is stuck at x=436"),
        ("**The bot  is stuck at X=436**\nmore", "the bot is stuck at x=436"),
        ("It took 1.5 s to load, which is long", "it took 1.5 s to load"),
        ("Now let me run the tests again", ""),
        ("Let's look at the next one here", ""),
        ("Good. I go on.", ""),
        ("", ""),
        ("Der Bot hängt bei x=436 fest: ich ändere das", "der bot hängt bei x=436 fest"),
    ],
)
def test_the_lead_of_a_message(text: str, lead: str) -> None:
    assert lead_of(text, PARAMS) == lead


def test_there_is_no_text_in_the_sessions_memory() -> None:
    session = Session().ask("A secret word.").play((1, STUCK, RUN), (2, STUCK, RUN), (5, STUCK, WRITE))
    assert session.notes
    kept = str(session.stand.session.data)
    assert "secret" not in kept
    assert "stuck" not in kept


@pytest.mark.parametrize(
    ("params", "note"),
    [
        ({"first_write_min": 2.4}, "first_write"),
        ({"first_write_min": 2.5}, None),
        ({"first_write_calls": 12}, "first_write"),
        ({"first_write_calls": 13}, None),
        ({"wrap_up_min": 9.3}, "wrap_up"),
        ({"wrap_up_min": 9.5}, None),
        ({"announcing": ""}, "repeat"),
    ],
)
def test_how_far_the_refactor_is_from_a_note(params: dict[str, Any], note: str | None) -> None:
    session = Session(**params).ask().play(*CLEAN["a refactor"])
    assert [name for name, _ in session.notes[:1]] == ([note] if note else [])
