"""Rules at work in turns of the Hermes agent. The server runs in the test's own process, for its journal."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tandem.testing.box import Box

from .hermes import Hermes
from .telling import call, plan
from .wire import tapped

pytestmark = pytest.mark.e2e

Start = Callable[[str], Hermes]
SECTIONS = {"clients": ["hermes"], "formats": ["qwen_xml"], "caches": ["resident"]}


def test_the_third_identical_call_is_held_back_and_written_again(hermes: Start) -> None:
    with Box(rules=["same_call"], **SECTIONS) as box, tapped(box.url) as wire:
        agent = hermes(wire.url)
        look = call("terminal", command="echo nothing new", timeout=20)
        other = call("terminal", command=f"echo other > {agent.project}/seen.txt", timeout=20)
        done = agent.ask(plan(look, look, look, other, "All seen."))
        decided = [(entry["rule"], entry["action"], entry["reason"], entry["done"]) for entry in box.events]
    assert (done.code, done.out.strip()) == (0, "All seen.")
    assert (agent.project / "seen.txt").read_text() == "other\n"
    assert decided == [("same_call", "regenerate_call", "repeat(3)", True)]
    assert len(wire.turns) == 4
    commands = [json.loads(arguments)["command"] for _, arguments in wire.turns[-1].replayed_calls]
    assert [command.split(">")[0].strip() for command in commands] == ["echo nothing new"] * 2 + ["echo other"]
    assert "times in a row" not in json.dumps(wire.turns[-1].body)


@pytest.mark.parametrize("thoughts", [["I should look.\n", "</think>\n\n"], [""]], ids=["reasoning", "nothing"])
def test_an_empty_answer_goes_on_in_the_same_response(hermes: Start, thoughts: list[str]) -> None:
    """Without the rule the agent asks the model again, several times."""
    with Box(rules=["empty_answer"], **SECTIONS) as box, tapped(box.url) as wire:
        done = hermes(wire.url).ask(plan(thoughts, "Here it is."))
        decided = [(entry["rule"], entry["action"], entry["done"]) for entry in box.events]
    assert (done.code, done.out.strip()) == (0, "Here it is.")
    assert [turn.finish_reasons for turn in wire.turns] == [["stop"]]
    assert decided == [("empty_answer", "continue", True)]
    assert b"Your last message was empty" not in wire.turns[0].reply
