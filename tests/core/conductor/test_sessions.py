from __future__ import annotations

from typing import Any

from tandem.core.conductor import Sessions
from tandem.core.conductor.history import calls_of_turn, past_calls

USER = {"role": "user", "content": "build a game"}


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def asked(*ids: str, name: str = "run", arguments: Any = None) -> dict[str, Any]:
    calls = [{"id": id, "type": "function", "function": {"name": name, "arguments": arguments or {}}} for id in ids]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def result(id: str, text: str = "ok") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": text}


# ------------------------------------------------------------------------------------------------------- the key


def test_a_clients_own_id_is_the_session_whatever_the_messages_say() -> None:
    sessions = Sessions()
    first = sessions.key("opencode", "ses_1", [USER])
    assert sessions.key("opencode", "ses_1", [{"role": "user", "content": "other"}]) == first
    assert sessions.key("opencode", "ses_2", [USER]) != first
    assert sessions.key("hermes", "ses_1", [USER]) != first
    assert "ses_1" not in first


def test_turns_of_a_conversation_without_an_id_find_each_other() -> None:
    sessions = Sessions()
    first = sessions.key("plain", None, [USER])
    assert sessions.key("plain", None, [USER, answer("here"), {"role": "user", "content": "more"}]) == first
    longer = [USER, answer("here"), {"role": "user", "content": "more"}, answer("x"), USER]
    assert sessions.key("plain", None, longer) == first


def test_a_system_prompt_that_changes_does_not_make_another_session() -> None:
    sessions = Sessions()
    first = sessions.key("plain", None, [{"role": "system", "content": "at 10:00"}, USER])
    assert sessions.key("plain", None, [{"role": "system", "content": "at 10:01"}, USER, answer("a"), USER]) == first


def test_conversations_that_begin_alike_are_told_apart_by_their_first_answer() -> None:
    sessions = Sessions()
    one = sessions.key("plain", None, [USER])
    assert sessions.key("plain", None, [USER, answer("first"), USER]) == one
    two = sessions.key("plain", None, [USER])
    assert two != one
    assert sessions.key("plain", None, [USER, answer("second"), USER]) == two
    assert sessions.key("plain", None, [USER, answer("first"), USER]) == one
    assert sessions.key("plain", None, [USER, answer("third"), USER]) not in (one, two)


def test_a_first_message_sent_again_stays_in_its_session_until_it_is_answered() -> None:
    sessions = Sessions()
    assert sessions.key("plain", None, [USER]) == sessions.key("plain", None, [USER])


def test_the_session_unused_for_the_longest_goes_first() -> None:
    sessions = Sessions(room=2)
    a, b = sessions.of("a"), sessions.of("b")
    assert sessions.of("a") is a
    sessions.of("c")
    assert sessions.of("a") is a
    assert sessions.of("b") is not b
    assert len(sessions.all()) == 2


def test_what_is_remembered_of_heads_is_bounded_too() -> None:
    sessions = Sessions(room=4)
    for number in range(50):
        sessions.of(sessions.key("plain", None, [{"role": "user", "content": f"{number}"}]))
    assert len(sessions._heads) <= 4


# ------------------------------------------------------------------------------------------------------ the calls


def test_a_result_is_new_once_however_often_it_is_sent() -> None:
    sessions = Sessions()
    state = sessions.of("s")
    history = [USER, asked("c1"), result("c1"), asked("c2")]
    _, new = sessions.begun(state, past_calls(history))
    assert [call.id for call in new] == ["c1"]
    _, new = sessions.begun(state, past_calls([*history, result("c2")]))
    assert [call.id for call in new] == ["c2"]
    assert sessions.begun(state, past_calls([*history, result("c2")]))[1] == ()


def test_the_time_a_result_took_is_known_when_this_server_made_the_call(monkeypatch: Any) -> None:
    now = [100.0]
    monkeypatch.setattr("tandem.core.conductor.sessions.time.monotonic", lambda: now[0])
    sessions = Sessions()
    state = sessions.of("s")
    sessions.ended(state, ["c1"])
    now[0] = 112.5
    history = past_calls([USER, asked("c1", "c9"), result("c1"), result("c9")])
    timed, _ = sessions.begun(state, history)
    assert [call.seconds for call in timed] == [12.5, None]
    now[0] = 500.0
    timed, _ = sessions.begun(state, history)
    assert timed[0].seconds == 12.5


def test_calls_are_read_off_the_messages_with_their_results() -> None:
    calls = past_calls(
        [
            USER,
            asked("c1", arguments={"b": 1, "a": [1, 2]}),
            result("c1", "one"),
            asked("c2", "c3", name="read", arguments='{"path": "x"}'),
            result("c3", "three"),
            {"role": "tool", "content": [{"type": "text", "text": "tw"}, {"type": "text", "text": "o"}]},
        ]
    )
    assert [(call.id, call.name, call.written, call.result) for call in calls] == [
        ("c1", "run", '{"a":[1,2],"b":1}', "one"),
        ("c2", "read", '{"path":"x"}', "two"),
        ("c3", "read", '{"path":"x"}', "three"),
    ]


def test_arguments_that_do_not_parse_are_kept_as_text() -> None:
    calls = past_calls([asked("a", arguments='{"x": '), asked("b", arguments={"unreadable_arguments": "{x"})])
    assert [(call.arguments, call.written) for call in calls] == [(None, '{"x": '), (None, "{x")]


def test_the_calls_of_a_turn_are_those_behind_the_last_user_message() -> None:
    messages = [USER, asked("c1"), result("c1"), answer("done"), USER, asked("c2", "c3"), result("c2")]
    calls = past_calls(messages)
    assert [call.id for call in calls_of_turn(messages, calls)] == ["c2", "c3"]
    assert calls_of_turn(messages[:5], past_calls(messages[:5])) == ()
