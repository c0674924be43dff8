"""The tool gate on a running server: what a client gets when a rule acts, watches, or is off; streamed and not."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cache
from typing import Any

import pytest

from tandem.testing.answer import Answer
from tandem.testing.box import Box

PARAMETERS = {"bash": ["command"], "read": ["path"], "send_mail": ["to", "body"], "create_event": ["title", "date"]}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string"} for key in keys},
                "required": keys,
                "additionalProperties": False,
            },
        },
    }
    for name, keys in PARAMETERS.items()
]
BAD, GOOD = ("bash", {"command": "git reset --hard"}), ("bash", {"command": "git status"})


def call(name: str, arguments: object) -> str:
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


Hosts = Callable[..., AbstractContextManager[Box]]


@pytest.fixture(scope="module")
def box() -> Iterator[Hosts]:
    """A host with these rules; the same one for all tests that ask for the same."""
    with ExitStack() as life:

        @cache
        def host(rules: str) -> Box:
            server = {"format": "hermes_json"}
            return life.enter_context(Box(rules=json.loads(rules), formats=["hermes_json"], server=server))

        yield lambda **rules: nullcontext(host(json.dumps(rules)))


def said(host: Box, streamed: bool, *turns: list, history: tuple = (), text: str = "", **fields: Any) -> Answer:
    plan = json.dumps({"said": text, "turns": [[call(*one) for one in turn] for turn in turns]})
    messages = [{"role": "user", "content": plan}, *history]
    return (host.stream if streamed else host.chat)(messages, tools=TOOLS, **fields)


def decided(host: Box, since: int = 0) -> list[tuple[str, str, bool]]:
    """What the journal has behind its first `since` entries."""
    return [(event["action"], event["reason"], event["done"]) for event in host.events[since:]]


both = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


@both
def test_a_dangerous_call_is_written_again_and_only_the_new_one_goes_out(box, streamed):
    with box(risk={"mode": "act"}) as host:
        since = len(host.events)
        answer = said(host, streamed, [BAD], [GOOD])
        answer.assert_finish("tool_calls")
        assert answer.calls == [GOOD]
        assert decided(host, since) == [("regenerate_call", "git_discard(1)", True)]


@both
@pytest.mark.parametrize("mode", ["shadow", "off"])
def test_in_shadow_and_off_the_call_goes_out(box, streamed, mode):
    with box(risk={"mode": mode}) as host:
        since = len(host.events)
        assert said(host, streamed, [BAD], [GOOD]).calls == [BAD]
        assert not any(done for _, _, done in decided(host, since))


def test_without_its_mode_the_rule_only_watches(box):
    with box(risk={}) as host:
        since = len(host.events)
        assert said(host, False, [BAD], [GOOD]).calls == [BAD]
        assert not any(done for _, _, done in decided(host, since))


@both
def test_the_same_dangerous_call_again_ends_the_answer_with_the_rules_own_text(box, streamed):
    with box(risk={"mode": "act", "give_up": "[Tandem: {name} was stopped.]"}) as host:
        since = len(host.events)
        answer = said(host, streamed, [BAD], [BAD], [GOOD])
        answer.assert_finish("stop")
        answer.assert_text("[Tandem: bash was stopped.]")
        assert answer.calls == []
        assert "bash" not in json.dumps([event["detail"] for event in host.events[since:]])


@both
def test_what_the_user_asks_for_goes_out(box, streamed):
    with box(risk={"mode": "act"}) as host:
        since = len(host.events)
        assert said(host, streamed, [BAD], text="Please run `git reset --hard`.").calls == [BAD]
        assert decided(host, since) == [("pass", "asked(1)", False)]


def results(times: int) -> tuple[dict[str, Any], ...]:
    function = {"name": "read", "arguments": '{"path": "a.py"}'}
    return tuple(
        message
        for i in range(times)
        for message in (
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": f"c{i}", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": f"c{i}", "content": "nothing"},
        )
    )


READ, OTHER = ("read", {"path": "a.py"}), ("read", {"path": "b.py"})


@both
def test_the_third_identical_call_is_written_again(box, streamed):
    with box(same_call={}) as host:
        since = len(host.events)
        assert said(host, streamed, [READ], [READ], [READ], [OTHER], history=results(2)).calls == [OTHER]
        assert decided(host, since) == [("regenerate_call", "repeat(3)", True)]


@both
def test_the_second_one_is_not(box, streamed):
    with box(same_call={}) as host:
        since = len(host.events)
        assert said(host, streamed, [READ], [READ], [OTHER], history=results(1)).calls == [READ]
        assert decided(host, since) == []


@both
def test_a_call_that_needs_no_help_of_the_model_is_repaired_on_its_way(box, streamed):
    with box(malformed_call={}) as host:
        since = len(host.events)
        answer = said(host, streamed, [("read", {"path": "a.py", "limit": None})])
        assert answer.calls == [READ]
        assert decided(host, since) == [("repair_call", "repaired(1)", True)]


@both
def test_an_unknown_tool_is_written_again(box, streamed):
    with box(malformed_call={}) as host:
        since = len(host.events)
        assert said(host, streamed, [("raed", {"path": "a.py"})], [READ]).calls == [READ]
        assert decided(host, since) == [("regenerate_call", "unknown_tool", True)]


@both
def test_a_call_that_the_limit_cut_is_no_call(box, streamed):
    with box(malformed_call={}) as host:
        since = len(host.events)
        answer = said(host, streamed, [("read", {"path": "a" * 200})], max_tokens=60)
        assert answer.calls == []
        assert answer.text.startswith("[Tandem stopped here: the token limit")
        assert decided(host, since) == [("give_up", "cut_by_limit", True)]


MAIL, EVENT = ("send_mail", {"to": "a", "body": "b"}), ("create_event", {"title": "a", "date": "b"})


@both
def test_two_changes_are_asked_back_once_and_then_go_out_as_they_are(box, streamed):
    with box(call_sequence={}) as host:
        since = len(host.events)
        assert said(host, streamed, [MAIL, EVENT], [MAIL]).calls == [MAIL]
        assert said(host, streamed, [MAIL, EVENT], [MAIL, EVENT]).calls == [MAIL, EVENT]
        assert decided(host, since) == [
            ("regenerate_call", "mutations(2)", True),
            ("regenerate_call", "mutations(2)", True),
            ("regenerate_call", "mutations(2)", False),
        ]


@both
def test_a_turn_that_repeats_a_call_is_drawn_with_a_note(box, streamed):
    with box(loop_escape={}) as host:
        since = len(host.events)
        assert said(host, streamed, [READ], [READ], [OTHER], history=results(2)).calls == [OTHER]
        assert decided(host, since) == [("set_sampling", "repeat(2)", True), ("prompt_tail_note", "repeat(2)", True)]


@both
def test_a_write_outside_the_project_is_written_again(box, streamed):
    system = {"role": "system", "content": "<env>\n  Working directory: /home/u/app\n</env>"}
    out, inside = ("bash", {"command": "echo x > /srv/a"}), ("bash", {"command": "echo x > a"})
    plan = json.dumps({"turns": [[call(*out)], [call(*inside)]]})
    with box(project={"mode": "act"}) as host:
        since = len(host.events)
        ask = host.stream if streamed else host.chat
        assert ask([system, {"role": "user", "content": plan}], tools=TOOLS).calls == [inside]
        assert decided(host, since) == [("regenerate_call", "outside", True)]
