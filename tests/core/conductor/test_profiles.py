"""Profiles: what may stand in them, which one a request gets, and what the tasks are under it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tandem.core.conductor import Caps
from tandem.core.conductor.policy import Policy, PolicyTask, document_tree, on_duty, shipped_tasks
from tandem.core.conductor.profiles import (
    Profile,
    Profiles,
    Settings,
    UnknownProfile,
    read_profiles,
    read_settings,
    shipped,
)
from tandem.core.kernel import ManifestError
from tandem.core.plugin import Rule, SafePoint
from tandem.core.plugin.part import option, with_defaults

COUNTER = Rule("counter", at=SafePoint.SP1, check=lambda e, t, s: None, params={"most": option("integer", "Most.", 3)})
NAMER = Rule("namer", at=SafePoint.SP2, check=lambda e, t, s: None)
KNOWN = {"counter": COUNTER, "namer": NAMER}
POLICY = Policy(
    (PolicyTask("T", "counter", {"mode": "shadow", "most": 4}), PolicyTask("N", "namer")),
    caps={"acts_per_request": 3},
    texts={"give_up": "[Stop.]"},
)
DUTIES = on_duty(
    POLICY, {rule.name: (rule, {**with_defaults(rule.options, {}), "mode": "act"}) for rule in (COUNTER, NAMER)}
)


def read(value: Mapping[str, Any]) -> dict[str, Profile]:
    return read_profiles(document_tree("profiles", value), KNOWN, POLICY)


def wrong(value: Mapping[str, Any]) -> str:
    with pytest.raises(ManifestError) as caught:
        read(value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("profile", "told"),
    [
        ({"mode": "on", "tasks": {"C33": "act"}}, "profiles: p.tasks.C33: unknown option (did you mean `C3`?)"),
        ({"mode": "on", "tasks": {"T": "loud"}}, "p.tasks.T: must be one of"),
        ({"mode": "on", "tasks": {"T": 3}}, "p.tasks.T: must be one of"),
        ({"mode": "on", "tasks": {"T": {"mots": 3}}}, "p.tasks.T.mots: unknown option (did you mean `most`?)"),
        ({"mode": "on", "tasks": {"T": {"most": "x"}}}, "p.tasks.T.most: must be an integer"),
        ({"mode": "of"}, "p.mode: must be one of"),
        ({}, "p: `mode` is missing"),
        ({"mode": "on", "caps": {"acts_per_request": -1}}, "p.caps.acts_per_request: must be at least 0"),
        ({"mode": "on", "client": ["x"]}, "p.client: unknown option (did you mean `clients`?)"),
    ],
)
def test_what_is_wrong_is_told(profile: Mapping[str, Any], told: str) -> None:
    assert told in wrong({"p": profile})


def test_a_client_has_one_profile() -> None:
    told = wrong({"p": {"mode": "on", "clients": ["curl"]}, "q": {"mode": "on", "clients": ["x", "curl"]}})
    assert told == "profiles: q.clients.1: `curl` is served by `p` already"


def test_raw_and_bench_stay_as_they_are_whatever_a_document_says() -> None:
    assert {name for name, profile in read({"p": {"mode": "on"}}).items() if profile.locked} == {"raw", "bench"}
    assert "`raw` is locked" in wrong({"raw": {"mode": "on"}})
    assert read({"raw": shipped("profiles").value["raw"]})["raw"].mode == "raw"


def test_a_profile_goes_over_the_policy() -> None:
    named = read(
        {
            "as_it_is": {"mode": "on"},
            "acts": {"mode": "on", "tasks": {"T": "act"}, "caps": {"acts_per_session_hour": 1}},
            "more": {"mode": "on", "tasks": {"T": {"mode": "on", "most": 9}, "N": "off", "C3": "act"}},
        }
    )
    rosters = {name: profile.resolved(DUTIES, Caps(8, 9), POLICY) for name, profile in named.items()}
    told = {
        name: [(p.task.name, p.task.mode, dict(p.task.params)) for p in roster.posts]
        for name, roster in rosters.items()
    }
    assert told["as_it_is"] == [("T", "shadow", {"most": 4}), ("N", "act", {})]
    assert told["acts"] == [("T", "act", {"most": 4}), ("N", "act", {})]
    assert told["more"] == [("T", "act", {"most": 9})]
    assert rosters["acts"].caps == Caps(acts_per_request=3, acts_per_session_hour=1)
    assert rosters["more"].caps == Caps(acts_per_request=3, acts_per_session_hour=9)
    assert rosters["more"].give_up == "[Stop.]"


def test_a_rule_without_a_task_in_the_policy_is_the_manifests_alone() -> None:
    """Two shipped tasks are called like their rules. Without the policy their rules act where the manifest says so."""
    mask = Rule("secret_mask", at=SafePoint.SP2, check=lambda e, t, s: None)
    general = read_profiles(shipped("profiles"), {}, Policy())["general"]
    assert general.tasks["secret_mask"] == {"mode": "off"}
    rules = {"secret_mask": (mask, {"mode": "act"})}
    alone, named = Policy(), Policy((PolicyTask("secret_mask", "secret_mask"),))
    posts = [general.resolved(on_duty(policy, rules), Caps(), policy).posts for policy in (alone, named)]
    assert [len(roster) for roster in posts] == [1, 0]


# ---------------------------------------------------------------------------------------------- which one it gets


def profiles(tools: str = "tools") -> Profiles:
    named = read_profiles(shipped("profiles"), {}, POLICY)
    return Profiles(named, Settings("general", tools))


@pytest.mark.parametrize(
    ("client", "asked", "tools", "name"),
    [
        ("plain", None, False, "general"),
        ("plain", None, True, "tools"),
        ("openai_sdk", None, True, "tools"),
        ("opencode", None, True, "coding"),
        ("opencode", None, False, "coding"),
        ("open_webui", None, False, "chat"),
        ("hermes", None, True, "hermes"),
        ("opencode", "overnight", True, "overnight"),
        ("plain", "raw", True, "raw"),
    ],
)
def test_the_header_decides_then_the_client_then_the_tools(client: str, asked: str, tools: bool, name: str) -> None:
    assert profiles().of(client, asked, offers_tools=tools).name == name


def test_the_profile_for_tools_can_be_turned_off() -> None:
    assert profiles(tools="").of("plain", offers_tools=True).name == "general"


def test_a_profile_that_is_not_there_is_told_with_the_nearest() -> None:
    with pytest.raises(UnknownProfile, match="no profile called 'overnite'; did you mean overnight"):
        profiles().of("plain", "overnite")


def test_the_settings_name_profiles_that_are_there() -> None:
    with pytest.raises(ManifestError, match=r"default_profile: must be one of .*did you mean `general`"):
        read_settings(document_tree("settings", {"default_profile": "genral"}), ["general", "tools"])
    assert read_settings(document_tree("settings", {"default_profile": "general"}), ["general"]).tools_profile == ""


# --------------------------------------------------------------------------------------------------- as shipped


def test_what_the_shipped_profiles_do() -> None:
    """The whole table under the shipped policy, were every rule on."""
    tree = shipped("profiles")
    policy = Policy(tuple(PolicyTask(name, rule) for name, rule in shipped_tasks().items()))
    named = read_profiles(tree, {}, policy)
    assert set(named) == {"raw", "bench", "general", "tools", "coding", "chat", "hermes", "overnight"}
    assert {name for name, profile in named.items() if profile.mode == "raw"} == {"raw", "bench"}
    modes = {name: {task: given["mode"] for task, given in p.tasks.items()} for name, p in named.items()}
    acting = {name: {task for task, mode in given.items() if mode == "act"} for name, given in modes.items()}
    reasoning = {"D1", "D1b", "D2", "E1"}
    assert acting["tools"] == reasoning | {"C3", "C4", "C5", "secret_mask"}
    assert acting["general"] == reasoning
    assert acting["coding"] == acting["chat"] == reasoning | {"C3", "loop_escape", "secret_mask"}
    assert acting["hermes"] == reasoning | {"C3", "loop_escape"}
    assert acting["overnight"] == reasoning | {"C1", "C2", "C3", "C4", "S1", "S2", "S4", "loop_escape"}
    assert {name for name, given in modes.items() if given.get("E2") == "shadow"} == {"coding", "overnight"}
    assert {name for name, given in modes.items() if given.get("C5") == "shadow"} == {"coding", "chat", "hermes"}
