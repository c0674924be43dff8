from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from tandem.core.conductor import Journal, Roster, Supervisor
from tandem.core.conductor.sweep import Notifier, Sweep
from tandem.core.plugin import Action, IdleEvent, RequestEvent, Rule, SafePoint


def gone(event: IdleEvent, task: Any, sup: Any) -> Action | None:
    if event.running or event.idle_s < 60 or sup.session.data.get("told"):
        return None
    sup.session.data["told"] = True
    return Action.notify(f"client_gone({event.idle_s / 60:.0f} min)", "Nobody came back.")


class Room:
    def __init__(self, check: Any, push: Any, mode: str = "act") -> None:
        self.now = 1000.0
        self.journal = Journal()
        self.supervisor = Supervisor(self.journal, clock=lambda: self.now, budget_s=0.5)
        roster = Roster.of([("S4", Rule("r", at=SafePoint.WATCH, check=check), {"mode": mode})])
        self.sessions = self.supervisor.sessions
        self.sweep = Sweep(
            self.sessions.all, lambda event: self.supervisor.begin(event, roster), lambda: self.now, push, 0.01
        )

    def ended(self, key: str, ago: float) -> None:
        state = self.sessions.of(key)
        state.ended, state.turns, state.client = self.now - ago, 1, "opencode"


def test_a_session_nobody_comes_back_to_is_told_once() -> None:
    pushed: list[str] = []
    room = Room(gone, lambda text: pushed.append(text) or "sent 200")
    room.ended("a", 600)
    room.ended("b", 5)
    room.sessions.of("new")
    room.sweep.sweep()
    room.sweep.sweep()
    assert pushed == ["Nobody came back."]
    (entry,) = room.journal.entries()
    assert (entry["session"], entry["client"], entry["point"]) == ("a", "opencode", "watch")
    assert (entry["reason"], entry["detail"]) == ("client_gone(10 min)", {"push": "sent 200"})


def test_in_shadow_nothing_is_pushed() -> None:
    pushed: list[str] = []
    room = Room(gone, lambda text: pushed.append(text) or "", mode="shadow")
    room.ended("a", 600)
    room.sweep.sweep()
    assert pushed == []
    assert [(entry["action"], entry["done"]) for entry in room.journal.entries()] == [("notify", False)]


def test_without_an_address_it_says_so() -> None:
    room = Room(gone, None)
    room.ended("a", 600)
    room.sweep.sweep()
    assert room.journal.entries()[0]["detail"] == {"push": "failed: no url"}


def test_the_thread_looks_again_and_again_and_survives_a_rule_that_raises() -> None:
    seen: list[int] = []

    def check(event: IdleEvent, task: Any, sup: Any) -> None:
        seen.append(1)
        if len(seen) == 1:
            raise ValueError("once")

    room = Room(check, None)
    room.ended("a", 600)
    room.sweep.start()
    deadline = time.monotonic() + 10
    while len(seen) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    room.sweep.close()
    assert len(seen) >= 3


def test_a_push_carries_the_text_and_the_token_and_reports_the_status(tmp_path: Path) -> None:
    got: list[tuple[str | None, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            got.append((self.headers.get("authorization"), self.rfile.read(length).decode()))
            self.send_response(200 if len(got) == 1 else 403)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        (tmp_path / "token").write_text("tk_1\n")
        push = Notifier(f"http://127.0.0.1:{server.server_port}/topic", str(tmp_path / "token"))
        assert push("Nobody came back.") == "sent 200"
        assert push("again") == "failed: 403"
        assert got[0] == ("Bearer tk_1", "Nobody came back.")
    finally:
        server.shutdown()
        server.server_close()
    assert Notifier(f"http://127.0.0.1:{server.server_port}/x")("late").startswith("failed: ")
    assert Notifier("http://127.0.0.1:9/x", str(tmp_path / "none"))("x") == "failed: no token file"


def test_a_request_of_the_session_is_not_needed_for_its_data() -> None:
    room = Room(gone, None)
    room.ended("a", 600)
    room.sweep.sweep()
    watch = room.supervisor.begin(RequestEvent((), 1, 1, "opencode", session="a"), Roster())
    assert watch.session.tasks["S4"] == {"told": True}
