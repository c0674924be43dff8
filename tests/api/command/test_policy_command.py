"""`tandem policy`: what it says about a policy, and the schema that it prints."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import yaml
from click.testing import CliRunner, Result

from tandem.api.command import main
from tandem.core.conductor.policy import shipped_tasks
from tandem.core.kernel import Registry


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["policy", *arguments])


def test_the_schema_is_one_and_names_the_installed_rules() -> None:
    result = run("schema")
    assert result.exit_code == 0
    schema = json.loads(result.output)
    jsonschema.Draft202012Validator.check_schema(schema)
    task = schema["properties"]["tasks"]["additionalProperties"]
    assert task["properties"]["rule"]["enum"] == sorted(Registry().names("rules"))


def test_a_right_policy_is_shown_as_a_table(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("policy: 1\ntasks: {}\n")
    result = run("check", str(path))
    assert (result.exit_code, "task" in result.output) == (0, True)


def test_a_wrong_policy_is_told_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("policy: 1\ntasks:\n  T: {rule: no_such_rule}\n")
    result = run("check", str(path))
    assert result.exit_code == 2
    assert f"{path}:3: tasks.T.rule: no rule called `no_such_rule`" in result.output
    assert run("check", "no_such_policy").exit_code == 2


def test_the_shipped_policy_is_right_where_all_its_rules_are_installed() -> None:
    missing = set(shipped_tasks().values()) - set(Registry().names("rules"))
    result = run("check", "default")
    assert (result.exit_code == 0) == (not missing), result.output
    for rule in missing:
        assert f"no rule called `{rule}` is installed" in result.output


def test_a_manifest_with_a_wrong_policy_is_told_by_check(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("policy: 1\ntasks:\n  T: {rule: no_such_rule}\n")
    manifest = tmp_path / "m.yaml"
    manifest.write_text("tandem: 1\nmodel: {plugin: scripted}\nconductor: {policy: p.yaml}\n")
    result = CliRunner().invoke(main, ["check", str(manifest)])
    assert result.exit_code == 2
    assert "p.yaml:3: tasks.T.rule" in result.output
    manifest.write_text("tandem: 1\nmodel: {plugin: scripted}\nconductor:\n  policy: nowhere\n")
    result = CliRunner().invoke(main, ["check", str(manifest)])
    assert f"{manifest}:4: conductor.policy: no policy is called `nowhere`" in result.output


def test_a_policy_is_shown_whole_and_what_is_shown_is_the_same_policy(tmp_path: Path) -> None:
    result = run("show")
    assert result.exit_code == 0
    shown = yaml.safe_load(result.output)
    assert list(shown["tasks"]) == list(shipped_tasks())
    registry = Registry()
    for task in shown["tasks"].values():
        rule = registry.load("rules", task["rule"])
        assert rule is not None
        assert set(task) == {"rule", "mode", *rule.params}, "a threshold or a text is missing"
    assert shown["texts"]["give_up"].startswith("[Tandem")
    path = tmp_path / "mine.yaml"
    path.write_text(result.output, "utf-8")
    assert run("check", str(path)).exit_code == 0
    assert run("show", str(path)).output == result.output


def test_a_policy_that_is_not_there_is_told_when_it_is_to_be_shown() -> None:
    assert run("show", "no-such-policy").exit_code == 2
