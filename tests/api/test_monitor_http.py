"""The journal over HTTP: decisions, sessions, exports, metrics, and the ledger's columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jsonschema
import pytest

from tandem.core.engine.ledger import read
from tandem.core.plugin import Action, BlockEvent, RequestEvent, Rule, SafePoint, hookimpl
from tandem.testing.box import Box
from tandem.testing.rules import call

TOKEN = "t" * 40
SECRET = "a word of the conversation"
NOTE = "Mind the gap."


def check(event: Any, task: Any, sup: Any) -> Action | None:
    """Adds a note to each prompt, and closes each reasoning at its first block."""
    if isinstance(event, RequestEvent):
        sup.session.data["requests"] = sup.session.data.get("requests", 0) + 1
        sup.session.data["names"] = {"a"}
        return Action.tail_note(NOTE, f"note({sup.session.data['requests']})")
    if isinstance(event, BlockEvent) and event.inside:
        return Action.close_reasoning("Enough.", "long(1)")
    return None


class Plugin:
    TANDEM_API = ">=0.2,<0.3"

    @staticmethod
    @hookimpl
    def tandem_rules() -> list[Rule]:
        return [Rule("noter", at=(SafePoint.SP4, SafePoint.SP1, SafePoint.SP2), check=check)]


@contextmanager
def host(tmp_path: Path, mode: str = "act", **sections: Any) -> Iterator[Box]:
    conductor = {"journal": str(tmp_path / "j.sqlite")}
    given = {"conductor": conductor, "formats": ["qwen_xml"], "rules": {"noter": {"mode": mode}}, **sections}
    with Box(plugins=[Plugin()], **given) as box:
        yield box


def events(box: Box, **asked: Any) -> list[dict[str, Any]]:
    answer = box.get("/v1/conductor/events?" + "&".join(f"{k}={quote(str(v), safe='')}" for k, v in asked.items()))
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def test_decisions_are_listed_with_what_came_of_them_and_outlive_the_server(tmp_path: Path) -> None:
    with host(tmp_path) as box:
        answer = box.chat(SECRET, script=["<think>", SECRET, "</think>\n\n", "Yes."])
        found = events(box)
        assert [(e["action"], e["reason"], e["done"]) for e in found] == [
            ("close_reasoning", "long(1)", True),
            ("prompt_tail_note", "note(1)", True),
        ]
        assert {e["answer"] for e in found} == {answer.body["id"]}
        assert {e["finish_reason"] for e in found} == {"stop"}
        assert {e["completion_tokens"] for e in found} == {answer.body["usage"]["completion_tokens"]}
        assert found[0]["reasoning_tokens"] > 0
        assert found[0]["hidden_tokens"] > 0
        assert found[1]["hidden"] == NOTE
        assert found[1]["hidden_tokens"] == len(NOTE)
        assert box.events == found[::-1]
    with host(tmp_path) as box:
        assert box.events == []
        assert events(box) == found
        assert [e["reason"] for e in events(box, action="prompt_tail_note")] == ["note(1)"]
        assert events(box, session=found[0]["session"], limit=1) == found[:1]
        assert events(box, task="nobody") == events(box, since=found[0]["time"] + 1) == []
    assert SECRET.encode() not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


def test_a_session_has_a_timeline_a_page_and_a_place_in_the_watch(tmp_path: Path) -> None:
    with host(tmp_path) as box:
        box.chat(SECRET, script=["<think>", SECRET, "</think>\n\n", "Yes."])
        [state] = box.get("/v1/conductor/watch").json()["data"]
        assert (state["turns"], state["running"], state["acts_hour"], state["client"]) == (1, 0, 2, "plain")
        assert state["idle_minutes"] == pytest.approx(0, abs=1)
        assert state["tasks"] == {"noter": {"requests": 1, "names": ["a"]}}
        place = f"/v1/conductor/sessions/{quote(state['session'], safe='')}"
        told = box.get(place).json()
        assert told["data"] == events(box, session=state["session"])[::-1]
        assert told["now"]["session"] == state["session"]
        page = box.get(f"{place}/export?format=md")
        assert page.headers["content-type"].startswith("text/plain")
        for words in (NOTE, "Enough.", "long(1)", "note(1)", "The model read 2 texts", "before the prompt was read"):
            assert words in page.text
        assert SECRET not in page.text
        assert box.get(f"{place}/export?format=json").json()["data"] == told["data"]


@pytest.mark.parametrize(("path", "schema"), [("events", "Decisions"), ("watch", "Sessions"), ("", "Timeline")])
def test_what_is_told_is_as_the_openapi_document_says(path: str, schema: str, tmp_path: Path) -> None:
    with host(tmp_path) as box:
        box.chat(SECRET, script=["<think>", SECRET, "</think>\n\n", "Yes."])
        [state] = box.get("/v1/conductor/watch").json()["data"]
        told = box.get(f"/v1/conductor/{path or 'sessions/' + quote(state['session'], safe='')}").json()
        assert told["data"]
        components = box.get("/openapi.json").json()["components"]
        jsonschema.validate(told, {"$ref": f"#/components/schemas/{schema}", "components": components})


def test_what_shadow_only_thought_of_is_no_hidden_text(tmp_path: Path) -> None:
    with host(tmp_path, mode="shadow") as box:
        box.chat(SECRET, script=["Yes."])
        [state] = box.get("/v1/conductor/watch").json()["data"]
        assert state["acts_hour"] == 0
        page = box.get(f"/v1/conductor/sessions/{quote(state['session'], safe='')}/export").text
        assert "The model read 0 texts" in page
        assert f"would have read, hidden from the client:\n\n    ```text\n    {NOTE}" in page


def test_a_checkers_result_in_the_next_request_labels_what_was_decided_before(tmp_path: Path) -> None:
    with host(tmp_path) as box:
        first = box.chat("Do it.", script=["Yes."])
        said = {"role": "assistant", "content": first.text}
        turn = [{"role": "user", "content": first_said(box)}, said, *call("sh", "{}", "RESULT: FAIL <- pytest")]
        box.post("/v1/chat/completions", {"messages": turn, "max_tokens": 3})
        found = events(box, action="prompt_tail_note")
        assert [e["next_checker"] for e in found] == ["", "FAIL"]
        assert found[0]["session"] == found[1]["session"]


def first_said(box: Box) -> str:
    """The first message as it was sent: the script is in it."""
    return json.dumps({"said": "Do it.", "script": ["Yes."], "end": True}, ensure_ascii=False)


@pytest.mark.parametrize("asked", ["limit=-1", "limit=many", "limit=100000", "since=x", "limit=nan"])
def test_a_wrong_word_is_refused_by_its_name(asked: str, tmp_path: Path) -> None:
    with host(tmp_path) as box:
        answer = box.get(f"/v1/conductor/events?{asked}")
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == asked.partition("=")[0]
        assert box.get("/v1/conductor/sessions/nobody").status_code == 404
        assert box.get("/v1/conductor/sessions/nobody/export?format=pdf").json()["error"]["param"] == "format"


@pytest.mark.parametrize("path", ["events", "watch", "sessions/x", "sessions/x/export"])
def test_the_journal_asks_for_the_admin_token(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_TEST_TOKEN", TOKEN)
    server = {"port": 0, "admin_token": {"$env": "TANDEM_TEST_TOKEN"}, "trust_loopback": False}
    with host(tmp_path, server=server) as box:
        assert box.get(f"/v1/conductor/{path}").status_code == 401
        assert box.get(f"/v1/conductor/{path}", {"authorization": f"Bearer {TOKEN}"}).status_code in (200, 404)


def test_health_and_metrics_tell_of_the_conductor(tmp_path: Path) -> None:
    with host(tmp_path) as box:
        box.chat("Hi.", script=["<think>", "a", "</think>\n\n", "Yes."])
        events(box)  # whatever was on its way to the disk is there now
        told = box.get("/health").json()["conductor"]
        assert told["mode"] == "on"
        assert told["tasks"] == {"noter": "act"}
        assert told["journal"]["fault"] == ""
        assert told["journal"]["path"] == str(tmp_path / "j.sqlite")
        text = box.get("/metrics").text
        label = 'action="{}",done="{}",mode="act",task="noter"'
        assert f"conductor_decisions_total{{{label.format('prompt_tail_note', 'true')}}} 1.0" in text
        passed = next(li for li in text.splitlines() if label.format("pass", "false") in li)
        assert float(passed.split()[-1]) >= 2  # a block of the answer, and its end
        assert 'conductor_acts_total{task="noter"} 2.0' in text
        assert 'conductor_closed_reasoning_tokens_count{task="noter"} 1.0' in text
        hidden = sum(e["hidden_tokens"] for e in events(box))
        assert f'conductor_hidden_tokens_total{{task="noter"}} {float(hidden)}' in text
        assert "conductor_rules_off 0.0" in text


def test_a_spoiled_file_harms_no_answer(tmp_path: Path) -> None:
    (tmp_path / "j.sqlite").write_bytes(b"no database at all, but long enough to look at" * 99)
    with host(tmp_path) as box:
        for _ in range(3):
            assert box.chat("Hi.", script=["Yes."]).text == "Yes."
        assert len(events(box)) == len(box.events) == 3
        assert "not a database" in box.get("/health").json()["conductor"]["journal"]["fault"]


def test_no_journal_in_the_manifest_is_memory_alone(tmp_path: Path) -> None:
    with host(tmp_path, conductor={"journal": None}) as box:
        box.chat("Hi.", script=["Yes."])
        assert len(events(box)) == 1
        assert box.get("/health").json()["conductor"]["journal"] == {"entries": 1, "path": None}
    assert not list(tmp_path.iterdir())


def test_the_ledger_tells_what_was_hidden_and_done(tmp_path: Path) -> None:
    server = {"port": 0, "ledger": str(tmp_path / "l.sqlite")}
    with host(tmp_path, server=server) as box:
        box.chat("Hi.", script=["<think>", "a", "</think>\n\n", "Yes."])
        box.chat("Hi.", script=["Yes."], headers={"x-tandem": "raw"})
        hidden = {e["action"]: e["hidden_tokens"] for e in box.events}
    acted, raw = read(tmp_path / "l.sqlite")
    assert (acted["acts"], acted["mode"]) == (2, "on")
    assert acted["hidden_tokens"] == hidden["close_reasoning"]
    assert acted["hidden_prompt_tokens"] >= hidden["prompt_tail_note"]
    assert (raw["acts"], raw["mode"], raw["hidden_tokens"], raw["hidden_prompt_tokens"]) == (0, "raw", 0, 0)
