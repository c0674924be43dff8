"""The Python SDK of OpenAI against the server, with the helpers that programs use."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator

import openai
import pytest
from pydantic import BaseModel

from .conftest import Served
from .telling import SLOW, call, plan, script

pytestmark = pytest.mark.e2e

MODEL = "TandemLLM"


class Step(BaseModel):
    explanation: str
    output: str


class Solution(BaseModel):
    """Nested, with a list: what a schema made from classes looks like."""

    steps: list[Step]
    answer: int
    sure: bool | None


class Square(BaseModel):
    """The square of an integer."""

    of: int


SOLUTION = {"steps": [{"explanation": "add", "output": "4"}], "answer": 4, "sure": None}


@pytest.fixture
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def said(content: str) -> list:
    return [{"role": "user", "content": content}]


def test_a_chat_and_its_usage(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=said(script("Hello ", "ü😀.")))
    assert answer.choices[0].message.content == "Hello ü😀."
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len("Hello ü😀.".encode())


def test_a_raw_response_has_its_headers(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=said(script("x")))
    assert raw.headers["x-tandem-client"] == "openai_sdk"
    assert raw.parse().choices[0].message.content == "x"


def test_a_document_becomes_an_object(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=said(script(json.dumps(SOLUTION))), response_format=Solution
    )
    assert answer.choices[0].message.parsed == Solution(**SOLUTION)


def test_a_document_becomes_an_object_whatever_the_model_would_rather_write(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=said(script("Sure! ```json")), response_format=Solution, max_tokens=600
    )
    assert isinstance(answer.choices[0].message.parsed, Solution)


def test_the_stream_helper_gives_events_and_the_document(client: openai.OpenAI) -> None:
    wish = script(*(json.dumps(SOLUTION)[at : at + 9] for at in range(0, 200, 9)))
    with client.chat.completions.stream(model=MODEL, messages=said(wish), response_format=Solution) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= set(kinds)
    assert final.choices[0].message.parsed == Solution(**SOLUTION)
    assert final.choices[0].finish_reason == "stop"


def test_an_answer_cut_by_its_limit_is_no_document(client: openai.OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            model=MODEL, messages=said(script(json.dumps(SOLUTION))), response_format=Solution, max_tokens=10
        )


def test_a_tool_made_from_a_class(client: openai.OpenAI) -> None:
    tools = [openai.pydantic_function_tool(Square)]
    messages = said(plan(call("Square", of=12), "It is 144."))
    first = client.chat.completions.parse(model=MODEL, messages=messages, tools=tools).choices[0]
    assert first.finish_reason == "tool_calls"
    (made,) = first.message.tool_calls or []
    assert made.function.parsed_arguments == Square(of=12)
    messages += [
        first.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": made.id, "content": "144"},
    ]
    assert client.chat.completions.create(model=MODEL, messages=messages).choices[0].message.content == "It is 144."


def test_the_stream_helper_gathers_the_pieces_of_a_call(client: openai.OpenAI) -> None:
    messages = said(plan(f"{call('Square', of=2)}\n{call('Square', of=3)}"))
    tools = [openai.pydantic_function_tool(Square)]
    with client.chat.completions.stream(model=MODEL, messages=messages, tools=tools) as stream:
        ended = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
    assert [event.parsed_arguments for event in ended] == [Square(of=2), Square(of=3)]
    assert [event.index for event in ended] == [0, 1]


def test_a_forced_call(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=said(script("I would rather talk.")),
        tools=[openai.pydantic_function_tool(Square)],
        tool_choice="required",
        max_tokens=400,
    )
    (made,) = answer.choices[0].message.tool_calls or []
    assert isinstance(made.function.parsed_arguments, Square)


def test_several_choices_and_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=said(script("abc")), n=2, logprobs=True, top_logprobs=3
    )
    assert [choice.message.content for choice in answer.choices] == ["abc", "abc"]
    for choice in answer.choices:
        assert choice.logprobs is not None
        entries = choice.logprobs.content or []
        assert "".join(entry.token for entry in entries) == "abc"
        assert all(len(entry.top_logprobs) == 3 for entry in entries)
        assert all(entry.logprob == entry.top_logprobs[0].logprob for entry in entries)


def test_a_stop_string_and_a_limit(client: openai.OpenAI) -> None:
    cut = client.chat.completions.create(model=MODEL, messages=said(script("one two three")), stop=[" three"])
    assert (cut.choices[0].message.content, cut.choices[0].finish_reason) == ("one two", "stop")
    short = client.chat.completions.create(model=MODEL, messages=said(script("one two three")), max_tokens=3)
    assert (short.choices[0].message.content, short.choices[0].finish_reason) == ("one", "length")


def test_plain_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=[script("one"), script("two")])
    assert [choice.text for choice in answer.choices] == ["one", "two"]
    pieces = client.completions.create(model=MODEL, prompt=script("three"), stream=True)
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == "three"


def test_the_list_of_models(client: openai.OpenAI) -> None:
    assert [entry.id for entry in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_errors_are_exceptions_of_their_kind(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model=MODEL, messages=said("x"), top_p=7)
    assert wrong.value.param == "top_p"
    assert "top_p" in wrong.value.message
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("no-such-model")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="n"):
        client.chat.completions.create(model=MODEL, messages=said("x"), n=2, stream=True)


def test_a_full_server_is_tried_again(serve: Callable[..., Served]) -> None:
    small = serve("server.parallel=1", "server.max_queue=0")
    client = openai.OpenAI(base_url=f"{small.url}/v1", api_key="none", max_retries=0)
    holding = client.chat.completions.create(model=MODEL, messages=said(script(*SLOW * 20)), stream=True)
    with pytest.raises(openai.InternalServerError) as full:
        client.chat.completions.create(model=MODEL, messages=said(script("x")))
    assert (full.value.status_code, full.value.code) == (503, "queue_full")
    assert int(full.value.response.headers["retry-after"]) >= 1
    patient = client.with_options(max_retries=5)
    assert patient.chat.completions.create(model=MODEL, messages=said(script("x"))).choices[0].message.content == "x"
    holding.close()


def test_leaving_a_stream_frees_its_place(client: openai.OpenAI, server: Served) -> None:
    stream = client.chat.completions.create(model=MODEL, messages=said(script(*SLOW, end=False)), stream=True)
    next(iter(stream))
    assert server.running() == 1
    stream.close()
    server.idle(5)


def test_a_timeout_frees_the_place(client: openai.OpenAI, server: Served) -> None:
    with pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(model=MODEL, messages=said(script(*SLOW * 100)), timeout=0.5)
    server.idle(5)


def test_many_at_once_each_get_their_own(server: Served) -> None:
    async def ask() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:

            async def one(number: int) -> str | None:
                answer = await client.chat.completions.create(
                    model=MODEL, messages=said(script(f"answer {number}", {"sleep_ms": 20}, "."))
                )
                return answer.choices[0].message.content

            return await asyncio.gather(*(one(number) for number in range(10)))

    assert asyncio.run(ask()) == [f"answer {number}." for number in range(10)]


def test_a_response(client: openai.OpenAI) -> None:
    answer = client.responses.create(model=MODEL, input=said(script("Hello ", "there.")), instructions="Be kind.")
    assert (answer.output_text, answer.status) == ("Hello there.", "completed")


def test_a_response_becomes_an_object(client: openai.OpenAI) -> None:
    answer = client.responses.parse(model=MODEL, input=said(script(json.dumps(SOLUTION))), text_format=Solution)
    assert answer.output_parsed == Solution(**SOLUTION)


def test_a_streamed_response_with_reasoning(client: openai.OpenAI) -> None:
    wish = said(script("I think.\n", "</think>\n\n", "one ", "two"))
    with client.responses.stream(model=MODEL, input=wish) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert [item.type for item in final.output] == ["reasoning", "message"]
    assert final.output_text == "one two"


def test_a_tool_round_over_responses(client: openai.OpenAI) -> None:
    tools = [openai.pydantic_function_tool(Square)["function"] | {"type": "function"}]
    items = said(plan(call("Square", of=12), "It is 144."))
    first = client.responses.create(model=MODEL, input=items, tools=tools)
    (made,) = [item for item in first.output if item.type == "function_call"]
    assert json.loads(made.arguments) == {"of": 12}
    items += [item.model_dump(exclude_none=True) for item in first.output]
    items.append({"type": "function_call_output", "call_id": made.call_id, "output": "144"})
    assert client.responses.create(model=MODEL, input=items, tools=tools).output_text == "It is 144."


def test_what_responses_do_not_have_here_is_refused_by_name(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(model=MODEL, input="x", previous_response_id="resp_1")
