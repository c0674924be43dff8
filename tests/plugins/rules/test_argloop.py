from __future__ import annotations

import json
from typing import Any

import pytest

from tandem.core.plugin import Action, ActionKind, BlockEvent
from tandem.plugins.rules.argloop import tandem_rules
from tandem.testing.rules import Stand, Writing, call, only, request

RULE = tandem_rules()[0]
ROW = '"' + " " * 94 + '",'
HEAD = '<tool_call>\n{"name": "write", "arguments": {"path": "game.js", "content": "' + "".join(
    f"let line{n} = {n * n};" for n in range(80)
)
USER = {"role": "user", "content": "Write the game."}


def stand(**params: Any) -> Stand:
    """A model of one token a character; the request offers `write`."""
    return Stand(RULE, event=request("Write the game.", tools=["write"]), **params)


def write(stand: Stand, text: str, name: str = "write", streamed: bool = False, step: int = 16) -> Action | None:
    """Write a call token by token; the action that stops it, with how far it came."""
    for end in [*range(step, len(text), step), len(text)]:
        action = stand.check(BlockEvent(call=Writing(text[:end], end, name, streamed)))
        if action is not None:
            return only(action)
    return None


def stop(tool: str = "write", unit: int = 97, id: str = "c1") -> list[dict[str, Any]]:
    """The messages of a call that was stopped, as Open WebUI sends it back."""
    piece = (("#." * unit)[: unit - 1] + "\n")[:unit]
    sent = '{"path": "a", "content": "' + "begin " * 10 + json.dumps(piece)[1:-1] * (4000 // unit + 3)
    return call(tool, sent, "Error: Tool call arguments could not be parsed.", id)


def told(messages: list[dict[str, Any]], stand: Stand) -> list[Any]:
    """The messages as the rule lets them through."""
    return list(RULE.rewrite(messages, stand.task) or messages)  # type: ignore[misc]


# ---------------------------------------------------------------------------------------------- while it is written


def test_a_row_of_a_tile_map_written_over_and_over_is_stopped() -> None:
    stood = stand()
    action = write(stood, HEAD + ROW * 100)
    assert action is not None
    assert action.kind is ActionKind.GIVE_UP
    assert action.detail["unit"] == 97
    assert action.detail["tokens"] <= len(HEAD) + 1024 + 64 + 16
    assert action.detail["copies"] == 10 == int(action.reason.partition("x")[2].rstrip(")"))
    assert action.text == (
        f"[Tandem broke off a call of write that had run to {action.detail['tokens']:,} tokens, because the same 97 "
        "characters came 10 times running. All of it was thrown away.]"
    )


def test_a_call_that_was_being_sent_is_told_as_unfinished() -> None:
    action = write(stand(), HEAD + ROW * 100, streamed=True)
    assert action is not None
    assert "Unfinished as it is, it can't run." in action.text


def test_three_copies_of_a_long_piece_are_enough() -> None:
    piece = "".join(f"row {n}: {n * 7919 % 1000};\n" for n in range(27))
    assert 256 <= len(piece) <= 500
    action = write(stand(), HEAD + piece * 9)
    assert action is not None
    assert action.detail["copies"] == 3


def test_three_copies_are_looked_for_before_the_call_has_1024_tokens() -> None:
    piece = "".join(f"row {n}: {n * 7919 % 1000};\n" for n in range(22))
    assert len(piece) >= 256
    action = write(stand(), piece * 4)
    assert action is not None
    assert action.detail["tokens"] < 1024


def test_two_copies_of_a_long_piece_and_most_of_a_third_pass() -> None:
    piece = "".join(f"row {n}: {n * 7919 % 1000};\n" for n in range(27))
    assert write(stand(), HEAD + (piece * 3)[: int(2.9 * len(piece))]) is None


def test_equal_rows_under_1024_tokens_pass() -> None:
    assert write(stand(), HEAD + ROW * 10) is None


def test_rows_that_count_up_pass() -> None:
    assert write(stand(), HEAD + "".join(f"tile {n:06} = none\n" for n in range(500))) is None


def test_tokens_count_and_not_characters() -> None:
    stood = stand()
    stood.tokens = lambda text: len(text) // 20  # type: ignore[method-assign]
    text = HEAD + ROW * 150  # 14,550 characters are 727 tokens
    for end in range(16, 3000, 16):
        assert stood.check(BlockEvent(call=Writing(text, end))) is None
    longer = HEAD + ROW * 250
    assert stood.check(BlockEvent(call=Writing(longer, 3100))) is not None


def test_a_call_is_told_once_and_the_next_call_of_the_answer_anew() -> None:
    stood = stand()
    assert write(stood, HEAD + ROW * 100) is not None
    text = HEAD + ROW * 200
    assert stood.check(BlockEvent(call=Writing(text, len(text)))) is None, "it was told already"
    assert stood.check(BlockEvent("text between calls")) is None
    assert write(stood, HEAD + ROW * 100) is not None


def test_between_two_looks_nothing_is_read() -> None:
    class Unread(Writing):
        def tail(self, characters: int) -> str:
            raise AssertionError("it was looked at")

    stood = stand()
    assert stood.check(BlockEvent(call=Writing(HEAD, 1024))) is None
    for tokens in range(1025, 1024 + 64):
        assert stood.check(BlockEvent(call=Unread(HEAD, tokens))) is None
    with pytest.raises(AssertionError, match="looked at"):
        stood.check(BlockEvent(call=Unread(HEAD, 1024 + 64)))


def test_a_look_reads_only_the_end() -> None:
    read: list[int] = []

    class Read(Writing):
        def tail(self, characters: int) -> str:
            read.append(characters)
            return super().tail(characters)

    prose = "".join(f"{n * n % 9973} " for n in range(20_000))
    assert stand().check(BlockEvent(call=Read(prose, 30_000))) is None
    assert read == [4096 + 128]


def test_an_event_without_a_call_passes() -> None:
    assert stand().check(BlockEvent("text", "text", 1)) is None


def nearly_alike(tokens: int) -> Writing:
    rows = "".join(f"{n:05}" + "." * 600 + "\n" for n in range(200))
    return Writing(rows, tokens)


def test_an_endless_call_that_only_counts_up_is_stopped_by_its_size() -> None:
    stood = stand()
    assert stood.check(BlockEvent(call=nearly_alike(32_768))) is None
    action = only(stood.check(BlockEvent(call=nearly_alike(32_832))))
    assert action.reason == "tool_arg_size(32832)"
    assert "32,832 tokens, because it had grown far beyond the request" in action.text


def test_a_request_with_a_long_message_may_have_a_long_answer() -> None:
    stood = stand()
    stood.request = request([{"role": "user", "content": "x" * 40_000}], tools=["write"])
    assert stood.check(BlockEvent(call=nearly_alike(32_832))) is None
    assert stood.check(BlockEvent(call=nearly_alike(34_400))) is not None, "three times 40,000 / 3.5 tokens"


def test_a_long_file_of_many_different_lines_passes() -> None:
    lines = "".join(f"const value_{n} = compute({n * n}, '{n:x}');\n" for n in range(2000))
    assert stand().check(BlockEvent(call=Writing(lines, 60_000))) is None


# --------------------------------------------------------------------------------------------- the session's next


def test_the_next_request_with_tools_gets_the_note_once() -> None:
    stood = stand()
    write(stood, HEAD + ROW * 100)
    assert stood.next_request(request("And a summary?")) is None, "without tools there is nothing to say"
    note = only(stood.next_request(request("Go on.", tools=["write"])))
    assert note.kind is ActionKind.PROMPT_TAIL_NOTE
    assert "Your last write call was stopped" in note.text
    assert "the same 97 characters came 10 times" in note.text
    assert stood.next_request(request("Go on.", tools=["write"])) is None


def test_a_second_equal_stop_says_that_the_approach_must_change() -> None:
    stood = stand()
    write(stood, HEAD + ROW * 100)
    stood.next_request(request("Go on.", tools=["write"]))
    write(stood, HEAD + ROW * 100)
    note = only(stood.next_request(request("Try once more.", tools=["write"])))
    assert "change the approach" in note.text


def test_a_call_that_ran_in_between_makes_the_next_stop_a_first_one() -> None:
    stood = stand()
    write(stood, HEAD + ROW * 100)
    stood.next_request(request([USER, *call("read", {"path": "a"}, "...", id="r1")], tools=["write"]))
    write(stood, HEAD + ROW * 100)
    note = only(stood.next_request(request("Try once more.", tools=["write"])))
    assert "change the approach" not in note.text


def test_what_is_remembered_of_a_session_holds_no_text() -> None:
    stood = stand()
    write(stood, HEAD + ROW * 100)
    assert stood.session.data == {"tool": "write", "unit": 97, "copies": 10, "again": 0, "owed": True}


def test_in_shadow_the_next_request_is_told_nothing() -> None:
    stood = Stand(RULE, mode="shadow", event=request("Write the game.", tools=["write"]))
    assert write(stood, HEAD + ROW * 100) is not None
    assert stood.session.data == {}
    assert stood.next_request(request("Go on.", tools=["write"])) is None


def test_a_side_request_is_left_alone() -> None:
    stood = stand()
    write(stood, HEAD + ROW * 100)
    assert stood.next_request(request("Title?", tools=["write"], side="title")) is None
    assert stood.next_request(request("Go on.", tools=["write"])) is not None


# -------------------------------------------------------------------------------------------------------- sent back


def test_a_stopped_call_of_the_history_keeps_its_beginning_and_one_marker() -> None:
    messages = [USER, *stop()]
    sent: str = messages[1]["tool_calls"][0]["function"]["arguments"]
    cut: str = told(messages, stand())[1]["tool_calls"][0]["function"]["arguments"]
    assert cut.startswith(sent[:1500])
    marker = cut[1500:]
    assert marker.startswith("\n[Tandem shortened this call of write: the same 98 characters came 44 times")
    assert f"{len(sent) - 1500:,} characters of it are left out here" in marker
    assert marker.endswith("It did not run.]")
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == sent, "the client's own list is not changed"


def test_a_call_under_the_key_of_unreadable_arguments_is_cut_alike() -> None:
    text = stop()[0]["tool_calls"][0]["function"]["arguments"]
    whole = told([USER, *call("write", text, "error")], stand())
    parsed = told([USER, *call("write", {"unreadable_arguments": text}, "error")], stand())
    assert parsed[1]["tool_calls"][0]["function"]["arguments"] == {
        "unreadable_arguments": whole[1]["tool_calls"][0]["function"]["arguments"]
    }


@pytest.mark.parametrize("as_text", [False, True])
def test_the_stand_in_of_opencode_is_cut_and_keeps_its_remark(as_text: bool) -> None:
    raw = stop("bash")[0]["tool_calls"][0]["function"]["arguments"]
    error = f"Invalid input for tool bash: JSON parsing failed: Text: {raw}.\nError message: Unterminated string"
    arguments: Any = {"tool": "bash", "error": error}
    result = f"The arguments provided to the tool are invalid: {error}"
    messages = [USER, *call("invalid", json.dumps(arguments) if as_text else arguments, result)]
    cut = told(messages, stand())
    function = cut[1]["tool_calls"][0]["function"]
    kept = json.loads(function["arguments"]) if as_text else function["arguments"]
    assert kept["tool"] == "bash"
    assert "[Tandem shortened this call of bash" in kept["error"]
    assert kept["error"].endswith("\nError message: Unterminated string")
    assert len(kept["error"]) < 2000
    assert len(cut[2]["content"]) < 2000, "the result quotes the call"
    assert len(stopped_notes(cut)) == 1


def stopped_notes(messages: list[dict[str, Any]]) -> list[str]:
    return [
        text
        for message in messages
        for text in [json.dumps(message)]
        if message["role"] == "assistant" and "Tandem shortened this" in text
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        json.dumps({"path": "a", "content": ROW * 100}),  # it parses
        {"path": "a", "content": ROW * 100},
        '{"path": "a", "content": "' + "".join(f"line {n * n}\\n" for n in range(400)),  # cut, but no loop
        '{"path": "a", "content": "' + "x" * 300,  # too short a loop
        {"tool": "bash", "error": "Model tried to call unavailable tool 'x'. Available tools: read, write."},
        "",
        None,
        7,
    ],
)
def test_every_other_call_is_never_touched(arguments: Any) -> None:
    messages = [USER, *call("write", arguments, "done"), *call("invalid", arguments, "done")]
    assert RULE.rewrite is not None
    assert RULE.rewrite(messages, stand().task) is None


def test_odd_messages_pass_through() -> None:
    assert RULE.rewrite is not None
    odd = [{"role": "assistant", "tool_calls": [{}, {"function": None}]}, {}, {"role": "tool"}]
    assert RULE.rewrite(odd, stand().task) is None


# ------------------------------------------------------------------------------------------------- the retry storm


def retry(stood: Stand, messages: list[dict[str, Any]], **fields: Any) -> Action | None:
    result = stood.check(request(told(messages, stood), tools=["write"], **fields))
    return None if result is None else only(result)


def test_the_retry_of_a_stopped_call_gets_the_note() -> None:
    note = retry(stand(), [USER, *stop()])
    assert note is not None
    assert note.kind is ActionKind.PROMPT_TAIL_NOTE
    assert "write call was stopped while you wrote it" in note.text
    assert "the same 98 characters" in note.text


def test_after_two_equal_stops_the_answer_is_not_generated() -> None:
    action = retry(stand(), [USER, *stop(id="c1"), *stop(id="c2")])
    assert action is not None
    assert action.kind is ActionKind.GIVE_UP
    assert action.reason == "tool_arg_loop_retries(2)"
    assert action.text.startswith("[Tandem does not go on with the write call: 2 attempts ran into a loop")
    assert "reasoning" not in action.text


def test_a_client_that_turned_reasoning_off_is_told_of_it() -> None:
    action = retry(stand(), [USER, *stop(id="c1"), *stop(id="c2")], thinking_asked=False)
    assert action is not None
    assert "or turn reasoning on" in action.text


def test_two_different_stops_get_another_note_and_three_of_one_tool_end_the_retries() -> None:
    two = [USER, *stop(unit=97, id="c1"), *stop(unit=150, id="c2")]
    note = retry(stand(), two)
    assert note is not None
    assert note.kind is ActionKind.PROMPT_TAIL_NOTE
    three = retry(stand(), [*two, *stop(unit=201, id="c3")])
    assert three is not None
    assert three.reason == "tool_arg_loop_retries(3)"


def test_a_call_that_ran_ends_the_streak() -> None:
    note = retry(stand(), [USER, *stop(id="c1"), *call("read", {"path": "a"}, "...", id="c2"), *stop(id="c3")])
    assert note is not None
    assert note.kind is ActionKind.PROMPT_TAIL_NOTE


def test_a_new_user_message_starts_over() -> None:
    messages = [USER, *stop(id="c1"), *stop(id="c2"), {"role": "user", "content": "In smaller steps, please."}]
    assert retry(stand(), messages) is None


def test_without_tools_the_answer_is_generated() -> None:
    stood = stand()
    assert stood.check(request(told([USER, *stop(id="c1"), *stop(id="c2")], stood))) is None


def test_a_text_that_speaks_of_a_cut_call_is_no_stop() -> None:
    quoted = "[Tandem shortened this call of write: the same 9 characters came 9 times running, x. It did not run.]"
    messages = [USER, *call("write", '{"content": "' + quoted + " is what the marker says"), *stop()]
    action = retry(stand(), [*messages[:2], {"role": "tool", "tool_call_id": "c1", "content": "?"}, *messages[2:]])
    assert action is not None
    assert action.kind is ActionKind.PROMPT_TAIL_NOTE


def test_five_attempts_become_two_generations_and_a_sentence() -> None:
    """A client that answers a call it can't read with an error, and a model that copies its loop each time."""
    stood, messages, generations = stand(), [USER], 0
    for attempt in range(5):
        event = request(told(messages, stood), tools=["write"])
        result = stood.check(event) if attempt == 0 else stood.next_request(event)
        if result is not None and only(result).kind is ActionKind.GIVE_UP:
            break
        generations += 1
        assert write(stood, HEAD + ROW * 100, streamed=True) is not None
        messages += stop(id=f"c{attempt}")
    assert generations == 2


def test_braces_of_an_own_text_stay() -> None:
    action = write(stand(text="{tool} {unknown} {"), HEAD + ROW * 100)
    assert action is not None
    assert action.text == "write {unknown} {"
