"""Many requests of every kind from several clients, some of whom leave: nothing wrong, nothing stuck, nothing left."""

from __future__ import annotations

import random
import re
from pathlib import Path

import httpx2
import pytest
from soak_plan import Planner
from soak_run import AFTERWARDS, Outcome, check_ledger, soak
from soak_server import WatchedServer

MANIFEST = """\
tandem: 1
extends: scripted
model: {{vision: true, prefill_per_s: 400000}}
drafters: [lookup, suffix]
choosers: {{staircut: {{measure_s: 0.2}}}}
caches: {{resident: {{gib: 0.05, conversations: 8}}, state_store: {{gib: 0.02}}}}
server:
  parallel: 3
  max_queue: 3
  keepalive_s: 0.1
  replay_mib: 1
  torch_threads: 1
  max_len: 250000
  ledger: {ledger}
"""

GROWTH = 0.05
"""How much more memory may be held at the end than after the warm-up, as a share."""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the server keeps is the test's own."""
    monkeypatch.setenv("TANDEM_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


def scripted_soak(folder: Path, count: int, seed: int) -> Outcome:
    """Raises AssertionError with the first problems, when there are any."""
    ledger = folder / "ledger.sqlite"
    (folder / "soak.yaml").write_text(MANIFEST.format(ledger=ledger), "utf-8")
    with WatchedServer(folder, str(folder / "soak.yaml")) as server:
        outcome = soak(server, Planner(random.Random(seed)).visits(count))
        metrics = server.metrics()
        health = server.health()
        outcome.problems += still_there(server)
        outcome.problems += stopped(server)
    outcome.problems += check_ledger(ledger, outcome)
    outcome.problems += counted(outcome, metrics)
    if health["plugins"]["failed"]:
        outcome.problems.append(f"parts failed: {health['plugins']['failed']}")
    for name, stats in health["caches"].items():
        if stats["bytes"] > {"resident": 0.05, "state_store": 0.02}[name] * 2**30:
            outcome.problems.append(f"the tier {name} holds more than it may: {stats}")
    print(f"\nseed {seed}: {outcome.summary()}")
    assert not outcome.problems, "\n".join([f"seed {seed}", *outcome.problems[:20]])
    return outcome


def still_there(server: WatchedServer) -> list[str]:
    """It answers as at the start."""
    body = {"messages": [{"role": "user", "content": '{"script": ["still ", "here"]}'}]}
    headers = {"X-Session-Id": AFTERWARDS}
    answer = httpx2.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=20, trust_env=False)
    text = answer.json()["choices"][0]["message"]["content"]
    return [] if text == "still here" else [f"it does not answer any more: {text}"]


def stopped(server: WatchedServer) -> list[str]:
    """It goes down in order, and its log has no fault in it."""
    server.signal()
    code, log = server.wait()
    faults = re.findall(r"^.* (?:ERROR|CRITICAL) .*$|^Traceback.*(?:\n .*)*\n.*|^.*never retrieved.*$", log, re.MULTILINE)
    return [*([f"exit code {code}"] if code else []), *(f"in the log: {fault}" for fault in faults)]


def counted(outcome: Outcome, metrics: dict[str, float]) -> list[str]:
    """What /metrics counts is what the clients saw."""
    ended = sum(value for name, value in metrics.items() if name.startswith("tandem_requests_total{"))
    answered = sum(bool(one.ask.said) and one.got is not None and one.got.status == 200 for one in outcome.seen)
    left = sum(count for stage, count in outcome.stages.items() if stage != "unseen")
    refusals = sum(one.refusals for one in outcome.seen)
    wanted = answered + left
    return [] if wanted <= ended <= wanted + refusals else [f"/metrics counts {ended} requests, and {wanted} ended"]


def nothing_is_left(outcome: Outcome) -> None:
    start, warm, end = outcome.held
    assert end.threads <= warm.threads, "threads stay behind"
    assert end.files <= max(start.files, warm.files), "sockets or files stay open"
    assert end.rss <= warm.rss * (1 + GROWTH), "memory grows"


def test_a_small_soak_gives_every_client_its_answer_and_leaves_nothing_behind(state: Path) -> None:
    outcome = scripted_soak(state, 150, seed=1)
    start, warm, end = outcome.held
    assert end.threads <= warm.threads
    assert end.files <= max(start.files, warm.files)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [11])
def test_two_thousand_mixed_requests(state: Path, seed: int) -> None:
    outcome = scripted_soak(state, 2000, seed)
    assert {"queue", "prefill", "decode"} <= outcome.stages.keys()
    nothing_is_left(outcome)
