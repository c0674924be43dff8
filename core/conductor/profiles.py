"""Profiles: how the tasks of the policy are set for one kind of client, and which profile a request gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tandem.config import DOCUMENTS
from tandem.core.conductor.policy import (
    CAPS,
    DRAFT,
    NAME,
    Duty,
    Known,
    Policy,
    by_line,
    closed,
    shipped_tasks,
    task_schema,
)
from tandem.core.conductor.roster import MODES, ON, Caps, Roster
from tandem.core.kernel import ManifestError, nearest
from tandem.core.kernel.schema import OptionCheck
from tandem.core.kernel.yaml12 import Tree, parse
from tandem.core.plugin.part import option
from tandem.core.plugin.rule import MODE


class UnknownProfile(LookupError):
    """There is no profile of this name. The message names the nearest."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A checked profile."""

    name: str
    mode: str = ON
    """What rules may do under it at most: `raw`, `shadow` or `on`."""
    locked: bool = False
    clients: tuple[str, ...] = ()
    """The client kinds that it serves."""
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Task -> what is set otherwise than in the policy: the mode, parameters."""
    caps: Mapping[str, int] = field(default_factory=dict)
    roster: Roster = field(default_factory=Roster)
    """Its tasks, resolved: everything filled in."""

    def resolved(self, duties: Iterable[Duty], caps: Caps, policy: Policy) -> Roster:
        """The roster of these tasks under this profile. It sets tasks of the policy; a rule that has none there is the
        manifest's alone."""
        sets = {task.name: self.tasks[task.name] for task in policy.tasks if task.name in self.tasks}
        tasks = [(name, rule, {**options, **sets.get(name, {})}) for name, rule, options in duties]
        limits = {"acts_per_request": caps.acts_per_request, "acts_per_session_hour": caps.acts_per_session_hour}
        return Roster.of(tasks, caps=Caps(**{**limits, **policy.caps, **self.caps}), texts=policy.texts)


# ---------------------------------------------------------------------------------------------------- the schemas


def profiles_schema(known: Known, policy: Policy) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of all profiles together."""
    task_rules = {**shipped_tasks(), **{task.name: task.rule for task in policy.tasks}}
    tasks = {
        name: {
            "if": {"type": "object"},
            "then": task_schema(known.get(rule)),
            "else": {"enum": MODE["enum"]},
        }
        for name, rule in sorted(task_rules.items())
    }
    profile = closed(
        {
            "about": option("string", "Whom it is for, in a sentence."),
            "mode": option("string", "What rules may do under it at most.", enum=list(MODES)),
            "locked": option("boolean", "Whether it has to stay as it is."),
            "clients": {
                "type": "array",
                "items": {"type": "string", "minLength": 1},
                "description": "The client kinds that it serves.",
            },
            "tasks": {
                **closed(tasks),
                "description": "Task -> a mode, or a mapping of mode and parameters. The others are as in the policy.",
            },
            "caps": {**closed(CAPS), "description": "How much rules may do; the rest is as in the policy."},
        },
        required=["mode"],
    )
    return {
        "$schema": DRAFT,
        "title": "The profiles of the conductor",
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": NAME},
        "additionalProperties": profile,
    }


SETTINGS = {
    "default_profile": option("string", "The profile of a request that nothing else decides about."),
    "tools_profile": option(
        "string",
        "The profile of a request that offers tools, when no profile names its client; empty = the default one.",
    ),
}


def settings_schema(profiles: Iterable[str]) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of the settings."""
    names = list(profiles)
    return {
        "$schema": DRAFT,
        "title": "The settings of the conductor",
        **closed(
            {
                "default_profile": {**SETTINGS["default_profile"], "enum": names},
                "tools_profile": {**SETTINGS["tools_profile"], "enum": [*names, ""]},
            },
            required=["default_profile"],
        ),
    }


# ------------------------------------------------------------------------------------------------------- reading


def read_profiles(tree: Tree, known: Known, policy: Policy) -> dict[str, Profile]:
    """The profiles of a document, and those that are always there. Raises ManifestError with everything wrong."""
    check = OptionCheck(tree, {})
    check.against((), tree.value, profiles_schema(known, policy))
    if check.problems:
        raise ManifestError(by_line(check.problems))
    fixed = locked(shipped("profiles").value)
    for name, value in fixed.items():
        if tree.value.get(name, value) != value:
            check.report((name,), f"`{name}` is locked: leave it as it is shipped")
    serves: dict[str, str] = {}
    for name, value in tree.value.items():
        for place, client in enumerate(value.get("clients", [])):
            if serves.setdefault(client, name) != name:
                check.report((name, "clients", str(place)), f"`{client}` is served by `{serves[client]}` already")
    if check.problems:
        raise ManifestError(by_line(check.problems))
    return {name: _profile(name, value) for name, value in {**fixed, **tree.value}.items()}


def _profile(name: str, value: Mapping[str, Any]) -> Profile:
    return Profile(
        name,
        mode=value["mode"],
        locked=value.get("locked", False),
        clients=tuple(value.get("clients", ())),
        tasks={
            task: given if isinstance(given, dict) else {"mode": given}
            for task, given in value.get("tasks", {}).items()
        },
        caps=value.get("caps", {}),
    )


def locked(profiles: Mapping[str, Any]) -> dict[str, Any]:
    """Those that have to stay as they are."""
    return {name: value for name, value in profiles.items() if value.get("locked")}


@dataclass(frozen=True, slots=True)
class Settings:
    """Which profile a request gets whose client no profile names."""

    default_profile: str
    tools_profile: str = ""


def read_settings(tree: Tree, profiles: Iterable[str]) -> Settings:
    """Raises ManifestError with everything that is wrong."""
    check = OptionCheck(tree, {})
    check.against((), tree.value, settings_schema(profiles))
    if check.problems:
        raise ManifestError(by_line(check.problems))
    return Settings(tree.value["default_profile"], tree.value.get("tools_profile", ""))


@cache
def shipped(document: str) -> Tree:
    """A document as it is shipped."""
    path = DOCUMENTS / f"{document}.yaml"
    return parse(path.read_bytes(), str(path), path.parent)


# ---------------------------------------------------------------------------------------------------- resolution


@dataclass(frozen=True, slots=True)
class Profiles:
    """All profiles, resolved, and the rule by which a request gets one."""

    named: Mapping[str, Profile]
    settings: Settings

    def of(self, client: str, asked: str | None = None, *, offers_tools: bool = False) -> Profile:
        """The profile of a request: the one that it asks for, its client's, the one for tools, or the default.

        Raises UnknownProfile when it asks for one that is not there.
        """
        if asked is not None:
            if asked not in self.named:
                near = nearest(asked, self.named)
                hint = f"did you mean {near}?" if near else f"there are {', '.join(self.named)}"
                raise UnknownProfile(f"there is no profile called {asked!r}; {hint}")
            return self.named[asked]
        for profile in self.named.values():
            if client in profile.clients:
                return profile
        if offers_tools and self.settings.tools_profile:
            return self.named[self.settings.tools_profile]
        return self.named[self.settings.default_profile]
