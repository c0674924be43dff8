"""Which profile a request is served under, and what that changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandem.core.plugin import Action, FinishEvent, RequestEvent, Rule, SafePoint, hookimpl
from tandem.testing.box import Box

TOOLS = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object", "properties": {}}}}]
OPENCODE = {"User-Agent": "opencode/1.18.34"}

SEEN: list[RequestEvent] = []


class Plugin:
    """`signer` writes a word behind every answer; `reader` gives the model something else to read."""

    @staticmethod
    @hookimpl
    def tandem_rules() -> list[Rule]:
        def sign(event: FinishEvent, task: Any, sup: Any) -> Action:
            SEEN.append(sup.request)
            return Action.give_up(" Bye.", "signed")

        def other(messages: Any, task: Any) -> Any:
            said = messages[-1]["content"]
            return [{"role": "user", "content": json.dumps({"script": ["Read."]})}] if said == "hi there" else None

        return [
            Rule("signer", at=SafePoint.SP2, check=sign),
            Rule("reader", at=SafePoint.SP4, check=lambda event, task, sup: None, rewrite=other),
        ]


POLICY = "policy: 1\ntasks:\n  D1: {rule: signer}\n  C1: {rule: reader}\n"


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    path: Path = tmp_path_factory.mktemp("policy") / "p.yaml"
    path.write_text(POLICY)
    with Box(
        plugins=[Plugin()],
        rules=["signer", "reader"],
        clients=["opencode", "plain"],
        conductor={"policy": str(path), "documents": None},
        formats=["qwen_xml"],
    ) as made:
        yield made


@pytest.mark.parametrize(
    ("headers", "fields", "profile"),
    [
        ({}, {}, "general"),
        ({}, {"tools": TOOLS}, "tools"),
        ({}, {"tools": TOOLS, "tool_choice": "none"}, "general"),
        (OPENCODE, {}, "coding"),
        (OPENCODE, {"tools": TOOLS}, "coding"),
        ({**OPENCODE, "X-Tandem-Profile": "overnight"}, {}, "overnight"),
        ({"X-Tandem-Profile": "bench"}, {"tools": TOOLS}, "bench"),
    ],
)
def test_the_answer_says_under_which_profile_it_was_written(
    box: Box, headers: dict[str, str], fields: dict[str, Any], profile: str
) -> None:
    SEEN.clear()
    for say in (box.chat, box.stream):
        told = say(script=["Hello."], headers=headers, **fields)
        assert told.headers["x-tandem-profile"] == profile
        raw = profile == "bench"
        assert told.headers["x-tandem"] == ("raw" if raw else "on")
        assert told.text == ("Hello." if raw else "Hello. Bye.")
    assert [event.profile for event in SEEN] == ([] if raw else [profile, profile])


def test_a_completion_has_a_profile_too(box: Box) -> None:
    response = box.post("/v1/completions", {"prompt": "Hello", "max_tokens": 4})
    assert response.headers["x-tandem-profile"] == "general"
    assert box.post("/v1/completions", {"prompt": "x"}, {"X-Tandem-Profile": "x"}).status_code == 400


@pytest.mark.parametrize("name", ["codin", "", "Coding"])
def test_a_profile_that_is_not_there_is_refused(box: Box, name: str) -> None:
    told = box.chat("hi", headers={"X-Tandem-Profile": name})
    assert (told.status, told.body["error"]["param"]) == (400, "X-Tandem-Profile")


def test_a_profile_decides_what_the_model_reads_as_well(box: Box) -> None:
    told = {
        name: box.chat("hi there", headers={"X-Tandem-Profile": name}).text
        for name in ("general", "coding", "overnight")
    }
    assert told["overnight"] == "Read. Bye."
    assert "Read." not in told["general"] + told["coding"]  # off there, and in shadow


def test_a_header_lowers_the_profiles_mode_and_never_raises_it(box: Box) -> None:
    for headers, mode in (
        ({"X-Tandem-Profile": "overnight", "X-Tandem": "shadow"}, "shadow"),
        ({"X-Tandem-Profile": "raw", "X-Tandem": "on"}, "raw"),
        ({"X-Tandem": "raw"}, "raw"),
    ):
        told = box.chat(script=["Hello."], headers=headers)
        assert (told.headers["x-tandem"], told.text) == (mode, "Hello.")


def test_without_rules_an_answer_is_raw_under_every_profile() -> None:
    with Box(conductor={"documents": None}) as plain:
        for profile in ("general", "overnight", "raw"):
            told = plain.chat("hi", headers={"X-Tandem-Profile": profile})
            assert (told.headers["x-tandem"], told.headers["x-tandem-profile"]) == ("raw", profile)
