"""`tandem check`: what would start, what is wrong, and with which exit code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tandem.api.command import main

MODULE = """
from tandem.core.plugin import ModelBuilder, ModelError, Rule, SafePoint, hookimpl
from tandem.core.plugin.part import option

def describe(checkpoint, options):
    if options["size"] == 13:
        raise ModelError("13 layers are no checkpoint of ours")
    if options["size"] == 14:
        raise RuntimeError("broken describe")
    return {"layers": options["size"], "architecture": "tiny", "weight_bytes": options["size"] << 10}

@hookimpl
def tandem_models():
    size = {"size": option("integer", "How big.", 1), "token": option("string", "A secret.", "")}
    return [ModelBuilder(name="check_tiny", needs_checkpoint=False, options=size, build=print, describe=describe)]

@hookimpl
def tandem_rules():
    return [Rule("check_look", at=SafePoint.SP2, check=print, params={"word": option("string", "A word.", "x")})]
"""


@pytest.fixture(autouse=True)
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A plugin distribution that works, and one that doesn't."""
    points = "[tandem.models]\ncheck_tiny = check_mod\ncheck_torn = check_torn_mod\n"
    points += "[tandem.rules]\ncheck_look = check_mod\ncheck_broken = check_torn_mod\n"
    info = tmp_path / "site" / "tandem_check-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tandem-check\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(points)
    (tmp_path / "site" / "check_mod.py").write_text(MODULE)
    (tmp_path / "site" / "check_torn_mod.py").write_text("raise OSError('torn')\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield
    import sys

    sys.modules.pop("check_mod", None)


def check(tmp_path: Path, text: str, *args: str) -> Result:
    (tmp_path / "m.yaml").write_text(f"tandem: 1\n{text}")
    return CliRunner().invoke(main, ["check", str(tmp_path / "m.yaml"), *args])


def words(text: str) -> str:
    return " ".join(text.split())


def test_it_prints_parts_options_and_what_the_builder_says_of_the_model(tmp_path: Path) -> None:
    text = "model: {plugin: check_tiny, size: 3}\nrules: {check_look: {word: so}}\nserver: {port: 1234}\n"
    result = check(tmp_path, text, "--set", "server.parallel=3", "--set", "rules.check_look.mode=off")
    assert result.exit_code == 0, result.output
    shown = words(result.stdout)
    for piece in (
        "model check_tiny served_name: TandemLLM size: 3", "rules check_look mode: off word: so", "port: 1234",
        "parallel: 3", "max_queue: 8", "layers 3", "architecture tiny",
    ):  # fmt: skip
        assert piece in shown


def test_a_referenced_value_is_not_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_TOKEN", "hunter2")
    result = check(tmp_path, "model: {plugin: check_tiny, token: {$env: MODEL_TOKEN}}\n")
    assert result.exit_code == 0
    assert "token: (from $env MODEL_TOKEN)" in words(result.stdout)
    assert "hunter2" not in result.output


def test_a_wrong_manifest_ends_with_2_and_all_its_problems(tmp_path: Path) -> None:
    result = check(tmp_path, "rules: {check_lok: on}\nserver:\n  prot: 1\n", "--set", "server.parallel=0")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        "--set:1: server.parallel: must be at least 1, not 0",
        f"{tmp_path}/m.yaml:2: rules.check_lok: no rule called `check_lok` is installed (did you mean `check_look`?)",
        f"{tmp_path}/m.yaml:4: server.prot: unknown option (did you mean `port`?)",
    ]


def test_a_broken_plugin_is_told_and_only_a_needed_one_ends_with_1(tmp_path: Path) -> None:
    reason = "OSError: torn (tandem-check 1.2)"
    spare = check(tmp_path, "rules: [check_broken]\n")
    assert (spare.exit_code, spare.stderr) == (0, f"rules.check_broken: failed, and is left out: {reason}\n")
    needed = check(tmp_path, "rules: {check_broken: {required: true}}\n")
    assert needed.exit_code == 1
    assert f"rules.check_broken: required, and it failed: {reason}" in needed.stderr
    model = check(tmp_path, "model: {plugin: check_torn}\n")
    assert model.exit_code == 1
    assert f"models.check_torn: required, and it failed: {reason}" in model.stderr


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (13, "model: 13 layers are no checkpoint of ours"),
        (14, "model: check_tiny can't describe it: RuntimeError: broken describe (tandem-check 1.2)"),
    ],
)
def test_a_checkpoint_that_its_builder_refuses_ends_with_1(tmp_path: Path, size: int, expected: str) -> None:
    result = check(tmp_path, f"model: {{plugin: check_tiny, size: {size}}}\n")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [expected, "the manifest is right, but it can't start"]


def test_the_shipped_manifest_without_weights_is_right() -> None:
    result = CliRunner().invoke(main, ["check", "scripted"])
    assert result.exit_code == 0, result.output
    assert "scripted" in result.stdout


def test_a_model_that_can_not_fit_is_refused_with_the_sizes(tmp_path: Path) -> None:
    result = check(tmp_path, f"model: {{plugin: check_tiny, size: {1 << 60}}}\n")
    assert result.exit_code == 1
    assert "it does not fit: the weights take" in words(result.stderr)
    assert "GiB of memory left; free some, or load weights in fewer bits" in words(result.stderr)
