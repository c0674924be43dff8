"""Sessions that outlive the server: what the model wrote before a restart is read from its own tokens after it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from openai.types.chat import ChatCompletionMessage

from tandem.core.plugin import ModelBuilder, Options, hookimpl
from tandem.plugins.models.scripted import ScriptedModel, ScriptedSequence
from tandem.plugins.models.scripted.tokens import ASSISTANT, END, TOOL, ByteTokenizer
from tandem.testing.box import Box
from tandem.testing.server import until

ENCODE = ByteTokenizer().encode
CHAT = "/v1/chat/completions"
SYSTEM = {"role": "system", "content": "You help. "}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "write",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "scale": {"type": "number"}}},
        },
    }
]
OPENED = [ASSISTANT, *ENCODE("<think>\n")]
CALLS = 10


# ----------------------------------------------------------------------------------------- a model whose states travel


@dataclass(frozen=True)
class Copied:
    """The tokens of a sequence, as a tensor."""

    tokens: list[int]

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def nbytes(self) -> int:
        return 8 * len(self.tokens)

    def tensors(self) -> Mapping[str, torch.Tensor]:
        return {"tokens": torch.tensor(self.tokens, dtype=torch.int64)}


class TravellingSequence(ScriptedSequence):
    def snapshot(self, anchor: Any = None) -> Copied:
        return Copied(self.tokens[: None if anchor is None else anchor.length])

    def restore(self, snapshot: Any) -> None:
        super().restore((snapshot.tokens, (), None, None))


class TravellingModel(ScriptedModel):
    """The scripted model, for the disk tier."""

    def __init__(self, fingerprint: str) -> None:
        super().__init__({"reply": "hello", "tokens_per_s": 0, "prefill_per_s": 0})
        self.fingerprint = fingerprint

    def new_sequence(self, max_len: int) -> ScriptedSequence:
        return TravellingSequence(self.reply, max_len)

    def snapshot_of(self, tensors: Mapping[str, torch.Tensor]) -> Copied:
        return Copied(tensors["tokens"].tolist())


class Traveller:
    """A plugin with that model."""

    __name__ = "traveller"
    TANDEM_API = ">=0.2,<1"

    def __init__(self, fingerprint: str = "one") -> None:
        self.fingerprint = fingerprint

    @hookimpl
    def tandem_models(self) -> list[ModelBuilder]:
        def build(checkpoint: object, options: Options, progress: object) -> ScriptedModel:
            return TravellingModel(self.fingerprint)

        return [ModelBuilder(name="traveller", doc="Travels.", build=build, needs_checkpoint=False)]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TANDEM_STATE_DIR", str(tmp_path))
    return tmp_path


def server(fingerprint: str = "one", **options: Any) -> Box:
    return Box(
        model={"plugin": "traveller"},
        plugins=[Traveller(fingerprint)],
        formats=["qwen_xml"],
        caches={"resident": {}, "disk": {"min_tokens": 16, "leave_free_gib": 0}},
        server={"replay_disk_mib": 16, "reasoning_format": "reasoning_content", **options},
    )


# ------------------------------------------------------------------------------------------------------- three clients


def sent_again(message: Mapping[str, Any], arguments: Callable[[str], str], **more: Any) -> dict[str, Any]:
    calls = [
        {**call, "function": {**call["function"], "arguments": arguments(call["function"]["arguments"])}}
        for call in message.get("tool_calls") or ()
    ]
    return {"role": "assistant", "content": message["content"] or "", "tool_calls": calls, **more}


def hermes(message: dict[str, Any]) -> dict[str, Any]:
    """Keys sorted, compact, no reasoning."""
    return sent_again(message, lambda text: json.dumps(json.loads(text), sort_keys=True, separators=(",", ":")))


def opencode(message: dict[str, Any]) -> dict[str, Any]:
    """Compact, the model's order, numbers as JavaScript writes them, the reasoning in its field."""

    def javascript(text: str) -> str:
        whole = re.sub(r"(?<=\d)\.0(?=[,}\]])", "", text)
        return json.dumps(json.loads(whole), separators=(",", ":"), ensure_ascii=False)

    return sent_again(message, javascript, reasoning_content=message["reasoning_content"])


def openai_sdk(message: dict[str, Any]) -> dict[str, Any]:
    """What the SDK's own object says of itself."""
    return ChatCompletionMessage.model_validate(message).model_dump(exclude_none=True)


CLIENTS = {"hermes": hermes, "opencode": opencode, "openai_sdk": openai_sdk}


def wrote(number: int) -> list[str]:
    """One turn of the model: a thought, and a call whose keys are not sorted."""
    call = f"<parameter=path>\n{number} é.md\n</parameter>\n<parameter=scale>\n2.0\n</parameter>\n"
    return [f"thought {number}\n", "</think>\n\n", f"<tool_call>\n<function=write>\n{call}</function>\n</tool_call>"]


class Agent:
    """An agent's session. `prompts` are those that the engine was given."""

    def __init__(self, back: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        turns = [*map(wrote, range(CALLS)), ["done\n</think>\n\n", "All written."]]
        self.back = back
        self.messages: list[Any] = [SYSTEM, {"role": "user", "content": json.dumps({"turns": turns})}]
        self.prompts: list[list[int]] = []
        self.usage: Mapping[str, Any] = {}
        self.replayed = 0
        self.message: dict[str, Any] = {}

    def ask(self, box: Box) -> None:
        submit = box.engine.submit

        def heard(request: Any, sink: Any) -> Any:
            self.prompts.append(list(request.prompt))
            return submit(request, sink)

        box.engine.submit = heard  # type: ignore[method-assign]
        with openai.OpenAI(base_url=f"{box.url}/v1", api_key="none", max_retries=0, timeout=20) as client:
            got = client.chat.completions.with_raw_response.create(
                model="traveller", messages=self.messages, tools=TOOLS
            )
        box.engine.submit = submit  # type: ignore[method-assign]
        answer = json.loads(got.text)
        self.replayed = int(got.headers.get("x-tandem-replayed-turns", 0))
        self.usage, self.message = answer["usage"], answer["choices"][0]["message"]

    def take(self) -> None:
        """Send the call back in this client's words, with its result."""
        call = self.message["tool_calls"][0]
        self.messages.append(self.back(self.message))
        self.messages.append({"role": "tool", "tool_call_id": call["id"], "name": "write", "content": "ok"})

    @property
    def read(self) -> int:
        """Prompt tokens that the model read."""
        return int(self.usage["prompt_tokens"]) - int(self.usage["prompt_tokens_details"]["cached_tokens"])


@pytest.mark.parametrize("client", CLIENTS)
def test_a_session_goes_on_over_a_restart_and_only_new_tokens_are_read(client: str) -> None:
    agent = Agent(CLIENTS[client])
    new = [END, TOOL, *ENCODE("ok"), END, *OPENED]
    box = server()
    try:
        for number in range(CALLS + 1):
            agent.ask(box)
            assert agent.replayed == number
            if number:
                assert agent.prompts[-1] == [*agent.prompts[-2], *ENCODE("".join(wrote(number - 1))), *new]
                assert agent.read == len(new)
            if number == CALLS // 2:
                box.close()
                box = server()
            if number < CALLS:
                agent.take()
        assert agent.message["content"] == "All written."
        stats = box.get("/v1/cache/stats").json()["replay"]
        assert stats["recalled"] == CALLS // 2 + 1
        assert stats["hits"] == sum(range(CALLS // 2 + 1, CALLS + 1))
        assert stats["edited"] == stats["disk_damaged"] == stats["disk_errors"] == 0
    finally:
        box.close()


# ---------------------------------------------------------------------------------------------- what a restart forgets


def one_call(box: Box) -> Agent:
    agent = Agent(hermes)
    agent.ask(box)
    agent.take()
    return agent


def test_another_model_does_not_know_the_turns_of_the_first() -> None:
    with server() as box:
        agent = one_call(box)
    with server("two") as box:
        agent.ask(box)
        assert agent.replayed == 0
    with server() as box:
        agent.ask(box)
        assert agent.replayed == 1


def test_with_the_disk_off_nothing_is_written(state: Path) -> None:
    with server(replay_disk_mib=0) as box:
        agent = one_call(box)
        assert not (state / "replay").exists()
    with server(replay_disk_mib=0) as box:
        agent.ask(box)
        assert agent.replayed == 0


def test_two_servers_over_one_directory_know_each_others_turns() -> None:
    with server() as one, server() as two:
        agent = one_call(one)
        assert one.app.state.service._replays.store._disk.settle()
        for _ in range(3):
            agent.ask(two)
            agent.take()
            assert two.app.state.service._replays.store._disk.settle()
            agent.ask(one)
            agent.take()
            assert one.app.state.service._replays.store._disk.settle()
        assert agent.replayed == 6


def test_clearing_the_caches_forgets_the_turns_now_and_after_a_restart() -> None:
    with server() as box:
        agent = one_call(box)
        store = box.app.state.service._replays.store
        assert store._disk.settle()
        before = box.get("/v1/cache/stats").json()["replay"]
        assert (before["kept"], before["disk_entries"]) == (1, 1)
        cleared = box.post("/v1/cache/clear").json()
        assert cleared["replay"] == before
        agent.ask(box)
        assert agent.replayed == 0
        assert box.get("/v1/cache/stats").json()["replay"]["disk_entries"] <= 1  # the answer just now
    with server() as box:
        agent.ask(box)
        assert agent.replayed == 0


def test_a_turn_that_is_not_to_be_kept_is_not_on_disk_either() -> None:
    with server() as box:
        agent = Agent(hermes)
        body = {"messages": agent.messages, "tools": TOOLS, "store": False}
        agent.message = box.post(CHAT, body).json()["choices"][0]["message"]
        agent.take()
    with server() as box:
        agent.ask(box)
        assert agent.replayed == 0


def test_a_damaged_file_costs_what_was_in_it_and_the_server_goes_on(
    state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with server() as box:
        agent = one_call(box)
    [path] = (state / "replay").glob("*.sqlite")
    path.write_bytes(b"no database at all " * 1000)
    caplog.set_level(logging.WARNING)
    with server() as box:
        agent.ask(box)
        assert agent.replayed == 0
        agent.take()
        until(lambda: "is damaged" in caplog.text)
    with server() as box:
        agent.ask(box)
        assert agent.replayed == 1
    assert path.read_bytes().startswith(b"no database")


def test_a_state_directory_that_can_not_be_made_is_told_and_no_fault(
    state: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (state / "file").touch()
    monkeypatch.setenv("TANDEM_STATE_DIR", str(state / "file" / "below"))
    caplog.set_level(logging.WARNING)
    with Box(formats=["qwen_xml"], server={"replay_disk_mib": 1}) as box:
        agent = Agent(hermes)
        agent.ask(box)
        agent.take()
        agent.ask(box)
        assert agent.replayed == 1  # from memory
    assert "earlier turns will be unknown after a restart" in caplog.text


# ------------------------------------------------------------------------------------------------------------- telling


@pytest.fixture
def box() -> Iterator[Box]:
    with server() as running:
        yield running


def test_health_and_the_stats_tell_what_is_kept_found_and_edited(box: Box) -> None:
    agent = one_call(box)
    agent.ask(box)
    edited = json.loads(json.dumps(agent.messages))
    edited[2]["tool_calls"][0]["function"]["arguments"] = '{"path": "other"}'
    box.post(CHAT, {"messages": edited, "tools": TOOLS})
    thoughts = json.loads(json.dumps(agent.messages))
    thoughts[2]["reasoning_content"] = "other thoughts"
    box.post(CHAT, {"messages": thoughts, "tools": TOOLS})
    foreign = [SYSTEM, {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}, agent.messages[1]]
    box.post(CHAT, {"messages": foreign})
    assert box.app.state.service._replays.store._disk.settle()
    stats = box.get("/v1/cache/stats").json()["replay"]
    assert (stats["hits"], stats["edited"]) == (1, 2)
    assert stats["kept"] == stats["disk_entries"] == stats["disk_written"] >= 4
    assert stats["bytes"] > 0
    assert stats["disk_bytes"] > 0
    assert box.get("/health").json()["replay"] == stats
