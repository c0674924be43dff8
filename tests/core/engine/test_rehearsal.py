"""A rule in front of recorded conversations."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tandem.core.engine.rehearsal import Finding, Pieces, Rehearsal, TranscriptError, Turn, read_turns
from tandem.core.kernel import Registry
from tandem.core.plugin import (
    Action,
    BlockEvent,
    FinishEvent,
    RequestEvent,
    Rule,
    SafePoint,
    ToolCallEvent,
    text_of,
)
from tandem.core.plugin.part import with_defaults

FORMAT = Registry().load("formats", "hermes_json")
X = {"path": "notes.md", "text": "some words, and more of them, " * 9}
EVERYWHERE = (SafePoint.SP4, SafePoint.SP1, SafePoint.SP2, SafePoint.SP3, SafePoint.LABEL)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str, *calls: tuple[str, str], reasoning: str = "") -> dict[str, Any]:
    made = [{"id": f"c{n}", "function": {"name": name, "arguments": a}} for n, (name, a) in enumerate(calls)]
    return {"role": "assistant", "content": text, "reasoning_content": reasoning, "tool_calls": made}


def play(check: Any, turns: list[Turn], at: Any = EVERYWHERE, **more: Any) -> list[Finding]:
    assert FORMAT is not None
    notation = FORMAT.build(with_defaults(FORMAT.options, {}))
    rehearsal = Rehearsal(Rule("r", at=at, check=check, **more), {}, notation)
    try:
        return list(rehearsal.turns(turns))
    finally:
        rehearsal.close()


class Seen:
    """A rule that only looks."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.text = self.thoughts = ""
        self.open: list[tuple[str, str, bool]] = []
        """Of each block: the call that was being written, its end, and whether the model was reasoning."""

    def __call__(self, event: Any, task: Any, sup: Any) -> None:
        self.events.append(event)
        if isinstance(event, BlockEvent):
            call = event.call
            self.open.append((call.name if call else "", call.tail(7) if call else "", event.inside))
            self.text += event.new
            self.thoughts += event.new_reasoning

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


# ------------------------------------------------------------------------------------------------ reading a recording


def test_the_messages_of_one_conversation_are_a_turn_for_each_answer() -> None:
    turns = read_turns([user("a"), said("b"), user("c"), said("d"), user("e")])
    assert [(len(turn.messages), turn.answer and text_of(turn.answer)) for turn in turns] == [
        (1, "b"),
        (3, "d"),
        (5, None),
    ]


def test_requests_of_one_conversation_give_each_turn_once() -> None:
    """As a client sends them: each brings all that was said before, without the reasoning."""
    whole = [user("a"), said("b", reasoning="hm"), user("c"), said("d"), user("e")]
    short = [whole[0], said("b"), *whole[2:]]
    turns = read_turns([{"messages": whole[:1]}, {"messages": whole[:3]}, {"messages": short}])
    assert [len(turn.messages) for turn in turns] == [1, 3, 5]
    assert turns[0].answer == whole[1]


def test_tools_are_those_of_the_request_or_else_those_that_were_called() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
    [turn] = read_turns([{"messages": [user("a")], "tools": [tool]}])
    assert [(t.name, t.description, t.parameters) for t in turn.tools] == [("f", "d", {"type": "object"})]
    first, *_ = read_turns([user("a"), said("", ("g", "{}"), ("g", "{}"))])
    assert [t.name for t in first.tools] == ["g"]


@pytest.mark.parametrize("values", [[1], [{"prompt": "x"}], [{"messages": ["x"]}], [{"messages": {}}]])
def test_what_is_no_transcript_is_refused_with_its_place(values: list[Any]) -> None:
    with pytest.raises(TranscriptError, match="value 2 is no request"):
        read_turns([{"messages": [user("a")]}, *values])


# ------------------------------------------------------------------------------------------------- what a rule sees


@given(st.text(), st.text(min_size=1), st.integers(1, 9))
def test_pieces_give_a_text_back(one: str, two: str, block: int) -> None:
    pieces = Pieces()
    for text in (one, two, one + two):
        written = b"".join(map(pieces.token_bytes, pieces.encode(text)))
        assert written == text.encode("utf-8", "replace")


def test_an_answer_is_seen_as_it_was_recorded_reasoning_text_and_calls() -> None:
    seen = Seen()
    answer = said(
        "All right, here.",
        ("f", json.dumps(X)),
        ("g", '{"y": [2]}'),
        reasoning="Let me think.\nThen act.",
    )
    assert play(seen, read_turns([user("a"), answer])) == []
    assert seen.thoughts.strip() == "Let me think.\nThen act."
    assert seen.text.strip() == "All right, here."
    [finish] = seen.of(FinishEvent)
    assert (finish.answer.strip(), finish.ended, finish.inside) == ("All right, here.", True, False)
    assert finish.reason == "tool_calls"
    assert [(c.name, json.loads(c.arguments)) for c in finish.calls] == [("f", X), ("g", {"y": [2]})]
    assert [(e.name, e.arguments, e.final) for e in seen.of(ToolCallEvent)] == [
        ("f", X, False),
        ("g", {"y": [2]}, False),
    ]
    assert {name for name, _, _ in seen.open} >= {"", "f"}
    assert [seen.open[i][2] for i in (0, -1)] == [True, False]
    assert all(len(block.new_ids) <= 4 for block in seen.of(BlockEvent))


def test_a_call_whose_arguments_break_off_was_cut() -> None:
    seen = Seen()
    play(seen, read_turns([user("a"), said("", ("write", '{"path": "a", "content": "half of'))]))
    [finish] = seen.of(FinishEvent)
    assert (finish.ended, finish.reason) == (False, "length")
    assert seen.open[-1][:2] == ("write", "half of")
    assert all(event.final for event in seen.of(ToolCallEvent))


def test_a_request_knows_its_calls_and_each_result_is_new_once() -> None:
    new: list[list[str]] = []

    def check(event: Any, task: Any, sup: Any) -> None:
        if isinstance(event, RequestEvent):
            new.append([call.id for call in event.new_calls])
            sup.session.data["turns"] = sup.session.data.get("turns", 0) + 1
            assert sup.session.data["turns"] == len(new), "one session"

    result = {"role": "tool", "tool_call_id": "c0", "content": "fine"}
    play(check, read_turns([user("a"), said("", ("f", "{}")), result, said("b"), user("c"), said("d")]), SafePoint.SP4)
    assert new == [[], ["c0"], []]


# ---------------------------------------------------------------------------------------------- what it would have done


def test_an_act_in_the_answer_ends_it_and_the_next_turn_goes_on() -> None:
    def check(event: BlockEvent, task: Any, sup: Any) -> Action | None:
        return Action.give_up("Stop.", "seen(1)") if "bad" in event.answer else None

    turns = read_turns([user("a"), said("good and bad and bad again " * 9), user("b"), said("bad")])
    found = play(check, turns, SafePoint.SP1)
    assert [(f.message, f.point, f.action, f.reason, f.done) for f in found] == [
        (1, "sp1", "give_up", "seen(1)", True),
        (3, "sp1", "give_up", "seen(1)", True),
    ]
    assert 1 <= found[0].tokens <= 8


def test_a_closed_reasoning_is_left_and_the_answer_is_still_looked_at() -> None:
    seen = Seen()

    def check(event: Any, task: Any, sup: Any) -> Action | None:
        seen(event, task, sup)
        return Action.close_reasoning("Enough.", "long") if isinstance(event, BlockEvent) and event.inside else None

    found = play(check, read_turns([user("a"), said("The answer.", reasoning="on and on " * 50)]))
    assert [(f.action, f.done) for f in found] == [("close_reasoning", True)]
    assert len(seen.thoughts) < 30
    assert seen.of(FinishEvent)[0].answer.strip() == "The answer."


def test_giving_up_before_the_prompt_and_notes_stand_at_the_request() -> None:
    def check(event: RequestEvent, task: Any, sup: Any) -> Action:
        last = len(event.messages)
        return Action.tail_note("n", "note") if last == 1 else Action.give_up("no", "enough")

    found = play(check, read_turns([user("a"), said("b"), user("c"), said("d")]), SafePoint.SP4)
    assert [(f.message, f.action) for f in found] == [(0, "prompt_tail_note"), (2, "give_up")]


def test_observations_faults_and_rewrites_are_told_as_what_they_are() -> None:
    def check(event: RequestEvent, task: Any, sup: Any) -> Action:
        if len(event.messages) > 1:
            raise OSError("broken")
        return Action.passed("looked(1)")

    def rewrite(messages: Any, task: Any) -> Any:
        return [user("other")] if len(messages) == 1 else None

    found = play(check, read_turns([user("a"), said("b"), user("c")]), SafePoint.SP4, rewrite=rewrite)
    assert [(f.message, f.action, f.reason, f.done) for f in found] == [
        (0, "rewrite", "", True),
        (0, "pass", "looked(1)", False),
        (2, "fault", "OSError: broken", False),
    ]


def test_beyond_the_caps_a_hidden_act_becomes_giving_up() -> None:
    def check(event: FinishEvent, task: Any, sup: Any) -> Action:
        return Action.regenerate_call("again", "wrong") if isinstance(event, ToolCallEvent) else Action.passed()

    many = [user("a")]
    for _ in range(40):
        many += [said("", ("f", "{}")), {"role": "tool", "tool_call_id": "c0", "content": "x"}]
    found = play(check, read_turns(many), SafePoint.SP3)
    done = [f.action for f in found if f.done]
    assert done[:30] == ["regenerate_call"] * 30
    assert "give_up" in done
