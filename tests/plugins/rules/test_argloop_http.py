"""The tool-argument loop guard over a whole server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tandem.testing.answer import Answer
from tandem.testing.box import Box

WRITE = {
    "type": "function",
    "function": {
        "name": "write",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}},
    },
}
ROW = '"' + "." * 94 + '"\n'
HEAD = "<tool_call>\n<function=write>\n<parameter=path>\na.js\n</parameter>\n<parameter=content>\n"
CLOSE = "</parameter>\n</function>\n</tool_call>"
SCRIPT = [HEAD, *(f"let line{n} = {n * n};\n" for n in range(40)), *[ROW] * 60]
SENTENCE = "[Tandem broke off a call of write that"


@contextmanager
def host(mode: str, **options: Any) -> Iterator[Box]:
    with Box(rules={"argloop": {"mode": mode, **options}}, formats=["qwen_xml"], clients=["plain"]) as box:
        yield box


def turn(script: list[str]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": json.dumps({"script": script, "end": True})}]


def ask(box: Box, messages: list[dict[str, Any]], streamed: bool, **fields: Any) -> Answer:
    asked = box.stream if streamed else box.chat
    return asked(messages, tools=[WRITE], max_tokens=8000, **fields)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_loop_in_a_call_ends_the_answer_with_one_sentence(streamed: bool) -> None:
    with host("act") as box:
        answer = ask(box, turn(SCRIPT), streamed).assert_finish("stop")
        assert answer.text.startswith(SENTENCE)
        assert f"the same {len(ROW)} characters" in answer.text
        assert ROW not in answer.text, "the cut text is no content"
        assert answer.usage["completion_tokens"] < len("".join(SCRIPT)) - 3000
        [entry] = [event for event in box.events if event["rule"] == "argloop"]
        assert (entry["action"], entry["done"]) == ("give_up", True)
        assert entry["reason"].startswith("tool_arg_loop(")


def test_a_call_that_streamed_stays_unclosed() -> None:
    with host("act") as box:
        answer = ask(box, turn(SCRIPT), True)
        [(name, arguments)] = answer.calls
        assert name == "write"
        assert arguments.startswith('{"path": "a.js", "content": "')
        assert isinstance(arguments, str), "it parses"
        assert "Unfinished as it is" in answer.text


@pytest.mark.parametrize("mode", ["shadow", "off"])
def test_in_shadow_and_off_the_call_is_written_to_its_end(mode: str) -> None:
    with host(mode) as box:
        answer = ask(box, turn([*SCRIPT, CLOSE]), True)
        [(_, arguments)] = answer.calls
        assert arguments["content"].endswith(ROW[:-1])
        answer.assert_finish("tool_calls")
        entries = [event for event in box.events if event["rule"] == "argloop"]
        told = [("give_up", False)] if mode == "shadow" else []
        assert [(entry["action"], entry["done"]) for entry in entries] == told


def test_an_ordinary_call_is_left_alone() -> None:
    with host("act") as box:
        answer = ask(box, turn([*SCRIPT[:41], ROW * 5, CLOSE]), True).assert_finish("tool_calls")
        assert answer.text == ""
        assert not box.events


def test_the_next_request_of_the_session_carries_a_hidden_note() -> None:
    with host("act") as box:
        headers = {"X-Conversation-Id": "c"}
        ask(box, turn(SCRIPT), True, headers=headers)
        again = ask(box, turn(["In parts, then."]), True, headers=headers).assert_text("In parts, then.")
        noted = [event for event in box.events if event["action"] == "prompt_tail_note"]
        assert [entry["reason"] for entry in noted] == ["tool_arg_loop_note(1)"]
        assert noted[0]["done"]
        assert again.usage["prompt_tokens_details"]["hidden_tokens"] > 0
        ask(box, turn(["Done."]), True, headers=headers)
        assert len([event for event in box.events if event["action"] == "prompt_tail_note"]) == 1


def test_five_attempts_of_a_client_become_two_generations_and_a_sentence() -> None:
    """Open WebUI answers a call that it can't read with an error and sends everything again, the stopped call too."""
    with host("act") as box:
        messages, prompts, answers = turn(SCRIPT), [], []
        for attempt in range(5):
            answer = ask(box, messages, True)
            answers.append(answer)
            prompts.append(answer.usage["prompt_tokens"])
            if not answer.calls:
                break
            [(name, arguments)] = answer.calls
            call = {"id": f"c{attempt}", "type": "function", "function": {"name": name, "arguments": arguments}}
            messages = [
                *messages,
                {"role": "assistant", "content": answer.text, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": f"c{attempt}", "content": "Error: the arguments could not be parsed."},
            ]
        assert len(answers) == 3
        last = answers[-1].assert_finish("stop")
        assert last.text.startswith("[Tandem does not go on with the write call: 2 attempts")
        assert last.usage["completion_tokens"] == 0
        grown = prompts[1] - prompts[0]
        assert grown < 2500, f"the stopped call came back with {grown} tokens"
