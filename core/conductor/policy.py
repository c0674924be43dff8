"""The policy: which tasks there are, which rule does each of them, in which mode and with which parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tandem.config import POLICIES
from tandem.core.conductor.roster import GIVE_UP
from tandem.core.kernel import ManifestError, Problem, Registry, nearest
from tandem.core.kernel.schema import OptionCheck
from tandem.core.kernel.yaml12 import Mark, Tree, parse
from tandem.core.plugin import Rule
from tandem.core.plugin.part import option, with_defaults

FORM = 1
DRAFT = "https://json-schema.org/draft/2020-12/schema"
NAME = "^[A-Za-z][A-Za-z0-9_.-]*$"
"""What a task or a profile may be called."""

Known = Mapping[str, Rule | None]
"""Every installed rule by its name; None where nothing is known of its parameters, because it was not loaded."""

CAPS = {
    "acts_per_request": option("integer", "The most acts of rules in one request.", minimum=0),
    "acts_per_session_hour": option("integer", "The most acts of rules in one session's hour.", minimum=0),
}
TEXTS = {
    "give_up": option("string", "What the client reads when an act is beyond the caps.", minLength=1),
}


@dataclass(frozen=True, slots=True)
class PolicyTask:
    """One task as the policy writes it."""

    name: str
    rule: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """What it says about the mode and the parameters; the rest is as the manifest has it."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A checked policy."""

    tasks: tuple[PolicyTask, ...] = ()
    """In the order in which they are asked."""
    caps: Mapping[str, int] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    budget_ms: float | None = None
    """How long one check may take; None = as the manifest says."""


EMPTY: Mapping[str, Any] = {"policy": FORM, "tasks": {}}
"""The policy of a manifest that names none: every rule is a task of its own name."""


# ------------------------------------------------------------------------------------------------------ its schema


def closed(properties: Mapping[str, Any], required: Iterable[str] = ()) -> dict[str, Any]:
    """The schema of a mapping with these keys and no others."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def without_default(schema: Mapping[str, Any]) -> dict[str, Any]:
    """An option that stays as it was where it is left out."""
    return {key: value for key, value in schema.items() if key != "default"}


def task_schema(rule: Rule | None, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What a task of this rule may say. Nothing is refused for a rule that was not loaded."""
    if rule is None:
        return {"type": "object"}
    return closed({**(more or {}), **{name: without_default(schema) for name, schema in rule.options.items()}})


def policy_schema(known: Known) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a policy: closed, the parameters those of the registered rules."""
    rule_name = {"enum": sorted(known), "description": "The rule that does the task."}
    by_rule = [
        {
            "if": {"properties": {"rule": {"const": name}}, "required": ["rule"]},
            "then": task_schema(rule, {"rule": True}),
        }
        for name, rule in sorted(known.items())
    ]
    task: dict[str, Any] = {"type": "object", "properties": {"rule": rule_name}, "required": ["rule"]}
    if by_rule:
        task["allOf"] = by_rule
    return {
        "$schema": DRAFT,
        "title": "A policy of the conductor",
        **closed(
            {
                "policy": {"const": FORM, "description": f"The form of this file: `policy: {FORM}`."},
                "caps": {**closed(CAPS), "description": "How much rules may do."},
                "texts": {**closed(TEXTS), "description": "What is said when no task says it."},
                "budget_ms": option("number", "How long one check of a rule may take.", exclusiveMinimum=0),
                "tasks": {
                    "type": "object",
                    "description": "Name -> task, in the order in which they are asked.",
                    "propertyNames": {"pattern": NAME},
                    "additionalProperties": task,
                },
            },
            required=["policy", "tasks"],
        ),
    }


# ------------------------------------------------------------------------------------------------------ reading it


def read_policy(tree: Tree, known: Known) -> Policy:
    """The policy of a file or a document. Raises ManifestError with everything that is wrong."""
    check = OptionCheck(tree, {})
    missing = _not_installed(tree.value, known)
    for name, rule in missing.items():
        check.unknown(("tasks", name, "rule"), f"no rule called `{rule}` is installed", sorted(known), rule)
    check.against((), tree.value, policy_schema({**known, **dict.fromkeys(missing.values())}))
    if check.problems:
        raise ManifestError(by_line(check.problems))
    for name, task in tree.value["tasks"].items():
        if name in known and task["rule"] != name:
            check.report(("tasks", name), f"another rule is called `{name}`; a task of `{task['rule']}` needs its own")
    if check.problems:
        raise ManifestError(by_line(check.problems))
    value = tree.value
    return Policy(
        tasks=tuple(
            PolicyTask(name, task["rule"], {key: given for key, given in task.items() if key != "rule"})
            for name, task in value["tasks"].items()
        ),
        caps=value.get("caps", {}),
        texts=value.get("texts", {}),
        budget_ms=value.get("budget_ms"),
    )


def _not_installed(value: Any, known: Known) -> dict[str, str]:
    """Task -> its rule, where there is no such rule."""
    tasks = value.get("tasks") if isinstance(value, dict) else None
    given = tasks.items() if isinstance(tasks, dict) else ()
    rules = {name: task.get("rule") for name, task in given if isinstance(task, dict)}
    return {name: rule for name, rule in rules.items() if isinstance(rule, str) and rule not in known}


def by_line(problems: Iterable[Problem]) -> list[Problem]:
    return sorted(problems, key=lambda problem: (problem.file, problem.line))


def find_policy(name: str, base: Path, asked: Problem) -> Tree:
    """The file of a policy: a path, or the bare name of a shipped one. `asked` is where the name was written. Raises
    ManifestError when it can't be read."""
    shipped = shipped_policies()
    bare = "/" not in name and not name.endswith((".yaml", ".yml"))
    path = POLICIES / f"{name}.yaml" if bare and name in shipped else base / Path(name).expanduser()
    if not path.is_file():
        missing = (
            f"no policy is called `{name}`; shipped: {', '.join(shipped)}" if bare else f"there is no file `{path}`"
        )
        raise ManifestError([Problem(asked.file, asked.line, asked.path, missing, nearest(name, shipped))])
    try:
        return parse(path.read_bytes(), str(path), path.parent)
    except OSError as error:
        raise ManifestError([Problem(str(path), 0, "", f"can't be read: {error.strerror}")]) from None


def document_tree(name: str, value: Any) -> Tree:
    """A value that was not read from a file, to be checked like one."""
    return Tree(value, {(): Mark(name, 0, Path())})


def shipped_policies() -> list[str]:
    """The names of the policies that come with Tandem."""
    return sorted(path.stem for path in POLICIES.glob("*.yaml"))


@cache
def shipped_tasks() -> Mapping[str, str]:
    """Task -> rule in all policies that come with Tandem, installed or not."""
    tasks: dict[str, str] = {}
    for path in sorted(POLICIES.glob("*.yaml")):
        value = parse(path.read_bytes(), str(path), path.parent).value
        tasks |= {name: task["rule"] for name, task in value["tasks"].items()}
    return tasks


def known_rules(registry: Registry, loaded: Iterable[str] | None = None) -> dict[str, Rule | None]:
    """The installed rules. Only those of `loaded` are looked into; without it, all that can be imported."""
    names = registry.names("rules")
    wanted = frozenset(names if loaded is None else loaded)
    return {name: registry.load("rules", name) if name in wanted else None for name in names}


def whole(policy: Policy, known: Known) -> dict[str, Any]:
    """The policy as a mapping that leaves nothing to the defaults of rules that could be loaded."""
    tasks: dict[str, Any] = {}
    for task in policy.tasks:
        rule = known.get(task.rule)
        options = with_defaults(rule.options, task.options) if rule is not None else dict(task.options)
        tasks[task.name] = {"rule": task.rule, **options}
    shared: dict[str, Any] = {"policy": FORM, "caps": dict(policy.caps), "texts": {"give_up": GIVE_UP, **policy.texts}}
    if policy.budget_ms is not None:
        shared["budget_ms"] = policy.budget_ms
    return {**shared, "tasks": tasks}


# ------------------------------------------------------------------------------------------------------- on duty


Duty = tuple[str, Rule, Mapping[str, Any]]
"""A task's name, its rule, and its options with everything filled in."""


def on_duty(policy: Policy, enabled: Mapping[str, tuple[Rule, Mapping[str, Any]]]) -> list[Duty]:
    """The tasks whose rules the manifest enables: those of the policy in its order, then the other rules in the
    manifest's, each as a task of its own name. Options that the policy leaves out are the manifest's."""
    duties: list[Duty] = []
    for task in policy.tasks:
        if task.rule in enabled:
            rule, options = enabled[task.rule]
            duties.append((task.name, rule, {**options, **task.options}))
    taken = {task.rule for task in policy.tasks}
    return duties + [(name, rule, options) for name, (rule, options) in enabled.items() if name not in taken]
