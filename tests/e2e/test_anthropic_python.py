"""The Python SDK of Anthropic against the server's door for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import anthropic
import pytest

from .conftest import Served
from .telling import SLOW, call, plan, script

pytestmark = pytest.mark.e2e

MODEL = "TandemLLM"
SQUARE = {
    "name": "square",
    "description": "The square of an integer.",
    "input_schema": {"type": "object", "properties": {"of": {"type": "integer"}}, "required": ["of"]},
}


@pytest.fixture
def client(server: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as made:
        yield made


def said(content: str) -> list:
    return [{"role": "user", "content": content}]


def test_a_message(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(
        model=MODEL, max_tokens=100, system="Be kind.", messages=said(script("Hello ", "ü😀."))
    )
    assert [block.text for block in answer.content] == ["Hello ü😀."]
    assert (answer.stop_reason, answer.usage.output_tokens) == ("end_turn", len("Hello ü😀.".encode()))


def test_a_streamed_message(client: anthropic.Anthropic) -> None:
    with client.messages.stream(model=MODEL, max_tokens=100, messages=said(script("one ", "two ", "three"))) as stream:
        assert "".join(stream.text_stream) == "one two three"
        final = stream.get_final_message()
    assert final.stop_reason == "end_turn"
    assert final.content[0].text == "one two three"


def test_limits_and_stop_sequences(client: anthropic.Anthropic) -> None:
    short = client.messages.create(model=MODEL, max_tokens=3, messages=said(script("one two")))
    assert (short.content[0].text, short.stop_reason) == ("one", "max_tokens")
    cut = client.messages.create(
        model=MODEL, max_tokens=100, messages=said(script("one two three")), stop_sequences=[" three"]
    )
    assert (cut.content[0].text, cut.stop_reason, cut.stop_sequence) == ("one two", "stop_sequence", " three")


def test_thinking_is_a_block_of_its_own_and_may_come_back(client: anthropic.Anthropic) -> None:
    asked = {"model": MODEL, "max_tokens": 4000, "thinking": {"type": "enabled", "budget_tokens": 2000}}
    told = plan(["I think.\n", "</think>\n\n", "I say."], ["Again.\n", "</think>\n\n", "I said."])
    first = client.messages.create(messages=said(told), **asked)
    assert [block.type for block in first.content] == ["thinking", "text"]
    assert (first.content[0].thinking.strip(), first.content[1].text) == ("I think.", "I say.")
    history = [*said(told), {"role": "assistant", "content": first.content}, *said("And?")]
    with client.messages.stream(messages=history, **asked) as stream:
        kinds = [event.type for event in stream]
        second = stream.get_final_message()
    assert "thinking" in kinds
    assert second.content[1].text == "I said."


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_round(client: anthropic.Anthropic, streamed: bool) -> None:
    messages = said(plan(["I compute. ", f"{call('square', of=2)}\n{call('square', of=3)}"], "Four and nine."))

    def ask() -> anthropic.types.Message:
        asked = {"model": MODEL, "max_tokens": 500, "tools": [SQUARE], "messages": messages}
        if not streamed:
            return client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            return stream.get_final_message()

    first = ask()
    assert first.stop_reason == "tool_use"
    assert [block.type for block in first.content] == ["text", "tool_use", "tool_use"]
    uses = [block for block in first.content if block.type == "tool_use"]
    assert [use.input for use in uses] == [{"of": 2}, {"of": 3}]
    results = [{"type": "tool_result", "tool_use_id": use.id, "content": str(use.input["of"] ** 2)} for use in uses]
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    assert ask().content[0].text == "Four and nine."


def test_a_forced_tool(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(
        model=MODEL,
        max_tokens=400,
        tools=[SQUARE],
        tool_choice={"type": "tool", "name": "square"},
        messages=said(script("I would rather talk.")),
    )
    (use,) = [block for block in answer.content if block.type == "tool_use"]
    assert isinstance(use.input["of"], int)


def test_the_tool_runner_calls_until_there_is_an_answer(client: anthropic.Anthropic) -> None:
    seen = []

    @anthropic.beta_tool
    def square(of: int) -> str:
        """The square of an integer.

        Args:
            of: Any integer.
        """
        seen.append(of)
        return str(of * of)

    runner = client.beta.messages.tool_runner(
        model=MODEL,
        max_tokens=500,
        tools=[square],
        messages=said(plan(call("square", of=12), call("square", of=144), "It is 20736.")),
    )
    assert runner.until_done().content[0].text == "It is 20736."
    assert seen == [12, 144]


def test_errors_are_exceptions_of_their_kind(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(model=MODEL, max_tokens=10, messages=said("x"), extra_body={"temperature": 9})
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(model=MODEL, max_tokens=0, messages=said("x"))


def test_a_full_server_is_an_overloaded_error(serve: Callable[..., Served]) -> None:
    small = serve("server.parallel=1", "server.max_queue=0")
    client = anthropic.Anthropic(base_url=small.url, api_key="none", max_retries=0)
    asked = {"model": MODEL, "max_tokens": 1000}
    holding = client.messages.create(messages=said(script(*SLOW * 20)), stream=True, **asked)
    with pytest.raises(anthropic.APIStatusError) as full:
        client.messages.create(messages=said(script("x")), **asked)
    assert full.value.status_code in (503, 529)
    assert full.value.body["error"]["type"] == "overloaded_error"
    patient = client.with_options(max_retries=5)
    assert patient.messages.create(messages=said(script("x")), **asked).content[0].text == "x"
    holding.close()


def test_leaving_a_stream_frees_its_place(client: anthropic.Anthropic, server: Served) -> None:
    stream = client.messages.create(model=MODEL, max_tokens=1000, messages=said(script(*SLOW, end=False)), stream=True)
    next(iter(stream))
    assert server.running() == 1
    stream.close()
    server.idle(5)
