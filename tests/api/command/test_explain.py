"""`tandem explain`: documentation from where it is written, and the nearest name on a miss."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tandem.api.command import main
from tandem.api.fields import TABLES
from tandem.core.engine.options import SERVER_OPTIONS
from tandem.core.plugin import KINDS

MODULE = '''
from tandem.core.plugin import Drafter, Rule, SafePoint, hookimpl
from tandem.core.plugin.part import option

@hookimpl
def tandem_rules():
    words = {"words": option("array", "Which words are watched.", items={"type": "string"})}
    return [Rule("watchword", at=SafePoint.SP2, check=print, params=words, doc="""Watches words.

    ## What it does

    It looks for a **watched** word.
    """)]

@hookimpl
def tandem_drafters():
    return [Drafter(name="watchword", build=print, doc="Drafts watched words.")]
'''


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    info = tmp_path / "tandem_watch-4.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tandem-watch\nVersion: 4.0\n")
    points = "[tandem.rules]\nwatchword = watch_mod\nwatchtorn = watch_torn_mod\n"
    points += "[tandem.drafters]\nwatchword = watch_mod\n"
    (info / "entry_points.txt").write_text(points)
    (tmp_path / "watch_mod.py").write_text(MODULE)
    (tmp_path / "watch_torn_mod.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("watch_mod", None)


def explain(name: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["explain", name])
    return result.exit_code, " ".join(result.stdout.split()), result.stderr.strip()


def test_a_plugin_is_explained_by_its_own_doc_and_options() -> None:
    code, text, _ = explain("rules.watchword")
    assert code == 0
    assert "watchword (rules, tandem-watch 4.0)" in text
    assert "It looks for a watched word." in text
    assert 'words: Which words are watched. (array; items {"type": "string"}; required)' in text
    assert "Drafts watched words." not in text


def test_a_name_of_two_kinds_is_explained_twice() -> None:
    code, text, _ = explain("watchword")
    assert code == 0
    assert "Watches words." in text
    assert "Drafts watched words." in text
    assert "No options." in text


@pytest.mark.parametrize("name", ["watchword.words", "rules.watchword.words"])
def test_an_option_of_a_plugin_is_explained(name: str) -> None:
    code, text, _ = explain(name)
    assert code == 0
    assert text.startswith("rules.watchword.words Which words are watched.")


@pytest.mark.parametrize("name", SERVER_OPTIONS)
def test_every_option_of_the_server_is_explained(name: str) -> None:
    code, text, _ = explain(f"server.{name}")
    assert code == 0
    assert SERVER_OPTIONS[name]["description"].split()[-1] in text
    assert name in explain("server")[1]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_every_kind_is_explained_by_its_hook(kind: object) -> None:
    code, text, _ = explain(kind.plural)  # type: ignore[attr-defined]
    assert code == 0
    assert f"Hook {kind.hook}" in text  # type: ignore[attr-defined]


def test_all_fields_of_a_request_are_one_table_for_each_kind() -> None:
    code, text, _ = explain("fields")
    assert code == 0
    for kind, table in TABLES.items():
        alone = explain(f"fields.{kind}")[1]
        assert alone in text
        for field in table.values():
            assert f"{field.name} {field.disposition.value} {field.doc.replace('`', '').split()[0]}" in alone


@pytest.mark.parametrize("name", ["temperature", "fields.temperature", "fields.completions.temperature"])
def test_a_field_is_explained_with_its_values(name: str) -> None:
    code, text, _ = explain(name)
    assert code == 0
    assert text.startswith("temperature (chat and completions) It is honoured: How freely tokens are drawn")
    assert '"maximum": 2' in text


def test_a_field_that_means_two_things_is_explained_twice() -> None:
    _, text, _ = explain("logprobs")
    assert "logprobs (chat)" in text
    assert "logprobs (completions)" in text
    assert "(completions)" not in explain("fields.chat.logprobs")[1]
    assert explain("fields.completions.messages")[0] == 2


def test_a_refused_field_says_what_to_do_instead() -> None:
    assert explain("functions")[1] == "functions (chat) It is refused: use tools"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("watchwrd", "watchword"),
        ("watchword.word", "watchword.words"),
        ("watchwrd.words", "watchword.words"),
        ("server.prot", "server.port"),
        ("sever", "server"),
        ("drafer", "drafters"),
        ("rules.watchwrd", "rules.watchword"),
        ("fieds", "fields"),
        ("temprature", "temperature"),
        ("fields.tol_choice", "fields.tool_choice"),
        ("fields.caht", "fields.chat"),
    ],
)
def test_a_miss_ends_with_2_and_names_the_nearest(name: str, near: str) -> None:
    assert explain(name) == (2, "", f"nothing is called `{name}` (did you mean `{near}`?)")


def test_a_miss_that_resembles_nothing_says_only_so() -> None:
    assert explain("qqqqqq") == (2, "", "nothing is called `qqqqqq`")


def test_a_plugin_that_cannot_be_loaded_is_told_with_its_reason() -> None:
    code, text, error = explain("watchtorn")
    assert (code, text) == (1, "")
    expected = "ZeroDivisionError: division by zero (tandem-watch 4.0)"
    assert error == f"rules.watchtorn can't be loaded: {expected}"
