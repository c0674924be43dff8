"""The conductor of one server: its tasks, its sessions, its journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from functools import partial
from typing import Any

from tandem.core.conductor.events_file import journal_of
from tandem.core.conductor.journal import Journal
from tandem.core.conductor.options import CONDUCTOR_OPTIONS
from tandem.core.conductor.roster import Caps, Roster, lowest
from tandem.core.conductor.sessions import Sessions
from tandem.core.conductor.supervisor import Supervisor, Watch
from tandem.core.kernel import Platform
from tandem.core.plugin import RequestEvent
from tandem.core.plugin.part import with_defaults


class Conductor:
    """Begins the supervision of requests. Thread-safe."""

    def __init__(self, platform: Platform, journal: Journal | None = None) -> None:
        options = with_defaults(CONDUCTOR_OPTIONS, platform.manifest.sections.get("conductor", {}))
        self.options: Mapping[str, Any] = options
        self.mode: str = options["mode"]
        """What the server allows at most."""
        self.journal = journal or journal_of(options["journal"], options["journal_days"])
        self.sessions = Sessions(options["max_sessions"])
        self.roster = Roster.of(
            [(active.name, active.part, active.options) for active in platform.active("rules")],
            caps=Caps(options["acts_per_request"], options["acts_per_session_hour"]),
        )
        tokenizer = platform.model.tokenizer if platform.model is not None else None
        self.supervisor = Supervisor(
            self.journal,
            partial(platform.fail, "rules"),
            sessions=self.sessions,
            tokens=(lambda text: len(tokenizer.encode(text))) if tokenizer is not None else len,
            budget_s=options["rule_budget_ms"] / 1e3,
        )

    def mode_of(self, asked: str | None) -> str:
        """The mode of a request that asks for one: it can lower the server's, never raise it."""
        return lowest(self.mode, asked) if asked else self.mode

    def begin(self, request: RequestEvent, mode: str | None = None) -> Watch:
        return self.supervisor.begin(request, self.roster, self.mode_of(mode))

    def rewritten(self, messages: Seq[Mapping[str, Any]], mode: str | None = None) -> Seq[Mapping[str, Any]]:
        """The messages as the rules that act want them read."""
        return self.supervisor.rewritten(messages, self.roster, self.mode_of(mode))

    def report(self) -> dict[str, Any]:
        """For `/health`."""
        return {
            "mode": self.mode,
            "tasks": {post.task.name: post.task.mode for post in self.roster.posts},
            "off": sorted(self.supervisor.off),
            "sessions": len(self.sessions.all()),
        }

    def close(self) -> None:
        self.supervisor.close()
        self.journal.close()
