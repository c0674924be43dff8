"""The memory gate over HTTP: the refusal, the wait, what is told of them, and a process that lives in little room."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tandem.core.engine.meter import Meter
from tandem.testing.box import Box

sys.path.insert(0, str(Path(__file__).parent))  # the model, shared with the child process

import weighty

MIB = 2**20
HERE = Path(__file__).parent


def peak(mib: int) -> float:
    """A peak so many MiB above what this process holds now, in GiB."""
    meter = Meter()
    meter.collect()  # what earlier tests left would be given back in the middle of this one
    return (meter.read().held + mib * MIB) / 2**30


@pytest.fixture
def box() -> Iterator[Box]:
    """Room for a prompt of 1,400 rows (2 x 64 KiB each), and no more. Answers take their time."""
    server = {"parallel": 2, "mem_peak_gib": peak(180), "mem_floor_gib": 0, "side_lane": "off"}
    model = {"plugin": "weighty", "tokens_per_s": 60}
    with Box(model=model, caches={"resident": {}}, server=server, plugins=[weighty]) as box:
        yield box


def memory(box: Box) -> dict[str, Any]:
    told: dict[str, Any] = box.get("/health").json()["memory"]
    return told


def test_what_does_not_fit_is_a_503_that_speaks_of_memory(box: Box) -> None:
    answer = box.chat("x" * 3000, max_tokens=8)
    assert answer.status == 503
    assert int(answer.headers["retry-after"]) > 0
    error = answer.body["error"]
    assert (error["type"], error["code"]) == ("service_unavailable", "insufficient_memory")
    assert "of memory" in error["message"]
    assert "server.mem_peak_gib" in error["message"]
    assert not any(word in error["message"] for word in ("context", "length", "token"))
    assert box.chat("hello", max_tokens=8).status == 200


def test_a_stream_is_refused_before_it_begins(box: Box) -> None:
    answer = box.stream("x" * 3000, max_tokens=8)
    assert answer.status == 503
    assert "retry-after" in answer.headers
    assert answer.body["error"]["code"] == "insufficient_memory"


def test_choices_that_do_not_fit_are_refused_together(box: Box) -> None:
    assert box.chat("x" * 3000, max_tokens=8, n=2).status == 503
    assert box.chat("hello", max_tokens=8, n=2).status == 200


def test_beside_another_one_a_request_waits_for_its_memory_and_is_served(box: Box) -> None:
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda letter: box.chat(letter * 900, max_tokens=20), "ab"))
    assert [answer.status for answer in answers] == [200, 200]
    told = memory(box)
    assert told["counts"]["waits"] == 1
    assert told["counts"]["refused"] == 0
    assert told["events"][0]["outcome"] == "waits"
    assert told["events"][-1]["outcome"] == "opened"
    assert told["events"][-1]["waited_s"] > 0


def test_health_and_metrics_tell_the_limits_and_what_was_done(box: Box) -> None:
    for letter in "abcd":
        assert box.chat(letter * 800, max_tokens=8).status == 200  # 51 MiB each stay in the resident tier
    box.chat("x" * 3000, max_tokens=8)
    told = memory(box)
    assert told["limits"]["ceiling_bytes"] <= told["limits"]["peak_bytes"]
    assert told["held_bytes"] <= told["limits"]["peak_bytes"]
    assert told["counts"]["sheds"] >= 1
    shed = next(event for event in told["events"] if event["shed"])
    assert shed["shed"]["resident"]["freed"] >= 32 * MIB
    assert told["events"][-1]["outcome"] == "refused"
    samples = {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in box.get("/metrics").text.splitlines()
        if line.startswith("tandem_memory_")
    }
    assert samples["tandem_memory_peak_bytes"] == told["limits"]["peak_bytes"]
    assert samples["tandem_memory_shed_bytes_total"] == told["counts"]["shed_bytes"] > 0
    assert samples["tandem_memory_refused_total"] == 1
    assert 'tandem_errors_total{type="insufficient_memory"} 1' in box.get("/metrics").text


def test_without_a_model_there_is_nothing_to_guard() -> None:
    with Box({"extends": "scripted", "model": "off"}) as box:
        assert memory(box) == {}
        assert "tandem_memory_held_bytes" not in box.get("/metrics").text


def can_limit_itself() -> bool:
    """Whether a process here can limit its address space, so that the limit bites."""
    code = "import resource as r; r.setrlimit(r.RLIMIT_AS, (1 << 30, 1 << 30)); bytearray(1 << 31)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    return "MemoryError" in run.stderr


def child(mode: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / "memory_child.py"), "768", "20", mode]
    # The limit counts what glibc reserves: 64 MiB for each thread's arena, and free blocks in the heap, whose
    # pages are given back but not their addresses. So there is one arena, and large blocks are mapped singly.
    env = {**os.environ, "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(2**18)}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)


def refused_in_words_and_served_on(told: dict[str, Any]) -> None:
    """What needs more than there is was refused, and the small ones among it and after it were served."""
    assert len(told["refusals"]) == 5
    for refusal in told["refusals"]:
        assert refusal["status"] == 503
        assert int(refusal["retry_after"]) > 0
        error = refusal["body"]["error"]
        assert error["code"] == "insufficient_memory"
        assert "of memory" in error["message"]
        assert not any(word in error["message"] for word in ("context", "length", "token"))
    assert told["small"] == [200] * 7
    assert told["after"]["memory"]["counts"]["refused"] == 5


def test_under_a_small_peak_a_process_refuses_in_words_keeps_its_caches_and_serves_on() -> None:
    done = child("peak")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["statuses"] == [200] * 20
    refused_in_words_and_served_on(told)
    assert told["kept"]["bytes"] == told["resident"]["bytes"] > 64 * MIB, "nothing was shed for the first of them"
    refusals = [event for event in told["after"]["memory"]["events"] if event["outcome"] == "refused"]
    assert [(event["limit"], event["shed"]) for event in refusals] == [("peak", {})] * 5
    assert all(event["why"] == told["refusals"][0]["body"]["error"]["message"] for event in refusals)


@pytest.mark.skipif(not can_limit_itself(), reason="address-space limits can't be set, or don't bite, on this system")
def test_a_process_with_little_memory_sheds_and_lives() -> None:
    """20 conversations of 64 MiB, all of which the resident tier would keep, in 768 MiB."""
    done = child("gate")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["statuses"] == [200] * 20
    assert told["memory"]["counts"]["sheds"] >= 2
    assert told["memory"]["counts"]["shed_bytes"] > 256 * MIB
    assert told["resident"]["bytes"] > 64 * MIB, "what there is room for is kept"
    assert 20 * 64 * MIB - told["resident"]["bytes"] > 512 * MIB

    refused_in_words_and_served_on(told)

    unguarded = child("open")
    died = unguarded.returncode != 0
    assert died or 500 in json.loads(unguarded.stdout)["statuses"], "without the gate the same work breaks"
