from __future__ import annotations

import contextlib
import os
import shutil
import stat
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tandem.plugins.drafters.suffix.files import Folder, others
from tandem.plugins.drafters.suffix.layout import WORD, document, order_header
from tandem.plugins.drafters.suffix.order import SORTED
from tandem.plugins.drafters.suffix.store import LEAST, SEGMENTS, Store

VOCABULARY = b"v" * 32
Opened = Callable[..., Store]


class Reports(list[str]):
    def __call__(self, message: str) -> None:
        self.append(message)


@contextlib.contextmanager
def opened(path: Path, max_words: int = LEAST, reports: Reports | None = None) -> Iterator[Store]:
    path.mkdir(exist_ok=True)
    store = Store(Folder(path, VOCABULARY), VOCABULARY, max_words, reports if reports is not None else Reports())
    try:
        store.settle()
        yield store
    finally:
        store.close()


def texts_of(path: Path, max_words: int = LEAST, reports: Reports | None = None) -> list[list[int]]:
    with opened(path, max_words, reports) as store:
        return store.documents()


def filled(path: Path, texts: list[list[int]], max_words: int = LEAST) -> None:
    with opened(path, max_words) as store:
        for text in texts:
            store.add(text)


def found_places(store: Store) -> list[tuple[list[int], int]]:
    """What the view says stands before each place (to the document's beginning), and the token there; sorted."""
    found = []
    for run in store.view:
        for place in run.places:
            words = np.frombuffer(run.text[(place - SORTED) * WORD : (place + 1) * WORD], np.uint32).tolist()
            before = words[:-1][::-1]
            found.append((before[: before.index(0xFFFFFFFF)] if 0xFFFFFFFF in before else before, words[-1]))
    return sorted(found)


def all_places(texts: list[list[int]]) -> list[tuple[list[int], int]]:
    return sorted((text[max(0, at - SORTED) : at][::-1], text[at]) for text in texts for at in range(1, len(text)))


# ---------------------------------------------------------------------------------------------------- appending


def test_what_was_added_is_found_at_once_and_after_a_restart(tmp_path: Path) -> None:
    texts = [[1, 2, 3, 4], [5, 6], [7] * 9]
    with opened(tmp_path) as store:
        for text in texts:
            store.add(text)
        store.settle()
        assert store.documents() == texts
        assert found_places(store) == all_places(texts)
    with opened(tmp_path) as store:
        assert store.documents() == texts
        assert found_places(store) == all_places(texts)
        store.add([8, 9])
    assert texts_of(tmp_path) == [*texts, [8, 9]]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.just("reopen"),
            st.lists(st.integers(0, 3), min_size=1, max_size=30),
            st.lists(st.integers(0, 3), min_size=60, max_size=150),
        ),
        max_size=40,
    ),
    st.integers(LEAST, 2 * LEAST),
)
def test_any_course_leaves_the_newest_documents_within_the_bound(
    tmp_path_factory: pytest.TempPathFactory, course: list[str | list[int]], max_words: int
) -> None:
    path = tmp_path_factory.mktemp("store")
    most = max_words // SEGMENTS - 20
    pieces: list[list[int]] = []
    store = Store(Folder(path, VOCABULARY), VOCABULARY, max_words, Reports())
    for step in course:
        if step == "reopen":
            store.close()
            store = Store(Folder(path, VOCABULARY), VOCABULARY, max_words, Reports())
        else:
            assert isinstance(step, list)
            store.add(step)
            pieces += [step[start : start + most] for start in range(0, len(step), most)]
        store.settle()
        known = store.documents()
        assert store.words <= max_words
        assert sum(file.stat().st_size for file in path.glob("*.log")) == store.words * WORD
        assert known == pieces[len(pieces) - len(known) :], "something other than the oldest documents is gone"
        if len(known) < len(pieces):
            assert store.words > max_words // 4, "more than the oldest half is gone"
        assert found_places(store) == all_places(known)
    store.close()
    shutil.rmtree(path)


def test_few_runs_are_searched_however_many_documents_there_are(tmp_path: Path) -> None:
    with opened(tmp_path, 1 << 20) as store:
        for i in range(300):
            store.add([i] * (1 + i % 7 * 30))
            store.settle()
        assert len(store.view) <= 17


def test_when_full_the_oldest_half_goes_with_its_files(tmp_path: Path) -> None:
    texts = [[i] * 40 for i in range(SEGMENTS)]  # one to a segment
    filled(tmp_path, texts)
    assert len(list(tmp_path.glob("*.log"))) == SEGMENTS
    filled(tmp_path, [[99] * 40])
    left = texts_of(tmp_path)
    assert left[-1] == [99] * 40
    assert left[:-1] == texts[-len(left) + 1 :]
    assert SEGMENTS // 2 <= len(left) <= SEGMENTS // 2 + 2
    assert len(list(tmp_path.glob("*.log"))) == len(left)
    assert len(list(tmp_path.glob("*.order"))) == len(left) - 1


def test_a_smaller_bound_than_before_forgets_at_the_start(tmp_path: Path) -> None:
    texts = [[i] * 60 for i in range(40)]
    filled(tmp_path, texts, 4 * LEAST)
    with opened(tmp_path, LEAST) as store:
        assert 0 < store.words <= LEAST
        known = store.documents()
        assert known == texts[-len(known) :]


def test_a_store_that_could_hold_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 512 tokens, not 100"):
        Store(None, VOCABULARY, 100)


def test_a_view_stays_right_while_the_store_grows_and_forgets(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.add([1, 2, 3, 4])
        store.settle()
        held, before = store.view, found_places(store)
        for i in range(60):
            store.add([i] * 40)
        store.settle()
        now, store.view = store.view, held
        assert found_places(store) == before
        store.view = now
        assert [1, 2, 3, 4] not in store.documents()


# ----------------------------------------------------------------------------------------------------- crashing


def test_a_file_cut_anywhere_keeps_what_was_whole_and_goes_on(tmp_path: Path) -> None:
    texts = [[1, 2, 3], [4, 5, 6, 7], [8]]
    whole = tmp_path / "whole"
    filled(whole, texts)
    content = (whole / "00000001.log").read_bytes()
    for size in range(len(content)):
        path = tmp_path / f"cut{size}"
        path.mkdir()
        (path / "00000001.log").write_bytes(content[:size])
        kept = texts_of(path)
        assert kept == texts[: len(kept)]
        assert size < 64 or len(kept) == sum(
            size >= 64 + sum(16 + 4 * len(t) for t in texts[: i + 1]) for i in range(3)
        )
        filled(path, [[9, 9]])
        assert texts_of(path) == [*kept, [9, 9]]


def test_a_file_with_any_byte_changed_keeps_what_stands_before_it(tmp_path: Path) -> None:
    texts = [[1, 2, 3], [4, 5, 6, 7], [8]]
    whole = tmp_path / "whole"
    filled(whole, texts)
    content = (whole / "00000001.log").read_bytes()
    for place in range(len(content)):
        path = tmp_path / f"flip{place}"
        path.mkdir()
        damaged = bytearray(content)
        damaged[place] ^= 0x20
        (path / "00000001.log").write_bytes(damaged)
        reports = Reports()
        kept = texts_of(path, reports=reports)
        assert kept == texts[: len(kept)]
        assert len(kept) < len(texts)
        if place < 64:
            assert "00000001.log" in reports[0]
            assert (path / "00000001.log").read_bytes() == damaged, "a file that is refused is left alone"
        filled(path, [[9, 9]])
        assert texts_of(path) == [*kept, [9, 9]]


def test_an_order_that_is_wrong_in_any_byte_is_made_anew(tmp_path: Path) -> None:
    texts = [[1, 2, 3, 4] * 10, [5, 6] * 16]
    filled(tmp_path, texts)
    file = tmp_path / "00000001.order"
    content = file.read_bytes()
    for place in range(0, len(content), 3):
        damaged = bytearray(content)
        damaged[place] ^= 0x04
        file.write_bytes(damaged)
        with opened(tmp_path) as store:
            assert found_places(store) == all_places(texts)
        assert file.read_bytes() == content
    for torn in (content[: len(content) // 2], content[:10], b""):
        file.write_bytes(torn)
        assert texts_of(tmp_path) == texts
        assert file.read_bytes() == content


def test_an_order_that_names_places_outside_its_log_is_made_anew(tmp_path: Path) -> None:
    texts = [[1, 2, 3, 4] * 10, [5, 6] * 16]
    filled(tmp_path, texts)
    file = tmp_path / "00000001.order"
    content, log = file.read_bytes(), (tmp_path / "00000001.log").read_bytes()
    for place in (0, 15, len(log) // WORD, 1 << 31):
        places = content[64:-4] + place.to_bytes(4, "little")
        file.write_bytes(order_header(1, len(log) // WORD, zlib.crc32(log), places) + places)
        with opened(tmp_path) as store:
            assert found_places(store) == all_places(texts)
        assert file.read_bytes() == content


def test_a_file_left_in_the_making_is_swept(tmp_path: Path) -> None:
    filled(tmp_path, [[1, 2, 3]])
    (tmp_path / "00000002.log.new").write_bytes(b"half")
    assert texts_of(tmp_path) == [[1, 2, 3]]
    assert not list(tmp_path.glob("*.new"))


def test_a_missing_log_between_others_is_no_harm(tmp_path: Path) -> None:
    texts = [[i] * 40 for i in range(4)]
    filled(tmp_path, texts)
    (tmp_path / "00000002.log").unlink()
    assert texts_of(tmp_path) == [texts[0], texts[2], texts[3]]


def test_a_full_disk_leaves_the_store_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = Reports()
    with opened(tmp_path, reports=reports) as store:
        store.add([1, 2, 3])
        store.settle()
        real = os.write

        def full(file: int, data: bytes) -> int:
            return real(file, data[:10]) if data.startswith(b"\xff\xff\xff\xff") else real(file, data)

        monkeypatch.setattr(os, "write", full)
        store.add([4, 5, 6])
        store.add([7, 8, 9])
        store.settle()
        monkeypatch.undo()
        assert store.documents() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
        assert len(reports) == 1
        assert "in memory only" in reports[0]
    assert (tmp_path / "00000001.log").stat().st_size == 64 + len(document([1, 2, 3]))
    assert texts_of(tmp_path) == [[1, 2, 3]]


# ------------------------------------------------------------------------------------------------------ sharing


def test_another_tokenizers_store_is_left_alone_and_named(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    filled(theirs, [[1, 2, 3]])
    ours.mkdir()
    shutil.copy(theirs / "00000001.log", ours / "00000001.log")
    before = (ours / "00000001.log").read_bytes()
    reports = Reports()
    store = Store(Folder(ours, b"w" * 32), b"w" * 32, LEAST, reports)
    store.add([7, 7])
    store.settle()
    assert store.documents() == [[7, 7]]
    store.close()
    assert "00000001.log was written for another tokenizer; it is left alone" in reports[0]
    assert (ours / "00000001.log").read_bytes() == before
    assert (ours / "00000002.log").exists()
    assert [path for path, _ in others(ours)] == [theirs]


def test_a_second_process_reads_and_keeps_its_own_in_memory(tmp_path: Path) -> None:
    filled(tmp_path, [[i] * 40 for i in range(3)])
    with opened(tmp_path) as writer:
        before = {file: file.read_bytes() for file in tmp_path.iterdir()}
        folder = Folder(tmp_path, VOCABULARY)
        assert not folder.writer
        reader = Store(folder, VOCABULARY, LEAST, Reports())
        for i in range(SEGMENTS + 3):
            reader.add([100 + i] * 40)
        reader.settle()
        known = reader.documents()
        assert known[-1] == [110] * 40
        assert reader.words <= LEAST
        reader.close()
        assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
        writer.add([50] * 9)
    assert texts_of(tmp_path)[-1] == [50] * 9


def test_the_lock_is_free_again_after_close(tmp_path: Path) -> None:
    filled(tmp_path, [[1, 2]])
    folder = Folder(tmp_path, VOCABULARY)
    assert folder.writer
    folder.close()


def test_nobody_else_can_read_the_files(tmp_path: Path) -> None:
    filled(tmp_path, [[i] * 40 for i in range(4)])
    files = [file for file in tmp_path.iterdir() if file.is_file()]
    assert {file.suffix for file in files} == {"", ".log", ".order"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_adding_does_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path, 1 << 20) as store:
        real = os.write

        added = threading.Event()
        in_time: list[bool] = []

        def slow(file: int, data: bytes) -> int:
            in_time.append(added.wait(10))
            return real(file, data)

        monkeypatch.setattr(os, "write", slow)
        store.add([1, 2, 3])
        added.set()
        store.settle()
        monkeypatch.undo()
        assert in_time
        assert all(in_time), "the write ended before `add` did"
        assert store.documents() == [[1, 2, 3]]
