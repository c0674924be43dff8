"""`tandem rules`: the list, and the replay of a recorded conversation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tandem.api.command import main
from tandem.core.kernel import Registry
from tandem.testing.box import Box

ROW = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10],\\n"
LOOP = [
    {"role": "user", "content": "Write the map."},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "function": {"name": "write", "arguments": '{"content": "' + ROW * 400}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "no JSON"},
    {"role": "assistant", "content": "I stop here."},
]


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(main, ["rules", *map(str, args)])


def findings(*args: str | Path) -> list[dict[str, Any]]:
    result = CliRunner().invoke(main, ["rules", "replay", *map(str, args), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def loop(tmp_path: Path) -> Path:
    path = tmp_path / "loop.json"
    path.write_text(json.dumps(LOOP))
    return path


def test_every_rule_is_listed_with_its_points_sentence_and_mode(tmp_path: Path) -> None:
    manifest = tmp_path / "m.yaml"
    manifest.write_text("tandem: 1\nrules: {argloop: {mode: shadow}, secret_mask: on}\nmodel: {plugin: scripted}\n")
    rows = {row["rule"]: row for row in json.loads(run("list", "--manifest", manifest, "--json").stdout)}
    assert list(rows) == Registry().names("rules")
    assert rows["argloop"]["mode"] == "shadow"
    assert rows["secret_mask"]["mode"] == "act"
    assert rows["argloop"]["points"] == ["sp1", "sp4"]
    shown = run("list")
    assert shown.exit_code == 0
    for name, row in rows.items():
        assert name in shown.stdout
        assert row["summary"]
        assert row["summary"].split()[0] in shown.stdout


def test_a_loop_would_have_been_stopped_and_noted(loop: Path) -> None:
    found = findings("argloop", loop)
    assert [(f["message"], f["point"], f["action"]) for f in found] == [
        (1, "sp1", "give_up"),
        (2, "sp4", "rewrite"),
        (2, "sp4", "prompt_tail_note"),
    ]
    shown = run("replay", "argloop", loop)
    assert shown.exit_code == 0
    assert "give_up" in shown.stdout
    assert found[0]["reason"] in shown.stdout


def test_json_lines_of_messages_or_of_requests_say_the_same(tmp_path: Path, loop: Path) -> None:
    lines, requests = tmp_path / "lines.jsonl", tmp_path / "requests.jsonl"
    lines.write_text("\n".join(map(json.dumps, LOOP)) + "\n\n")
    requests.write_text("\n".join(json.dumps({"messages": LOOP[:n]}) for n in (1, 3, 4)))
    assert findings("argloop", lines) == findings("argloop", loop) == findings("argloop", requests)


def test_options_are_those_of_the_manifest_and_the_command_line(tmp_path: Path, loop: Path) -> None:
    more = ("--set", "rules.argloop.tokens=100000", "--set", "rules.argloop.long_tokens=100000")
    assert [f["point"] for f in findings("argloop", loop, *more)] == ["sp4", "sp4"], "nothing stops it now"
    manifest = tmp_path / "m.yaml"
    manifest.write_text("tandem: 1\nrules: {argloop: off}\nmodel: {plugin: llama, checkpoint: /nowhere.gguf}\n")
    assert findings("argloop", loop, "--manifest", manifest) == findings("argloop", loop)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not json", "x.json:1: this is neither JSON nor JSON lines"),
        ('{"prompt": 1}', "value 1 is no request"),
        ('{"messages": [{"role": "user"}]}\n{', "x.json:2"),
    ],
)
def test_a_file_that_is_no_transcript_is_named(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    result = run("replay", "argloop", path)
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output


def test_an_unknown_rule_or_option_is_told_with_the_nearest(loop: Path) -> None:
    result = run("replay", "argloops", loop)
    assert result.exit_code == 2
    assert "did you mean `argloop`?" in result.output
    wrong = run("replay", "argloop", loop, "--set", "rules.argloop.copie=3")
    assert wrong.exit_code == 2
    assert "copies" in wrong.output


def test_a_task_of_the_policy_is_its_rule_with_its_own_options(tmp_path: Path, loop: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        "policy: 1\ntasks: {A9: {rule: argloop, mode: shadow, tokens: 100000, long_tokens: 100000}}\n"
    )
    manifest = tmp_path / "m.yaml"
    manifest.write_text("tandem: 1\nrules: {argloop: on}\nconductor: {policy: p.yaml}\n")
    assert [f["point"] for f in findings("A9", loop, "--manifest", manifest)] == ["sp4", "sp4"]
    assert findings("argloop", loop, "--manifest", manifest) == findings("argloop", loop)
    unknown = run("replay", "A8", loop, "--manifest", manifest)
    assert unknown.exit_code == 2
    assert "did you mean `A9`?" in unknown.output


def test_an_export_of_the_journal_lists_what_it_has_of_the_rule(tmp_path: Path) -> None:
    with Box(rules={"argloop": {}}, formats=["qwen_xml"], conductor={"journal": None}) as box:
        tool = {"type": "function", "function": {"name": "write", "parameters": {"type": "object"}}}
        call = "<tool_call>\n<function=write>\n<parameter=content>\n" + ROW * 60
        blocks = [call[i : i + 50] for i in range(0, len(call), 50)]
        box.chat("Write the map.", script=blocks, tools=[tool], max_tokens=6000)
        [session] = box.get("/v1/conductor/watch").json()["data"]
        key = session["session"].replace("#", "%23")
        exported = tmp_path / "journal.json"
        exported.write_text(box.get(f"/v1/conductor/sessions/{key}/export?format=json").text)
        [event] = box.events
    [found] = findings("argloop", exported)
    assert (found["counted"], found["action"], found["reason"]) == ("request", "give_up", event["reason"])
    assert found["done"]
    assert findings("secret_mask", exported) == []
    assert "done nothing" in run("replay", "secret_mask", exported).output
