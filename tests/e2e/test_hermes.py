"""The Hermes agent against the server."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from tandem.testing.server import until

from .clients import ended, kill
from .conftest import Served
from .hermes import Hermes
from .telling import SLOW, call, endless, plan, script
from .wire import Wire, tapped

pytestmark = pytest.mark.e2e

Start = Callable[[str], Hermes]
Serve = Callable[..., Served]


def test_a_session_that_writes_a_file_and_runs_a_command(wire: Wire, hermes: Start) -> None:
    agent = hermes(wire.url)
    file = agent.project / "notes.txt"
    text = 'one ü😀\n{"two": 2}\nthree <tag> \\ "quoted"'
    told = plan(
        ["I write it. ", call("write_file", path=file, content=text)],
        call("terminal", command=f"cd {agent.project} && wc -l notes.txt > count.txt", timeout=20),
        call("read_file", path=file, offset=2, limit=1),
        "All done.",
    )
    done = agent.ask(told, "--usage-file", "usage.json")
    assert (done.code, done.out.strip()) == (0, "All done.")
    assert file.read_text() == text
    assert (agent.project / "count.txt").read_text().split() == ["2", "notes.txt"]
    usage = json.loads((agent.project / "usage.json").read_text())
    assert (usage["completed"], usage["failed"], usage["api_calls"]) == (True, False, 4)

    assert [turn.status for turn in wire.turns] == [200] * 4
    assert {turn.answered["x-tandem-client"] for turn in wire.turns} == {"hermes"}
    assert [turn.finish_reasons for turn in wire.turns] == [["tool_calls"]] * 3 + [["stop"]]
    replayed = wire.turns[3].replayed_calls
    assert [name for name, _ in replayed] == ["write_file", "terminal", "read_file"]
    # the keys come back sorted, and the numbers as numbers
    assert replayed[0][1].startswith('{"content":')
    assert json.loads(replayed[0][1]) == {"path": str(file), "content": text}
    assert json.loads(replayed[1][1])["timeout"] == 20
    assert json.loads(replayed[2][1]) == {"path": str(file), "offset": 2, "limit": 1}
    results = [message["content"] for message in wire.turns[3].body["messages"] if message["role"] == "tool"]
    assert '{\\"two\\": 2}' in results[2]


def test_several_calls_in_one_answer_all_run(wire: Wire, hermes: Start) -> None:
    agent = hermes(wire.url)
    files = [agent.project / name for name in ("a.txt", "b.txt")]
    calls = "\n".join(call("write_file", path=file, content=file.name) for file in files)
    assert agent.ask(plan(calls, "Two files.")).out.strip() == "Two files."
    assert [file.read_text() for file in files] == ["a.txt", "b.txt"]


def test_its_probes_are_answered_quietly(serve: Serve, hermes: Start) -> None:
    server = serve()
    with tapped(server.url) as wire:
        assert hermes(wire.url).ask(plan("Hello.")).out.strip() == "Hello."
        probes = [exchange for exchange in wire.exchanges if exchange not in wire.chats]
    statuses = {probe.path: probe.status for probe in probes}
    assert statuses.pop("/v1/models") == 200
    assert {"/api/tags", "/props", "/version"} <= statuses.keys()
    assert set(statuses.values()) == {404}
    # one line in the log, for the turn, and no count under a path that was only tried
    assert len([line for line in server.log().splitlines() if " tandem.api: " in line]) == len(wire.chats)
    routes = set(re.findall(r'tandem_http_requests_total{[^}]*route="([^"]*)"', server.get("/metrics").text))
    assert {"probe", "models", "chat"} == routes - {"other"}


def test_it_reads_the_context_length_from_the_list_of_models(wire: Wire, hermes: Start) -> None:
    agent = hermes(wire.url)
    agent.configure()
    assert agent.ask(plan("Hello.")).out.strip() == "Hello."
    assert any(exchange.path == "/v1/models" and exchange.status == 200 for exchange in wire.exchanges)


def test_thinking_stays_out_of_the_answer(wire: Wire, hermes: Start) -> None:
    agent = hermes(wire.url)
    told = plan(
        ["I should look.\n", "</think>\n\n", call("terminal", command="echo seen")],
        ["It was seen.\n", "</think>\n\n", "Seen."],
    )
    assert agent.ask(told).out.strip() == "Seen."
    (replayed,) = [message for message in wire.turns[1].body["messages"] if message["role"] == "assistant"]
    assert "I should look." not in json.dumps(replayed)


def test_an_answer_that_reaches_its_limit_is_continued(wire: Wire, hermes: Start) -> None:
    agent = hermes(wire.url)
    agent.configure(context_length=200_000, max_tokens=120)
    done = agent.ask(plan(endless("row\n"), "The end."))
    assert done.code == 0
    assert [turn.finish_reasons for turn in wire.turns] == [["length"], ["stop"]]
    assert wire.turns[1].body["messages"][-2]["content"].startswith("row\nrow\n")
    assert wire.turns[1].body["messages"][-1]["role"] == "user"
    assert done.out.strip().endswith("The end.")


def test_a_call_cut_by_the_limit_is_asked_again_with_twice_the_room(wire: Wire, hermes: Start) -> None:
    agent = hermes(wire.url)
    agent.configure(context_length=200_000, max_tokens=400)
    file = agent.project / "long.txt"
    done = agent.ask(plan(call("write_file", path=file, content="a line of text\n" * 100), "Written."))
    assert (done.code, done.out.strip()) == (0, "Written.")
    assert file.read_text().split("\n")[:100] == ["a line of text"] * 100
    assert [turn.body["max_tokens"] for turn in wire.turns] == [400, 800, 1600, 3200, 400]
    assert [turn.finish_reasons for turn in wire.turns] == [["length"]] * 3 + [["tool_calls"], ["stop"]]


def test_an_answer_out_of_time_is_an_ordinary_end(serve: Serve, hermes: Start) -> None:
    server = serve("server.request_timeout_s=1.5")
    with tapped(server.url) as wire:
        done = hermes(wire.url).ask(plan(endless(*SLOW)))
    assert done.code == 0
    assert [turn.finish_reasons for turn in wire.turns] == [["timeout"]]
    assert 5 <= len(done.out.split()) <= 15


def test_a_full_server_is_waited_for(serve: Serve, hermes: Start) -> None:
    server = serve("server.parallel=1", "server.max_queue=0")
    holding = {"messages": [{"role": "user", "content": script(*SLOW, end=False)}], "stream": True}
    with tapped(server.url) as wire:
        agent = hermes(wire.url)
        with httpx2.stream("POST", f"{server.url}/v1/chat/completions", json=holding, timeout=60, trust_env=False):
            process = agent.start("-z", plan("My turn."))
            until(lambda: [turn.status for turn in wire.turns] == [503])
        done = ended(process)
    assert (done.code, done.out.strip()) == (0, "My turn.")
    assert [turn.status for turn in wire.turns] == [503, 200]


def test_a_prompt_that_does_not_fit_is_told_once(serve: Serve, hermes: Start) -> None:
    server = serve("server.max_len=20000")
    with tapped(server.url) as wire:
        done = hermes(wire.url).ask(plan("Hello."))
    assert "prompt and answer together may have 20000" in done.out
    assert [turn.status for turn in wire.turns] == [400]


def test_a_chat_goes_on_in_a_second_run(wire: Wire, hermes: Start) -> None:
    agent = hermes(wire.url)
    first = agent.run("chat", "-Q", "-q", plan(call("terminal", command="echo hello"), "The first answer."))
    assert "The first answer." in first.out
    second = agent.run("chat", "-Q", "-q", script("The second answer."), "--continue")
    assert "The second answer." in second.out
    roles = [message["role"] for message in wire.turns[-1].body["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]


def test_a_killed_client_frees_its_place(server: Served, hermes: Start) -> None:
    process = hermes(server.url).start("-z", plan(endless(*SLOW)))
    until(lambda: server.running() == 1)
    time.sleep(0.5)
    assert server.running() == 1
    kill(process)
    process.communicate()
    server.idle(5)


def test_an_effort_of_none_turns_thinking_off(wire: Wire, hermes: Start) -> None:
    agent = hermes(wire.url)
    agent.configure(context_length=200_000)
    config = Path(agent.home / "config.yaml")
    config.write_text(json.dumps({**json.loads(config.read_text()), "agent": {"reasoning_effort": "none"}}))
    done = agent.run("chat", "-Q", "-q", plan("Answered."))
    assert "Answered." in done.out
    assert wire.turns[0].body["reasoning_effort"] == "none"
