"""Rules at work in sessions of the coding agent opencode.

The server runs in the test's own process, so that a test sees what the client saw and what the journal says about it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from tandem.testing import sse
from tandem.testing.box import Box

from .opencode import Opencode
from .telling import call, endless, plan
from .wire import Exchange, Wire, tapped

pytestmark = pytest.mark.e2e


@dataclass
class Watched:
    """A server with rules, opencode, and what passed between them."""

    box: Box
    wire: Wire
    agent: Opencode

    def decided(self, *rules: str) -> list[tuple[str, str, str, bool]]:
        """The journal: rule, action, reason, and whether it was done; of these rules alone when some are named."""
        entries = [event for event in self.box.events if not rules or event["rule"] in rules]
        return [(entry["rule"], entry["action"], entry["reason"], entry["done"]) for entry in entries]


Watch = Callable[..., Watched]


@pytest.fixture
def watched(opencode: Callable[[str], Opencode]) -> Iterator[Watch]:
    """opencode and a server with these rules, all of which act."""
    with ExitStack() as life:

        def start(*rules: str) -> Watched:
            sections = {"clients": ["opencode"], "formats": ["qwen_xml"], "caches": ["resident"]}
            box = life.enter_context(Box(rules={rule: {"mode": "act"} for rule in rules}, **sections))
            wire = life.enter_context(tapped(box.url))
            return Watched(box, wire, opencode(wire.url))

        yield start


def usage(turn: Exchange) -> dict[str, Any]:
    """What the client was told that the answer cost."""
    chunks = [event.json() for event in sse.events([turn.reply]) if not event.done]
    (told,) = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    return told


def results(turn: Exchange) -> list[str]:
    """The tool results that a request brings."""
    return [message["content"] for message in turn.body["messages"] if message["role"] == "tool"]


def test_the_third_identical_read_is_held_back_and_written_again(watched: Watch) -> None:
    on = watched("same_call")
    file = on.agent.project / "notes.txt"
    file.write_text("nothing new\n")
    read = call("read", filePath=file)
    run = on.agent.run(plan(read, read, ["Once more. ", read], call("bash", command="echo other"), "All seen."))
    assert run.outcome.code == 0
    assert [name for name, _ in run.calls] == ["read", "read", "bash"]
    assert run.results[2].strip() == "other"
    assert run.text == "Once more. All seen."
    assert len(on.wire.turns) == 4
    assert on.decided() == [("same_call", "regenerate_call", "repeat(3)", True)]
    # neither the reminder nor the call that it was about ever comes back
    replayed = json.dumps(on.wire.turns[-1].body)
    assert "times running" not in replayed
    assert [name for name, _ in on.wire.turns[-1].replayed_calls] == ["read", "read", "bash"]


def test_calls_that_cannot_run_are_written_again_before_opencode_sees_them(watched: Watch) -> None:
    on = watched("malformed_call")
    file = on.agent.project / "notes.txt"
    file.write_text("the content\n")
    run = on.agent.run(plan(call("raed", filePath=file), call("read", offset=1), call("read", filePath=file), "Read."))
    assert run.calls == [("read", {"filePath": str(file)})]
    assert "the content" in run.results[0]
    assert (run.text, run.finishes) == ("Read.", ["tool-calls", "stop"])
    assert [name for name, _ in on.wire.turns[-1].replayed_calls] == ["read"]
    assert on.decided() == [
        ("malformed_call", "regenerate_call", "unknown_tool", True),
        ("malformed_call", "regenerate_call", "schema(1)", True),
    ]


def test_a_call_that_needs_no_model_is_repaired_on_its_way(watched: Watch) -> None:
    on = watched("malformed_call")
    file = on.agent.project / "notes.txt"
    file.write_text("the content\n")
    run = on.agent.run(plan(call("read", filePath=file, limit="null"), "Read."))
    assert run.calls == [("read", {"filePath": str(file)})]
    assert "the content" in run.results[0]
    assert run.text == "Read."
    assert on.decided() == [("malformed_call", "repair_call", "repaired(1)", True)]


def test_two_changes_are_asked_back_and_come_one_after_the_other(watched: Watch) -> None:
    on = watched("call_sequence")
    writes = [call("write", content=name, filePath=on.agent.project / name) for name in ("a.txt", "b.txt")]
    run = on.agent.run(plan("\n".join(writes), writes[0], writes[1], "Both."))
    assert [given["content"] for _, given in run.calls] == ["a.txt", "b.txt"]
    assert [len(results(turn)) for turn in on.wire.turns] == [0, 1, 2]
    assert [(on.agent.project / name).read_text() for name in ("a.txt", "b.txt")] == ["a.txt", "b.txt"]
    assert run.text == "Both."
    assert on.decided() == [("call_sequence", "regenerate_call", "mutations(2)", True)]


def test_two_changes_that_the_model_writes_again_as_they_were_go_out(watched: Watch) -> None:
    on = watched("call_sequence")
    writes = "\n".join(call("write", content=name, filePath=on.agent.project / name) for name in ("a.txt", "b.txt"))
    run = on.agent.run(plan(writes, writes, "Both."))
    # opencode runs the calls of one answer at the same time
    assert sorted(given["content"] for _, given in run.calls) == ["a.txt", "b.txt"]
    assert [len(results(turn)) for turn in on.wire.turns] == [0, 2]
    assert run.text == "Both."
    assert [done for _, _, _, done in on.decided()] == [True, False]


HEAD = "<tool_call>\n<function=write>\n<parameter=filePath>\n{file}\n</parameter>\n<parameter=content>\n"
ROW = '"' + "." * 94 + '"\n'


def test_a_write_that_loops_is_stopped_and_the_next_request_knows(watched: Watch) -> None:
    on = watched("argloop")
    file = on.agent.project / "map.txt"
    short = call("bash", command="for i in 1 2 3; do echo row; done > map.txt", description="Write the rows")
    run = on.agent.run(plan(endless(HEAD.format(file=file), "the map\n", ROW), short, "Written by a loop."))
    assert run.outcome.code == 0
    assert run.text.startswith("[Tandem broke off a call of write that had run to ")
    assert run.text.endswith("Written by a loop.")
    # what arrived of the call is nothing that can run, and opencode says so itself
    assert [name for name, _ in run.calls] == ["invalid", "bash"]
    assert file.read_text() == "row\n" * 3
    first, second, _ = on.wire.turns
    assert first.finish_reasons == ["stop"]
    assert usage(second)["prompt_tokens_details"]["hidden_tokens"] > 0
    assert ROW.strip()[1:-1] * 2 not in json.dumps(on.box.events)
    stopped, noted = on.box.events
    assert (stopped["rule"], stopped["action"], stopped["done"]) == ("argloop", "give_up", True)
    assert stopped["reason"].startswith("tool_arg_loop(97x")
    assert (noted["action"], noted["reason"], noted["done"]) == ("prompt_tail_note", "tool_arg_loop_note(1)", True)


def test_a_write_that_loops_behind_the_gate_ends_the_answer_and_the_session_goes_on(watched: Watch) -> None:
    """With a rule that holds calls nothing of it was sent, so there is no call at all."""
    on = watched("argloop", "malformed_call")
    file = on.agent.project / "map.txt"
    run = on.agent.run(plan(endless(HEAD.format(file=file), "the map\n", ROW)))
    assert run.outcome.code == 0
    assert run.calls == []
    assert run.text.startswith("[Tandem broke off a call of write that had run to ")
    assert run.text.endswith("All of it was thrown away.]")
    assert run.finishes == ["stop"]
    again = on.agent.run(plan("In smaller steps, then."), "--continue", title=None)
    assert (again.text, again.finishes) == ("In smaller steps, then.", ["stop"])
    assert usage(on.wire.turns[1])["prompt_tokens_details"]["hidden_tokens"] > 0
    assert not list(on.agent.project.iterdir())
    assert [(action, done) for _, action, _, done in on.decided()] == [("give_up", True), ("prompt_tail_note", True)]


def test_a_note_is_read_from_the_cache_by_the_turns_behind_it(watched: Watch) -> None:
    on = watched("loop_escape")
    file = on.agent.project / "notes.txt"
    file.write_text("nothing new\n")
    read = call("read", filePath=file)
    run = on.agent.run(plan(read, read, call("bash", command="echo other", description="Look"), "All seen."))
    assert [name for name, _ in run.calls] == ["read", "read", "bash"]
    assert run.text == "All seen."
    assert on.decided("loop_escape")[:2] == [
        ("loop_escape", "set_sampling", "repeat(2)", True),
        ("loop_escape", "prompt_tail_note", "repeat(2)", True),
    ]
    told = [usage(turn) for turn in on.wire.turns]
    details = [one["prompt_tokens_details"] for one in told]
    assert ["hidden_tokens" in one for one in details] == [False, False, True, True]
    assert details[2]["hidden_tokens"] == details[3]["hidden_tokens"]
    # nothing that an earlier turn read or wrote is read again: the note's place and all behind it included
    for before, now in pairwise(told):
        known = before["prompt_tokens"] + before["completion_tokens"]
        assert now["prompt_tokens_details"]["cached_tokens"] >= known - 1
    assert not any("calls of read were the same" in json.dumps(turn.body) for turn in on.wire.turns)


def test_a_key_that_a_file_held_is_masked_where_the_answer_repeats_it(watched: Watch) -> None:
    on = watched("secret_mask")
    key = "sk-live-4f9a8b7c6d5e4f3a2b1c"
    (on.agent.project / "settings.txt").write_text(f"OPENAI_API_KEY={key}\n")
    told = [f"The key is {key[:9]}", f"{key[9:]}, and it ", "works."]
    run = on.agent.run(plan(call("read", filePath=on.agent.project / "settings.txt"), told))
    assert key in run.results[0], "the client's own tool showed it"
    assert key not in run.text
    assert run.text == "The key is sk-[redacted], and it works."
    assert key.encode() not in on.wire.turns[1].reply
    assert on.decided() == [("secret_mask", "mask", "secrets(1)", True)]
    assert key not in json.dumps(on.box.events)
