"""The routes that tell about the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tandem.testing.box import Box

CHAT = "/v1/chat/completions"
Script = Callable[..., Any]


def samples(box: Box) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of /metrics by name and labels."""
    text = box.get("/metrics").text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_model_says_what_it_is(box: Box) -> None:
    listed = box.get("/v1/models").json()
    assert listed["object"] == "list"
    [model] = listed["data"]
    assert (model["id"], model["object"], model["owned_by"]) == ("TandemLLM", "model", "tandemllm")
    assert model["context_length"] == box.engine.max_len
    assert model["meta"]["architecture"] == "scripted"
    assert isinstance(model["created"], int)
    assert box.get("/v1/models/TandemLLM").json() == model


def test_the_served_name_is_the_manifests() -> None:
    with Box(model={"plugin": "scripted", "served_name": "org/mine"}) as box:
        assert box.get("/v1/models/org/mine").json()["id"] == "org/mine"
        assert box.chat().body["model"] == "org/mine"


def test_health_counts_and_names_what_failed(box: Box, script: Script) -> None:
    box.post(CHAT, {"messages": script("abc")})
    health = box.get("/health").json()
    assert (health["status"], health["model"]) == ("ok", "TandemLLM")
    lane = {"mode": "on", "running": 0}
    assert health["queue"] == {"running": 0, "waiting": 0, "max_running": 2, "max_queue": 8, "lane": lane}
    assert health["totals"]["completion_tokens"] >= 3
    assert health["plugins"]["failed"] == []
    assert health["plugins"]["states"]["active"] >= 1


def test_plugins_are_listed_with_their_state(box: Box) -> None:
    listed = box.get("/v1/plugins").json()
    assert listed["object"] == "list"
    [scripted] = [p for p in listed["data"] if (p["kind"], p["name"]) == ("models", "scripted")]
    assert scripted["state"] == "active"


def test_metrics_grow_by_exactly_one_request(box: Box, script: Script) -> None:
    before = samples(box)
    answer = box.post(CHAT, {"messages": script("abcd", "e"), "stream": True})
    assert answer.status_code == 200
    after = samples(box)

    def growth(name: str, **labels: str) -> float:
        key = (name, tuple(sorted(labels.items())))
        return after[key] - before.get(key, 0)

    assert growth("tandem_requests_total", finish_reason="stop", client="plain") == 1
    assert growth("tandem_request_success_total") == 1
    assert growth("tandem_http_requests_total", route="chat", code="200") == 1
    assert growth("tandem_generation_tokens_total") == 5
    assert growth("tandem_prefill_tokens_forwarded_total") == growth("tandem_prompt_tokens_total") > 5
    assert growth("tandem_spec_decode_num_draft_tokens_total") == 3
    for name in (
        "time_to_first_token_seconds",
        "time_per_output_token_seconds",
        "e2e_request_latency_seconds",
        "request_queue_seconds",
        "request_prefill_seconds",
        "request_prompt_tokens",
        "request_completion_tokens",
        "request_decode_tokens_per_second",
        "request_prefill_tokens_per_second",
    ):
        assert growth(f"tandem_{name}_count") == 1
    assert after["tandem_requests_running", ()] == after["tandem_requests_waiting", ()] == 0
    assert after["tandem_process_resident_memory_bytes", ()] > 1e6
    assert after["tandem_up", ()] == 1


def test_a_prompt_of_several_choices_is_counted_and_read_once(box: Box, script: Script) -> None:
    names = ["prompt_tokens", "prefill_tokens_forwarded", "generation_tokens"]
    keys = [(f"tandem_{name}_total", ()) for name in names]
    before = samples(box)
    usage = box.post(CHAT, {"messages": script("ab"), "n": 4}).json()["usage"]
    after = samples(box)
    assert [after[key] - before[key] for key in keys] == [usage["prompt_tokens"], usage["prompt_tokens"], 8]


def test_every_status_is_counted_under_its_route(box: Box) -> None:
    before = samples(box)
    box.post(CHAT, {})
    box.get("/nowhere")
    box.get("/v1/models/other")
    after = samples(box)
    for route, code in (("chat", "400"), ("other", "404"), ("models", "404")):
        key = ("tandem_http_requests_total", (("code", code), ("route", route)))
        assert after[key] - before.get(key, 0) == 1


def test_two_servers_in_one_process_count_apart() -> None:
    with Box() as one, Box() as other:
        one.chat()
        key = ("tandem_request_success_total", ())
        assert (samples(one)[key], samples(other)[key]) == (1, 0)


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/v1/plugins"])
def test_a_head_request_has_no_body(http: httpx2.Client, path: str) -> None:
    response = http.head(path)
    assert (response.status_code, response.content) == (200, b"")
