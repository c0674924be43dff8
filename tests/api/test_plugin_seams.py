"""Client shapes and routes: what plugins add to the server, and what their faults do not do."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import httpx2
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from tandem.core.plugin import Client, ClientMatch, Host, HttpRoute, RequestEvent, Routes, Rule, SafePoint, hookimpl
from tandem.testing.box import Box

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello"}]}


def by_header(options: Mapping[str, Any]) -> Any:
    def recognise(headers: Mapping[str, str], body: Mapping[str, Any]) -> ClientMatch | None:
        if headers.get("x-crash"):
            raise RuntimeError("the shape is broken")
        return ClientMatch(headers["x-kind"], headers.get("x-session")) if "x-kind" in headers else None

    return recognise


def by_body(options: Mapping[str, Any]) -> Any:
    return lambda headers, body: ClientMatch("talker") if body.get("user") == "talker" else None


class Shapes:
    """Two client shapes, and a rule that remembers for whom a request came."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    @hookimpl
    def tandem_clients(self) -> list[Client]:
        return [Client(name="by_header", build=by_header), Client(name="by_body", build=by_body)]

    @hookimpl
    def tandem_rules(self) -> list[Rule]:
        def look(event: RequestEvent, task: Any, sup: Any) -> None:
            self.seen.append(event.client)

        return [Rule("look", at=SafePoint.SP4, check=look)]


def test_the_first_shape_that_matches_names_the_client_everywhere() -> None:
    shapes = Shapes()
    with Box(plugins=[shapes], clients=["by_header", "by_body"], rules={"look": {}}) as box:
        for headers, fields, kind in (
            ({}, {}, "plain"),
            ({"X-Kind": "caller", "X-Session": "s1"}, {}, "caller"),
            ({}, {"user": "talker"}, "talker"),
            ({"X-Kind": "caller"}, {"user": "talker"}, "caller"),
            ({"X-Kind": "two words"}, {}, "two words"),
        ):
            for streamed in (False, True):
                response = box.post(CHAT, {**HELLO, **fields, "stream": streamed}, headers)
                assert response.headers["x-tandem-client"] == kind
                assert shapes.seen.pop() == kind
        assert 'tandem_requests_total{client="talker",finish_reason="stop"} 2.0' in box.get("/metrics").text


def test_an_error_names_the_client_too() -> None:
    with Box(plugins=[Shapes()], clients=["by_header"]) as box:
        response = box.post(CHAT, {"messages": []}, {"X-Kind": "caller"})
        assert (response.status_code, response.headers["x-tandem-client"]) == (400, "caller")


def test_a_shape_that_raises_has_recognised_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with Box(plugins=[Shapes()], clients=["by_header", "by_body"]) as box:
        for _ in range(3):
            response = box.post(CHAT, {**HELLO, "user": "talker"}, {"X-Crash": "1"})
            assert (response.status_code, response.headers["x-tandem-client"]) == (200, "talker")
        assert 'tandem_plugin_faults_total{kind="clients",name="by_header"} 3.0' in box.get("/metrics").text
    assert len([r for r in caplog.records if "by_header" in r.getMessage()]) == 1


def test_a_kind_that_no_header_can_hold_is_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    with Box(plugins=[Shapes()], clients=["by_header"]) as box:
        headers = {b"x-kind": "caf\u00e9".encode("latin-1")}
        response = httpx2.post(f"{box.url}{CHAT}", json=HELLO, headers=headers, trust_env=False)
        assert (response.status_code, response.headers["x-tandem-client"]) == (200, "plain")


class Pages:
    """Routes of every kind: one that works, one that asks the model, one that raises."""

    def __init__(self, *paths: str, methods: tuple[str, ...] = ("GET",)) -> None:
        self.extra = [HttpRoute(path, self.hello, methods) for path in paths]

    @staticmethod
    async def hello(request: Request) -> JSONResponse:
        return JSONResponse({"hello": request.path_params.get("name", "you")})

    @hookimpl
    def tandem_routes(self) -> list[Routes]:
        return [Routes(name="pages", build=self.build)]

    def build(self, options: Mapping[str, Any], host: Host) -> list[HttpRoute]:
        async def asked(request: Request) -> JSONResponse:
            sampling: dict[str, Any] = dict(request.query_params)
            try:
                text = await host.generate([{"role": "user", "content": "Hello"}], **sampling)
            except (ValueError, RuntimeError) as error:
                return JSONResponse({"raised": type(error).__name__, "message": str(error)})
            return JSONResponse({"name": host.served_name, "text": text, "plugins": len(host.plugins())})

        async def missing(request: Request) -> JSONResponse:
            raise HTTPException(404, "no such page")

        async def broken(request: Request) -> JSONResponse:
            raise ZeroDivisionError("a secret")

        return [
            HttpRoute("/pages/hello/{name}", self.hello),
            HttpRoute("/pages/asked", asked),
            HttpRoute("/pages/missing", missing),
            HttpRoute("/pages/broken", broken),
            *self.extra,
        ]


def test_a_plugins_routes_are_served() -> None:
    with Box(plugins=[Pages()], routes=["pages"]) as box:
        assert box.get("/pages/hello/Ada").json() == {"hello": "Ada"}
        assert box.post("/pages/hello/Ada").status_code == 405
        missing = box.get("/pages/missing")
        assert (missing.status_code, missing.json()["error"]["message"]) == (404, "no such page")
        assert box.plugin("routes", "pages")["state"] == "active"


def test_a_route_may_ask_the_model() -> None:
    with Box(plugins=[Pages()], routes=["pages"]) as box:
        answer = box.get("/pages/asked").json()
        assert answer["text"].startswith("Hello from the scripted model")
        assert (answer["name"], answer["plugins"]) == ("TandemLLM", len(box.plugins()))
        assert box.get("/pages/asked?stop=the").json()["text"] == "Hello from "
        wrong = box.get("/pages/asked?temperature=hot").json()
        assert wrong["raised"] == "ValueError"
        assert "temperature" in wrong["message"]
        box.engine.drain()
        assert box.get("/pages/asked").json()["raised"] == "RuntimeError"


def test_a_route_that_raises_is_a_500_without_its_traceback_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with Box(plugins=[Pages()], routes=["pages"]) as box, caplog.at_level(logging.ERROR):
        response = box.get("/pages/broken")
        assert response.status_code == 500
        assert "secret" not in response.text
        assert response.json()["error"]["type"] == "server_error"
        assert 'tandem_plugin_faults_total{kind="routes",name="pages"} 1.0' in box.get("/metrics").text
        assert box.get("/pages/hello/x").status_code == 200
    assert len([record for record in caplog.records if record.exc_info]) == 1


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/health", ("GET",)),
        ("/v1/chat/completions", ("GET", "POST")),
        ("/v1/models/mine", ("GET",)),
        ("/pages/hello/{other}", ("GET",)),
    ],
)
def test_a_route_that_exists_already_fails_its_plugin_whole(path: str, methods: tuple[str, ...]) -> None:
    with Box(plugins=[Pages(path, methods=methods)], routes=["pages"], failures_expected=True) as box:
        record = box.plugin("routes", "pages")
        assert record["state"] == "failed"
        assert f"{methods[-1]} {path} exists already" in record["reason"]
        assert box.get("/pages/hello/x").status_code == 404
        assert box.get("/health").json()["plugins"]["failed"][0]["name"] == "pages"
        assert box.chat().text


def test_a_path_without_its_slash_fails_its_plugin() -> None:
    with Box(plugins=[Pages("no-slash")], routes=["pages"], failures_expected=True) as box:
        assert "/" in box.plugin("routes", "pages")["reason"]
        assert box.get("/pages/hello/x").status_code == 404


def test_another_method_of_a_known_path_is_free() -> None:
    with Box(plugins=[Pages("/v1/models", methods=("DELETE",))], routes=["pages"]) as box:
        assert httpx2.delete(f"{box.url}/v1/models", trust_env=False).json() == {"hello": "you"}
        assert box.get("/v1/models").json()["object"] == "list"
