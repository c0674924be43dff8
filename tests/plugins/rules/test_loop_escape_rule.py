"""A turn that repeats a call is drawn, with a note, until it has left the loop."""

import pytest

from tandem.core.plugin import ActionKind, PastCall
from tandem.plugins.rules.loop_escape import tandem_rules
from tandem.testing.rules import Stand, call, only, request

(RULE,) = tandem_rules()
USER = {"role": "user", "content": "Find it."}


def greps(*patterns: str, result: str = "No files found") -> list[dict]:
    return [
        message
        for i, pattern in enumerate(patterns)
        for message in call("grep", {"path": "/home/u/app/src", "pattern": pattern}, result, id=f"g{i}")
    ]


def asked(*messages: dict, **fields):
    return request([USER, *messages], **{"tools": ["grep"], **fields})


def kinds(result) -> list[ActionKind]:
    return [action.kind for action in result or ()]


def test_a_repeat_is_drawn_with_the_recommended_sampling_and_a_note():
    sampling, note = Stand(RULE).check(asked(*greps("x", "x")))
    assert (sampling.kind, sampling.reason, dict(sampling.detail)) == (ActionKind.SET_SAMPLING, "repeat(2)", {})
    assert note.kind is ActionKind.PROMPT_TAIL_NOTE
    assert "grep" in note.text
    assert "2 calls" in note.text


def test_a_near_repeat_is_one_too():
    sampling, note = Stand(RULE).check(asked(*greps("aa", "ab", "ac")))
    assert sampling.reason == "near(3)"
    assert "3 calls" in note.text


@pytest.mark.parametrize(
    "event",
    [
        asked(*greps("x")),
        asked(*greps("x", "y")),
        asked(*greps("x"), *greps("x", result="src/a.py:1")),
        asked(*greps("x", "x"), USER),
        asked(*greps("x", "x"), sampling_asked=True),
        asked(*greps("x", "x"), side="title"),
        asked(*greps("x", "x"), tools=[]),
    ],
    ids=["one", "two alike", "other result", "user message", "own sampling", "side request", "no tools"],
)
def test_any_other_request_is_left_alone(event):
    assert Stand(RULE).check(event) is None


def test_calls_that_were_waits_are_no_repeat():
    calls = tuple(PastCall(f"c{i}", "job", {}, "{}", "running", 30.0) for i in range(3))
    assert Stand(RULE).check(asked(turn_calls=calls)) is None


def test_the_notes_follow_each_other_and_then_only_the_sampling_is_left():
    stand, told = Stand(RULE), []
    for count in range(2, 6):
        result = stand.next_request(asked(*greps(*"x" * count)))
        told.append([action.text for action in result if action.kind is ActionKind.PROMPT_TAIL_NOTE])
        assert ActionKind.SET_SAMPLING in kinds(result)
    assert [len(notes) for notes in told] == [1, 1, 0, 0]
    assert told[0] != told[1]


def test_the_default_is_back_once_the_turn_has_left_the_loop():
    stand = Stand(RULE)
    stand.check(asked(*greps("x", "x")))
    assert stand.next_request(asked(*greps("x", "x"), side="title")) is None
    back = only(stand.next_request(asked(*greps("x", "x"), *call("ls", {}, "a", id="l"))))
    assert (back.kind, back.reason, back.detail["requests"]) == (ActionKind.PASS, "back", 1)
    assert stand.next_request(asked()) is None
    assert len(stand.next_request(asked(*greps("x", "x")))) == 2


def test_the_session_holds_numbers_only():
    stand = Stand(RULE)
    stand.check(asked(*greps("x", "x")))
    assert stand.session.data == {"requests": 1}
