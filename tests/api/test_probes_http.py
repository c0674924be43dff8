"""Clients that ask what kind of server this is get a quiet no."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse

from tandem.api.probes import PROBES
from tandem.core.plugin import Host, HttpRoute, Routes, hookimpl
from tandem.testing.box import Box

BEFORE_A_TURN = (
    ("GET", "/api/v1/models"),
    ("GET", "/api/tags"),
    ("GET", "/v1/props"),
    ("GET", "/props"),
    ("GET", "/version"),
    ("POST", "/api/show"),
)
"""What the Hermes agent asks."""


def asked(box: Box, method: str, path: str) -> Any:
    return box.get(path) if method == "GET" else box.post(path, {"name": "TandemLLM"})


def count(box: Box, route: str, code: int) -> float:
    line = f'tandem_http_requests_total{{code="{code}",route="{route}"}} '
    found = [row for row in box.get("/metrics").text.splitlines() if row.startswith(line)]
    return float(found[0].rpartition(" ")[2]) if found else 0.0


def test_each_is_a_404_of_the_usual_shape_that_no_log_holds(box: Box, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="tandem"):
        for method, path in [*BEFORE_A_TURN, *((m, p) for p in PROBES for m in ("GET", "POST"))]:
            response = asked(box, method, path)
            assert response.status_code == 404
            assert list(response.json()) == ["error"]
            error = response.json()["error"]
            assert list(error) == ["message", "type", "param", "code"]
            assert (error["type"], error["code"]) == ("invalid_request_error", "not_found")
            assert path in error["message"]
    assert caplog.text == ""


def test_they_have_a_name_of_their_own_in_the_metrics() -> None:
    with Box() as box:
        for method, path in BEFORE_A_TURN:
            asked(box, method, path)
        asked(box, "GET", "/props/")
        asked(box, "GET", "/nowhere")
        assert (count(box, "probe", 404), count(box, "other", 404)) == (len(BEFORE_A_TURN) + 1, 1)
        assert "tandem_errors_total{" not in box.get("/metrics").text


def test_what_they_look_for_is_in_the_models_entry(box: Box) -> None:
    [model] = box.get("/v1/models").json()["data"]
    assert model["context_length"] == box.engine.max_len > 0
    assert box.get(f"/v1/models/{model['id']}").json()["context_length"] == box.engine.max_len


class Tags:
    """A plugin that answers one of them."""

    @hookimpl
    def tandem_routes(self) -> list[Routes]:
        async def tags(request: Request) -> JSONResponse:
            return JSONResponse({"models": []})

        def build(options: Mapping[str, Any], host: Host) -> list[HttpRoute]:
            return [HttpRoute("/api/tags", tags)]

        return [Routes(name="tags", build=build)]


def test_a_plugin_may_serve_one_and_then_it_is_no_probe() -> None:
    with Box(plugins=[Tags()], routes=["tags"]) as box:
        assert box.get("/api/tags").json() == {"models": []}
        assert (count(box, "probe", 404), count(box, "other", 200)) == (0, 1)
