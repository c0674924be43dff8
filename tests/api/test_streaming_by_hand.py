"""What a stream does at given moments, over an engine that the test moves by hand."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tandem.api import stream as stream_module
from tandem.core.engine.request import Failed, Finished, Piece, PrefillProgress, Refused, Stats
from tandem.testing import sse
from tandem.testing.server import until

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello"}]}
Hand = Callable[..., Any]


@pytest.fixture
def ask(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Posts in the background: the test moves the engine meanwhile and takes the response later."""
    with ThreadPoolExecutor() as pool:
        yield lambda server, path=CHAT, **fields: pool.submit(server.http.post, path, json={**HELLO, **fields})


def test_a_batch_of_events_is_one_write_and_still_one_chunk_a_piece(hand: Hand, ask: Any) -> None:
    server = hand()
    response = ask(server, stream=True)
    job = server.engine.job()
    job.send(Piece("a"), Piece(""), Piece("b"))
    job.finish("c", prompt_tokens=5, completion_tokens=4)
    chunks = [event.json() for event in sse.events([response.result().content])[:-1]]
    assert [c["choices"][0]["delta"].get("content") for c in chunks] == ["", "a", "b", "c", None]


def test_a_silent_stream_sends_comments_by_the_clock_in_queue_and_decode(hand: Hand) -> None:
    server = hand(keepalive_s=0.1)
    with server.http.stream("POST", CHAT, json={**HELLO, "stream": True}) as response:
        reader = sse.read(response.iter_raw())
        assert next(reader) == sse.Comment("waiting, position 1, 0 s so far")
        server.engine.wait = 37.0
        assert next(reader) == sse.Comment("waiting, position 1, about 40 s, 0 s so far")
        job = server.engine.job()
        job.send(Piece("a"))
        first, second = next(reader), next(reader)
        assert isinstance(first, sse.Event)
        assert isinstance(second, sse.Event)
        assert second.json()["choices"][0]["delta"] == {"content": "a"}
        assert next(reader) == sse.Comment("keep-alive")
        job.finish()
        assert [isinstance(item, sse.Event) and item.done for item in reader][-1]


def test_a_stream_that_speaks_needs_no_comments(hand: Hand, ask: Any) -> None:
    server = hand(keepalive_s=0.3)
    response = ask(server, stream=True)
    job = server.engine.job()
    for _ in range(8):
        job.send(Piece("a"))
        time.sleep(0.1)
    job.finish()
    assert sse.comments([response.result().content]) == []


def test_a_long_prefill_tells_its_progress_at_most_once_a_second(
    hand: Hand, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "PREFILL_QUIET_S", 0.2)
    monkeypatch.setattr(stream_module, "PREFILL_EVERY_S", 0.2)
    server = hand()
    response = ask(server, stream=True)
    job = server.engine.job()
    job.send(PrefillProgress(1, 9))  # too early to speak
    time.sleep(0.3)
    job.send(PrefillProgress(2, 9))
    job.send(PrefillProgress(3, 9))  # too soon after the last
    time.sleep(0.3)
    job.send(PrefillProgress(4, 9))
    job.finish("a")
    assert sse.comments([response.result().content]) == ["prefill 2/9", "prefill 4/9"]


def test_a_failure_before_the_first_byte_is_a_status(hand: Hand, ask: Any) -> None:
    server = hand()
    for number, streamed in enumerate((True, False)):
        response = ask(server, stream=streamed)
        server.engine.job(number).send(Failed("the model failed: boom", Stats()))
        assert response.result().status_code == 500
        assert response.result().json()["error"]["message"] == "the model failed: boom"
        assert response.result().headers["x-tandem-client"] == "plain"
    assert server.metric('tandem_errors_total{type="internal_error"}') == 2
    assert server.metric('tandem_requests_total{client="plain",finish_reason="error"}') == 2


def test_a_failure_in_mid_stream_sends_what_there_is_and_an_error_beside_the_finish(hand: Hand, ask: Any) -> None:
    server = hand()
    response = ask(server, stream=True)
    job = server.engine.job()
    job.send(Piece("a"))
    job.send(Piece("b"), Failed("the model failed: boom", Stats()))
    *chunks, last, done = sse.events([response.result().content])
    assert [chunk.json()["choices"][0]["delta"].get("content") for chunk in chunks] == ["", "a", "b"]
    assert last.json()["choices"][0]["finish_reason"] == "error"
    assert last.json()["error"]["message"] == "the model failed: boom"
    assert done.done


def test_an_answer_cut_off_by_the_engines_end_says_so(hand: Hand, ask: Any) -> None:
    server = hand()
    response = ask(server, stream=True)
    server.engine.job().send(Piece("a"))
    server.engine.job().send(Finished("abandoned", Stats()))
    last = sse.events([response.result().content])[-2].json()
    assert last["choices"][0]["finish_reason"] == "error"
    assert last["error"]["code"] == "draining"


def test_a_timeout_is_a_finish_reason(hand: Hand, ask: Any) -> None:
    server = hand()
    streamed, plain = ask(server, stream=True), None
    server.engine.job().finish("a", reason="timeout")
    assert sse.events([streamed.result().content])[-2].json()["choices"][0]["finish_reason"] == "timeout"
    plain = ask(server)
    server.engine.job(1).finish("a", reason="timeout")
    assert plain.result().json()["choices"][0]["finish_reason"] == "timeout"


@pytest.mark.parametrize(("code", "seconds"), [("queue_full", 5), ("draining", 30), ("no_model", 60)])
@pytest.mark.parametrize("streamed", [True, False])
def test_a_refusal_is_a_503_that_says_when_to_come_back(hand: Hand, code: str, seconds: int, streamed: bool) -> None:
    server = hand()
    server.engine.refusal = Refused(code, "not now", seconds)
    response = server.http.post(CHAT, json={**HELLO, "stream": streamed})
    assert response.status_code == 503
    assert response.headers["retry-after"] == str(seconds)
    error = response.json()["error"]
    assert (error["code"], error["message"]) == (code, "not now")
    assert server.metric(f'tandem_requests_refused_total{{reason="{code}"}}') == 1
    assert server.metric('tandem_requests_total{client="plain",finish_reason="refused"}') == 1


def test_a_plain_request_that_waits_too_long_is_a_429(hand: Hand, ask: Any) -> None:
    server = hand(queue_timeout_s=0.2)
    response = ask(server).result()
    assert response.status_code == 429
    assert response.headers["retry-after"] == "10"
    assert response.json()["error"]["code"] == "queue_timeout"
    assert server.engine.job().cancelled


def test_a_plain_request_that_runs_is_not_ended_by_the_queues_limit(hand: Hand, ask: Any) -> None:
    server = hand(queue_timeout_s=0.2)
    response = ask(server)
    server.engine.job().start()
    time.sleep(0.4)
    server.engine.job().finish("late")
    assert response.result().json()["choices"][0]["message"]["content"] == "late"


def test_a_streamed_request_waits_as_long_as_one_may_run(hand: Hand, ask: Any) -> None:
    server = hand(queue_timeout_s=0.1, request_timeout_s=0.5, keepalive_s=0.1)
    began = time.monotonic()
    events = sse.events([ask(server, stream=True).result().content])
    assert time.monotonic() - began > 0.5
    assert events[-2].json()["error"]["code"] == "queue_timeout"
    assert events[-1].done
    assert server.engine.job().cancelled


def test_while_the_server_drains_health_and_new_requests_say_so(hand: Hand) -> None:
    server = hand()
    assert server.http.get("/health").json()["status"] == "ok"
    server.engine.draining = True
    health = server.http.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "draining")
    response = server.http.post(CHAT, content=b"not even read")
    assert (response.status_code, response.headers["retry-after"]) == (503, "30")
    assert server.metric("tandem_up") == 0


def test_n_choices_run_side_by_side_and_a_full_queue_only_delays_the_others(hand: Hand, ask: Any) -> None:
    server = hand()
    response = ask(server, n=4, seed=7)
    first, second = server.engine.job(0), server.engine.job(1)
    server.engine.refusal = Refused("queue_full", "full", 5)
    second.finish("b")
    time.sleep(0.05)
    assert len(server.engine.jobs) == 2
    server.engine.refusal = None
    first.finish("a")
    server.engine.job(3).finish("d")
    server.engine.job(2).finish("c")
    assert [choice["message"]["content"] for choice in response.result().json()["choices"]] == ["a", "b", "c", "d"]
    seeds = [job.request.sampling.seed for job in server.engine.jobs]
    assert seeds[0] == 7
    assert len(set(seeds)) == 4


def test_one_broken_choice_drops_the_others(hand: Hand, ask: Any) -> None:
    server = hand()
    response = ask(server, n=2)
    first, second = server.engine.job(0), server.engine.job(1)
    first.send(Failed("boom", Stats()))
    assert response.result().status_code == 500
    assert second.cancelled


@pytest.mark.parametrize("streamed", [True, False])
def test_a_fault_of_the_server_is_a_500_without_its_traceback_and_logged_once(
    hand: Hand, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, streamed: bool
) -> None:
    server = hand()

    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(server.engine, "submit", broken)
    with caplog.at_level(logging.ERROR):
        response = server.http.post(CHAT, json={**HELLO, "stream": streamed})
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "secret" not in response.text
    assert len([record for record in caplog.records if record.exc_info]) == 1
    assert server.metric('tandem_http_requests_total{code="500",route="chat"}') == 1


def test_a_fault_in_mid_stream_ends_it_with_an_error_and_is_logged_once(
    hand: Hand, ask: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = hand()
    response = ask(server, stream=True)
    job = server.engine.job()
    job.send(Piece("a"))
    until(lambda: server.metric("tandem_requests_running") == 1)

    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a secret")

    with caplog.at_level(logging.ERROR):
        monkeypatch.setattr(stream_module, "usage", broken)
        job.finish("b")
        *_, last, done = sse.events([response.result().content])
    assert last.json()["error"]["type"] == "server_error"
    assert "secret" not in last.data
    assert done.done
    assert len([record for record in caplog.records if record.exc_info]) == 1
