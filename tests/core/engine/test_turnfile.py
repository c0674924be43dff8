"""Turns on disk: found again by another process, bounded, and never a fault of a request."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tandem.core.engine import turnfile
from tandem.core.engine.replay import ReplayStore, Turn, Written
from tandem.core.engine.turnfile import TOUCH_S, TurnFile, author

MINE, OTHER = b"m" * 16, b"o" * 16
MIB = 1 << 20
DAY = 86400.0


def turn(name: str, *tokens: int, loose: str | None = None, place: str = "p") -> Turn:
    written = Written.of(tokens or [1, 2], "<think>\n", reasons=True, thoughts=b"t" * 16, hidden=(range(1),))
    return Turn(b"e" + name.encode(), None if loose is None else b"l" + loose.encode(), b"p" + place.encode(), written)


def tokens(turns: list[Turn]) -> list[list[int]]:
    return [list(turn.written.tokens) for turn in turns]


class Clock:
    def __init__(self) -> None:
        self.time = 1e9

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Callable[..., TurnFile]]:
    with contextlib.ExitStack() as life:

        def file(model: bytes = MINE, budget: int = MIB, days: float = 14, **more: Any) -> TurnFile:
            made = TurnFile(tmp_path, model, budget, days, **more)
            life.callback(made.close)
            return made

        yield file


def test_a_turn_is_found_by_another_server_with_all_that_belongs_to_it(files: Callable[..., TurnFile]) -> None:
    first, second = files(), files()
    kept = turn("a", 5, 6, 70000, loose="x")
    first.put(kept)
    assert first.settle()
    for file in (first, second):
        for keys in ((kept.exact, None, b"p?"), (b"e?", kept.loose, b"p?"), (b"e?", None, kept.place)):
            [found] = file.find(*keys)
            assert (found.exact, found.loose, found.place) == (kept.exact, kept.loose, kept.place)
            assert list(found.written.tokens) == [5, 6, 70000]
            assert found.written == Written.of([5, 6, 70000], "<think>\n", True, b"t" * 16, (range(1),))
        assert file.find(b"e?", b"l?", b"p?") == []


def test_nothing_is_made_before_there_is_something_to_keep(tmp_path: Path, files: Callable[..., TurnFile]) -> None:
    file = files()
    assert file.find(b"e", b"l", b"p") == []
    assert file.stats()["bytes"] == 0
    file.clear()
    assert file.settle()
    assert list(tmp_path.iterdir()) == []


def test_it_is_its_owners_alone(tmp_path: Path, files: Callable[..., TurnFile]) -> None:
    file = files()
    file.put(turn("a"))
    assert file.settle()
    assert file.find(b"ea", None, b"p")
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_another_models_turns_are_not_found(files: Callable[..., TurnFile]) -> None:
    mine, other = files(), files(OTHER)
    mine.put(turn("a", 1))
    other.put(turn("a", 2))
    assert mine.settle()
    assert other.settle()
    assert tokens(mine.find(b"ea", None, b"")) == [[1]]
    assert tokens(other.find(b"ea", None, b"")) == [[2]]
    assert mine.stats()["entries"] == 1


def test_a_later_turn_takes_the_place_of_the_first(files: Callable[..., TurnFile]) -> None:
    file = files()
    file.put(turn("a", 1, loose="x"))
    file.put(turn("a", 2, loose="y"))
    assert file.settle()
    assert tokens(file.find(b"ea", None, b"")) == [[2]]
    assert file.find(b"e?", b"lx", b"p?") == []


def test_turns_that_are_not_used_go_in_time_and_others_stay(
    files: Callable[..., TurnFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turnfile, "PRUNE_S", 0.0)
    clock = Clock()
    file = files(days=3, now=clock)
    for name in "abc":
        file.put(turn(name))
    assert file.settle()
    clock.time += TOUCH_S + 60
    assert file.find(b"ea", None, b"")  # a use is noted
    file.touch(b"eb")
    assert file.settle()
    clock.time += 2 * DAY
    file.put(turn("d"))
    assert file.settle()
    left = [name for name in "abcd" if file.find(b"e" + name.encode(), None, b"?")]
    assert left == ["a", "b", "d"]


@pytest.mark.parametrize("budget", [MIB // 4, MIB])
def test_the_file_is_bounded_and_the_oldest_turns_go(
    tmp_path: Path, files: Callable[..., TurnFile], budget: int
) -> None:
    clock = Clock()
    file = files(budget=budget, now=clock)
    for number in range(1500):
        clock.time += 1
        file.put(turn(str(number), *range(500)))
        if number % 100 == 99:
            assert file.settle()
            assert file.stats()["bytes"] <= budget
    held = [number for number in range(1500) if file.find(b"e%d" % number, None, b"?")]
    assert held == list(range(held[0], 1500))
    assert len(held) * 2000 > budget // 3  # such a turn takes a page of 4,096 bytes
    assert file.stats()["dropped"] == 0
    file.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= budget


def test_what_is_forgotten_is_gone_at_once_and_from_the_disk(tmp_path: Path, files: Callable[..., TurnFile]) -> None:
    first, second = files(), files(OTHER)
    secret = list(range(77_000, 77_300))
    written = b"".join(number.to_bytes(4, "little") for number in secret[:50])
    first.put(turn("a", *secret))
    assert first.settle()
    assert any(written in path.read_bytes() for path in tmp_path.iterdir())
    second.put(turn("b"))
    assert second.settle()
    first.clear()
    assert first.find(b"ea", None, b"") == []
    first.put(turn("c"))
    assert first.settle()
    assert first.find(b"ea", None, b"") == []
    assert first.find(b"ec", None, b"")
    assert second.find(b"eb", None, b"?") == []
    assert not any(written in path.read_bytes() for path in tmp_path.iterdir())


def test_what_was_put_before_all_was_forgotten_is_not_written_after(files: Callable[..., TurnFile]) -> None:
    file = files()
    file.put(turn("first"))
    assert file.settle()
    for number in range(50):
        file.put(turn(str(number)))
    file.clear()
    file.put(turn("after"))
    assert file.settle()
    assert file.stats()["entries"] == 1
    assert file.find(b"eafter", None, b"")


# --------------------------------------------------------------------------------------------- what is wrong with files


def only_file(folder: Path) -> Path:
    [path] = folder.glob("*.sqlite")
    return path


def damage_head(path: Path) -> None:
    path.write_bytes(b"this is no database" * 300)


def damage_tables(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(bytes(data))


def cut_off(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def from_the_future(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute("PRAGMA user_version = 99")


@pytest.mark.parametrize("damage", [damage_head, damage_tables, cut_off, from_the_future])
def test_a_damaged_file_is_set_aside_and_told_and_a_new_one_begun(
    tmp_path: Path, files: Callable[..., TurnFile], damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    file = files()
    for number in range(100):
        file.put(turn(str(number), *range(200)))
    file.close()
    damage(only_file(tmp_path))
    evidence = only_file(tmp_path).read_bytes()
    caplog.set_level(logging.WARNING)
    again = files()
    for number in range(100):
        assert tokens(again.find(b"e%d" % number, None, b"?")) in ([], [list(range(200))])
    again.put(turn("new", 7))
    assert again.settle()
    assert tokens(again.find(b"enew", None, b"")) == [[7]]
    assert sorted(path.name for path in tmp_path.glob("*.sqlite")) == ["turns-v1-1.sqlite", "turns-v1-2.sqlite"]
    assert (tmp_path / "turns-v1-1.sqlite").read_bytes()[4096:] == evidence[4096:]
    assert "turns-v1-1.sqlite is damaged" in caplog.text
    assert again.stats()["damaged"] >= 1
    third = files()  # another server goes on with the new one
    assert tokens(third.find(b"enew", None, b"")) == [[7]]


def test_a_row_that_is_not_what_was_written_is_not_served(tmp_path: Path, files: Callable[..., TurnFile]) -> None:
    file = files()
    file.put(turn("a", 1, 2, 3))
    file.put(turn("b", 4))
    assert file.settle()
    with contextlib.closing(sqlite3.connect(only_file(tmp_path))) as other, other:
        other.execute("UPDATE turns SET tokens = ? WHERE exact = ?", (bytes(12), b"ea"))
    assert file.find(b"ea", None, b"?") == []
    assert tokens(file.find(b"eb", None, b"?")) == [[4]]
    assert file.stats()["damaged"] == 1


def test_of_several_damaged_files_the_last_is_kept(tmp_path: Path, files: Callable[..., TurnFile]) -> None:
    for number in range(1, 5):
        file = files()
        file.put(turn("a", number))
        assert file.settle()
        file.close()
        damage_head(tmp_path / f"turns-v1-{number}.sqlite")
    assert sorted(path.name for path in tmp_path.glob("*.sqlite")) == ["turns-v1-3.sqlite", "turns-v1-4.sqlite"]


def test_a_folder_that_is_gone_costs_turns_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = TurnFile(tmp_path / "missing", MINE, MIB, 14)
    caplog.set_level(logging.WARNING)
    file.put(turn("a"))
    assert file.settle()
    file.put(turn("b"))  # within the pause: not even tried
    assert file.settle()
    assert file.find(b"ea", None, b"") == []
    assert file.stats()["dropped"] == 2
    assert file.stats()["errors"] == 1
    assert "1 turns are not written" in caplog.text
    file.close()


def test_a_reader_does_not_wait_for_a_writer(tmp_path: Path, files: Callable[..., TurnFile]) -> None:
    file = files()
    file.put(turn("a"))
    assert file.settle()
    with contextlib.closing(sqlite3.connect(only_file(tmp_path), isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert file.find(b"ea", None, b"")
        file.put(turn("b", 2))
        assert not file.settle(0.1)  # that waits, on the file's own thread
        assert file.find(b"ea", None, b"")
        other.execute("ROLLBACK")
    assert file.settle()
    assert tokens(file.find(b"eb", None, b"?")) == [[2]]


def test_after_closing_nothing_happens(files: Callable[..., TurnFile]) -> None:
    file = files()
    file.put(turn("a"))
    file.close()
    file.put(turn("b"))
    assert file.find(b"ea", None, b"") == []
    assert file.settle(), "nothing is on its way"
    file.close()
    assert tokens(files().find(b"ea", None, b"")) == [[1, 2]]


WRITER = """
import sys
from pathlib import Path
from tandem.core.engine.replay import Turn, Written
from tandem.core.engine.turnfile import TurnFile
name, count = sys.argv[2], int(sys.argv[3])
file = TurnFile(Path(sys.argv[1]), b"m" * 16, 1 << 24, 14)
for number in range(count):
    key = f"{name}{number}".encode()
    file.put(Turn(b"e" + key, b"l" + key, b"p" + key, Written.of([number])))
    assert not number or file.find(b"e" + key, None, b"") is not None
file.settle(60)
print(file.stats()["written"], file.stats()["dropped"], file.stats()["errors"])
file.close()
"""


def test_servers_may_write_to_one_folder_at_once(tmp_path: Path, files: Callable[..., TurnFile]) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    running = [subprocess.Popen([*command, name, "400"], stdout=subprocess.PIPE, text=True) for name in ("one", "two")]
    for process in running:
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert said.split()[:2] == ["400", "0"]
    file = files()
    for name in ("one", "two"):
        for number in range(400):
            key = f"{name}{number}".encode()
            assert tokens(file.find(b"e" + key, None, b"")) == [[number]]
    assert file.stats()["entries"] == 800
    with contextlib.closing(sqlite3.connect(only_file(tmp_path))) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_server_that_is_killed_leaves_what_it_had_written(tmp_path: Path, files: Callable[..., TurnFile]) -> None:
    source = WRITER.replace("file.close()", "import os; os.kill(os.getpid(), 9)")
    done = subprocess.run([sys.executable, "-c", source, str(tmp_path), "one", "40"], capture_output=True, timeout=60)
    assert done.returncode == -9
    file = files()
    assert tokens(file.find(b"eone39", None, b"")) == [[39]]
    assert file.stats()["entries"] == 40


def model(**changes: Any) -> Any:
    def tokenizer(words: list[bytes]) -> Any:
        return SimpleNamespace(vocab_size=len(words), token_bytes=lambda token: words[token])

    words = changes.pop("words", [b"a", b"bc"])
    about = {"name": "m", "fingerprint": None, "facts": {"layers": 1}, "template": "t", **changes}
    return SimpleNamespace(tokenizer=tokenizer(words), **about)


def test_the_author_changes_with_all_that_makes_other_tokens_of_the_same_words() -> None:
    tags = ("<think>", "</think>")
    known = {author(model(), tags)}
    assert author(model(), tags) in known
    for other in (
        author(model(), None),
        author(model(name="n"), tags),
        author(model(template="u"), tags),
        author(model(facts={"layers": 2}), tags),
        author(model(fingerprint="f"), tags),
        author(model(words=[b"ab", b"c"]), tags),
        author(model(words=[b"a", b"bc", b""]), tags),
    ):
        assert other not in known
        known.add(other)


# ------------------------------------------------------------------------------------------------- behind the memory


STEP = st.tuples(
    st.integers(0, 5),  # the exact key
    st.none() | st.integers(0, 2),  # the loose one
    st.integers(0, 3),  # the place
    st.sampled_from(["put", "find", "find", "restart", "clear"]),
)


@settings(max_examples=40)
@given(steps=st.lists(STEP, max_size=25), room=st.integers(1, 8))
def test_a_small_memory_with_a_disk_finds_what_a_large_one_without_would(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int | None, int, str]], room: int
) -> None:
    folder = tmp_path_factory.mktemp("turns")
    small = room * Written.of([1]).nbytes
    oracle = ReplayStore(MIB)
    file = TurnFile(folder, MINE, MIB, 14)
    store = ReplayStore(small, file)
    for number, (name, calls, place, what) in enumerate(steps):
        exact, where = b"e%d" % name, b"p%d" % place
        loose = None if calls is None else b"l%d" % calls
        if what == "put":
            for kept in (oracle, store):
                kept.put(Written.of([number]), exact, loose, where)
        elif what == "find":
            wanted, found = oracle.find(exact, loose, where), store.find(exact, loose, where)
            assert (found and list(found.tokens)) == (wanted and list(wanted.tokens))
            assert store.stats()["edited"] == oracle.stats()["edited"]
        elif what == "restart":
            file.close()
            file = TurnFile(folder, MINE, MIB, 14)
            counts = store._counts
            store = ReplayStore(small, file)
            store._counts = counts
        else:
            oracle.clear()
            store.clear()
        assert file.settle()
        assert store.check() == []
    store.close()
