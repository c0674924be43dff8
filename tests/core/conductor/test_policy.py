"""Policies: what may stand in one, what is said about what may not, and who is on duty then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, strategies as st

from tandem.core.conductor.policy import (
    FORM,
    Known,
    Policy,
    document_tree,
    find_policy,
    known_rules,
    on_duty,
    policy_schema,
    read_policy,
    shipped_policies,
    shipped_tasks,
)
from tandem.core.kernel import ManifestError, Problem, Registry
from tandem.core.kernel.yaml12 import parse
from tandem.core.plugin import Rule, SafePoint
from tandem.core.plugin.part import option, with_defaults


def rule(name: str, **params: Any) -> Rule:
    return Rule(name, at=SafePoint.SP1, check=lambda event, task, sup: None, params=params)


COUNTER = rule("counter", most=option("integer", "How many.", 3, minimum=1), text=option("string", "Words.", "Enough."))
NAMER = rule("namer", names=option("array", "Which.", ["a"], items={"type": "string"}), must=option("string", "Must."))
KNOWN: Known = {"counter": COUNTER, "namer": NAMER, "sleeper": None}
ENABLED = {
    "namer": (NAMER, {"mode": "shadow", "names": ["a"], "must": "x"}),
    "counter": (COUNTER, with_defaults(COUNTER.options, {"most": 5})),
}


def read(text: str, known: Known = KNOWN) -> Policy:
    return read_policy(parse(text, "my.yaml", Path()), known)


def wrong(text: str) -> str:
    with pytest.raises(ManifestError) as caught:
        read(text)
    return str(caught.value)


WHOLE = """\
policy: 1
caps: {acts_per_request: 2}
texts: {give_up: "[Enough.]"}
budget_ms: 5
tasks:
  T2: {rule: namer, mode: off}
  T1: {rule: counter, mode: on, most: 7}
"""


def test_a_policy_is_read_with_its_tasks_in_order() -> None:
    policy = read(WHOLE)
    assert [(task.name, task.rule) for task in policy.tasks] == [("T2", "namer"), ("T1", "counter")]
    assert policy.tasks[1].options == {"mode": "on", "most": 7}
    assert (policy.caps, policy.texts, policy.budget_ms) == ({"acts_per_request": 2}, {"give_up": "[Enough.]"}, 5)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("policy: 1\ntasks:\n  T: {rule: countr}\n", "my.yaml:3: tasks.T.rule: no rule called `countr` is installed"),
        ("policy: 1\ntasks:\n  T: {rule: countr}\n", "did you mean `counter`?"),
        ("policy: 1\ntasks:\n  T: {rule: counter,\n      mots: 3}\n", "my.yaml:4: tasks.T.mots: unknown option"),
        ("policy: 1\ntasks:\n  T: {rule: counter, mots: 3}\n", "did you mean `most`?"),
        ("policy: 1\ntasks:\n  T: {rule: counter, most: 0}\n", "tasks.T.most: must be at least 1, not 0"),
        ("policy: 1\ntasks:\n  T: {rule: counter, most: many}\n", 'tasks.T.most: must be an integer, not "many"'),
        ("policy: 1\ntasks:\n  T: {rule: counter, mode: shaddow}\n", "did you mean `shadow`?"),
        ("policy: 1\ntasks:\n  T: {mode: act}\n", "tasks.T: `rule` is missing: The rule that does the task."),
        ("policy: 1\ntasks:\n  T: on\n", "tasks.T: must be a mapping"),
        ("policy: 1\ntask: {}\n", "task: unknown option (did you mean `tasks`?)"),
        ("policy: 2\ntasks: {}\n", "my.yaml:1: policy: 2 does not satisfy `const: 1`"),
        ("tasks: {}\n", "`policy` is missing"),
        ("policy: 1\ntasks: {}\ncaps: {acts: 3}\n", "caps.acts: unknown option"),
        ("policy: 1\ntasks: {}\nbudget_ms: 0\n", "budget_ms: must be more than 0, not 0"),
        ("policy: 1\ntasks:\n  namer: {rule: counter}\n", "tasks.namer: another rule is called `namer`"),
        ("policy: 1\ntasks:\n  T: {rule: counter}\n  T: {rule: namer}\n", "the key is here twice"),
        ("policy: 1\ntasks:\n  T: {rule: namer, names: [a, 3]}\n", "tasks.T.names.1: must be text"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, told: str) -> None:
    assert told in wrong(text)


def test_everything_that_is_wrong_is_told_at_once() -> None:
    assert len(wrong("policy: 1\ntasks:\n  T: {rule: counter, most: 0}\n  U: {rule: namr}\n").splitlines()) == 2


def test_a_rule_that_was_not_loaded_is_taken_with_whatever_parameters() -> None:
    assert read("policy: 1\ntasks:\n  T: {rule: sleeper, anything: 3}\n").tasks[0].rule == "sleeper"


# ------------------------------------------------------------------------------------------------------ the schema


VALUES = st.one_of(
    st.integers(-2, 9), st.text("abc", max_size=3), st.booleans(), st.none(), st.lists(st.text("ab", max_size=2))
)
TASKS = st.dictionaries(
    st.sampled_from(["T", "U", "x y", "9"]),
    st.dictionaries(st.sampled_from(["rule", "mode", "most", "text", "names", "must", "other"]), VALUES)
    | st.fixed_dictionaries(
        {"rule": st.sampled_from(["counter", "namer", "sleeper", "nobody"])},
        optional={
            "mode": st.sampled_from(["act", "on", "off", "loud"]),
            "most": st.integers(-1, 5),
            "names": st.lists(st.just("a")),
        },
    ),
    max_size=2,
)
POLICIES = st.fixed_dictionaries(
    {"policy": st.sampled_from([FORM, FORM, FORM, 2]), "tasks": TASKS},
    optional={
        "caps": st.dictionaries(st.sampled_from(["acts_per_request", "acts"]), st.integers(-1, 4)),
        "budget_ms": st.sampled_from([1, 2.5, 0]),
    },
)


@given(POLICIES)
def test_the_schema_allows_what_is_read_and_nothing_else(value: dict[str, Any]) -> None:
    """An editor that holds a file to the printed schema says what the server says."""
    allowed = jsonschema.Draft202012Validator(policy_schema(KNOWN)).is_valid(value)
    try:
        read_policy(document_tree("x", value), KNOWN)
        was_read = True
    except ManifestError:
        was_read = False
    assert was_read == allowed


def test_the_schema_is_one_and_closed_for_each_rule() -> None:
    schema = policy_schema(KNOWN)
    jsonschema.Draft202012Validator.check_schema(schema)
    by_rule = schema["properties"]["tasks"]["additionalProperties"]["allOf"]
    [then] = [entry["then"] for entry in by_rule if entry["if"]["properties"]["rule"]["const"] == "counter"]
    assert set(then["properties"]) == {"rule", "mode", "most", "text"}
    assert then["additionalProperties"] is False
    assert "default" not in then["properties"]["most"]


# --------------------------------------------------------------------------------------------------------- on duty


def test_the_tasks_are_asked_in_the_policys_order_and_the_other_rules_behind_them() -> None:
    third = rule("third")
    enabled = {**ENABLED, "third": (third, {"mode": "act"})}
    duties = on_duty(read("policy: 1\ntasks:\n  T: {rule: counter}\n  S: {rule: sleeper}\n"), enabled)
    assert [(name, rule.name) for name, rule, _ in duties] == [("T", "counter"), ("namer", "namer"), ("third", "third")]


def test_a_policy_goes_over_the_manifest_and_the_manifest_over_the_defaults() -> None:
    told = {name: options for name, _, options in on_duty(read(WHOLE), ENABLED)}
    assert told["T1"] == {"mode": "on", "most": 7, "text": "Enough."}
    assert told["T2"]["mode"] == "off"
    quiet = on_duty(read("policy: 1\ntasks:\n  T: {rule: counter}\n  N: {rule: namer}\n"), ENABLED)
    assert [(options["mode"], options.get("most")) for _, _, options in quiet] == [("act", 5), ("shadow", None)]


def test_two_tasks_may_share_a_rule() -> None:
    duties = on_duty(
        read("policy: 1\ntasks:\n  A: {rule: counter, most: 1}\n  B: {rule: counter, most: 2}\n"),
        {"counter": ENABLED["counter"]},
    )
    assert [(name, options["most"]) for name, _, options in duties] == [("A", 1), ("B", 2)]


# ----------------------------------------------------------------------------------------------- the shipped ones


def test_the_shipped_policies_are_right_for_the_rules_that_are_installed() -> None:
    """Those that are not installed are taken as they are; a rule that is has its parameters checked."""
    known: Known = {**dict.fromkeys(shipped_tasks().values()), **known_rules(Registry())}
    assert "default" in shipped_policies()
    for name in shipped_policies():
        policy = read_policy(find_policy(name, Path(), Problem("", 0, "", "")), known)
        assert policy.tasks


def test_a_policy_that_is_not_there_is_told_with_the_nearest_name(tmp_path: Path) -> None:
    asked = Problem("m.yaml", 4, "conductor.policy", "")
    for name, told in (("defualt", "did you mean `default`?"), ("none/p.yaml", "there is no file")):
        with pytest.raises(ManifestError) as caught:
            find_policy(name, tmp_path, asked)
        assert str(caught.value).startswith("m.yaml:4: conductor.policy:")
        assert told in str(caught.value)
    (tmp_path / "mine.yaml").write_text(WHOLE)
    assert find_policy("mine.yaml", tmp_path, asked).value["budget_ms"] == 5
