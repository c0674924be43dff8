"""The rules that look across a session, on a running server: in act, shadow and off, streamed and not."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tandem.core.conductor.sweep import Sweep
from tandem.testing.answer import Answer
from tandem.testing.box import Box

KEYS = {"bash": ["command"], "write": ["content", "filePath"]}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string"} for key in keys},
                "required": keys,
            },
        },
    }
    for name, keys in KEYS.items()
]
SYSTEM = {"role": "system", "content": "The project's state is in PROGRESS.yaml."}


@contextmanager
def host(**rules: Any) -> Iterator[Box]:
    with Box(rules=rules, formats=["qwen_xml"], clients=["opencode", "plain"]) as box:
        yield box


def done(name: str, arguments: dict[str, str], result: str, id: str) -> list[dict[str, Any]]:
    asked = {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [asked]},
        {"role": "tool", "tool_call_id": id, "content": result},
    ]


def ask(box: Box, messages: list[dict[str, Any]], streamed: bool, session: str = "s", **fields: Any) -> Answer:
    say = box.stream if streamed else box.chat
    headers = {"X-Conversation-Id": session}
    return say(messages, **{"tools": TOOLS, "headers": headers, **fields})


def decided(box: Box) -> list[tuple[str, str, str, bool]]:
    return [(event["point"], event["action"], event["reason"], event["done"]) for event in box.events]


# ------------------------------------------------------------------------------------------------- the claim check

WROTE = done("write", {"filePath": "a.py", "content": "x"}, "ok", "w1")
PLAN = {"turns": [["unused"], ["All done, it works."], [" I ran it now: 3 passed."]]}


def asked(claim: str, evidence: str) -> dict[str, str]:
    """Questions that the scripted model answers with these letters."""
    return {
        "claim_question": "Claimed? " + json.dumps({"script": [claim]}),
        "evidence_question": "{since}? " + json.dumps({"script": [evidence]}),
    }


def claiming() -> list[dict[str, Any]]:
    return [{"role": "user", "content": json.dumps(PLAN)}, *WROTE]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_claim_without_a_run_goes_on_in_the_same_answer(streamed: bool) -> None:
    with host(claim_check={"mode": "act", **asked("A", "B")}) as box:
        answer = ask(box, claiming(), streamed).assert_finish("stop")
        assert answer.text == "All done, it works. I ran it now: 3 passed."
        assert decided(box) == [("sp2", "continue", "claim_check(no_run_after_last_write)", True)]
        [entry] = box.events
        assert entry["detail"]["twin"] == "no_run_after_last_write"
        assert entry["detail"]["claim"] > 0.99
        assert entry["detail"]["evidence"]["no_run_after_last_write"] > 0.99
        assert entry["hidden"].startswith("Your message says that it works")


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("mode", "letters", "row"),
    [
        ("act", "AA", ("pass", "claim_check(supported)")),
        ("act", "BB", ("pass", "claim_check(no_claim)")),
        ("shadow", "AB", ("continue", "claim_check(no_run_after_last_write)")),
        ("off", "AB", None),
    ],
)
def test_every_other_way_leaves_the_answer_byte_for_byte(
    mode: str, letters: str, row: tuple[str, str] | None, streamed: bool
) -> None:
    with host(claim_check={"mode": mode, **asked(*letters)}) as box, host() as plain:
        answer, raw = ask(box, claiming(), streamed), ask(plain, claiming(), streamed)
        assert (answer.text, answer.finish_reason, answer.usage) == (raw.text, raw.finish_reason, raw.usage)
        assert [(event["action"], event["reason"]) for event in box.events] == ([row] if row else [])
        assert not any(event["done"] for event in box.events)


def test_the_outcome_of_a_note_follows_at_label() -> None:
    with host(claim_check={"mode": "act", "label_calls": 2, **asked("A", "B")}) as box:
        ask(box, claiming(), False)
        later = [
            *claiming(),
            *done("bash", {"command": "pytest"}, "1 failed", "r1"),
            *done("write", {"filePath": "a.py", "content": "y"}, "ok", "w2"),
        ]
        ask(box, later, False)
        assert ("label", "pass", "claim_outcome(fixed)", False) in decided(box)


# ------------------------------------------------------------------------------------------------ notes to the model

FAILING = [
    [SYSTEM, {"role": "user", "content": "Go on."}]
    + [m for n in range(count) for m in done("bash", {"command": "make check"}, "boom\nExit code: 2", f"c{n}")]
    for count in (1, 2, 3, 4)
]


@pytest.mark.parametrize("streamed", [False, True])
def test_the_third_failure_of_a_gate_brings_a_hidden_note(streamed: bool) -> None:
    with host(gate_fails={}) as box:
        hidden = [ask(box, messages, streamed).usage["prompt_tokens_details"] for messages in FAILING]
        assert decided(box) == [("sp4", "prompt_tail_note", "gate_fails(3)", True)]
        noted = [details.get("hidden_tokens", 0) for details in hidden]
        assert noted[:2] == [0, 0]
        assert noted[2] > 100
        assert noted[3] == noted[2], "the note stays where it was"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("rule", "params", "reason"),
    [("deliver", {"first_write_calls": 2}, "first_write"), ("progress", {"minutes": 0.0005}, "no_progress")],
)
def test_a_session_that_gets_nowhere_reads_one_hidden_note(
    rule: str, params: dict[str, Any], reason: str, streamed: bool
) -> None:
    with host(**{rule: params}) as box:
        for messages in FAILING:
            last = ask(box, messages, streamed)
            time.sleep(0.05)
        assert [(row[1], row[2].partition("(")[0], row[3]) for row in decided(box)] == [
            ("prompt_tail_note", reason, True)
        ]
        assert last.usage["prompt_tokens_details"]["hidden_tokens"] > 100


@pytest.mark.parametrize(("mode", "rows"), [("shadow", 1), ("off", 0)])
def test_in_shadow_and_off_the_model_reads_no_note(mode: str, rows: int) -> None:
    with host(gate_fails={"mode": mode}, deliver={"mode": mode, "first_write_calls": 3}) as box:
        for messages in FAILING:
            assert "hidden_tokens" not in ask(box, messages, False).usage["prompt_tokens_details"]
        assert [row for row in decided(box) if "gate_fails" in row[2]] == [
            ("sp4", "prompt_tail_note", "gate_fails(3)", False)
        ] * rows


def test_a_request_gets_one_note_of_them() -> None:
    with host(gate_fails={}, deliver={"first_write_calls": 3}) as box:
        for messages in FAILING:
            ask(box, messages, True)
        assert [row[2].partition("(")[0] for row in decided(box) if row[3]] == ["gate_fails"]


def test_a_compaction_of_the_client_is_followed_by_the_state_files_note() -> None:
    head = {"User-Agent": "opencode/1.18.33", "x-session-id": "ses_1"}
    compaction = [
        {"role": "system", "content": "You are a context summarization agent. You are given a conversation ..."},
        {"role": "user", "content": "Here is the conversation so far: ..."},
    ]
    with host(state_files={"calls": 2}) as box:
        calls = [m for n in range(4) for m in done("bash", {"command": "ls"}, "a", f"c{n}")]
        start = [SYSTEM, {"role": "user", "content": "Build it."}, *calls]
        box.chat(start, tools=TOOLS, headers=head)
        box.chat(compaction, headers=head)
        after = [
            SYSTEM,
            {"role": "user", "content": "What did we do so far?"},
            {"role": "assistant", "content": "A summary."},
            {"role": "user", "content": "Continue."},
        ]
        box.chat(after, tools=TOOLS, headers=head)
        calls = [m for n in range(2) for m in done("bash", {"command": "ls"}, "a", f"d{n}")]
        told = box.chat([*after, *calls], tools=TOOLS, headers=head)
        assert decided(box) == [("sp4", "prompt_tail_note", "state_files_unread(1)", True)]
        assert told.usage["prompt_tokens_details"]["hidden_tokens"] > 0


def test_a_client_that_has_gone_is_journaled_by_the_watch() -> None:
    with host(progress={"minutes": 0.001}) as box:
        ask(box, [SYSTEM, {"role": "user", "content": "Work."}], False)
        conductor = box.engine.conductor
        watch = Sweep(conductor.sessions.all, conductor.begin, lambda: time.monotonic() + 1, None, 60)
        watch.sweep()
        watch.sweep()
        assert decided(box) == [("watch", "pass", "client_gone(0 min)", False)]
