"""What the conductor goes by: its documents, checked together, each in its newest version that is right."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tandem.core.conductor.documents import Stamp, Store, StoreError, Version
from tandem.core.conductor.policy import (
    EMPTY,
    Duty,
    Known,
    Policy,
    document_tree,
    find_policy,
    known_rules,
    on_duty,
    policy_schema,
    read_policy,
)
from tandem.core.conductor.profiles import (
    Profile,
    Profiles,
    locked,
    profiles_schema,
    read_profiles,
    read_settings,
    settings_schema,
    shipped,
)
from tandem.core.conductor.roster import Caps
from tandem.core.kernel import Manifest, ManifestError, Platform, Problem, nearest
from tandem.core.kernel.yaml12 import Tree
from tandem.core.plugin import Rule, state_dir

log = logging.getLogger("tandem.conductor")

MONITOR, PROFILES, SETTINGS = "monitor", "profiles", "settings"
DOCUMENTS = (MONITOR, PROFILES, SETTINGS)
"""In the order in which they are checked: each may name what the earlier ones have."""


class UnknownDocument(LookupError):
    """There is no such document, or no such version of it."""


@dataclass(frozen=True, slots=True)
class Config:
    """One state of all documents."""

    policy: Policy
    profiles: Profiles
    off: tuple[str, ...]
    """The tasks of the policy whose rules the manifest does not enable."""
    versions: Mapping[str, Version]
    problems: Mapping[str, tuple[str, ...]]
    """Document -> what is wrong with the versions that were passed over."""


class Documents:
    """The documents of one server. Thread-safe."""

    def __init__(self, platform: Platform, options: Mapping[str, Any]) -> None:
        """`options` are those of the manifest's `conductor` section. Raises ManifestError when its policy is wrong."""
        self._rules = {active.name: (active.part, active.options) for active in platform.active("rules")}
        loaded: dict[str, Rule | None] = {name: rule for name, (rule, _) in self._rules.items()}
        self.known: Known = {**known_rules(platform.registry, ()), **loaded}
        self.store = Store(_folder(options["documents"]))
        self._caps = Caps(options["acts_per_request"], options["acts_per_session_hour"])
        self._shipped = {name: shipped(name) for name in (PROFILES, SETTINGS)}
        self._shipped[MONITOR] = manifest_policy(platform.manifest)
        self._lock = threading.Lock()
        self._stamps: Mapping[str, Stamp | None] = {}
        self._zero = self._built({name: Version(0, tree.value) for name, tree in self._shipped.items()})
        self._config: Config = self._zero
        for name, version in self.current().versions.items():
            if version.version:
                log.info("%s: the stored version %d is in force: %s", name, version.version, version.note)

    def current(self) -> Config:
        """The state now. Files that others wrote since the last call are read."""
        stamps = {name: self.store.stamp(name) for name in DOCUMENTS}
        with self._lock:
            if None in stamps.values() or stamps != self._stamps:
                self._config = self._loaded()
                self._stamps = stamps
            return self._config

    # ------------------------------------------------------------------------------------------ for those who edit

    def version(self, name: str, number: int | None = None) -> Version:
        """A document's version, the current one by default. Raises UnknownDocument; StoreError for a broken file."""
        current = self.current().versions[self._named(name)]
        if number is None or number == current.version:
            return current
        if number == 0:
            return Version(0, self._shipped[name].value)
        if number not in self.store.numbers(name):
            raise UnknownDocument(f"{name} has no version {number}")
        return self._whole(name, self.store.read(name, number))

    def versions(self, name: str) -> list[dict[str, Any]]:
        """The facts of all versions, newest first; `problem` says what is wrong with one that can't be read."""
        current = self.current().versions[self._named(name)].version
        listed = []
        for number in reversed([0, *self.store.numbers(name)]):
            try:
                facts = {**self.version(name, number).facts, "problem": None}
            except StoreError as error:
                facts = {"version": number, "at": None, "note": "", "restored": None, "problem": str(error)}
            listed.append({**facts, "current": number == current})
        return listed

    def put(self, name: str, value: Any, note: str, base: int | None = None) -> Version:
        """Make `value` the current version. Raises ManifestError with everything that is wrong with it,
        UnknownDocument, and what `Store.write` raises."""
        return self._put(self._named(name), Version(0, value, note), base)

    def restore(self, name: str, number: int, note: str) -> Version:
        """Make an old version current again, as a new one with its value. Raises what `put` and `version` raise."""
        return self._put(self._named(name), Version(0, self.version(name, number).value, note, restored=number), None)

    def schema(self, name: str) -> dict[str, Any]:
        """The document's JSON Schema."""
        config = self.current()
        if self._named(name) == MONITOR:
            return policy_schema(self.known)
        if name == PROFILES:
            return profiles_schema(self.known, config.policy)
        return settings_schema(config.profiles.named)

    # -------------------------------------------------------------------------------------------------- its parts

    def _named(self, name: str) -> str:
        if name not in DOCUMENTS:
            near = nearest(name, DOCUMENTS)
            hint = f"did you mean {near}?" if near else f"there are {', '.join(DOCUMENTS)}"
            raise UnknownDocument(f"there is no document called {name!r}; {hint}")
        return name

    def _put(self, name: str, wanted: Version, base: int | None) -> Version:
        now = self.current()
        # All of them together: a policy without a task that a profile sets would be found out at the next request only.
        self._built({**now.versions, name: wanted})
        if name == PROFILES and wanted.restored is None:
            self._refuse_locked(now.versions[PROFILES].value, wanted.value)
        made = self.store.write(name, wanted.value, wanted.note, base=base, restored=wanted.restored)
        log.info("%s: version %d: %s", name, made.version, wanted.note)
        return made

    def _whole(self, name: str, kept: Version) -> Version:
        """A version that brought back what is shipped follows what is shipped."""
        return replace(kept, value=self._shipped[name].value) if kept.restored == 0 else kept

    def _loaded(self) -> Config:
        """The newest right version of each document. One that was in force stays when its file is broken later."""
        problems: dict[str, tuple[str, ...]] = {}
        chosen = dict(self._zero.versions)
        for name in DOCUMENTS:
            wrong: list[str] = []
            in_force = self._config.versions[name]
            for number in reversed(self.store.numbers(name)):
                try:
                    candidate = self._whole(name, self.store.read(name, number))
                    self._check(name, {**chosen, name: candidate})
                except (StoreError, ManifestError) as error:
                    wrong.append(_told(number, error))
                    if number != in_force.version:
                        continue
                    candidate = in_force
                chosen[name] = candidate
                break
            problems[name] = tuple(wrong)
            if wrong and wrong != list(self._config.problems.get(name, ())):
                log.warning("%s: version %d stays in force: %s", name, chosen[name].version, "; ".join(wrong))
        try:
            return replace(self._built(chosen), problems=problems)
        except ManifestError as error:
            # What was in force does not fit what the others have become.
            log.warning("the documents do not fit together, what is shipped is in force: %s", error)
            return replace(self._zero, problems={**problems, MONITOR: (*problems[MONITOR], str(error))})

    def _built(self, versions: Mapping[str, Version]) -> Config:
        """All documents read and resolved. Raises ManifestError."""
        policy = read_policy(self._tree(MONITOR, versions), self.known)
        named = read_profiles(self._tree(PROFILES, versions), self.known, policy)
        settings = read_settings(self._tree(SETTINGS, versions), named)
        duties = on_duty(policy, self._rules)
        return Config(
            policy,
            Profiles({name: self._resolved(profile, duties, policy) for name, profile in named.items()}, settings),
            off=tuple(task.name for task in policy.tasks if task.rule not in self._rules),
            versions=dict(versions),
            problems={},
        )

    def _check(self, name: str, versions: Mapping[str, Version]) -> None:
        """Raises ManifestError when this document is wrong beside those that are checked before it."""
        policy = read_policy(self._tree(MONITOR, versions), self.known)
        if name != MONITOR:
            named = read_profiles(self._tree(PROFILES, versions), self.known, policy)
            if name == SETTINGS:
                read_settings(self._tree(SETTINGS, versions), named)

    def _tree(self, name: str, versions: Mapping[str, Version]) -> Tree:
        """A document's value with the lines of its file, where it has some."""
        value = versions[name].value
        return self._shipped[name] if value is self._shipped[name].value else document_tree(name, value)

    def _refuse_locked(self, now: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        """Raises ManifestError for a profile that is locked and would be another or gone. The shipped ones are there
        whether a document names them or not."""
        always = locked(self._shipped[PROFILES].value)
        changed = [name for name, value in locked(now).items() if wanted.get(name, always.get(name)) != value]
        if changed:
            problems = [Problem(PROFILES, 0, name, "is locked: it has to stay as it is") for name in changed]
            raise ManifestError(problems)

    def _resolved(self, profile: Profile, duties: list[Duty], policy: Policy) -> Profile:
        return replace(profile, roster=profile.resolved(duties, self._caps, policy))


def manifest_policy(manifest: Manifest) -> Tree:
    """The policy that the manifest names. Raises ManifestError when it is not there."""
    name = manifest.sections.get("conductor", {}).get("policy")
    if name is None:
        return document_tree("policy", dict(EMPTY))
    file, line = manifest.locate(("conductor", "policy"))
    base = manifest.tree.mark(("conductor", "policy")).base
    return find_policy(name, base, Problem(file, line, "conductor.policy", ""))


def check_policy(manifest: Manifest) -> None:
    """Raises ManifestError when the policy that the manifest names is wrong."""
    read_policy(manifest_policy(manifest), known_rules(manifest.registry, manifest.enabled("rules")))


def _folder(wanted: str | None) -> Path | None:
    if wanted is None:
        return None
    if wanted != "auto":
        return Path(wanted).expanduser()
    try:
        return state_dir("conductor")
    except OSError as error:
        log.warning("documents can't be kept: %s", error)
        return None


def _told(number: int, error: Exception) -> str:
    return f"version {number}: {'; '.join(str(error).splitlines())}"
