"""The conductor of one server: its documents, its sessions, its journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from dataclasses import replace
from functools import partial
from typing import Any

from tandem.core.conductor.config import MONITOR, Config, Documents
from tandem.core.conductor.events_file import journal_of
from tandem.core.conductor.journal import Journal
from tandem.core.conductor.options import CONDUCTOR_OPTIONS
from tandem.core.conductor.profiles import Profile
from tandem.core.conductor.roster import ON, lowest
from tandem.core.conductor.sessions import Sessions
from tandem.core.conductor.supervisor import Supervisor, Watch
from tandem.core.conductor.sweep import Notifier, Sweep
from tandem.core.kernel import Platform
from tandem.core.plugin import RequestEvent, SafePoint
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
        self.documents = Documents(platform, options)
        tokenizer = platform.model.tokenizer if platform.model is not None else None
        self.supervisor = Supervisor(
            self.journal,
            partial(platform.fail, "rules"),
            sessions=self.sessions,
            tokens=(lambda text: len(tokenizer.encode(text))) if tokenizer is not None else len,
            budget_s=options["rule_budget_ms"] / 1e3,
        )

        self._goes_by: Config | None = None
        self._sweep: Sweep | None = None

    def start(self) -> None:
        """Begin to look at the sessions from outside, when any rule wants to."""
        options = self.options
        rosters = [profile.roster for profile in self.config.profiles.named.values()]
        wanted = any(roster.at(SafePoint.WATCH) for roster in rosters)
        if not options["watch_s"] or not wanted or self._sweep is not None:
            return
        url = options["notify_url"]
        push = Notifier(url, options["notify_token_file"]) if url else None
        self._sweep = Sweep(self.sessions.all, self.begin, self.supervisor.clock, push, options["watch_s"])
        self._sweep.start()

    @property
    def config(self) -> Config:
        """What the next request goes by."""
        config = self.documents.current()
        if config is not self._goes_by:
            self._goes_by = config
            budget_ms = config.policy.budget_ms or self.options["rule_budget_ms"]
            self.supervisor.desk.budget_s = budget_ms / 1e3
        return config

    def profile_of(self, client: str, asked: str | None = None, *, offers_tools: bool = False) -> Profile:
        """The profile of a request: the one that it asks for, else its client's, else the one for tools when it offers
        some, else the default. Raises UnknownProfile."""
        return self.config.profiles.of(client, asked, offers_tools=offers_tools)

    def mode_of(self, asked: str | None, profile: Profile) -> str:
        """The mode of a request that asks for one: it can lower the server's and the profile's, never raise them."""
        return lowest(self.mode, profile.mode, *([asked] if asked else []))

    def begin(self, request: RequestEvent, mode: str | None = None, profile: Profile | None = None) -> Watch:
        """The supervision of a request; without `profile` under the one that the event names, or the client's."""
        if profile is None:
            named = self.config.profiles.named.get(request.profile)
            profile = named or self.profile_of(request.client, offers_tools=bool(request.tools))
        request = replace(request, profile=profile.name)
        return self.supervisor.begin(request, profile.roster, self.mode_of(mode, profile))

    def rewrites(self, mode: str | None, profile: Profile) -> bool:
        """Whether any rule that acts would look at the messages."""
        return self.mode_of(mode, profile) == ON and profile.roster.rewrites

    def rewritten(self, messages: Seq[Mapping[str, Any]], mode: str | None, profile: Profile) -> Seq[Mapping[str, Any]]:
        """The messages as the rules that act want them read."""
        return self.supervisor.rewritten(messages, profile.roster, self.mode_of(mode, profile))

    def report(self) -> dict[str, Any]:
        """For `/health`: the tasks with their modes under the default profile, and what is off or wrong."""
        config = self.config
        profiles = config.profiles
        posts = profiles.named[profiles.settings.default_profile].roster.posts
        return {
            "mode": self.mode,
            "profiles": {name: lowest(self.mode, profile.mode) for name, profile in profiles.named.items()},
            "default_profile": profiles.settings.default_profile,
            "tasks": {post.task.name: post.task.mode for post in posts},
            "not_enabled": list(config.off),
            "policy": config.versions[MONITOR].version,
            "problems": {name: list(wrong) for name, wrong in config.problems.items() if wrong},
            "off": sorted(self.supervisor.off),
            "sessions": len(self.sessions.all()),
        }

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.close()
        self.supervisor.close()
        self.journal.close()
