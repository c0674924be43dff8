"""The disk tier over a model whose state is a tensor of its tokens."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from tandem.core.plugin import Moment
from tandem.plugins.caches.disk import format as files, tandem_caches, tier as tier_module
from tandem.plugins.caches.disk.tier import DiskTier, Limits
from tandem.testing.server import until

TEXT = list(range(100, 200))


class Copy:
    """Three tensors of unlike types that stand for the rows of these tokens."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def nbytes(self) -> int:
        return 10 * len(self.tokens)

    def tensors(self) -> Mapping[str, torch.Tensor]:
        rows = torch.tensor(self.tokens)
        return {"rows": rows, "half": rows.to(torch.bfloat16)[:, None], "empty": torch.empty(0, 3)}


class Rows:
    """A sequence."""

    def __init__(self, tokens: list[int] | None = None) -> None:
        self.tokens = tokens or []

    @property
    def length(self) -> int:
        return len(self.tokens)

    def snapshot(self, anchor: Any = None) -> Copy:
        return Copy(list(self.tokens))

    def restore(self, snapshot: Copy) -> None:
        self.tokens = list(snapshot.tokens)

    def trim(self, length: int, anchor: Any = None) -> None:
        del self.tokens[length:]


def model(fingerprint: str | None = "a", trim: bool = True) -> Any:
    def snapshot_of(tensors: Mapping[str, torch.Tensor]) -> Copy:
        assert tensors["half"].dtype == torch.bfloat16
        assert tensors["empty"].shape == (0, 3)
        return Copy(tensors["rows"].tolist())

    caps = SimpleNamespace(trim=trim)
    return SimpleNamespace(name="toy", fingerprint=fingerprint, caps=caps, snapshot_of=snapshot_of)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., DiskTier]]:
    """Opens tiers on one directory, and closes them at the end."""
    tiers: list[DiskTier] = []

    def open_tier(served: Any = None, **limits: Any) -> DiskTier:
        given_ = {
            "budget": 10**6, "seconds": 1000.0, "admit_after": 1, "min_tokens": 16, "leave_free": 0, "spill": True,
            **limits,
        }  # fmt: skip
        tiers.append(DiskTier(tmp_path, served or model(), Limits(**given_)))
        return tiers[-1]

    yield open_tier
    for tier in tiers:
        tier.close()


def turn(tier: DiskTier, tokens: list[int]) -> int:
    """One generation that ends with `tokens`; how many of them came from the disk."""
    match = tier.lookup(tokens[:-1])
    sequence: Any = tier.resume(match, Rows) if match else None  # type: ignore[arg-type]
    found = sequence.length if sequence else 0
    assert sequence is None or sequence.tokens == tokens[:found]
    whole: Any = Rows(list(tokens))
    for moment in (Moment.PROMPT_END, Moment.GENERATION_END):
        tier.offer(moment, tokens, whole)
    return found


def written(tier: DiskTier) -> None:
    """Wait for the writer."""
    until(tier._queue.empty)
    tier.close()


def test_a_conversation_goes_on_after_a_restart(opened: Any) -> None:
    first = opened()
    assert turn(first, TEXT[:60]) == 0
    written(first)
    assert turn(opened(), TEXT[:70]) == 60


def test_a_prompt_that_parts_earlier_is_cut_back(opened: Any) -> None:
    first = opened()
    turn(first, TEXT[:60])
    written(first)
    second = opened()
    assert turn(second, [*TEXT[:40], 1, 2, 3]) == 40
    assert turn(opened(model(trim=False)), [*TEXT[:40], 1, 2, 3]) == 0, "a recurrent state can't be"


def test_a_conversation_is_written_when_it_comes_back(opened: Any, tmp_path: Path) -> None:
    tier = opened(admit_after=2)
    turn(tier, TEXT[:40])
    assert tier.stats()["written"] == 0
    turn(tier, TEXT[:50])
    written(tier)
    assert tier.stats()["written"] == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_the_longer_state_takes_the_place_of_the_shorter(opened: Any, tmp_path: Path) -> None:
    tier = opened()
    for count, end in enumerate((40, 50, 60), start=1):
        turn(tier, TEXT[:end])
        until(lambda count=count: tier.stats()["written"] == count)
    written(tier)
    assert [files.read_head(path).tokens for path in tmp_path.iterdir()] == [TEXT[:60]]
    assert tier.check() == []


def test_what_is_in_memory_is_spilled_when_the_server_closes(opened: Any) -> None:
    tier = opened(admit_after=5)
    tier.offer(Moment.CLOSING, TEXT, Rows(TEXT))
    written(tier)
    assert turn(opened(), [*TEXT, 1]) == len(TEXT)
    silent = opened(spill=False)
    silent.offer(Moment.CLOSING, TEXT[::-1], Rows(TEXT[::-1]))
    written(silent)
    assert turn(opened(), [*TEXT[::-1], 1]) == 0


def test_files_of_another_model_are_left_and_never_served(opened: Any, tmp_path: Path) -> None:
    first = opened(model("a"))
    turn(first, TEXT)
    written(first)
    other = opened(model("b"))
    assert turn(other, [*TEXT, 1]) == 0
    written(other)
    assert len(list(tmp_path.iterdir())) == 2
    assert turn(opened(model("a")), [*TEXT, 1]) == len(TEXT)


def state_file(tmp_path: Path) -> Path:
    path = tmp_path / files.file_name(files.model_id("a"), TEXT)
    files.write(path, files.model_id("a"), TEXT, Copy(TEXT).tensors())
    return path


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    path = state_file(tmp_path)
    head, tensors = files.read(path)
    assert (head.tokens, head.model, head.size) == (TEXT, files.model_id("a"), path.stat().st_size)
    for name, tensor in Copy(TEXT).tensors().items():
        assert torch.equal(tensors[name], tensor)
        assert tensors[name].dtype == tensor.dtype
    assert path.stat().st_mode & 0o777 == 0o600


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_flipped_byte_or_a_cut_is_found_wherever_it_is(tmp_path: Path, data: st.DataObject) -> None:
    path = state_file(tmp_path)
    whole = bytearray(path.read_bytes())
    if data.draw(st.booleans(), "cut"):
        whole = whole[: data.draw(st.integers(0, len(whole) - 1), "length")]
    else:
        whole[data.draw(st.integers(0, len(whole) - 1), "place")] ^= data.draw(st.integers(1, 255), "bits")
    path.write_bytes(whole)
    with pytest.raises((files.Broken, files.Foreign)):
        files.read(path)


def test_a_torn_file_is_deleted_at_the_start_and_one_that_tears_later_costs_a_cold_start(
    opened: Any, tmp_path: Path
) -> None:
    path = state_file(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert opened().stats()["entries"] == 0
    assert not path.exists()
    path.write_bytes(whole)
    tier = opened()
    path.write_bytes(whole[:-20] + bytes(20))
    assert turn(tier, [*TEXT, 1]) == 0
    assert tier.check() == []


def test_a_file_of_a_newer_version_is_left_alone(opened: Any, tmp_path: Path) -> None:
    path = state_file(tmp_path)
    whole = bytearray(path.read_bytes())
    whole[8] = 9
    path.write_bytes(whole)
    assert opened().stats()["entries"] == 0
    assert path.exists()


def test_files_that_nobody_asked_for_go_with_time_and_with_the_budget(opened: Any, tmp_path: Path) -> None:
    for place, text in enumerate((TEXT[:40], TEXT[40:80], TEXT[60:100])):
        path = tmp_path / files.file_name(files.model_id("a"), text)
        size = files.write(path, files.model_id("a"), text, Copy(text).tensors())
        os.utime(path, (time.time() - 500 + place, time.time() - 500 + place))
    assert opened(budget=2 * size).stats()["entries"] == 2
    assert turn(opened(), [*TEXT[:40], 1]) == 0, "the oldest was to go"
    assert opened(seconds=100.0).stats()["entries"] == 0
    assert [path for path in tmp_path.iterdir() if path.stat().st_mtime < time.time() - 400] == []


def test_parts_of_a_writer_that_died_are_swept(opened: Any, tmp_path: Path) -> None:
    old, new = tmp_path / ".x.state.1.part", tmp_path / ".y.state.2.part"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    opened()
    assert (old.exists(), new.exists()) == (False, True)


def test_a_disk_that_fails_costs_the_file_alone(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> int:
        raise OSError(28, "No space left on device")

    tier = opened()
    monkeypatch.setattr(tier_module.files, "write", full)
    turn(tier, TEXT)
    until(lambda: tier.stats()["errors"] == 1)
    turn(tier, TEXT[::-1])
    assert tier.stats()["errors"] == 1
    assert tier.stats()["skipped"] == 1, "it was tried again at once"
    assert tier.stats()["entries"] == 0


def test_a_write_that_breaks_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output"):
        state_file(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_into_the_last_free_space(
    opened: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    usage = shutil.disk_usage("/")._replace(free=5000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    tier = opened(leave_free=4500)
    turn(tier, TEXT)
    written(tier)
    assert tier.stats()["skipped"] == 1
    assert tier.stats()["entries"] == 0
    assert "would leave too little" in caplog.text


def test_what_the_tier_did_not_name_is_left_alone(opened: Any, tmp_path: Path) -> None:
    mine, theirs = state_file(tmp_path), tmp_path / "notes.state"
    theirs.write_text("not a state, and nobody's to delete")
    (tmp_path / ("a" * 32 + ".state")).mkdir()
    os.mkfifo(tmp_path / ("b" * 32 + ".state"))
    (tmp_path / ("c" * 32 + ".state")).symlink_to(theirs)
    (tmp_path / "folder.part").mkdir()
    before = sorted(tmp_path.iterdir())
    tier = opened(budget=1000)
    assert tier.stats()["entries"] == 0, "the budget is smaller than the file"
    assert sorted(tmp_path.iterdir()) == [path for path in before if path != mine]


def test_two_servers_on_one_directory_do_each_other_no_harm(opened: Any) -> None:
    one, two = opened(), opened()
    turn(one, TEXT)
    written(one)
    assert turn(two, [*TEXT, 1]) == 0, "it learns of new files when it starts"
    written(two)
    third = opened()
    one.clear()
    assert turn(third, [*TEXT, 1, 2]) in (0, len(TEXT) + 1)
    assert turn(opened(), [*TEXT[::-1]]) == 0


def test_clear_deletes_this_models_files(opened: Any, tmp_path: Path) -> None:
    tier = opened()
    turn(tier, TEXT)
    written(tier)
    tier.clear()
    assert list(tmp_path.iterdir()) == []
    assert tier.stats()["bytes"] == 0


def test_what_is_being_written_when_the_tier_is_emptied_is_not_there_afterwards(
    opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, emptied = threading.Event(), threading.Event()
    write = files.write

    def slow(*args: Any) -> int:
        begun.set()
        assert emptied.wait(10)
        return write(*args)

    monkeypatch.setattr(files, "write", slow)
    tier = opened()
    turn(tier, TEXT[:60])
    assert begun.wait(10)
    turn(tier, TEXT[10:90])
    tier.clear()
    emptied.set()
    written(tier)
    assert list(tmp_path.iterdir()) == []
    assert tier.lookup(TEXT[:60]) is None
    assert tier.stats()["entries"] == 0


def test_a_file_that_gives_way_to_a_longer_one_during_the_check_is_not_missed(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = opened()
    turn(tier, TEXT[:60])
    until(lambda: tier.stats()["written"] == 1)
    begun, checking = threading.Event(), threading.Event()
    write, exists = files.write, Path.exists

    def slow(*args: Any) -> int:
        begun.set()
        assert checking.wait(10)
        return write(*args)

    def late(path: Path, **more: Any) -> bool:
        checking.set()
        tier._writer.join(0.3)  # time enough for the writer, if it is free to go on
        return exists(path, **more)

    monkeypatch.setattr(files, "write", slow)
    turn(tier, TEXT[:80])
    tier._queue.put(None)
    assert begun.wait(10)
    monkeypatch.setattr(Path, "exists", late)
    assert tier.check() == []


def test_a_model_whose_states_stay_in_the_process_is_refused() -> None:
    (part,) = tandem_caches()
    options = {name: schema["default"] for name, schema in part.options.items()}
    with pytest.raises(ValueError, match="the states of the model toy can't leave the process"):
        part.build(options, model(None))


def test_the_documented_bytes_are_those_of_the_format() -> None:
    page = (Path(__file__).parents[3] / "docs" / "caches.md").read_text("utf-8")
    rows = [line for line in (files.__doc__ or "").splitlines() if line.startswith("|")]
    assert len(rows) > 10
    assert "\n".join(rows) in page
