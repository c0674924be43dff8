"""The same clients against a real model: the one that `tandem serve` runs without a manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import anthropic
import openai
import pytest
from pydantic import BaseModel

from .conftest import Served
from .hermes import Hermes
from .opencode import Opencode
from .wire import Wire, tapped

pytestmark = pytest.mark.e2e

MODEL = "TandemLLM"
QUESTION = "What is the capital of France? Answer in one sentence."


class City(BaseModel):
    name: str
    country: str


@pytest.fixture(scope="module")
def smollm2() -> Iterator[Served]:
    with Served("default") as made:
        yield made


@pytest.fixture
def wire(smollm2: Served) -> Iterator[Wire]:
    with tapped(smollm2.url) as made:
        yield made
    smollm2.idle()


@pytest.fixture
def client(smollm2: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{smollm2.url}/v1", api_key="none") as made:
        yield made


def test_opencode_with_a_small_agent(wire: Wire, opencode: Callable[[str], Opencode]) -> None:
    agent = opencode(wire.url)
    small = {"mode": "primary", "prompt": "You are a helpful assistant.", "tools": {"*": False}}
    agent.configure(model={"limit": {"context": 8192, "output": 60}}, agent={"small": small})
    run = agent.run(QUESTION, "--agent", "small", title=None)
    assert run.outcome.code == 0
    assert "Paris" in run.text
    assert [exchange.status for exchange in wire.chats] == [200] * 2
    (session,) = agent.sessions()
    assert session["title"]


def test_opencode_with_all_its_tools(wire: Wire, opencode: Callable[[str], Opencode]) -> None:
    # the model has no notation for calls, so its prompt doesn't hold the tools and is short enough
    agent = opencode(wire.url)
    agent.configure(model={"limit": {"context": 8192, "output": 60}})
    run = agent.run(QUESTION)
    assert (run.outcome.code, run.calls) == (0, [])
    assert run.text
    assert [turn.status for turn in wire.turns] == [200]


def test_hermes_without_tools(wire: Wire, hermes: Callable[[str], Hermes]) -> None:
    agent = hermes(wire.url)
    agent.configure(context_length=65_536, max_tokens=60)
    done = agent.ask(QUESTION, "-t", "clarify")
    assert done.code == 0
    assert "Paris" in done.out
    assert wire.chats[-1].answered["x-tandem-client"] == "hermes"


def test_a_document_of_the_models_own(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "Name the capital of France and its country, as JSON."}],
        response_format=City,
        max_tokens=200,
    )
    assert isinstance(answer.choices[0].message.parsed, City)


def test_a_call_that_the_model_cannot_write_is_refused(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "Look up the capital of France."}]}
    with pytest.raises(openai.BadRequestError, match="no notation for tool calls"):
        client.chat.completions.create(**asked, tools=[openai.pydantic_function_tool(City)], tool_choice="required")


def test_a_stream_and_the_plain_answer_are_one_text(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 40}
    plain = client.chat.completions.create(**asked).choices[0].message.content
    pieces = [piece.choices[0].delta.content or "" for piece in client.chat.completions.create(stream=True, **asked)]
    assert "".join(pieces) == plain
    assert "Paris" in (plain or "")


def test_a_message_and_a_response(smollm2: Served, client: openai.OpenAI) -> None:
    asker = anthropic.Anthropic(base_url=smollm2.url, api_key="none")
    message = asker.messages.create(model=MODEL, max_tokens=40, messages=[{"role": "user", "content": QUESTION}])
    assert "Paris" in message.content[0].text
    response = client.responses.create(model=MODEL, max_output_tokens=40, input=QUESTION)
    assert response.output_text == message.content[0].text
