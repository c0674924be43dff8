"""The watch over the sessions of a running server."""

from __future__ import annotations

from typing import Any

from tandem.core.plugin import Action, IdleEvent, Rule, SafePoint, hookimpl
from tandem.testing.box import Box
from tandem.testing.server import until


class Plugin:
    TANDEM_API = ">=0.2,<0.3"

    def __init__(self, check: Any) -> None:
        self.check = check

    @hookimpl
    def tandem_rules(self) -> list[Rule]:
        return [Rule("r", at=SafePoint.WATCH, check=self.check)]


def look(event: IdleEvent, task: Any, sup: Any) -> Action:
    return Action.notify(f"idle({event.running})")


def test_sessions_are_looked_at_while_the_server_runs_and_not_before_they_ended() -> None:
    with Box(plugins=[Plugin(look)], rules=["r"], conductor={"watch_s": 0.02}) as box:
        assert box.events == []
        box.chat("hi")
        until(lambda: len(box.events) > 1)
        assert {entry["point"] for entry in box.events} == {"watch"}
        assert box.events[0]["reason"] == "idle(False)"


def test_without_a_rule_that_watches_there_is_no_watch() -> None:
    with Box(conductor={"watch_s": 0.02}) as box:
        assert box.engine.conductor._sweep is None


def test_a_compaction_joins_its_session_and_a_title_does_not() -> None:
    headers = {"user-agent": "opencode/1.0", "x-session-id": "ses_1"}
    with Box(clients=["opencode"]) as box:
        sessions = box.engine.conductor.sessions
        box.chat("build a game", headers=headers)
        [state] = sessions.all()
        title = "You are a title generator. You output ONLY a thread title. Nothing else."
        box.chat([{"role": "system", "content": title}, {"role": "user", "content": "x"}], headers=headers)
        assert [one.turns for one in sessions.all()] == [state.turns] == [1]
        summary = "You are a context summarization agent. You are given a conversation between a user and an agent."
        box.chat([{"role": "system", "content": summary}, {"role": "user", "content": "x"}], headers=headers)
        assert [one.turns for one in sessions.all()] == [2]
