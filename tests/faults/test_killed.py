"""A server is killed while it writes; the next one starts, and nothing that it says is wrong."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from fault_server import Answers, StoredServer, right_answers

from tandem.core.engine.ledger import read
from tandem.plugins.caches.disk import format as files


@pytest.fixture(scope="module")
def answers() -> Answers:
    return right_answers()


def ask_until_dead(server: StoredServer, answers: Answers) -> str | None:
    """Ask from two clients until the server is gone; what was wrong until then."""
    wrong: list[str] = []

    def client(reverse: bool) -> None:
        subjects = sorted({subject for subject, _ in answers}, reverse=reverse)
        try:
            while not wrong:
                server.ask(answers, subjects)
        except AssertionError as error:
            wrong.append(str(error))
        except (httpx2.HTTPError, ValueError):
            pass  # it is gone, maybe in the middle of an answer

    clients = [threading.Thread(target=client, args=(reverse,)) for reverse in (False, True)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join(60)
    return wrong[0] if wrong else None


def look_at_the_stores(state: Path) -> None:
    """What a kill leaves is whole, or told apart from what is."""
    for path in state.glob("states/*.state"):
        files.read(path)
    for path in state.glob("prices/*.json"):
        json.loads(path.read_text("utf-8"))
    if (state / "ledger.sqlite").exists():
        read(state / "ledger.sqlite")


def killed_at_random(count: int, seed: int, state: Path, answers: Answers) -> None:
    chance = random.Random(seed)
    for number in range(count):
        if number % 2:
            with StoredServer(state.parent) as server:
                timer = threading.Timer(chance.uniform(0.02, 1.0), server.process.kill)
                timer.start()
                problem = ask_until_dead(server, answers)
                timer.join()
        else:
            problem = None
            try:
                with StoredServer(state.parent, kill_at=chance.randint(1, 40)) as server:
                    killer = threading.Timer(5, server.process.kill)  # where it asks the disk for less than that
                    killer.start()
                    problem = ask_until_dead(server, answers)
                    killer.cancel()
            except AssertionError as error:
                if "did not start" not in str(error):  # it was killed before it was up
                    raise
        assert problem is None, f"seed {seed}, kill {number}: {problem}"
        look_at_the_stores(state)
    with StoredServer(state.parent) as server:
        server.ask(answers)
        assert server.ask(answers) > 0, "the disk tier serves nothing"
        assert server.health()["plugins"]["failed"] == []
        server.stop()
    assert list(state.glob("suffix/*/*.new")) == []


def test_three_kills_in_the_middle_of_writes_do_no_harm(state: Path, answers: Answers) -> None:
    killed_at_random(3, 3, state, answers)


@pytest.mark.slow
def test_many_kills_in_the_middle_of_writes_do_no_harm(state: Path, answers: Answers) -> None:
    began = time.monotonic()
    killed_at_random(30, 4, state, answers)
    print(f"\n30 kills in {time.monotonic() - began:.0f} s")


def test_two_servers_on_one_directory_answer_right_and_leave_each_others_stores_whole(
    state: Path, answers: Answers
) -> None:
    with StoredServer(state.parent) as one, StoredServer(state.parent) as two:
        problems: list[str] = []

        def guarded(work: Callable[[], object]) -> None:
            try:
                work()
            except AssertionError as error:
                problems.append(str(error))

        threads = [
            threading.Thread(target=guarded, args=(lambda server=server: [server.ask(answers) for _ in range(2)],))
            for server in (one, two)
        ]
        for thread in threads:
            thread.start()
        httpx2.post(f"{one.url}/v1/cache/clear", timeout=20, trust_env=False)
        for thread in threads:
            thread.join()
        assert problems == []
        assert "another process writes the suffix store" in two.log()
        one.stop()
        two.stop()
    look_at_the_stores(state)
    assert len(read(state / "ledger.sqlite")) == 2 * 2 * len(answers)
    with StoredServer(state.parent) as third:
        assert third.ask(answers) > 0, "it finds what the two have kept"
        third.stop()
