"""Many requests of every kind from several clients, some of whom leave: nothing wrong, nothing stuck, nothing left."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from soak_plan import Planner
from soak_real import RealPlanner
from soak_run import ASIDE, Outcome, check_ledger, soak
from soak_server import WatchedServer

SCRIPTED = """\
tandem: 1
extends: scripted
model: {{vision: true, prefill_per_s: 400000}}
drafters: [lookup, suffix]
choosers: {{staircut: {{measure_s: 0.2}}}}
caches: {{resident: {{gib: 0.05, conversations: 8}}, state_store: {{gib: 0.05}}}}
server:
  parallel: 3
  max_queue: 3
  keepalive_s: 0.1
  replay_mib: 1
  torch_threads: 1
  max_len: 250000
  ledger: {ledger}
"""

SMOLLM2 = """\
tandem: 1
extends: default
drafters: [lookup, suffix]
choosers: {{staircut: {{measure_s: 0.5}}}}
caches:
  resident: {{gib: 0.05, conversations: 4}}
  state_store: {{gib: 0.05}}
  disk: {{gib: 0.05, leave_free_gib: 0, admit_after: 1, min_tokens: 16}}
server: {{parallel: 2, max_queue: 4, keepalive_s: 0.1, torch_threads: 1, ledger: {ledger}}}
"""

GROWTH = 0.05
"""How much more memory may be held at the end than after the warm-up, as a share."""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the server keeps is the test's own."""
    monkeypatch.setenv("TANDEM_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


@contextmanager
def served(folder: Path, manifest: str) -> Iterator[tuple[WatchedServer, Outcome]]:
    """A server of this manifest for one soak, and the soak's outcome, which is checked at the end.

    Raises AssertionError with the first problems, when there are any.
    """
    ledger = folder / "ledger.sqlite"
    (folder / "soak.yaml").write_text(manifest.format(ledger=ledger), "utf-8")
    outcome = Outcome()
    with WatchedServer(folder, str(folder / "soak.yaml")) as server:
        yield server, outcome
        metrics = server.metrics()
        health = server.health()
        outcome.problems += still_there(server)
        outcome.problems += stopped(server)
    outcome.problems += check_ledger(ledger, outcome, scripted=manifest is SCRIPTED)
    outcome.problems += counted(outcome, metrics)
    if health["plugins"]["failed"]:
        outcome.problems.append(f"parts failed: {health['plugins']['failed']}")
    for name, stats in health["caches"].items():
        if stats["bytes"] > 0.05 * 2**30:
            outcome.problems.append(f"the tier {name} holds more than it may: {stats}")
    print(f"\n{outcome.summary()}")
    assert not outcome.problems, "\n".join(["", *outcome.problems[:20]])


def scripted_soak(folder: Path, count: int, seed: int) -> Outcome:
    with served(folder, SCRIPTED) as (server, outcome):
        soak(server, Planner(random.Random(seed)).visits(count), outcome)
    return outcome


def still_there(server: WatchedServer) -> list[str]:
    """It answers as at the start."""
    body = {"messages": [{"role": "user", "content": '{"script": ["still ", "here"]}'}], "max_tokens": 16}
    headers = {"X-Session-Id": ASIDE}
    answer = httpx2.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=20, trust_env=False)
    return [] if answer.json()["choices"][0]["message"]["content"] else [f"it does not answer any more: {answer.text}"]


def stopped(server: WatchedServer) -> list[str]:
    """It goes down in order, and its log has no fault in it."""
    server.signal()
    code, log = server.wait()
    faults = re.findall(
        r"^.* (?:ERROR|CRITICAL) .*$|^Traceback.*(?:\n .*)*\n.*|^.*never retrieved.*$", log, re.MULTILINE
    )
    return [*([f"exit code {code}"] if code else []), *(f"in the log: {fault}" for fault in faults)]


def counted(outcome: Outcome, metrics: dict[str, float]) -> list[str]:
    """What /metrics counts is what the clients saw."""
    ended = sum(
        value
        for name, value in metrics.items()
        if name.startswith("tandem_requests_total{") and 'finish_reason="refused"' not in name
    )
    answered = sum(bool(one.ask.said) and one.got is not None and one.got.status == 200 for one in outcome.seen)
    left = sum(count for stage, count in outcome.stages.items() if stage not in ("unseen", "refused"))
    wanted = outcome.before + answered + left
    return [] if wanted == ended else [f"/metrics counts {ended} requests, and {wanted} ended"]


def nothing_is_left(outcome: Outcome, warm_after: int = 1) -> None:
    """`warm_after` is the quarter by whose end the caches are full."""
    start, warm, end = outcome.held[0], outcome.held[warm_after], outcome.held[-1]
    assert not Counter(end.threads) - Counter(warm.threads), "threads stay behind"
    assert end.files <= max(start.files, warm.files), "sockets or files stay open"
    assert end.rss <= warm.rss * (1 + GROWTH), "memory grows"


def test_a_small_soak_gives_every_client_its_answer_and_leaves_nothing_behind(state: Path) -> None:
    outcome = scripted_soak(state, 150, seed=1)
    nothing_is_left(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [11])
def test_two_thousand_mixed_requests(state: Path, seed: int) -> None:
    outcome = scripted_soak(state, 2000, seed)
    assert {"queue", "prefill", "decode"} <= outcome.stages.keys()
    nothing_is_left(outcome)


@pytest.mark.slow
def test_two_hundred_requests_to_a_real_model(state: Path) -> None:
    """What it writes for several at once is what it wrote for one alone, up to a near tie."""
    plan = RealPlanner(random.Random(5))
    with served(state, SMOLLM2) as (server, outcome):
        outcome.before = plan.learn(server)
        soak(server, plan.visits(200), outcome, plan.wrong, clients=6)
        assert server.health()["caches"]["disk"]["written"] > 0
    nothing_is_left(outcome, warm_after=2)
