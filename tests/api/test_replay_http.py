"""Conversations whose turns come back in a client's own words, to the token: what is read again and what is not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tandem.api.ids import Ids
from tandem.api.replay import Replays
from tandem.core.engine.replay import ReplayStore, Written
from tandem.core.engine.request import Generate
from tandem.core.engine.splice import Splicer
from tandem.core.plugin import ModelBuilder, Options, hookimpl
from tandem.plugins.models.scripted import ScriptedModel
from tandem.plugins.models.scripted.tokens import ASSISTANT, END, TOOL, USER, ByteTokenizer
from tandem.testing.box import Box

CHAT = "/v1/chat/completions"
MIB = 1 << 20
TURNS_HEADER = "x-tandem-replayed-turns"
SYSTEM = {"role": "system", "content": "You help. "}
ENCODE = ByteTokenizer().encode

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string"},
                    "content": {"type": "string"},
                    "lines": {"type": "integer"},
                    "scale": {"type": "number"},
                    "flags": {"type": "array", "items": {"type": "string"}},
                },
            },
        },
    }
    for name in ("read", "write")
]
NAMES = ("write", "read")

Message = dict[str, Any]
Back = Callable[[Message], Message]


# ------------------------------------------------------------------------------------- what the model writes of a call


def xml(name: str, **arguments: Any) -> str:
    fields = "".join(
        f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{fields}</function>\n</tool_call>"


def hermes_json(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


NOTATIONS = {"qwen_xml": xml, "hermes_json": hermes_json}


# ------------------------------------------------------------------------------------------ what the clients send back


def words(message: Message) -> str:
    """The content, "" when there was none, as every client sends it."""
    return message["content"] or ""


def calls(message: Message, arguments: Callable[[str], str]) -> Message:
    if not message.get("tool_calls"):
        return {}
    return {
        "tool_calls": [
            {**call, "function": {**call["function"], "arguments": arguments(call["function"]["arguments"])}}
            for call in message["tool_calls"]
        ]
    }


def hermes(message: Message) -> Message:
    """Keys sorted, separators compact, no reasoning: the block is cut out of the content."""
    content = re.sub(r"(?s)^<think>.*?</think>\s*", "", words(message))
    again = calls(message, lambda text: json.dumps(json.loads(text), sort_keys=True, separators=(",", ":")))
    return {"role": "assistant", "content": content, **again}


def opencode(message: Message) -> Message:
    """Compact, in the model's order, whole numbers as JavaScript writes them, the reasoning in its own field."""

    def javascript(text: str) -> str:
        whole = re.sub(r"(?<=\d)\.0(?=[,}\]])", "", text)
        return json.dumps(json.loads(whole), separators=(",", ":"), ensure_ascii=False)

    thoughts = message.get("reasoning_content")
    sent = {"role": "assistant", "content": words(message), **calls(message, javascript)}
    return {**sent, "reasoning_content": thoughts} if thoughts else sent


def open_webui(message: Message) -> Message:
    """The arguments serialised once more, no reasoning."""
    again = calls(message, lambda text: json.dumps(json.loads(text), indent=1))
    return {"role": "assistant", "content": words(message), **again}


CLIENTS = {
    "hermes": (hermes, "tags"),
    "opencode": (opencode, "reasoning_content"),
    "open_webui": (open_webui, "reasoning_content"),
    "hides the reasoning": (hermes, "hidden"),
}


# ---------------------------------------------------------------------------------------------------------- a session


class Session:
    """One conversation with a box, sent back in a client's words. `prompts` are those that the engine was given."""

    def __init__(self, box: Box, turns: list[Any], back: Back = open_webui, **fields: Any) -> None:
        self.box = box
        self.back = back
        self.fields = {"tools": TOOLS, **fields}
        self.messages: list[Message] = [SYSTEM, {"role": "user", "content": json.dumps({"turns": turns})}]
        self.prompts: list[list[int]] = []
        self.usage: Mapping[str, Any] = {}
        self.replayed = 0
        self.message: Message = {}
        self.finish = ""

    def ask(self, *messages: Message, **fields: Any) -> Message:
        """Send the conversation with these messages behind it; the answer's message as it came."""
        self.messages += messages
        body = {"messages": self.messages, **self.fields, **fields}
        with listening(self.box) as prompts:
            self.message = self._streamed(body) if body.get("stream") else self._whole(body)
        self.prompts += prompts[:1]
        return self.message

    def take(self, message: Message | None = None) -> None:
        """The answer becomes part of the conversation, as this client sends it back."""
        self.messages.append(self.back(message or self.message))

    def result(self, text: str = "done") -> Message:
        call = self.messages[-1]["tool_calls"][-1]
        return {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": text}

    @property
    def cached(self) -> int:
        count: int = self.usage["prompt_tokens_details"]["cached_tokens"]
        return count

    def _whole(self, body: Message) -> Message:
        answer = self.box.post(CHAT, body)
        assert answer.status_code == 200, answer.text
        self._note(answer.headers, answer.json()["usage"])
        self.finish = answer.json()["choices"][0]["finish_reason"]
        self.choices = [choice["message"] for choice in answer.json()["choices"]]
        message: Message = self.choices[0]
        return message

    def _streamed(self, body: Message) -> Message:
        message: Message = {"role": "assistant", "content": "", "tool_calls": []}
        with self.box.streaming(CHAT, body) as (response, data):
            assert response.status_code == 200
            chunks = [json.loads(text) for text in data if text != "[DONE]"]
        for chunk in chunks:
            delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
            message["content"] += delta.get("content") or ""
            if thoughts := delta.get("reasoning_content"):
                message["reasoning_content"] = message.get("reasoning_content", "") + thoughts
            for piece in delta.get("tool_calls", ()):
                if "id" in piece:
                    message["tool_calls"].append({**piece, "function": dict(piece["function"])})
                else:
                    message["tool_calls"][piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
        self._note(response.headers, next(chunk["usage"] for chunk in chunks if chunk.get("usage")))
        return message

    def _note(self, headers: Mapping[str, str], usage: Mapping[str, Any]) -> None:
        self.replayed = int(headers.get(TURNS_HEADER, 0))
        self.usage = usage


class listening:
    """The prompts that a box's engine is given meanwhile."""

    def __init__(self, box: Box) -> None:
        self._engine = box.engine
        self._submit = box.engine.submit
        self._heard: list[list[int]] = []

    def __enter__(self) -> list[list[int]]:
        def submit(request: Generate, sink: Any) -> Any:
            self._heard.append(list(request.prompt))
            return self._submit(request, sink)

        self._engine.submit = submit  # type: ignore[method-assign]
        return self._heard

    def __exit__(self, *_: object) -> None:
        self._engine.submit = self._submit  # type: ignore[method-assign]


def box_with(**sections: Any) -> Box:
    return Box(**{"caches": {"resident": {}}, "formats": {"qwen_xml": {}, "hermes_json": {}}, **sections})


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with box_with() as box:
        yield box


@pytest.fixture(scope="module")
def plain() -> Iterator[Box]:
    """Reads every turn as it is sent: the oracle of what an unknown turn's prompt is."""
    with box_with(server={"replay_mib": 0}) as box:
        yield box


def as_sent(plain: Box, session: Session) -> list[int]:
    """The prompt of the session's messages, were nothing known of it."""
    with listening(plain) as prompts:
        answer = plain.post(CHAT, {"messages": session.messages, **session.fields})
    assert answer.status_code == 200
    assert TURNS_HEADER not in answer.headers
    return prompts[0]


THINK = "<think>\n"
OPENED = [ASSISTANT, *ENCODE(THINK)]


def agents_turns(notation: Callable[..., str]) -> list[list[str]]:
    """Ten calls and an answer, thought about, with what re-serialising changes: order, spaces, 2.0, escapes, blanks."""
    turns = []
    for number in range(10):
        call = notation(
            NAMES[number % 2], path=f"{number}.md", content='a  "b"\n\té', lines=number, scale=2.0, flags=["z", "a"]
        )
        said = ["", "I look first.\n\n"][number % 3 == 1]
        turns.append([f"thought {number}\n", "</think>\n\n", said, call, "\n" if number % 4 == 3 else ""])
    return [*turns, ["that is all\n</think>\n\n", "Done: 10 files. "]]


# ------------------------------------------------------------------------------------------------- sessions of agents


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("notation", NOTATIONS)
def test_an_agents_turns_are_read_once_however_its_client_sends_them_back(
    notation: str, client: str, stream: bool
) -> None:
    back, shown = CLIENTS[client]
    turns = agents_turns(NOTATIONS[notation])
    with box_with(server={"format": notation}) as box:
        session = Session(box, turns, back, reasoning_format=shown, stream=stream)
        session.ask()
        for number, turn in enumerate(turns[:-1]):
            held = [*session.prompts[-1], *ENCODE("".join(turn))]
            assert session.usage["total_tokens"] == len(held)
            assert len(session.message["tool_calls"]) == 1
            session.take()
            session.ask(session.result("ok"))
            assert session.replayed == number + 1
            assert session.prompts[-1] == [*held, END, TOOL, *ENCODE("ok"), END, *OPENED]
            assert session.cached == len(held)
        session.take()
        assert session.messages[-1]["content"].rstrip().endswith("Done: 10 files.")
        session.ask({"role": "user", "content": "more"})
        last = ENCODE("".join(turns[-1]))
        assert session.prompts[-1] == [*session.prompts[-2], *last, END, USER, *ENCODE("more"), END, ASSISTANT]
        assert session.cached == len(session.prompts[-2]) + len(last)
        assert session.replayed == 11


def test_calls_of_one_turn_come_back_together(box: Box, plain: Box) -> None:
    wrote = xml("write", path="a", content="b") + "\n" + xml("read", lines=3, path="c")
    session = Session(box, [[wrote], ["end"]], hermes)
    session.ask()
    held = [*session.prompts[0], *ENCODE(wrote)]
    session.take()
    assert len(session.messages[-1]["tool_calls"]) == 2
    session.ask(session.result("1"), session.result("2"))
    assert session.prompts[1][: len(held)] == held
    session.messages[2]["tool_calls"].reverse()
    session.ask()
    assert session.replayed == 0
    assert session.prompts[-1] == as_sent(plain, session)


def test_turns_replay_through_the_doors_of_other_apis_too() -> None:
    tool = {"name": "write", "input_schema": TOOLS[1]["function"]["parameters"]}
    wrote = xml("write", path="a", lines=1, content=" b ")
    asked = {"role": "user", "content": json.dumps({"turns": [[wrote], ["end"]]})}
    with box_with(routes=["messages"]) as box, listening(box) as prompts:
        body = {"max_tokens": 999, "tools": [tool]}
        first = box.post("/v1/messages", {**body, "messages": [asked]}).json()
        [used] = [block for block in first["content"] if block["type"] == "tool_use"]
        result = {"type": "tool_result", "tool_use_id": used["id"], "content": "ok"}
        sent = {**used, "input": dict(sorted(used["input"].items()))}
        turns = [{"role": "assistant", "content": [sent]}, {"role": "user", "content": [result]}]
        second = box.post("/v1/messages", {**body, "messages": [asked, *turns]}).json()
    held = [*prompts[0], *ENCODE(wrote)]
    assert prompts[1][: len(held)] == held
    assert second["usage"]["cache_read_input_tokens"] == len(held)


# ---------------------------------------------------------------------------------------------------- what is an edit


def edited(**changes: Any) -> Back:
    def back(message: Message) -> Message:
        def change(text: str) -> str:
            return json.dumps({**json.loads(text), **changes})

        return {**open_webui(message), **calls(message, change)}

    return back


def renamed(message: Message) -> Message:
    sent = open_webui(message)
    sent["tool_calls"][0]["function"]["name"] = "read"
    return sent


def with_other_id(message: Message) -> Message:
    sent = open_webui(message)
    sent["tool_calls"][0]["id"] = "call_0"
    return sent


def with_field(**fields: Any) -> Back:
    return lambda message: {**open_webui(message), **fields}


EDITS = {
    "another value": edited(path="other"),
    "a number as text": edited(lines="1"),
    "a truth for a number": edited(lines=True),
    "another number": edited(scale=2.5),
    "one argument more": edited(more=None),
    "another order in a list": edited(flags=["b", "a"]),
    "another function": renamed,
    "another id": with_other_id,
    "a text beside the call": with_field(content="I did it"),
    "other thoughts": with_field(reasoning_content="quite other thoughts"),
    "other thoughts in tags": with_field(content="<think>\nquite other thoughts\n</think>\n\n"),
}
SAME = {
    "as it was": open_webui,
    "whole numbers": edited(scale=2),
    "a whole number as a float": edited(lines=1.0),
    "blanks as content": with_field(content="\n\n"),
    "no content": with_field(content=None),
    "parts": with_field(content=[{"type": "text", "text": ""}]),
    "its thoughts in a field": with_field(reasoning_content="hm "),
    "its thoughts in tags": with_field(content="<think>\nhm\n</think>\n\n"),
    "an empty block": with_field(content="<think>\n\n</think>\n\n"),
}
WROTE = "hm\n</think>\n\n" + xml("write", path="a", lines=1, scale=2.0, flags=["a", "b"])


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_turn_is_read_exactly_as_it_is_sent(box: Box, plain: Box, edit: str) -> None:
    session = Session(box, [[WROTE], ["</think>", "end"]], EDITS[edit], reasoning_format="reasoning_content")
    session.ask()
    session.take()
    session.ask(session.result())
    assert session.replayed == 0
    assert session.prompts[1] == as_sent(plain, session)
    assert session.cached <= len(session.prompts[0])


@pytest.mark.parametrize("same", SAME)
def test_another_spelling_is_no_edit(box: Box, same: str) -> None:
    session = Session(box, [[WROTE], ["</think>", "end"]], SAME[same], reasoning_format="reasoning_content")
    session.ask()
    held = [*session.prompts[0], *ENCODE(WROTE)]
    session.take()
    session.ask(session.result())
    assert session.prompts[1][: len(held)] == held
    assert session.cached == len(held)


@pytest.mark.parametrize("edit", ["Goodbye.", "Hello", "hello.", "Hello. And more."])
def test_an_edited_answer_is_read_as_it_is_sent(box: Box, plain: Box, edit: str) -> None:
    session = Session(box, [["hm</think>\n\n", "Hello."], ["</think>", "end"]], with_field(content=edit))
    session.ask()
    session.take()
    session.ask({"role": "user", "content": "more"})
    assert session.replayed == 0
    assert session.prompts[1] == as_sent(plain, session)


def test_a_turn_behind_an_edit_is_still_the_models_own(box: Box) -> None:
    session = Session(box, [[WROTE], [WROTE], ["</think>", "end"]], hermes)
    session.ask()
    session.take()
    session.ask(session.result())
    session.take()
    session.messages[1]["content"] += " in other words"
    session.ask(session.result())
    assert session.replayed == 2
    assert session.prompts[2].count(ASSISTANT) == 3
    assert bytes(t for t in session.prompts[2] if t < 256).count(WROTE.encode()) == 2


# -------------------------------------------------------------------------------------------- who gets which thoughts


def test_an_answers_thoughts_stay_in_its_own_conversation(box: Box, plain: Box) -> None:
    turns = [["the secret is 7</think>\n\n", "OK"], ["</think>", "end"]]
    mine = Session(box, turns)
    mine.ask()
    mine.take()
    other = Session(box, [*turns[:1], ["</think>", "other end"]])
    other.messages.append({"role": "assistant", "content": "OK"})
    other.ask({"role": "user", "content": "more"})
    assert other.replayed == 0
    assert other.prompts[0] == as_sent(plain, other)
    mine.ask({"role": "user", "content": "more"})
    assert mine.replayed == 1


def test_another_system_prompt_is_another_conversation_for_a_text(box: Box) -> None:
    session = Session(box, [["hm</think>\n\n", "OK"], ["</think>", "end"]])
    session.ask()
    session.take()
    session.messages[0] = {"role": "system", "content": "You are another."}
    session.ask({"role": "user", "content": "more"})
    assert session.replayed == 0


def test_two_sessions_with_one_call_id_find_their_own_turns(plain: Box) -> None:
    with box_with() as box:
        box.app.state.service.ids = Ids(lambda count: bytes(count))  # all the same
        wrote = [f"thought {n}</think>\n\n" + xml("write", path="a", lines=1) for n in range(2)]
        sessions = [Session(box, [[text], ["</think>", "end"]], hermes, reasoning_format="hidden") for text in wrote]
        for session in sessions:
            session.ask()
            session.take()
        assert sessions[0].messages[2] == sessions[1].messages[2]
        for session, text in zip(sessions, wrote, strict=True):
            held = [*session.prompts[0], *ENCODE(text)]
            session.ask(session.result())
            assert session.prompts[1][: len(held)] == held
        third = Session(box, [["</think>", "no"], ["</think>", "end"]], hermes)
        third.messages.append(sessions[0].messages[2])
        third.ask(third.result())
        assert third.replayed == 0
        assert third.prompts[0] == as_sent(plain, third)


def test_a_call_id_of_another_session_with_other_arguments_is_no_replay(box: Box, plain: Box) -> None:
    first = Session(box, [[WROTE], ["</think>", "end"]], hermes)
    first.ask()
    first.take()
    second = Session(box, [["</think>", "end"], ["</think>", "end"]], hermes)
    second.messages.append(edited(path="mine")(first.message))
    second.ask(second.result())
    assert second.replayed == 0
    assert second.prompts[0] == as_sent(plain, second)


# -------------------------------------------------------------------------------------------- what is known, how long


def test_without_a_disk_turns_are_read_as_they_are_sent_after_a_restart(plain: Box) -> None:
    with box_with() as first:
        session = Session(first, [[WROTE], ["</think>", "end"]], hermes)
        session.ask()
        session.take()
    with box_with() as second:
        session.box = second
        session.ask(session.result())
        assert session.replayed == 0
        assert session.prompts[1] == as_sent(plain, session)
        assert (
            session.message["content"]
            == plain.post(CHAT, {"messages": session.messages}).json()["choices"][0]["message"]["content"]
        )


def test_the_oldest_turns_are_forgotten_first() -> None:
    turns = [[f"thought {number}</think>\n\n" + xml("read", path=str(number))] for number in range(4)]
    with box_with(server={"replay_mib": 0.002}) as box:
        session = Session(box, [*turns, ["</think>", "end"]], hermes)
        for _ in turns:
            session.ask()
            session.take()
            session.messages.append(session.result())
        session.ask()
        store = box.app.state.service._replays.store
        assert 0 < session.replayed < 4
        assert store.stats()["evictions"] > 0
        assert store.stats()["bytes"] <= 0.002 * 2**20
        assert store.check() == []
        said = bytes(token for token in session.prompts[-1] if token < 256).decode()
        assert "thought 3" in said
        assert "thought 0" not in said.partition("<tool_call>")[2].partition("<tool_call>")[2]


def test_with_replay_off_every_turn_is_read_as_it_is_sent(plain: Box) -> None:
    session = Session(plain, [[WROTE], ["</think>", "end"]], hermes)
    session.ask()
    session.take()
    session.ask(session.result())
    assert session.replayed == 0
    assert plain.app.state.service._replays.store.stats()["kept"] == 0


@pytest.mark.parametrize("field", ["store", "cache_prompt"])
def test_a_turn_that_is_not_to_be_kept_is_not(box: Box, plain: Box, field: str) -> None:
    session = Session(box, [[WROTE], ["</think>", "end"]], hermes)
    session.ask(**{field: False})
    session.take()
    session.ask(session.result())
    assert session.replayed == 0
    assert session.prompts[1] == as_sent(plain, session)


# ------------------------------------------------------------------------------------------------ how an answer ended


def test_each_of_several_choices_comes_back_as_it_was_written(box: Box) -> None:
    session = Session(box, [[WROTE], ["</think>", "end"]], hermes)
    session.ask(n=3)
    held = [*session.prompts[0], *ENCODE(WROTE)]
    choices = session.choices
    assert len({choice["tool_calls"][0]["id"] for choice in choices}) == 3
    for choice in choices:
        session.messages = session.messages[:2]
        session.take(choice)
        session.ask(session.result())
        assert session.prompts[-1][: len(held)] == held
        assert session.cached >= len(held)


def test_an_answer_cut_by_the_limit_is_read_up_to_its_last_token(box: Box) -> None:
    session = Session(box, [["hm</think>\n\n", "a long answer"], ["</think>", "end"]], open_webui)
    session.ask(max_tokens=20, reasoning_format="reasoning_content")
    assert session.finish == "length"
    written = ENCODE("hm</think>\n\na long answer")[:20]
    held = [*session.prompts[0], *written]
    session.take()
    session.ask({"role": "user", "content": "go on"})
    assert session.prompts[1][: len(held)] == held
    assert session.cached >= len(held) - 1  # the last token may not have been read yet


def test_a_call_cut_by_the_limit_comes_back_with_its_broken_arguments(box: Box) -> None:
    wrote = xml("write", path="a file", content="long " * 20)
    session = Session(box, [[wrote], ["end"]], lambda message: {**message, "content": ""})
    session.ask(max_tokens=90)
    assert session.finish == "length"
    with pytest.raises(ValueError, match=r"Unterminated|delimiter|Expecting"):
        json.loads(session.message["tool_calls"][0]["function"]["arguments"])
    held = [*session.prompts[0], *ENCODE(wrote)[:90]]
    session.take()
    session.ask(session.result("broken"))
    assert session.prompts[1][: len(held)] == held
    assert session.cached >= len(held) - 1


def test_an_answer_cut_inside_its_reasoning_is_read_as_it_is_sent(box: Box, plain: Box) -> None:
    session = Session(box, [["a long thought</think>\n\n", "x"], ["</think>", "end"]], open_webui)
    session.ask(max_tokens=5, reasoning_format="reasoning_content")
    session.take()
    session.ask({"role": "user", "content": "go on"})
    assert session.replayed == 0
    assert session.prompts[1] == as_sent(plain, session)


def test_what_a_stop_string_cut_off_stays_off(box: Box, plain: Box) -> None:
    session = Session(box, [["one two three"], ["end"]])
    session.ask(stop=["two"])
    assert session.message["content"] == "one "
    session.take()
    session.ask({"role": "user", "content": "more"})
    assert session.replayed == 0
    assert session.prompts[1] == as_sent(plain, session)


def test_calls_that_the_client_was_not_given_do_not_come_back(box: Box, plain: Box) -> None:
    wrote = xml("write", path="a") + "\n" + xml("read", path="b")
    session = Session(box, [[wrote], [xml("read", path="c")], ["end"]], parallel_tool_calls=False)
    session.ask()
    assert len(session.message["tool_calls"]) == 1
    session.take()
    session.ask(session.result())
    assert session.replayed == 0
    assert session.prompts[1] == as_sent(plain, session)
    session.take()
    session.ask(session.result())
    assert session.replayed == 1  # the second turn had one call, and the client has it


def test_a_stray_tag_that_the_client_never_saw_comes_back(box: Box) -> None:
    wrote = "hm\n</think>\n\n\nThe answer.\n</think>\nThe end. "
    session = Session(box, [[wrote], ["</think>", "end"]], reasoning_format="reasoning_content")
    session.ask()
    assert session.message["content"] == "The answer.\nThe end. "
    held = [*session.prompts[0], *ENCODE(wrote)]
    session.take()
    session.ask({"role": "user", "content": "more"})
    assert session.prompts[1][: len(held)] == held
    assert session.cached == len(held)


def test_an_answer_that_goes_on_with_the_clients_own_words_is_not_kept(box: Box, plain: Box) -> None:
    session = Session(box, [["and more"], ["end"]], tools=[])
    session.ask({"role": "assistant", "content": "Words "})
    session.messages[-1] = {"role": "assistant", "content": f"Words {session.message['content']}"}
    session.ask({"role": "user", "content": "more"})
    assert session.replayed == 0
    assert session.prompts[1] == as_sent(plain, session)


def test_a_last_message_that_the_answer_goes_on_with_is_the_clients(box: Box, plain: Box) -> None:
    session = Session(box, [["Words"], ["end"]], tools=[])
    session.ask()
    session.take()
    session.ask()
    assert session.replayed == 0
    assert session.prompts[1] == as_sent(plain, session)


# ------------------------------------------------------------------------------- templates that read reasoning fields


KEEPING = """\
{%- set ns = namespace(last=0) -%}
{%- for m in messages if m.role == "user" %}{% set ns.last = messages.index(m) %}{% endfor -%}
{%- for m in messages -%}
<|{{ m.role }}|>
{%- if m.role == "assistant" and (keep or loop.index0 > ns.last) %}<think>
{{ (m.reasoning_content or "") | trim }}
</think>

{% endif -%}
{{ m.content | trim }}
{%- for c in m.tool_calls or [] %}<tool_call>
<function={{ c.function.name }}>
{% for key, value in c.function.arguments | items %}<parameter={{ key }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor -%}
<|end|>
{%- endfor -%}
{%- if add_generation_prompt %}<|assistant|><think>
{% if enable_thinking is defined and not enable_thinking %}
</think>

{% endif %}{% endif -%}
"""
"""As Qwen's models have it: a block in every turn, empty ones too, or behind the last question only."""


class Reasoner:
    """The scripted model with that template."""

    __name__ = "reasoner"
    TANDEM_API = ">=0.2,<1"

    @hookimpl
    def tandem_models(self) -> list[ModelBuilder]:
        def build(checkpoint: object, options: Options, progress: object) -> ScriptedModel:
            model = ScriptedModel({"reply": "hello", "tokens_per_s": 0, "prefill_per_s": 0})
            model.template = KEEPING
            return model

        return [ModelBuilder(name="reasoner", doc="Reasons.", build=build, needs_checkpoint=False)]


@pytest.fixture(scope="module")
def reasoner() -> Iterator[Box]:
    with box_with(model={"plugin": "reasoner"}, plugins=[Reasoner()]) as box:
        yield box


@pytest.mark.parametrize("back", [hermes, opencode], ids=["left out", "sent back"])
def test_a_template_with_a_field_for_reasoning_gets_the_models_own(reasoner: Box, back: Back) -> None:
    turns = [[WROTE], [WROTE], ["\n\nthought</think>\n\n", "Answer.\n"], ["</think>", "end"]]
    session = Session(reasoner, turns, back, reasoning_format="reasoning_content", chat_template_kwargs={"keep": True})
    session.ask()
    for turn in turns[:-1]:
        held = [*session.prompts[-1], *ENCODE("".join(turn))]
        session.take()
        session.ask(session.result() if session.message.get("tool_calls") else {"role": "user", "content": "more"})
        assert session.prompts[-1][: len(held)] == held
        assert session.cached == len(held)
    assert session.replayed == 3


def test_reasoning_that_the_template_drops_at_a_new_question_is_dropped(reasoner: Box) -> None:
    turns = [[WROTE], ["thought</think>\n\n", "Answer."], [WROTE], ["</think>", "end"]]
    session = Session(reasoner, turns, opencode, reasoning_format="reasoning_content")
    session.ask()
    session.take()
    session.ask(session.result())
    assert session.replayed == 1
    session.take()
    session.ask({"role": "user", "content": "more"})
    assert session.replayed == 0
    assert b"thought" not in bytes(t for t in session.prompts[-1][len(session.prompts[0]) :] if t < 256)
    held = [*session.prompts[-1], *ENCODE(WROTE)]
    session.take()
    session.ask(session.result())
    assert session.replayed == 1
    assert session.prompts[-1][: len(held)] == held
    assert session.cached == len(held)


def test_a_block_that_was_closed_by_the_prompt_stays_closed(reasoner: Box) -> None:
    wrote = xml("write", path="a", lines=1)
    session = Session(reasoner, [[wrote], ["end"]], hermes, enable_thinking=False)
    session.ask()
    held = [*session.prompts[0], *ENCODE(wrote)]
    assert held[: len(session.prompts[0])][-11:] == ENCODE("\n</think>\n\n")
    session.take()
    session.ask(session.result())
    assert session.prompts[1][: len(held)] == held
    assert session.cached == len(held)


# --------------------------------------------------------------------------------------------------- what is compared


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.text(max_size=4), JSON, min_size=1, max_size=4)
ASKED = {"role": "user", "content": "x"}


def turn_with(arguments: Any) -> Message:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "call_1", "function": function}]}


@pytest.fixture(scope="module")
def splicer(box: Box) -> Splicer:
    found: Splicer = box.app.state.service._replays.splicer
    return found


@given(arguments=ARGUMENTS, data=st.data())
def test_arguments_are_equal_in_any_spelling_and_only_then(
    splicer: Splicer, arguments: dict[str, Any], data: st.DataObject
) -> None:
    replays = Replays(ReplayStore(MIB), splicer, None, ByteTokenizer(), frozenset())
    replays.keep(replays.find([ASKED]).context, turn_with(arguments), Written.of([1]))
    keys = data.draw(st.permutations(sorted(arguments)))
    again = json.loads(json.dumps({key: arguments[key] for key in keys}))
    assert list(replays.find([ASKED, turn_with(again), ASKED]).turns) == [1]
    key = data.draw(st.sampled_from(sorted(arguments)))
    other = data.draw(JSON.filter(lambda value: spelled(value) != spelled(arguments[key])))
    assert not replays.find([ASKED, turn_with({**arguments, key: other}), ASKED]).turns


def spelled(value: Any) -> str:
    """The value's only spelling, were all its numbers whole or not."""

    def number(value: Any) -> Any:
        if isinstance(value, float) and value == int(value) and abs(value) <= 2**53:
            return int(value)
        if isinstance(value, dict):
            return {key: number(inner) for key, inner in value.items()}
        return [number(item) for item in value] if isinstance(value, list) else value

    try:
        return json.dumps(number(value), sort_keys=True)
    except OverflowError:  # an infinity
        return repr(value)


def test_arguments_too_deep_to_compare_are_equal_to_nothing(splicer: Splicer) -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    replays = Replays(ReplayStore(MIB), splicer, None, ByteTokenizer(), frozenset())
    replays.keep(replays.find([ASKED]).context, turn_with({"a": deep}), Written.of([1]))
    assert not replays.find([ASKED, turn_with({"a": deep}), ASKED]).turns
