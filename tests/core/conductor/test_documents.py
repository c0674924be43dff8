"""The documents: versions that stay, versions that come back, and files that are broken."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tandem.core.conductor import Conductor, Conflict, Documents, Store, StoreError, UnknownDocument
from tandem.core.engine.options import SECTIONS
from tandem.core.kernel import ManifestError, assemble, load_manifest
from tandem.core.plugin import Action, RequestEvent, Rule, SafePoint, hookimpl
from tandem.core.plugin.part import option
from tandem.testing import loose

COUNTER = Rule(
    "counter",
    at=SafePoint.SP1,
    check=lambda event, task, sup: Action.passed(),
    params={"most": option("integer", "Most.", 3, minimum=1)},
)


class Plugin:
    @staticmethod
    @hookimpl
    def tandem_rules() -> list[Rule]:
        return [COUNTER]


def conductor(folder: Path | None, rules: Any = ("counter",), **options: Any) -> Conductor:
    section = {"documents": None if folder is None else str(folder), **options}
    manifest = {"tandem": 1, "rules": list(rules), "conductor": section}
    return Conductor(assemble(load_manifest(manifest, sections=SECTIONS, registry=loose.registry([Plugin()]))))


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Conductor]:
    made = conductor(tmp_path)
    yield made
    made.close()


def most(made: Conductor, profile: str = "general") -> Any:
    posts = made.profile_of("plain", profile).roster.posts
    return [(post.task.name, post.task.params["most"]) for post in posts]


def policy(most: int = 3, **more: Any) -> dict[str, Any]:
    return {"policy": 1, "tasks": {"T": {"rule": "counter", "most": most}}, **more}


# ----------------------------------------------------------------------------------------------------- the store


def test_a_version_is_a_file_of_its_own_and_is_never_changed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = store.write("settings", {"a": 1}, "first")
    before = (tmp_path / "settings" / "000001.json").read_bytes()
    second = store.write("settings", {"a": 2}, "second", base=1)
    assert (first.version, second.version, store.numbers("settings")) == (1, 2, [1, 2])
    assert (tmp_path / "settings" / "000001.json").read_bytes() == before
    assert store.read("settings", 1) == first
    assert [entry.name for entry in (tmp_path / "settings").iterdir() if entry.name.startswith(".")] == []
    assert (tmp_path / "settings" / "000002.json").stat().st_mode & 0o777 == 0o600


def test_who_was_overtaken_is_told(tmp_path: Path) -> None:
    store, other = Store(tmp_path), Store(tmp_path)
    store.write("settings", {}, "one")
    other.write("settings", {}, "two", base=1)
    with pytest.raises(Conflict, match="settings is at version 2 now, not 1"):
        store.write("settings", {}, "three", base=1)


def test_writers_at_once_never_share_a_number_and_nothing_is_lost(tmp_path: Path) -> None:
    kept: list[int] = []

    def write(number: int) -> None:
        store = Store(tmp_path)
        while True:
            try:
                kept.append(store.write("settings", {"by": number}, f"{number}").version)
                return
            except Conflict:
                continue

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store = Store(tmp_path)
    assert sorted(kept) == store.numbers("settings") == list(range(1, 9))
    assert {store.read("settings", number).value["by"] for number in kept} == set(range(8))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "not JSON"),
        ("[]", "not a version"),
        ('{"form": 2}', "not a version"),
        ('{"form": 1, "note": ""}', "'value' is missing"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_file_that_is_no_version_is_told(tmp_path: Path, content: str, told: str) -> None:
    store = Store(tmp_path)
    store.write("settings", {}, "one")
    (tmp_path / "settings" / "000001.json").write_text(content)
    with pytest.raises(StoreError, match=told):
        store.read("settings", 1)


def test_without_a_folder_nothing_is_kept() -> None:
    made = conductor(None)
    with pytest.raises(StoreError, match="no folder"):
        made.documents.put("monitor", policy(), "note")
    assert made.documents.versions("monitor")[0]["version"] == 0
    made.close()


# ------------------------------------------------------------------------------------------------- what is in force


def test_as_shipped_every_rule_is_a_task_of_its_own_name(made: Conductor) -> None:
    assert most(made) == [("counter", 3)]
    assert [made.documents.version(name).version for name in ("monitor", "profiles", "settings")] == [0, 0, 0]


def test_the_next_request_goes_by_a_new_version_and_a_running_one_by_its_own(made: Conductor) -> None:
    running = made.begin(RequestEvent((), 1, 1, "plain"))
    made.documents.put("monitor", policy(7), "seven")
    assert most(made) == [("T", 7)]
    assert running.roster.posts[0].task.name == "counter"
    made.documents.put("monitor", policy(8), "eight")
    assert most(made) == [("T", 8)]


def test_a_restored_version_is_the_current_one_and_the_others_stay(made: Conductor) -> None:
    documents = made.documents
    documents.put("monitor", policy(7), "seven")
    documents.put("monitor", policy(8), "eight")
    assert documents.restore("monitor", 1, "seven was better").facts["restored"] == 1
    assert most(made) == [("T", 7)]
    documents.restore("monitor", 0, "as it came")
    assert most(made) == [("counter", 3)]
    listed = documents.versions("monitor")
    assert [(entry["version"], entry["restored"], entry["current"]) for entry in listed] == [
        (4, 0, True),
        (3, 1, False),
        (2, None, False),
        (1, None, False),
        (0, None, False),
    ]


def test_another_server_sees_a_version_at_its_next_request(made: Conductor, tmp_path: Path) -> None:
    other = conductor(tmp_path)
    assert most(other) == [("counter", 3)]
    for number in range(5, 12):  # each within the same tick of the folder's clock
        made.documents.put("monitor", policy(number), "another")
        assert most(other) == [("T", number)]
    other.close()


def test_what_is_in_force_is_read_once_while_nothing_changes(made: Conductor, tmp_path: Path) -> None:
    made.documents.put("monitor", policy(7), "seven")
    for path in (tmp_path / "monitor", tmp_path / "monitor" / "000001.json"):
        os.utime(path, ns=(10**18, 10**18))
    assert made.config is made.config


@pytest.mark.parametrize("content", ["{ torn", json.dumps({"form": 1, "value": {"policy": 1, "tasks": {"T": {}}}})])
def test_the_last_good_version_stays_in_force_when_a_file_is_broken(
    made: Conductor, tmp_path: Path, content: str
) -> None:
    made.documents.put("monitor", policy(7), "seven")
    made.documents.put("monitor", policy(8), "eight")
    assert most(made) == [("T", 8)]
    (tmp_path / "monitor" / "000002.json").write_text(content)
    assert most(made) == [("T", 8)]  # this server still has it
    later = conductor(tmp_path)
    assert most(later) == [("T", 7)]
    for one in (made, later):
        [problem] = one.report()["problems"]["monitor"]
        assert problem.startswith("version 2: ")
    assert later.documents.versions("monitor")[0]["problem"] is not None
    made.documents.put("monitor", policy(9), "mended")
    assert (most(made), most(later)) == ([("T", 9)], [("T", 9)])
    assert later.report()["problems"] == {}
    later.close()


def test_a_version_that_does_not_fit_the_installed_rules_any_more_is_passed_over(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write("monitor", {"policy": 1, "tasks": {"T": {"rule": "gone"}}}, "from an older server")
    made = conductor(tmp_path)
    assert most(made) == [("counter", 3)]
    assert "no rule called `gone` is installed" in made.report()["problems"]["monitor"][0]
    made.close()


def test_a_server_that_starts_with_stored_documents_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Store(tmp_path).write("monitor", policy(7), "seven")
    with caplog.at_level("INFO", "tandem.conductor"):
        made = conductor(tmp_path)
    assert [record.getMessage() for record in caplog.records] == ["monitor: the stored version 1 is in force: seven"]
    made.close()


# ------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("monitor", {"policy": 1, "tasks": {"T": {"rule": "counter", "most": 0}}}, "tasks.T.most: must be at least 1"),
        ("profiles", {"general": {"mode": "on", "tasks": {"T": {"most": 0}}}}, "general.tasks.T.most"),
        ("profiles", {"mine": {"mode": "on"}}, "default_profile: must be one of"),
        ("settings", {"default_profile": "nobody"}, "default_profile: must be one of"),
        ("settings", {"default_profile": "general", "x": 1}, "x: unknown option"),
    ],
)
def test_a_document_that_is_wrong_is_not_taken(made: Conductor, name: str, value: Any, told: str) -> None:
    made.documents.put("monitor", policy(), "a task called T")
    with pytest.raises(ManifestError) as caught:
        made.documents.put(name, value, "wrong")
    assert told in str(caught.value)
    assert made.documents.version(name).version == (1 if name == "monitor" else 0)


def test_a_policy_may_not_take_away_what_a_profile_sets(made: Conductor) -> None:
    made.documents.put("monitor", policy(), "a task called T")
    shipped = made.documents.version("profiles").value
    made.documents.put("profiles", {**shipped, "mine": {"mode": "on", "tasks": {"T": {"most": 4}}}}, "mine")
    with pytest.raises(ManifestError, match=r"mine.tasks.T: unknown option"):
        made.documents.put("monitor", {"policy": 1, "tasks": {}}, "no tasks")
    assert most(made, "mine") == [("T", 4)]


@pytest.mark.parametrize("change", [{}, {"mine": {"mode": "shadow", "locked": True}}])
def test_a_locked_profile_stays(made: Conductor, change: Mapping[str, Any]) -> None:
    shipped = made.documents.version("profiles").value
    made.documents.put("profiles", {**shipped, "mine": {"mode": "on", "locked": True}}, "mine")
    with pytest.raises(ManifestError, match="profiles: mine: is locked"):
        made.documents.put("profiles", {**shipped, **change}, "another")


def test_what_is_not_there_is_told(made: Conductor) -> None:
    documents: Documents = made.documents
    asked: list[Callable[[], Any]] = [
        lambda: documents.version("profile"),
        lambda: documents.version("profiles", 7),
        lambda: documents.restore("profiles", 7, "x"),
        lambda: documents.put("../profiles", {}, "x"),
    ]
    told = []
    for ask in asked:
        with pytest.raises(UnknownDocument) as caught:
            ask()
        told.append(str(caught.value))
    assert "did you mean profiles?" in told[0]
    assert told[1] == told[2] == "profiles has no version 7"


# ------------------------------------------------------------------------------------------ from the manifest's policy


def test_a_task_whose_rule_is_not_enabled_is_off_and_listed(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("policy: 1\ntasks:\n  T: {rule: counter, most: 6}\nbudget_ms: 7\n")
    off = conductor(None, rules=(), policy=str(tmp_path / "p.yaml"))
    assert (off.report()["not_enabled"], off.report()["tasks"]) == (["T"], {})
    on = conductor(None, policy=str(tmp_path / "p.yaml"))
    assert (on.report()["not_enabled"], on.report()["tasks"], most(on)) == ([], {"T": "act"}, [("T", 6)])
    assert on.supervisor.desk.budget_s == pytest.approx(0.007)
    for one in (off, on):
        one.close()


def test_a_policy_whose_rule_is_not_installed_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("policy: 1\ntasks:\n  T: {rule: countr}\n")
    with pytest.raises(ManifestError, match=r"p\.yaml:3: tasks\.T\.rule: .*did you mean `counter`"):
        conductor(None, policy=str(tmp_path / "p.yaml"))


def test_the_mode_is_the_lowest_of_server_profile_and_request(made: Conductor) -> None:
    named = {name: made.profile_of("plain", name) for name in ("raw", "general")}
    assert made.mode_of("on", named["raw"]) == "raw"
    assert made.mode_of("shadow", named["general"]) == "shadow"
    assert made.mode_of(None, named["general"]) == "on"
    made.mode = "shadow"
    assert made.mode_of("on", named["general"]) == "shadow"


def test_a_session_looked_at_from_outside_keeps_its_profile(made: Conductor) -> None:
    watch = made.begin(RequestEvent((), 0, 0, "plain", profile="overnight"))
    assert watch.request.profile == "overnight"
    assert made.begin(RequestEvent((), 0, 0, "opencode", profile="gone")).request.profile == "coding"
