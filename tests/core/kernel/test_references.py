"""`{$env: NAME}` and `{$file: PATH}`: where values come from that don't belong in a file, and stay unseen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tandem.core.kernel import ManifestError, load_manifest
from tandem.core.plugin.part import option

SECTIONS = {
    "server": {
        "key": option("string", "A secret.", ""),
        "port": option("integer", "A port.", 1, minimum=0),
        "keys": option("array", "Secrets.", [], items={"type": "string", "maxLength": 8}),
        "word": option(["string", "null"], "A word.", None),
    }
}


def load(tmp_path: Path, text: str, **more: Any) -> Any:
    (tmp_path / "m.yaml").write_text(f"tandem: 1\n{text}")
    return load_manifest(tmp_path / "m.yaml", sections=SECTIONS, **more)


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(ManifestError) as caught:
        load(tmp_path, text)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_an_environment_variable_is_text_unless_the_option_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBER", "0x10")
    text = "server: {key: {$env: NUMBER}, port: {$env: NUMBER}, word: {$env: NUMBER}}\n"
    assert load(tmp_path, text).section("server") == {"key": "0x10", "port": 16, "keys": [], "word": "0x10"}


def test_a_default_stands_in_for_a_variable_that_is_not_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ABSENT", raising=False)
    monkeypatch.setenv("EMPTY", "")
    text = "server: {port: {$env: ABSENT, default: 7}, key: {$env: EMPTY, default: x}}\n"
    assert load(tmp_path, text).section("server")["port"] == 7
    assert load(tmp_path, text).section("server")["key"] == ""


def test_a_file_is_read_from_the_folder_of_the_manifest_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "key.txt").write_text("s3cret\n")
    (tmp_path / "base" / "b.yaml").write_text("tandem: 1\nserver: {key: {$file: key.txt}, keys: [{$file: key.txt}]}\n")
    monkeypatch.chdir("/")
    server = load(tmp_path, "extends: base/b.yaml\n").section("server")
    assert (server["key"], server["keys"]) == ("s3cret", ["s3cret"])


def test_a_child_replaces_a_reference_whole(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text("tandem: 1\nserver: {key: {$env: ABSENT_AND_UNUSED, default: x}}\n")
    (tmp_path / "k").write_text("of file")
    assert load(tmp_path, "extends: b.yaml\nserver: {key: {$file: k}}\n").section("server")["key"] == "of file"
    assert load(tmp_path, "extends: b.yaml\nserver: {key: plain}\n").section("server")["key"] == "plain"


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("{$env: ABSENT}", "the environment variable ABSENT is not set"),
        ("{$file: nothing.txt}", "can't read the file `nothing.txt`: No such file or directory"),
        ("{$file: .}", "can't read the file `.`: Is a directory"),
        ("{$file: x, default: y}", "a reference reads {$env: NAME}, {$env: NAME, default: VALUE} or {$file: PATH}"),
        ("{$env: [x]}", "a reference reads {$env: NAME}, {$env: NAME, default: VALUE} or {$file: PATH}"),
    ],
)
def test_a_reference_that_leads_nowhere_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str, expected: str
) -> None:
    monkeypatch.delenv("ABSENT", raising=False)
    found = refusal(tmp_path, f"server:\n  key: {reference}\n  word: {{$env: ABSENT, default: x}}\n")
    expected = expected.replace("`.`", f"`{tmp_path}`")
    assert found == f"m.yaml:3: server.key: {expected}"


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(b"\xff\xfe\x00")
    assert "raw` is not UTF-8 text" in refusal(tmp_path, "server: {key: {$file: raw}}\n")


def test_no_problem_shows_a_referenced_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hunter2hunter2")
    text = "server:\n  port: {$env: SECRET}\n  keys: [{$env: SECRET}]\n  word: [{$env: SECRET}]\n"
    found = refusal(tmp_path, text)
    assert "hunter2" not in found
    assert found.splitlines() == [
        "m.yaml:3: server.port: must be an integer, not the value of $env SECRET",
        "m.yaml:4: server.keys.0: the value of $env SECRET does not satisfy `maxLength: 8`",
        "m.yaml:5: server.word: must be text or null, not the value of $env SECRET",
    ]


def test_the_manifest_says_where_referenced_values_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    assert load(tmp_path, "server: {key: {$env: SECRET}}\n").origins == {("server", "key"): "$env SECRET"}
