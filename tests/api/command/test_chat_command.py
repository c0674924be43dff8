"""`tandem chat` against a real server."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tandem.api.command import chat as chat_module
from tandem.api.command.chat import Conversation, chat_command
from tandem.testing.box import Box


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with Box() as running:
        yield running


def talk(box: Box, *lines: str, options: tuple[str, ...] = ()) -> Result:
    return CliRunner().invoke(chat_command, ["--url", box.url, *options], input="".join(f"{line}\n" for line in lines))


def scripted(*entries: Any) -> str:
    return json.dumps({"script": entries})


def prompts(box: Box) -> float:
    """Prompt tokens of all requests so far."""
    total: float = box.engine.snapshot()["totals"].get("prompt_tokens", 0)
    return total


def test_each_line_is_answered(box: Box) -> None:
    run = talk(box, scripted("hé", "llo"), "", scripted("again"))
    assert run.exit_code == 0
    assert run.stdout == "héllo\nagain\n"


def test_the_conversation_is_kept_until_it_is_reset(box: Box) -> None:
    line = scripted("a" * 50)
    costs = []
    for lines in ([line], [line, line], [line, "/reset", line]):
        before = prompts(box)
        talk(box, *lines)
        costs.append(prompts(box) - before)
    once, kept, reset = costs
    assert kept > 2 * once
    assert reset == 2 * once


def test_the_system_prompt_goes_along_and_away(box: Box) -> None:
    line = scripted("a")
    costs = []
    for lines in ([line], ["/system Be brief.", line], ["/system Be brief.", "/system", line]):
        before = prompts(box)
        assert talk(box, *lines).exit_code == 0
        costs.append(prompts(box) - before)
    assert costs[1] > costs[0] == costs[2]
    before = prompts(box)
    talk(box, line, options=("--system", "Be brief."))
    assert prompts(box) - before == costs[1]


def test_quit_leaves_before_the_next_line(box: Box) -> None:
    assert talk(box, "/quit", scripted("never")).stdout == ""


def test_an_unknown_command_is_not_sent(box: Box) -> None:
    before = prompts(box)
    assert "/reset" in talk(box, "/rest").stdout
    assert prompts(box) == before


def test_the_servers_error_is_shown_and_the_talk_goes_on(box: Box) -> None:
    run = talk(box, scripted("a"), "/system x", scripted("b"), options=("--max-tokens", "1"))
    assert run.exit_code == 0
    with Box(server={"max_len": 60}) as small:
        run = talk(small, "x" * 100, scripted("short"))
        assert run.exit_code == 0
        assert "60" in run.stderr
        assert run.stdout.endswith("short\n")


def test_without_a_server_the_message_names_the_url_and_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    run = CliRunner().invoke(chat_command, ["--url", f"http://127.0.0.1:{port}/v1"])
    assert run.exit_code == 1
    assert f"http://127.0.0.1:{port}" in run.stderr
    assert "tandem serve" in run.stderr
    assert "Traceback" not in run.output


def test_ctrl_c_ends_the_running_answer_only(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = chat_module.click.echo

    def interrupt_at_x(message: Any = "", **options: Any) -> None:
        printed(message, **options)
        if message == "x":
            raise KeyboardInterrupt

    monkeypatch.setattr(chat_module.click, "echo", interrupt_at_x)
    run = talk(box, scripted("a", "x", *[{"sleep_ms": 5}, "y"] * 2000), scripted("more"))
    assert run.exit_code == 0
    assert run.stdout == "ax [stopped]\nmore\n"


def test_a_stopped_answer_stays_in_the_conversation(box: Box) -> None:
    conversation = Conversation(box.url)
    answer = conversation.ask(scripted("a", "b", "c"))
    assert next(answer) == "a"
    answer.close()
    assert [message["content"] for message in conversation.messages][1:] == ["a"]


def test_a_question_without_an_answer_is_forgotten() -> None:
    with Box(server={"max_len": 60}) as small:
        conversation = Conversation(small.url)
        with pytest.raises(chat_module.ServerError):
            list(conversation.ask("x" * 100))
        assert conversation.messages == []
