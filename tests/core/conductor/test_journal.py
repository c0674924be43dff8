from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

from tandem.core.conductor import Entry, Journal, Query, Supervisor, events_file as module
from tandem.core.conductor.events_file import COLUMNS, MIGRATIONS, EventsFile, journal_of
from tandem.core.conductor.journal import Label, Outcome, checker_result

ALL = Query(limit=10_000)


def entry(request: int = 1, action: str = "notify", **fields: Any) -> Entry:
    known = {"rule": "r", "point": "sp1", "reason": "because(1)", "done": False, "task": "R", "mode": "act"}
    return Entry(request=request, action=action, **{**known, "session": "s", **fields})


def journal(path: Path, **more: Any) -> Journal:
    return Journal(file=EventsFile(path, **more))


def rows(path: Path, table: str = "conductor_events") -> list[dict[str, Any]]:
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    try:
        return [dict(row) for row in connection.execute(f"SELECT * FROM {table}")]
    finally:
        connection.close()


# ------------------------------------------------------------------------------------------------------ what is kept


def test_the_file_gives_back_what_memory_has(tmp_path: Path) -> None:
    there = journal(tmp_path / "deep" / "j.sqlite")
    for number in range(5):
        there.write(entry(number, detail={"n": number, "word": "é"}, score=0.5, hidden="Go on.", hidden_tokens=3))
    assert there.file is not None
    assert there.file.select(ALL) == there.entries()[::-1] == there.select(ALL)
    there.close()
    assert (tmp_path / "deep" / "j.sqlite").stat().st_mode & 0o777 == 0o600


def test_every_field_of_an_entry_has_its_column(tmp_path: Path) -> None:
    there = journal(tmp_path / "j.sqlite")
    there.write(entry())
    there.close()
    [row] = rows(tmp_path / "j.sqlite")
    assert set(row) == {*COLUMNS, "id", "run", "text_hash"}
    assert {*COLUMNS, "hidden"} == {field.name for field in fields(Entry)}


def test_a_hidden_text_is_stored_once_and_a_server_that_journals_nothing_makes_no_file(tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"
    idle = journal(path)
    idle.passed("R", "act")
    idle.ended(Outcome(1, "chatcmpl-1", "stop", 3))
    assert idle.select(ALL) == []
    idle.close()
    assert not path.exists()
    there = journal(path)
    for number in range(20):
        there.write(entry(number, hidden="The same words."))
    there.write(entry(21, hidden="Others, \ud800 too."))
    there.close()
    assert len(rows(path)) == 21
    assert len(rows(path, "conductor_texts")) == 2


def test_an_end_fills_the_entries_of_its_request_and_a_check_those_before_it(tmp_path: Path) -> None:
    there = journal(tmp_path / "j.sqlite")
    there.write(entry(1))
    there.write(entry(2))
    there.write(entry(1, session="other"))
    there.ended(Outcome(1, "chatcmpl-1", "tool_calls", 7))
    there.labelled(Label("s", 2, "FAIL"))
    there.labelled(Label("s", 3, "PASS"))
    for found in (there.entries(), (there.select(ALL) or [])[::-1]):
        shown = [(e["request"], e["session"], e["finish_reason"], e["next_checker"]) for e in found]
        assert shown == [(1, "s", "tool_calls", "FAIL"), (2, "s", "", "PASS"), (1, "other", "tool_calls", "")]
        assert [(e["answer"], e["completion_tokens"]) for e in found][:2] == [("chatcmpl-1", 7), ("", None)]
    there.close()


@pytest.mark.parametrize("where", ["memory", "file"])
def test_a_selection_is_what_a_naive_filter_finds(where: str, tmp_path: Path) -> None:
    draw, now = random.Random(4), time.time()
    there = journal(tmp_path / "j.sqlite") if where == "file" else Journal()
    for number in range(60):
        names = {"task": draw.choice("AB"), "session": draw.choice("st"), "action": draw.choice(["fault", "mask"])}
        there.write(entry(number, time=now + draw.randrange(1000) + number / 100, **names))
    written = there.entries()
    for _ in range(40):
        query = Query(
            draw.randrange(8),
            draw.randrange(1000),
            *(draw.choice([None, *values]) for values in ("AB", "st", ["fault", "mask"])),
        )
        found = there.select(query)
        wanted = [e for e in written if query.fits(e)]
        key = "time" if where == "file" else "request"  # memory knows the order in which they came
        assert found == sorted(wanted, key=lambda e: -e[key])[: query.limit]
    there.close()


def test_a_checker_speaks_on_a_line_of_its_own() -> None:
    assert checker_result("3 failed\nRESULT: FAIL <- pytest -q\n") == "FAIL"
    assert checker_result("RESULT: FAIL <- a\n...\nRESULT: PASS <- b") == "PASS"
    assert checker_result("the RESULT: PASS <- x") is None
    assert checker_result("RESULT: PASSED") is None


def test_a_request_with_a_check_labels_its_session_and_only_once_for_each_result() -> None:
    from tandem.testing.rules import call, request

    there = Journal()
    supervisor = Supervisor(there)
    there.write(entry(0, session="s"))
    messages = [{"role": "user", "content": "x"}, *call("sh", {}, "RESULT: PASS <- make test")]
    watch = supervisor.begin(request(messages, session="s"), roster=_nobody())
    watch.begun()
    assert there.entries()[0]["next_checker"] == "PASS"
    there.write(entry(watch.number, session="s"))
    supervisor.begin(request(messages, session="s", new_calls=()), roster=_nobody()).begun()
    assert there.entries()[1]["next_checker"] == ""


def _nobody() -> Any:
    from tandem.core.conductor import Roster

    return Roster()


# ------------------------------------------------------------------------------------------------------ many, and old


def test_two_servers_share_a_file_and_keep_their_requests_apart(tmp_path: Path) -> None:
    one, two = journal(tmp_path / "j.sqlite"), journal(tmp_path / "j.sqlite")
    for number in range(20):
        one.write(entry(number))
        two.write(entry(number))
    one.ended(Outcome(3, "chatcmpl-one", "stop", 1))
    two.labelled(Label("s", 2, "FAIL"))
    one.close()
    two.close()
    found = rows(tmp_path / "j.sqlite")
    assert len(found) == 40
    assert [row["request"] for row in found if row["answer"]] == [3]
    assert sorted(row["request"] for row in found if row["next_checker"]) == [0, 1]


def test_servers_that_make_the_file_at_the_same_moment_lose_nothing(tmp_path: Path) -> None:
    for attempt in range(10):
        path = tmp_path / f"{attempt}.sqlite"
        servers = [journal(path) for _ in range(4)]
        together = threading.Barrier(len(servers))

        def work(server: Journal, together: threading.Barrier = together) -> None:
            together.wait()
            server.write(entry(1))

        threads = [threading.Thread(target=work, args=(server,)) for server in servers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for server in servers:
            server.close()
        assert len(rows(path)) == len(servers)


def test_many_threads_lose_nothing(tmp_path: Path) -> None:
    there = journal(tmp_path / "j.sqlite")

    def work(first: int) -> None:
        for number in range(50):
            there.write(entry(first + number))
            there.ended(Outcome(first + number, "x", "stop", number))

    threads = [threading.Thread(target=work, args=(1000 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    there.close()
    there.close()
    found = rows(tmp_path / "j.sqlite")
    assert len(found) == 400
    assert all(row["finish_reason"] == "stop" for row in found)


def test_old_rows_go_and_their_texts_with_them(tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"
    first = journal(path)
    first.write(entry(1, time=time.time() - 40 * 86400, hidden="old words"))
    first.write(entry(2, hidden="new words"))
    first.close()
    second = journal(path, days=30)
    second.write(entry(3, hidden="new words"))
    second.close()
    assert [row["request"] for row in rows(path)] == [2, 3]
    assert [row["text"] for row in rows(path, "conductor_texts")] == ["new words"]


def test_an_older_file_is_brought_up_to_date_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "j.sqlite"
    before = journal(path)
    before.write(entry(1))
    before.close()
    monkeypatch.setattr(module, "MIGRATIONS", (*MIGRATIONS, ("ALTER TABLE conductor_events ADD COLUMN mood TEXT",)))
    monkeypatch.setattr(module, "ADDED", {"weather": "TEXT NOT NULL DEFAULT 'fair'"})
    after = journal(path)
    after.write(entry(2))
    after.close()
    assert [(row["mood"], row["weather"]) for row in rows(path)] == [(None, "fair")] * 2


# ------------------------------------------------------------------------------------------------------- broken disks


def wait_until(true: Any) -> None:
    deadline = time.monotonic() + 10
    while not true() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert true()


def test_a_broken_disk_is_told_once_and_mended_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    there = journal(tmp_path / "j.sqlite")
    assert there.file is not None

    def full(path: Path) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(module.sqlite, "connect", full)
        for number in range(3):
            there.write(entry(number))
            wait_until(lambda n=number: there.report()["dropped"] == n + 1)
        assert there.report()["fault"] == "database or disk is full"
        assert [e["request"] for e in there.select(ALL)] == [2, 1, 0], "memory answers meanwhile"
    there.write(entry(3))
    wait_until(lambda: there.report()["written"] == 1)
    assert there.report()["fault"] == ""
    there.close()
    assert [row["request"] for row in rows(tmp_path / "j.sqlite")] == [3]
    assert [record.message for record in caplog.records if "goes on in memory" in record.message] == [
        f"{tmp_path / 'j.sqlite'}: the journal can't be kept on disk and goes on in memory: database or disk is full"
    ]


def _corrupt(path: Path) -> None:
    path.write_bytes(b"this is a letter and no database" * 200)


def _directory(path: Path) -> None:
    path.mkdir()


def _later(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")


@pytest.mark.parametrize("spoil", [_corrupt, _directory, _later])
def test_a_file_that_can_not_be_used_leaves_the_journal_in_memory(spoil: Any, tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"
    spoil(path)
    there = journal(path)
    there.write(entry(1))
    wait_until(lambda: there.report()["dropped"] == 1)
    assert [e["request"] for e in there.select(ALL)] == [1]
    assert there.report()["fault"]
    there.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_can_not_be_written_leaves_the_journal_in_memory(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    there = journal(tmp_path / "j.sqlite")
    there.write(entry(1))
    wait_until(lambda: there.report()["dropped"] == 1)
    assert len(there.select(ALL)) == 1
    there.close()


def test_a_slow_disk_never_holds_up_who_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PENDING", 4)
    monkeypatch.setattr(module, "FLUSH_S", 0.01)
    held = threading.Event()
    there = journal(tmp_path / "j.sqlite")
    assert there.file is not None
    write = there.file._write
    monkeypatch.setattr(there.file, "_write", lambda items: (held.wait(10), write(items)))
    start = time.perf_counter()
    for number in range(200):
        there.write(entry(number))
    assert time.perf_counter() - start < 2
    assert len(there.entries()) == 200
    assert there.report()["dropped"] > 100
    held.set()
    there.close()
    assert there.report()["written"] + there.report()["dropped"] == 200


def test_no_state_directory_is_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("TANDEM_STATE_DIR", str(tmp_path / "file" / "state"))
    assert journal_of("auto", 30).file is None
    assert journal_of(None, 30).file is None
    assert journal_of(str(tmp_path / "j.sqlite"), 30).file is not None


def test_memory_stays_bounded_when_requests_never_end() -> None:
    there = Journal(room=10)
    for number in range(5000):
        there.write(entry(number, session=f"s{number}"))
    assert len(there.entries()) == 10
    assert len(there._open) <= 4096
    assert len(there._unlabelled) <= 4096


def test_an_entry_in_memory_is_as_it_was_written() -> None:
    there = Journal()
    written = entry(3, detail={"a": 1})
    there.write(written)
    assert there.entries() == [asdict(written)]


# ------------------------------------------------------------------------------------------------------------- counts


def test_counts_are_those_of_a_naive_sum() -> None:
    there = Journal()
    there.write(entry(1, "close_reasoning", done=True, hidden_tokens=4, reasoning_tokens=90))
    there.write(entry(1, "close_reasoning", done=True, hidden_tokens=6, reasoning_tokens=10))
    there.write(entry(1, "close_reasoning", mode="shadow", reasoning_tokens=50))
    there.write(entry(1, "notify", done=True))
    there.write(entry(1, "fault"))
    there.passed("R", "act")
    there.asked("R", failed=True)
    there.asked("R", failed=False)
    counts = there.counts()
    told = {(d.action, d.mode, d.done): n for d, n in counts.decisions.items()}
    assert told == {
        ("close_reasoning", "act", True): 2,
        ("close_reasoning", "shadow", False): 1,
        ("notify", "act", True): 1,
        ("fault", "act", False): 1,
        ("pass", "act", False): 1,
    }
    assert (counts.hidden_tokens["R"], counts.acts["R"], counts.faults["r"]) == (10, 2, 1)
    assert (counts.closes["R"], counts.closed_tokens["R"]) == (2, 100)
    assert (counts.asked["R"], counts.asked_failed["R"]) == (2, 1)
