"""The coding agent opencode against the server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import httpx2
import pytest

from tandem.testing.server import until

from .clients import kill
from .conftest import Served
from .opencode import Opencode
from .telling import SLOW, call, endless, plan, script
from .wire import Wire, tapped

pytestmark = pytest.mark.e2e

Start = Callable[[str], Opencode]
Serve = Callable[..., Served]


def test_a_session_that_writes_reads_and_runs_a_command(wire: Wire, opencode: Start) -> None:
    agent = opencode(wire.url)
    file = agent.project / "notes.txt"
    text = 'one ü😀\n{"two": 2}\nthree <tag> \\ "quoted"\nfour'
    told = plan(
        ["I write it. ", call("write", content=text, filePath=file)],
        call("read", filePath=file, offset=2, limit=1),
        call("bash", command="wc -l notes.txt > count.txt; echo done", description="Count the lines"),
        "All done.",
    )
    run = agent.run(told)
    assert run.outcome.code == 0
    assert file.read_text() == text
    assert (agent.project / "count.txt").read_text().split() == ["3", "notes.txt"]
    assert run.text == "I write it. All done."
    assert run.finishes == ["tool-calls", "tool-calls", "tool-calls", "stop"]
    assert [name for name, _ in run.calls] == ["write", "read", "bash"]
    assert run.calls[1][1] == {"filePath": str(file), "offset": 2, "limit": 1}
    assert '2: {"two": 2}' in run.results[1]
    assert "four" not in run.results[1]
    assert run.results[2].strip() == "done"

    assert [turn.status for turn in wire.turns] == [200] * 4
    assert {turn.answered["x-tandem-client"] for turn in wire.turns} == {"opencode"}
    assert [turn.finish_reasons for turn in wire.turns] == [["tool_calls"]] * 3 + [["stop"]]
    assert [json.loads(arguments) for _, arguments in wire.turns[3].replayed_calls] == [made for _, made in run.calls]


def test_several_calls_in_one_answer_all_run(wire: Wire, opencode: Start) -> None:
    agent = opencode(wire.url)
    files = [agent.project / name for name in ("a.txt", "b.txt", "c.txt")]
    calls = "\n".join(call("write", content=file.name, filePath=file) for file in files)
    run = agent.run(plan(calls, "Three files."))
    assert [file.read_text() for file in files] == ["a.txt", "b.txt", "c.txt"]
    assert run.text == "Three files."
    results = [message for message in wire.turns[1].body["messages"] if message["role"] == "tool"]
    assert len({result["tool_call_id"] for result in results}) == 3


def test_the_title_is_asked_beside_the_first_turn_and_kept(wire: Wire, opencode: Start) -> None:
    agent = opencode(wire.url)
    run = agent.run(plan([{"sleep_ms": 300}, "Hello."], aside=["A title from the model"]), title=None)
    assert (run.text, run.finishes) == ("Hello.", ["stop"])
    (title,), (turn,) = wire.asides, wire.turns
    assert title.headers["x-session-id"] == turn.headers["x-session-id"]
    assert title.body["messages"][0]["content"].startswith("You are a title generator.")
    assert [session["title"] for session in agent.sessions()] == ["A title from the model"]


def test_thinking_arrives_as_reasoning_and_comes_back(wire: Wire, opencode: Start) -> None:
    agent = opencode(wire.url)
    told = plan(
        ["I should look.\n", "</think>\n\n", "I look. ", call("bash", command="echo seen", description="Look")],
        ["It was seen.\n", "</think>\n\n", "Seen."],
    )
    run = agent.run(told, "--thinking")
    assert run.text == "I look. Seen."
    assert run.reasoning == "I should look.\nIt was seen.\n"
    (replayed,) = [message for message in wire.turns[1].body["messages"] if message["role"] == "assistant"]
    assert replayed["reasoning_content"] == "I should look.\n"
    assert replayed["content"] == "I look. "


@pytest.mark.parametrize("effort", ["low", "high"])
def test_a_variant_is_an_effort(wire: Wire, opencode: Start, effort: str) -> None:
    agent = opencode(wire.url)
    agent.configure(model={"reasoning": True})
    run = agent.run(plan(["hm", "</think>\n\n", "Answered."]), "--variant", effort)
    assert run.text == "Answered."
    assert wire.turns[0].body["reasoning_effort"] == effort


def test_a_session_goes_on_in_a_second_run(wire: Wire, opencode: Start) -> None:
    agent = opencode(wire.url)
    agent.run(plan([call("bash", command="echo first", description="Say it")], "The first answer."))
    run = agent.run(script("The second answer."), "--continue", title=None)
    assert run.text == "The second answer."
    first, last = wire.turns[0], wire.turns[-1]
    assert last.headers["x-session-id"] == first.headers["x-session-id"]
    roles = [message["role"] for message in last.body["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]


def test_a_subagent_has_a_session_of_its_own(wire: Wire, opencode: Start) -> None:
    agent = opencode(wire.url)
    inner = plan([call("write", content="inner", filePath=agent.project / "inner.txt")], "The subagent's report.")
    outer = plan([call("task", description="Look", prompt=inner, subagent_type="general")], "Reported.")
    run = agent.run(outer)
    assert run.text == "Reported."
    assert "The subagent's report." in run.results[0]
    assert (agent.project / "inner.txt").read_text() == "inner"
    parents = {turn.headers["x-session-id"]: turn.headers.get("x-parent-session-id") for turn in wire.turns}
    assert len(parents) == 2
    assert len(set(parents.values()) - {None}) == 1


def test_calls_that_cannot_be_run_are_told_to_the_model(wire: Wire, opencode: Start) -> None:
    agent = opencode(wire.url)
    run = agent.run(plan(call("fly", to="the moon"), call("read", offset="two"), "I give up."))
    assert run.outcome.code == 0
    assert run.text == "I give up."
    assert [turn.status for turn in wire.turns] == [200] * 3
    # opencode writes the call of an unknown tool anew, under a name that it never offered
    assert [name for name, _ in wire.turns[2].replayed_calls] == ["invalid", "read"]
    assert "unavailable tool 'fly'" in run.results[0]
    assert "Missing key" in run.results[1]


def test_a_call_cut_by_the_limit_does_not_end_the_session(wire: Wire, opencode: Start) -> None:
    agent = opencode(wire.url)
    agent.configure(model={"limit": {"context": 200_000, "output": 200}})
    long = call("write", content="a line of text\n" * 100, filePath=agent.project / "long.txt")
    run = agent.run(plan(long, "It was too long."))
    assert not (agent.project / "long.txt").exists()
    assert [turn.finish_reasons for turn in wire.turns] == [["length"], ["stop"]]
    # what arrived of the call comes back inside an error, and is served
    assert [name for name, _ in wire.turns[1].replayed_calls] == ["invalid"]
    assert run.text == "It was too long."


def test_an_answer_that_reaches_its_limit_ends_the_run(wire: Wire, opencode: Start) -> None:
    agent = opencode(wire.url)
    agent.configure(model={"limit": {"context": 200_000, "output": 100}})
    run = agent.run(plan(endless("row\n")))
    assert (run.text, run.finishes, run.outcome.code) == ("row\n" * 25, ["length"], 0)
    assert len(wire.turns) == 1


def test_an_error_ends_the_run_and_says_why(wire: Wire, opencode: Start) -> None:
    agent = opencode(wire.url)
    agent.configure(model={"options": {"reasoningEffort": "extreme"}})
    run = agent.run("Hello.")
    assert run.outcome.code == 1
    assert [error["data"]["statusCode"] for error in run.errors] == [400]
    assert "reasoning_effort" in run.errors[0]["data"]["message"]
    assert [turn.status for turn in wire.turns] == [400]


def test_a_full_server_is_waited_for(serve: Serve, opencode: Start) -> None:
    server = serve("server.parallel=1", "server.max_queue=0")
    holding = {"messages": [{"role": "user", "content": script(*SLOW, end=False)}], "stream": True}
    with tapped(server.url) as wire:
        agent = opencode(wire.url)
        with httpx2.stream("POST", f"{server.url}/v1/chat/completions", json=holding, timeout=60, trust_env=False):
            process = agent.start(plan("My turn."), "--title", "Set here")
            until(lambda: [turn.status for turn in wire.turns] == [503])
        run = agent.finished(process)
    assert (run.text, run.outcome.code) == ("My turn.", 0)
    refused, served = wire.turns
    assert served.status == 200
    assert served.started - refused.started >= int(refused.answered["retry-after"])


def test_a_killed_client_frees_its_place(server: Served, opencode: Start) -> None:
    process = opencode(server.url).start(plan(endless(*SLOW)), "--title", "Set here")
    until(lambda: server.running() == 1)
    time.sleep(0.5)
    assert server.running() == 1
    kill(process)
    process.communicate()
    server.idle(5)


def test_an_answer_out_of_time_ends_the_run(serve: Serve, opencode: Start) -> None:
    server = serve("server.request_timeout_s=1.5")
    with tapped(server.url) as wire:
        run = opencode(wire.url).run(plan(endless(*SLOW)))
    assert run.finishes == ["length"]
    assert 5 <= len(run.text.split()) <= 15
    assert run.outcome.code == 0
    assert len(wire.turns) == 1


def test_a_call_out_of_time_is_told_to_the_model(serve: Serve, opencode: Start) -> None:
    server = serve("server.request_timeout_s=1.5")
    with tapped(server.url) as wire:
        agent = opencode(wire.url)
        slow = ["<tool_call>\n<function=write>\n<parameter=content>\n", *SLOW * 100]
        run = agent.run(plan(slow, "I stop."))
    assert run.text == "I stop."
    assert not list(agent.project.iterdir())
    assert [turn.finish_reasons for turn in wire.turns] == [["length"], ["stop"]]


def test_a_session_that_fills_its_context_is_summed_up(wire: Wire, opencode: Start) -> None:
    agent = opencode(wire.url)
    (agent.project / "long.txt").write_text("a line of text\n" * 600)
    agent.configure(model={"limit": {"context": 40_000, "output": 1000}})
    told = plan(call("read", filePath=agent.project / "long.txt"), "Read.", aside=["A summary of it all."])
    run = agent.run(told)
    assert [aside.body["messages"][0]["content"][:39] for aside in wire.asides] == [
        "You are a context summarization agent. "
    ]
    assert all(turn.status == 200 for turn in wire.chats)
    assert run.finishes[-1] == "stop"
    assert "A summary of it all." in json.dumps(wire.turns[-1].body["messages"])


def test_a_prompt_too_long_for_the_server_is_summed_up(serve: Serve, opencode: Start) -> None:
    server = serve("server.max_len=36000")
    with tapped(server.url) as wire:
        agent = opencode(wire.url)
        (agent.project / "long.txt").write_text("a line of text\n" * 400)
        told = plan(call("read", filePath=agent.project / "long.txt"), "Read.", aside=["A summary of it all."])
        run = agent.run(told)
    statuses = [exchange.status for exchange in wire.chats]
    assert statuses.count(400) == 1
    assert statuses[-1] == 200
    assert json.loads(wire.turns[1].reply)["error"]["code"] == "context_length_exceeded"
    assert run.finishes[-1] == "stop"
