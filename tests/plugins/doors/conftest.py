"""A served box with both doors, each API's own client, and a host whose answer the test writes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import anthropic
import openai
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from tandem.core.plugin import AnswerEvent
from tandem.plugins.doors import messages, responses
from tandem.testing.box import Box
from tandem.testing.server import serving

CALL = "<tool_call>\n<function=look>\n<parameter=query>\n{query}\n</parameter>\n</function>\n</tool_call>"


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    """The scripted model behind both doors."""
    with Box(formats=["qwen_xml"], routes=["responses", "messages"]) as running:
        yield running


@pytest.fixture(scope="module")
def gpt(box: Box) -> Iterator[openai.OpenAI]:
    """OpenAI's own client, which tries nothing twice."""
    with openai.OpenAI(base_url=f"{box.url}/v1", api_key="none", max_retries=0, timeout=20) as client:
        yield client


@pytest.fixture(scope="module")
def claude(box: Box) -> Iterator[anthropic.Anthropic]:
    """Anthropic's own client, which tries nothing twice."""
    with anthropic.Anthropic(base_url=box.url, api_key="none", max_retries=0, timeout=20) as client:
        yield client


@pytest.fixture(scope="module")
def script() -> Callable[..., str]:
    """The text that makes the scripted model write these entries."""

    def told(*entries: Any, end: bool = True) -> str:
        return json.dumps({"script": entries, "end": end})

    return told


@pytest.fixture(scope="module")
def call() -> Callable[[str], str]:
    """A call of `look` as the scripted model's family writes it."""
    return lambda query: CALL.format(query=query)


class HandHost:
    """A host that answers with the events it was given; an exception among them is raised in its place."""

    served_name = "by-hand"

    def __init__(self, *events: AnswerEvent | Exception) -> None:
        self.events = events
        self.asked: list[tuple[Mapping[str, Any], Mapping[str, str]]] = []
        self.closed = 0

    async def chat(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> AsyncIterator[AnswerEvent]:
        self.asked.append((body, headers))
        try:
            for event in self.events:
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            self.closed += 1


@pytest.fixture
def hand() -> Iterator[Callable[..., tuple[str, HandHost]]]:
    """Serves both doors over a `HandHost`: `url, host = hand(ContentDelta("a"), RequestError(500, "broken"))`."""
    with ExitStack() as life:

        def serve(*events: AnswerEvent | Exception) -> tuple[str, HandHost]:
            host: Any = HandHost(*events)
            declared = [
                *responses.build({}, host),
                *messages.build({"thinking": "off"}, host),
            ]
            app = Starlette(routes=[Route(item.path, item.handler, methods=list(item.methods)) for item in declared])
            return life.enter_context(serving(app)), host

        yield serve
