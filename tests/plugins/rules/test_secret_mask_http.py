"""The secret mask over a whole server: what is decided, and what of it is journaled."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tandem.testing.box import Box
from tandem.testing.rules import call

SCRIPT = {"script": ["The key is sk-abc", "123."]}
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": json.dumps(SCRIPT)},
    *[
        {**message, "tool_calls": [{**asked, "function": {"name": "bash", "arguments": "{}"}} for asked in calls]}
        if (calls := message.get("tool_calls"))
        else message
        for message in call("bash", {}, "OPENAI_API_KEY=sk-abc123\n")
    ],
]


@pytest.mark.parametrize("mode", ["act", "shadow"])
def test_the_journal_has_counts_and_never_a_secret(mode: str) -> None:
    with Box(rules={"secret_mask": {"mode": mode}}) as box:
        box.chat(MESSAGES).assert_status(200)
        [decided, *counted] = box.events
        assert (decided["action"], decided["reason"], decided["done"]) == ("mask", "secrets(1)", mode == "act")
        assert [entry["reason"] for entry in counted] == ([] if mode == "act" else ["would_mask(api_key=1)"])
        assert "abc123" not in json.dumps(box.events)


def test_in_shadow_the_answer_goes_out_as_it_is() -> None:
    with Box(rules={"secret_mask": {"mode": "shadow"}}) as box:
        box.stream(MESSAGES).assert_text("The key is sk-abc123.")


def test_off_reads_nothing() -> None:
    with Box(rules={"secret_mask": {"mode": "off"}}) as box:
        box.chat(MESSAGES).assert_text("The key is sk-abc123.")
        assert box.events == []
