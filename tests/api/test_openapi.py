"""The OpenAPI document: complete, valid, and true of the server that serves it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tandem.api.answer_schemas import ANSWERS
from tandem.api.app import own_routes
from tandem.api.auth import Access, Gate
from tandem.api.fields import TABLES, Disposition
from tandem.api.openapi import ROUTES
from tandem.core.plugin import HttpRoute, Routes, hookimpl
from tandem.testing.box import Box

PAGE = Path(__file__).parents[2] / "docs" / "http.md"
CHAT, COMPLETIONS = "POST /v1/chat/completions", "POST /v1/completions"
GENERATED = (CHAT, "POST /v1/chat/completions/control", COMPLETIONS, "GET /v1/models/{id}")
"""What takes something that can be made up."""


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    model = {"plugin": "scripted", "reply": "Fine."}
    with Box({"formats": ["qwen_xml"]}, model=model, server={"default_max_tokens": 20, "max_len": 4096}) as made:
        yield made


@pytest.fixture(scope="module")
def document(box: Box) -> dict[str, Any]:
    response = box.get("/openapi.json")
    assert response.status_code == 200
    told: dict[str, Any] = response.json()
    return told


# --------------------------------------------------------------------------------------------------- the document


def test_the_document_is_valid(document: dict[str, Any]) -> None:
    schemathesis.openapi.from_dict(document).validate()
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_own_route_is_described_and_no_other(box: Box, document: dict[str, Any]) -> None:
    routes = own_routes(box.app.state.service, Gate())
    own = {(method, route.path.replace(":path", "")): route for route in routes for method in route.methods}
    described = {
        (method.upper(), path): operation
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    assert set(own) == set(described)
    used = set()
    page = PAGE.read_text("utf-8")
    for (method, path), operation in described.items():
        name = f"{method} {path}" if f"{method} {path}" in ROUTES else path
        used.add(name)
        about = ROUTES[name]
        assert operation["summary"] == about.doc
        assert f"| `{method} {path}` | {about.doc}" in page
        access = own[method, path].access
        assert (401 in about.errors) == (access is not Access.OPEN) == ("security" in operation)
    assert used == set(ROUTES)


@pytest.mark.parametrize(
    ("kind", "schema", "required"),
    [("chat", "ChatRequest", "messages"), ("completions", "CompletionRequest", "prompt")],
)
def test_every_field_of_a_request_has_its_type_and_its_sentence(
    document: dict[str, Any], kind: str, schema: str, required: str
) -> None:
    described = document["components"]["schemas"][schema]
    assert described["required"] == [required]
    assert list(described["properties"]) == list(TABLES[kind])
    for name, field in TABLES[kind].items():
        shown = described["properties"][name]
        assert shown["description"].endswith(field.doc)
        takes_null = jsonschema.Draft202012Validator(shown).is_valid(None)
        assert takes_null == (name != required)
        assert (shown == {"description": f"Refused: {field.doc}", "type": "null"}) == (
            field.disposition is Disposition.REFUSED
        )


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    def references(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            yield from ([node["$ref"]] if isinstance(node.get("$ref"), str) else [])
            node = list(node.values())
        for inner in node if isinstance(node, list) else ():
            yield from references(inner)

    named = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(references(document)) <= named
    assert set(ANSWERS) <= set(document["components"]["schemas"])


class Greeter:
    @hookimpl
    def tandem_routes(self) -> list[Routes]:
        async def handler(request: Any) -> Any:
            raise AssertionError("nobody asks")

        route = HttpRoute("/v1/hello/{name:path}", handler, ("GET", "POST"), "Greets.")
        return [Routes(name="hello", doc="Greets.", build=lambda options, host: [route])]


def test_a_plugins_route_is_there_with_its_sentence() -> None:
    with Box(routes=["hello"], plugins=[Greeter()]) as host:
        paths = host.get("/openapi.json").json()["paths"]
    assert set(paths["/v1/hello/{name}"]) == {"get", "post"}
    operation = paths["/v1/hello/{name}"]["get"]
    assert operation["summary"] == "Greets."
    assert operation["operationId"] == "get_v1_hello_name"
    assert [parameter["name"] for parameter in operation["parameters"]] == ["name"]


# ------------------------------------------------------------------------------------------- the server keeps to it


def servable(case: Any) -> Any:
    """A request that fits the document, changed so that most of these reach the model: what a schema can't say."""
    body = _whole(case.body)
    if isinstance(body.get("messages"), list):
        talk = [message for message in body["messages"] if message["role"] not in ("system", "developer")]
        body["messages"] = [*talk, {"role": "user", "content": "Hello"}]
    if isinstance(body.get("prompt"), list):
        body["prompt"] = _ids(body["prompt"])
    if isinstance(body.get("logit_bias"), dict):
        body["logit_bias"] = {str(int(token) % 256): bias for token, bias in body["logit_bias"].items()}
    if body.get("stream"):
        body["n"] = 1
    if body.get("best_of"):
        body["best_of"] = 1
    case.body = body
    return case


def _whole(value: Any) -> Any:
    """Whole numbers without a point, and parts of text in place of images."""
    if isinstance(value, dict):
        if value.get("type") == "image_url":
            return {"type": "text", "text": "an image"}
        return {key: _whole(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_whole(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _ids(prompt: list[Any]) -> list[Any]:
    """Token ids of the scripted model."""
    return [_ids(item) if isinstance(item, list) else item % 256 if isinstance(item, int) else item for item in prompt]


def hold_to_the_document(box: Box, operation: Any, mode: GenerationMode, examples: int) -> Counter[int]:
    """Send so many requests of one operation; the statuses of the answers, each of which was what the document says."""
    made: SearchStrategy[Any] = operation.as_strategy(generation_mode=mode)
    right = mode is GenerationMode.POSITIVE
    statuses: Counter[int] = Counter()

    @settings(
        max_examples=examples,
        derandomize=examples < 1000,  # a quick run finds the same every time
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
        database=None,
    )
    @given(made.map(servable) if right and operation.label in (CHAT, COMPLETIONS) else made)
    def ask(case: Any) -> None:
        response = case.call()
        statuses[response.status_code] += 1
        # What a schema can't say is a 400 all the same; never a 5xx, an undocumented status or another shape.
        case.validate_response(response, excluded_checks=[positive_data_acceptance])
        if response.headers["content-type"][0].startswith("application/json"):
            assert isinstance(response.json(), dict)
        else:
            assert response.text.startswith("data: {")

    ask()
    return statuses


@pytest.fixture(scope="module")
def operations(box: Box) -> dict[str, Any]:
    loaded = schemathesis.openapi.from_url(f"{box.url}/openapi.json")
    return {found.ok().label: found.ok() for found in loaded.get_all_operations()}


EXAMPLES = [25, pytest.param(1500, marks=pytest.mark.slow)]


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("label", GENERATED)
def test_requests_that_fit_the_document_are_answered_as_it_says(
    box: Box, operations: dict[str, Any], label: str, examples: int
) -> None:
    statuses = hold_to_the_document(box, operations[label], GenerationMode.POSITIVE, examples)
    if label in (CHAT, COMPLETIONS):
        assert statuses[200] > examples / 8, "too few of them reach the model"


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("label", [label for label in GENERATED if label.startswith("POST")])
def test_requests_that_do_not_fit_are_a_400(box: Box, operations: dict[str, Any], label: str, examples: int) -> None:
    assert set(hold_to_the_document(box, operations[label], GenerationMode.NEGATIVE, examples)) == {400}


def test_what_only_tells_is_as_the_document_says(box: Box, operations: dict[str, Any]) -> None:
    box.chat("Hello.")
    key = box.get("/v1/conductor/watch").json()["data"][-1]["session"]
    telling = {label: operation for label, operation in operations.items() if label not in GENERATED}
    caches = {"GET /v1/cache/stats", "POST /v1/cache/clear"}
    documents = {label for label in telling if "/conductor/documents/{name}" in label}
    assert {"GET /v1/models", "GET /v1/plugins", "GET /health", "GET /metrics", *caches} == set(telling) - {
        "GET /v1/conductor/config",
        "GET /v1/conductor/events",
        "GET /v1/conductor/watch",
        "GET /v1/conductor/sessions/{key}",
        "GET /v1/conductor/sessions/{key}/export",
        *documents,
    }
    for label, operation in telling.items():
        if label.startswith(("PUT", "POST")) and label in documents:
            continue  # test_documents_http.py changes some
        named = {"name": "profiles"} if label in documents else {"key": key} if "{key}" in label else {}
        case = operation.Case(path_parameters=named)
        case.validate_response(case.call())
