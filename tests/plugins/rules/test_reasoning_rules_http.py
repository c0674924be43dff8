"""The rules about reasoning and empty answers, served: what the client gets, streamed and not, acting and in shadow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tandem.plugins.formats import qwen_xml
from tandem.testing.answer import Answer
from tandem.testing.box import Box

RULES: dict[str, dict[str, Any]] = {
    "reasoning_loop": {},
    "reasoning_history": {},
    "reasoning_length": {"tokens": 6000},
    "empty_answer": {},
}
SENTENCE = "So it should return the sum, but wait, the sum of what exactly. "
DRAFT = " ".join(f"w{place * 7919 % 1_000_003:x}" for place in range(300)) + ". "
TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {"properties": {"path": {"type": "string"}}}}}]
[FORMAT] = qwen_xml.tandem_formats()
CALL = FORMAT.build({"thinking": True}).render("read", {"path": "a.txt"})


def host(mode: str) -> Box:
    rules = {name: {"mode": mode, **params} for name, params in RULES.items()}
    return Box(rules=rules, formats=["qwen_xml"])


@pytest.fixture(scope="module")
def acting() -> Iterator[Box]:
    with host("act") as box:
        yield box


@pytest.fixture(scope="module")
def shadow() -> Iterator[Box]:
    with host("shadow") as box:
        yield box


def ask(box: Box, script: list[str], streamed: bool = False, **fields: Any) -> Answer:
    known = {
        "max_tokens": 20_000,
        "chat_template_kwargs": {"enable_thinking": True},
        "reasoning_format": "reasoning_content",
    }
    return (box.stream if streamed else box.chat)("hello", script=script, **{**known, **fields})


def found(box: Box, since: int) -> list[tuple[str, str, bool]]:
    return [(event["rule"], event["reason"], event["done"]) for event in box.events[since:]]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("script", "rule", "reason"),
    [
        ([SENTENCE] * 40, "reasoning_loop", "repeat(5)"),
        ([DRAFT] * 3, "reasoning_history", "history("),
        ([f"{n} is not it. " for n in range(1000)], "reasoning_length", "length(60"),
    ],
    ids=["loop", "history", "length"],
)
def test_a_reasoning_is_closed_hidden(acting: Box, script: list[str], rule: str, reason: str, streamed: bool) -> None:
    before = len(acting.events)
    answer = ask(acting, [*script, "</think>\n\nDone."], streamed)
    [(name, why, done), *_] = found(acting, before)
    assert (name, done) == (rule, True)
    assert why.startswith(reason)
    # The script goes on where it was: what was to be reasoning is the answer now, and the text put between is nowhere.
    whole = "".join(script)
    assert whole.startswith(answer.reasoning)
    assert len(answer.reasoning) < len(whole)
    hidden = next(event["hidden"] for event in acting.events[before:] if event["rule"] == rule)
    assert hidden
    assert hidden not in answer.reasoning + answer.text


def test_in_shadow_nothing_is_done(shadow: Box) -> None:
    before = len(shadow.events)
    answer = ask(shadow, [*[SENTENCE] * 40, "</think>\n\nDone."])
    assert (answer.reasoning, answer.text) == (SENTENCE * 40, "Done.")
    assert ("reasoning_loop", "repeat(5)", False) in found(shadow, before)
    assert not any(done for *_, done in found(shadow, before))
    before = len(shadow.events)
    assert ask(shadow, ["hm"]).text == ""
    assert found(shadow, before) == [("empty_answer", "inside(1)", False)]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("script", "reasons"),
    [(["hm hm"], ["inside(1)", "empty(2)"]), (["hm hm", "</think>\n\n"], ["empty(1)"])],
    ids=["inside", "behind"],
)
def test_the_model_goes_on_until_it_answers(acting: Box, script: list[str], reasons: list[str], streamed: bool) -> None:
    before = len(acting.events)
    answer = ask(acting, script, streamed)
    # To the turn that is put to it the scripted model answers with its plain reply.
    assert answer.text.startswith("Hello from the scripted model.")
    assert answer.reasoning == "hm hm"
    assert found(acting, before) == [("empty_answer", reason, True) for reason in reasons]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("closed", [False, True])
def test_a_call_that_was_written_into_the_reasoning_is_made(acting: Box, closed: bool, streamed: bool) -> None:
    before = len(acting.events)
    script = [f"Let me see.\n{CALL}\n", *(["</think>\n\n"] if closed else [])]
    answer = ask(acting, script, streamed, tools=TOOLS)
    assert answer.calls == [("read", {"path": "a.txt"})]
    assert answer.finish_reason == "tool_calls"
    assert found(acting, before) == [("empty_answer", "calls(1)", True)]


def test_a_call_of_another_tool_is_asked_for_as_an_answer(acting: Box) -> None:
    before = len(acting.events)
    answer = ask(acting, [CALL.replace("read", "drop"), "</think>\n\n"], tools=TOOLS)
    assert answer.calls == []
    assert found(acting, before)[0] == ("empty_answer", "empty(1)", True)


def test_at_the_token_limit_it_is_journaled_only(acting: Box) -> None:
    before = len(acting.events)
    answer = ask(acting, ["hm " * 40], max_tokens=30)
    assert (answer.finish_reason, answer.text) == ("length", "")
    assert found(acting, before) == [("empty_answer", "cut(length)", False)]
