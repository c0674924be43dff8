"""tool-eval-bench against the server: its fifteen short tool scenarios, for the protocol and not for the score."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .clients import ended, installed, started
from .conftest import Served
from .telling import call

pytestmark = pytest.mark.e2e

Serve = Callable[..., Served]


def judged(server: Served, folder: Path, *more: str) -> list[dict[str, Any]]:
    """Every scenario's result."""
    command = [installed("tool-eval/bin/tool-eval-bench", "tool-eval-bench"), "run", "--short", "--no-live"]
    where = ["--base-url", server.url, "--output-dir", folder / "reports", "--json-file", folder / "told.json"]
    done = ended(started([*command, *where, *more], folder, {"HOME": str(folder)}))
    assert done.code == 0, done.errors
    told = json.loads((folder / "told.json").read_text())
    assert told["status"] == "completed"
    results: list[dict[str, Any]] = told["scores"]["scenario_results"]
    return results


def statuses(server: Served) -> dict[str, int]:
    """How the chat requests were answered: status -> count."""
    found = re.findall(
        r'^tandem_http_requests_total{code="(\d+)",route="chat"} (\S+)', server.get("/metrics").text, re.M
    )
    return {status: int(float(count)) for status, count in found}


def test_a_model_that_always_calls_is_understood_in_every_scenario(serve: Serve, tmp_path: Path) -> None:
    reply = json.dumps("Let me look.\n\n" + call("get_weather", location="Berlin"))
    server = serve(f"model.reply={reply}", "formats=[qwen_xml]")
    results = judged(server, tmp_path)
    assert len(results) == 15
    for result in results:
        # The call was read, run, and its result taken back, again and again; nothing else counted as one.
        assert result["turn_count"] >= 2
        assert set(result["tool_calls_made"]) == {"get_weather(location=Berlin)"}
    assert results[0]["points"] > 0, results[0]["summary"]
    assert list(statuses(server)) == ["200"]


def test_the_small_model_gets_through_every_scenario(serve: Serve, tmp_path: Path) -> None:
    server = serve(manifest="default")
    results = judged(server, tmp_path, "--max-turns", "3", "--backend-kwargs", '{"max_tokens": 100}')
    assert len(results) == 15
    assert list(statuses(server)) == ["200"]
