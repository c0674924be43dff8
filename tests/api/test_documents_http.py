"""The conductor's documents over HTTP, and who may change them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tandem.core.plugin import Action, FinishEvent, Rule, SafePoint, hookimpl
from tandem.core.plugin.part import option
from tandem.testing.box import Box

ADMIN = "admin-" + "a" * 40
TOKEN = {"Authorization": f"Bearer {ADMIN}"}
DOCUMENTS = "/v1/conductor/documents"


class Signer:
    """Writes its word behind every answer."""

    @staticmethod
    @hookimpl
    def tandem_rules() -> list[Rule]:
        def check(event: FinishEvent, task: Any, sup: Any) -> Action:
            return Action.give_up(f" {task.params['word']}", "signed")

        params = {"word": option("string", "What it writes.", "Bye.", minLength=1)}
        return [Rule("signer", at=SafePoint.SP2, check=check, params=params)]


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    conductor = {"documents": str(tmp_path / "documents")}
    with Box(plugins=[Signer()], rules=["signer"], conductor=conductor) as made:
        yield made


def put(box: Box, name: str, value: Any, note: str = "why", **more: Any) -> Any:
    return box.put(f"{DOCUMENTS}/{name}", {"value": value, "note": note, **more})


def policy(word: str) -> dict[str, Any]:
    return {"policy": 1, "tasks": {"S": {"rule": "signer", "word": word}}}


def test_the_next_request_goes_by_what_was_put_and_by_what_was_brought_back(box: Box) -> None:
    assert box.chat(script=["Hello."]).text == "Hello. Bye."
    made = put(box, "monitor", policy("Cheers."), "friendlier").json()
    assert (made["version"], made["note"], made["problems"]) == (1, "friendlier", [])
    assert box.chat(script=["Hello."]).text == "Hello. Cheers."
    assert put(box, "monitor", policy("So long."), "shorter", base=1).json()["version"] == 2
    assert box.chat(script=["Hello."]).text == "Hello. So long."
    back = box.post(f"{DOCUMENTS}/monitor/restore", {"version": 1, "note": "it was better"}).json()
    assert (back["version"], back["restored"]) == (3, 1)
    assert box.chat(script=["Hello."]).text == "Hello. Cheers."
    assert box.events[-1]["task"] == "S"


def test_what_can_be_read_of_a_document(box: Box) -> None:
    put(box, "monitor", policy("A."), "first")
    put(box, "monitor", policy("B."), "second")
    now = box.get(f"{DOCUMENTS}/monitor").json()
    assert (now["version"], now["value"]["tasks"]["S"]["word"]) == (2, "B.")
    assert box.get(f"{DOCUMENTS}/monitor?version=1").json()["value"] == policy("A.")
    assert box.get(f"{DOCUMENTS}/monitor?version=0").json()["value"] == {"policy": 1, "tasks": {}}
    listed = box.get(f"{DOCUMENTS}/monitor/versions").json()["data"]
    assert [(entry["version"], entry["note"]) for entry in listed] == [(2, "second"), (1, "first"), (0, "as shipped")]
    config = box.get("/v1/conductor/config").json()
    assert {entry["name"]: entry["version"] for entry in config["documents"]} == {
        "monitor": 2,
        "profiles": 0,
        "settings": 0,
    }
    assert config["report"]["tasks"] == {"S": "act"}


@pytest.mark.parametrize("name", ["monitor", "profiles", "settings"])
def test_a_document_satisfies_its_schema(box: Box, name: str) -> None:
    put(box, "monitor", policy("A."))
    schema = box.get(f"{DOCUMENTS}/{name}/schema").json()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(box.get(f"{DOCUMENTS}/{name}").json()["value"], schema)
    assert not jsonschema.Draft202012Validator(schema).is_valid({"nobody": {"mode": "loud"}})


@pytest.mark.parametrize(
    ("name", "body", "status", "param", "told"),
    [
        ("monitor", {"value": policy(""), "note": "x"}, 400, "value.tasks.S.word", "does not satisfy `minLength: 1`"),
        ("monitor", {"value": policy("x")}, 400, "note", "say in a few words why"),
        ("monitor", {"value": policy("x"), "note": "  "}, 400, "note", "say in a few words why"),
        ("monitor", {"value": policy("x"), "note": "n" * 1001}, 400, "note", "may have 1000"),
        ("monitor", {"value": [], "note": "x"}, 400, "value", "whole document as an object"),
        ("monitor", {"value": policy("x"), "note": "x", "base": True}, 400, "base", "must be a version's number"),
        ("monitor", {"value": policy("x"), "note": "x", "base": 4}, 409, None, "is at version 0 now, not 4"),
        ("profile", {"value": {}, "note": "x"}, 404, "name", "did you mean profiles?"),
        ("settings", {"value": {"default_profile": "chta"}, "note": "x"}, 400, "value.default_profile", "`chat`"),
        ("profiles", {"value": {"raw": {"mode": "on"}}, "note": "x"}, 400, "value.raw", "locked"),
    ],
)
def test_a_wrong_change_is_refused_with_its_place(
    box: Box, name: str, body: Mapping[str, Any], status: int, param: str | None, told: str
) -> None:
    response = box.put(f"{DOCUMENTS}/{name}", body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param)
    assert told in error["message"]
    assert box.chat(script=["Hello."]).text == "Hello. Bye."


def test_a_version_that_is_not_there_can_not_be_read_or_brought_back(box: Box) -> None:
    assert box.get(f"{DOCUMENTS}/monitor?version=9").status_code == 404
    assert box.get(f"{DOCUMENTS}/monitor?version=x").status_code == 400
    assert box.post(f"{DOCUMENTS}/monitor/restore", {"version": 9, "note": "x"}).status_code == 404
    assert box.post(f"{DOCUMENTS}/monitor/restore", {"note": "x"}).json()["error"]["param"] == "version"
    assert box.get(f"{DOCUMENTS}/nothing/versions").status_code == 404
    assert box.get(f"{DOCUMENTS}/nothing/schema").status_code == 404


def test_a_broken_file_is_told_and_what_was_in_force_stays(box: Box, tmp_path: Path) -> None:
    put(box, "monitor", policy("A."))
    (tmp_path / "documents" / "monitor" / "000001.json").write_text("{")
    told = {entry["name"]: entry["problems"] for entry in box.get("/v1/conductor/config").json()["documents"]}
    assert told["monitor"][0].startswith("version 1: 000001.json: not JSON")
    assert told["profiles"] == []
    assert box.chat(script=["Hello."]).text == "Hello. A."


def test_where_nothing_can_be_kept_a_change_is_a_503(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (None, str(tmp_path / "file")):
        with Box(conductor={"documents": folder}) as box:
            response = put(box, "settings", {"default_profile": "chat"})
            assert (response.status_code, response.json()["error"]["code"]) == (503, "not_kept")
            assert box.get(f"{DOCUMENTS}/settings").json()["version"] == 0


def test_with_an_admin_token_reading_asks_for_it_and_changing_for_the_header(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TEST_ADMIN", ADMIN)
    with Box(server={"admin_token": {"$env": "TEST_ADMIN"}}, conductor={"documents": str(tmp_path)}) as box:
        body = {"value": {"default_profile": "chat"}, "note": "x"}
        url = f"{DOCUMENTS}/settings"
        proxied = {"X-Forwarded-For": "203.0.113.9"}
        assert box.get(url).status_code == 200  # this machine itself
        assert box.get(url, proxied).status_code == 401
        assert box.get(url, {**proxied, **TOKEN}).status_code == 200
        assert box.put(url, body).status_code == 401
        assert box.post(f"{url}/restore", {"version": 0, "note": "x"}).status_code == 401
        assert box.put(url, body, TOKEN).status_code == 200
        assert box.chat("hi").headers["x-tandem-profile"] == "chat"


def test_a_method_that_a_document_does_not_take_is_told(box: Box) -> None:
    assert box.post(f"{DOCUMENTS}/monitor", {}).status_code == 405
    assert box.put("/v1/conductor/config", {}).status_code == 405
