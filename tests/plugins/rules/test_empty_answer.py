"""`empty_answer`: each way of ending without an answer, and what is done about it, in the families' own notations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tandem.core.plugin import Action, ActionKind, AnswerFormat, CallPart, FinishEvent, TextPart, Tool, WrittenCall
from tandem.core.plugin.part import with_defaults
from tandem.plugins.formats import hermes_json, pythonic, qwen_xml
from tandem.plugins.rules.empty_answer import tandem_rules
from tandem.testing.rules import Stand, only, request

[RULE] = tandem_rules()
TOOLS = (
    Tool("read", parameters={"type": "object", "properties": {"path": {"type": "string"}}}),
    Tool("list", parameters={"type": "object", "properties": {}}),
)
FORMATS = {module.__name__.rpartition(".")[2]: module for module in (hermes_json, pythonic, qwen_xml)}


def notation_of(name: str) -> AnswerFormat:
    [part] = FORMATS[name].tandem_formats()
    built: AnswerFormat = part.build(with_defaults(part.options, {}))
    return built


def reader(name: str) -> Callable[[str], tuple[list[WrittenCall], str]]:
    """Reads calls as the server does, through the family's own parser."""
    notation = notation_of(name)

    def read(text: str) -> tuple[list[WrittenCall], str]:
        parser = notation.parser(TOOLS)
        left, done = "", set[int]()
        names: dict[int, str] = {}
        arguments: dict[int, str] = {}
        for part in [*parser.feed(text), *parser.end(False)]:
            if isinstance(part, TextPart):
                left += part.text
            else:
                assert isinstance(part, CallPart)
                names[part.index] = names.get(part.index) or part.name or ""
                arguments[part.index] = arguments.get(part.index, "") + part.arguments
                done |= {part.index} if part.done else set()
        return [WrittenCall(names[i], arguments[i], i in done) for i in names], left

    return read


def render(name: str, *calls: tuple[str, dict[str, Any]]) -> str:
    notation = notation_of(name)
    return "\n".join(notation.render(*call) for call in calls)


def stand(notation: str = "qwen_xml", **params: Any) -> Stand:
    found = Stand(RULE, event=request(tools=TOOLS), **params)
    found.reader = reader(notation)
    return found


def ended(reasoning: str = "", answer: str = "", **fields: Any) -> FinishEvent:
    known: dict[str, Any] = {"tokens": 50, "reason": "stop", "reasoning_tokens": 40}
    return FinishEvent(answer, reasoning=reasoning, **{**known, **fields})


# ------------------------------------------------------------------------------------------------- what is left alone


def test_an_answer_is_left_alone() -> None:
    assert stand().check(ended("hm", "Yes.")) is None


def test_a_turn_that_makes_a_call_is_left_alone() -> None:
    assert stand().check(ended("hm", calls=(WrittenCall("read", "{}"),), reason="tool_calls")) is None


@pytest.mark.parametrize("inside", [True, False])
def test_behind_the_token_limit_nothing_can_be_done(inside: bool) -> None:
    action = only(stand().check(ended("hm", ended=False, reason="length", inside=inside)))
    assert (action.kind, action.reason) == (ActionKind.PASS, "cut(length)")


def test_an_empty_answer_of_a_grammar_or_a_plain_completion_is_an_answer() -> None:
    assert Stand(RULE, event=request(constrained=True)).check(ended()) is None
    assert Stand(RULE, event=request([])).check(ended()) is None


# ------------------------------------------------------------------------------------------------ the cases A and B


@pytest.mark.parametrize("answer", ["", " \n"])
def test_a_reasoning_that_was_never_closed_is_closed(answer: str) -> None:
    found = stand()
    action = only(found.check(ended("I should", answer, inside=True)))
    assert (action.kind, action.reason, action.detail["case"]) == (ActionKind.CONTINUE, "inside(1)", "A")
    assert action.text == found.params["close_text"]
    assert "then" not in action.detail


def test_a_grammars_answer_is_waited_for_too() -> None:
    action = only(Stand(RULE, event=request(constrained=True)).check(ended("I should", inside=True)))
    assert action.reason == "inside(1)"


def test_an_empty_answer_is_asked_for_in_other_words_each_time() -> None:
    found = stand()
    first, second = only(found.check(ended("hm"))), only(found.check(ended()))
    assert [first.text, second.text] == [found.params["nudge"], found.params["second_nudge"]]
    assert [first.reason, second.reason] == ["empty(1)", "empty_again(2)"]
    assert {first.kind, second.kind} == {ActionKind.CONTINUE}


@pytest.mark.parametrize("first", [{"inside": True}, {"inside": False}])
def test_after_two_tries_the_client_reads_a_sentence(first: dict[str, Any]) -> None:
    found = stand()
    found.check(ended("hm", **first))
    found.check(ended("hm"))
    action = only(found.check(ended("hm")))
    assert (action.kind, action.reason) == (ActionKind.GIVE_UP, "gave_up(2)")
    assert action.text.startswith("[Tandem")


def test_each_request_has_its_own_tries() -> None:
    found = stand(tries=1)
    assert only(found.check(ended())).kind is ActionKind.CONTINUE
    assert only(found.check(ended())).kind is ActionKind.GIVE_UP
    found.memo = {}  # as a request begins
    assert only(found.check(ended())).kind is ActionKind.CONTINUE


# --------------------------------------------------------------------------------------------------------- case C


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("notation", FORMATS)
def test_calls_at_the_end_of_the_reasoning_become_the_answer(notation: str, inside: bool) -> None:
    calls = render(notation, ("read", {"path": "a.txt"}))
    action = only(stand(notation).check(ended(f"\nLet me see the file.\n\n{calls}\n", inside=inside)))
    assert (action.kind, action.reason, action.detail["case"]) == (ActionKind.CONTINUE, "calls(1)", "C")
    assert (action.detail["then"], action.text) == (calls, "")


@pytest.mark.parametrize("notation", ["hermes_json", "qwen_xml"])
def test_several_calls_go_out_together(notation: str) -> None:
    calls = render(notation, ("read", {"path": "a.txt"}), ("list", {}))
    action = only(stand(notation).check(ended(f"Both.\n{calls}")))
    assert (action.reason, action.detail["then"]) == ("calls(2)", calls)


@pytest.mark.parametrize("notation", ["hermes_json", "qwen_xml"])
def test_a_reasoning_that_is_nothing_but_a_call(notation: str) -> None:
    calls = render(notation, ("list", {}))
    assert only(stand(notation).check(ended(calls, inside=True))).detail["then"] == calls


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(
    "written",
    [
        render("qwen_xml", ("read", {"path": "a"})) + "\nThen I will look.",
        render("qwen_xml", ("delete", {"path": "a"})),
        render("qwen_xml", ("read", {"path": "a"}), ("delete", {"path": "a"})),
        render("qwen_xml", ("read", {"path": "a"}))[:-20],
        "<tool_call>\nread the file\n</tool_call>\n" + render("qwen_xml", ("read", {"path": "a"})),
        "I could use <tool_call> here.",
    ],
    ids=["text behind it", "another tool", "one of another tool", "cut", "an unreadable one too", "only mentioned"],
)
def test_what_is_no_call_of_an_offered_tool_is_one_of_the_other_cases(written: str, inside: bool) -> None:
    action = only(stand().check(ended(f"So:\n{written}", inside=inside)))
    assert action.detail["case"] == ("A" if inside else "B")


def test_a_call_that_was_thought_about_before_is_not_repeated() -> None:
    early, last = (render("hermes_json", ("read", {"path": path})) for path in ("a", "b so"))
    action = only(stand("hermes_json").check(ended(f"First {early} came to mind, but no, so\n{last}")))
    # The early one is a block of its own kind in the middle: the answer is the last one, or none at all.
    assert action.detail["case"] == "C"
    assert action.detail["then"] == last


def test_calls_are_not_looked_for_without_tools_or_under_a_grammar() -> None:
    calls = render("qwen_xml", ("list", {}))
    for event in (request(), request(tools=TOOLS, constrained=True)):
        found = Stand(RULE, event=event)
        found.reader = reader("qwen_xml")
        assert only(found.check(ended(calls, inside=True))).detail["case"] == "A"


def test_calls_count_as_a_try() -> None:
    found = stand(tries=1)
    calls = render("qwen_xml", ("list", {}))
    assert only(found.check(ended(calls))).detail["case"] == "C"
    assert only(found.check(ended(calls))).kind is ActionKind.GIVE_UP


def test_what_is_journaled_holds_no_text() -> None:
    action = only(stand().check(ended("the secret plan", inside=True)))
    assert isinstance(action, Action)
    assert "secret" not in action.reason + repr(action.detail)
