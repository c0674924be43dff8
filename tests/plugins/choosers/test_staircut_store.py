"""The price file: kept, found again, and not believed when it is another's or broken."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from staircut_kit import PART, Guesser, linear, options, play

from tandem.core.plugin import Model
from tandem.plugins.choosers.staircut import shared as sharing, store
from tandem.plugins.choosers.staircut.prices import Prices
from tandem.plugins.choosers.staircut.shared import Shared
from tandem.plugins.models.scripted import ScriptedModel


def scripted(**changed: Any) -> Model:
    model: Any = ScriptedModel({"reply": "x", "tokens_per_s": 0, "prefill_per_s": 0})
    for name, value in changed.items():
        setattr(model, name, value)
    return model


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How often passes were measured; measuring takes no time here."""
    done: list[float] = []

    def measured(model: Model, seconds: float) -> dict[int, float]:
        done.append(seconds)
        return {1: 1.0, 8: 1.7}

    monkeypatch.setattr(sharing, "measure", measured)
    return done


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TANDEM_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def build(model: Model | None = None, **given: Any) -> Shared:
    built = PART.build(options(**given), model or scripted())
    assert isinstance(built, Shared)
    return built


def only_file(state: Path) -> Path:
    (path,) = (state / "prices").iterdir()
    return path


def taught(chooser: Shared) -> Shared:
    guesser = Guesser("d", lambda at: 0.8, 0.8, seconds=0.1)
    play(chooser.open(), [guesser], linear(0.2), 300)
    return chooser


def test_what_was_learned_is_there_at_the_next_start_without_measuring(passes: list[float], state: Path) -> None:
    first = taught(build())
    assert first.report()["prices_from"] == "measured"
    first.close()
    again = build()
    assert passes == [2.0]
    assert again.report()["prices_from"] == f"file {only_file(state)}"
    assert again.report()["verify_ms"] == first.report()["verify_ms"]
    assert again.report()["drafters"]["d"]["draft_ms"] == first.report()["drafters"]["d"]["draft_ms"]
    assert again.report()["sources"] == {}, "acceptance is of one server's life"
    assert only_file(state).stat().st_mode & 0o077 == 0


def test_the_file_is_named_after_machine_and_model(passes: list[float], state: Path) -> None:
    build().close()
    name = only_file(state).name
    about = store.subject(scripted())
    assert name == f"{about.fingerprint}.json"
    assert {"cpu", "cores", "torch", "threads", "device"} == set(about.machine)
    assert store.subject(scripted(name="another")).fingerprint != about.fingerprint


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda kept: kept["machine"].update(cpu="Z80"), "another machine: cpu was 'Z80' and is"),
        (lambda kept: kept["model"].update(name="other"), "another model: name was 'other' and is"),
        (lambda kept: kept.update(version=99), "is of version 99, and this is 1"),
        (lambda kept: kept.update(prices={}), "holds no prices"),
        (lambda kept: kept.update(prices={"77": {"1": [1, 1]}}), "context class '77'"),
        (lambda kept: kept.update(prices={"1024": {"0": [1, 1]}}), "the price [1, 1] for '0' rows"),
        (lambda kept: kept.update(prices={"1024": {"1": [-1.0, 1]}}), "the price [-1.0, 1] for '1' rows"),
        (lambda kept: kept.update(prices={"1024": {"1": [float("nan"), 1]}}), "the price [nan, 1] for '1' rows"),
        (lambda kept: kept.pop("drafting"), "has no drafting costs"),
        (lambda kept: kept.update(drafting={"d": {"1024": ["soon", 1]}}), "the drafting cost ['soon', 1]"),
        (lambda kept: kept.pop("machine"), "another machine: it does not say which"),
    ],
)
def test_a_file_of_another_kind_is_not_used_and_the_reason_is_logged(
    change: Any, reason: str, passes: list[float], state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build().close()
    path = only_file(state)
    kept = json.loads(path.read_text())
    change(kept)
    path.write_text(json.dumps(kept))
    with caplog.at_level(logging.WARNING):
        assert build().report()["prices_from"] == "measured"
    assert len(passes) == 2
    assert str(path) in caplog.text
    assert reason in caplog.text


@pytest.mark.parametrize("length", [0, 1, 40, -1, -30])
def test_a_torn_file_is_not_used_with_its_name_told(
    length: int, passes: list[float], state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build().close()
    path = only_file(state)
    path.write_bytes(path.read_bytes()[:length])
    with caplog.at_level(logging.WARNING):
        build().close()
    assert f"{path} is not used" in caplog.text
    assert "torn or no JSON" in caplog.text
    caplog.clear()
    assert build().report()["prices_from"].startswith("file"), "the torn file was replaced"
    assert caplog.text == ""


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["1024", "1", "x"]), inner, max_size=3)
        ),
    )
)
def test_any_json_is_either_prices_or_refused(stored: Any) -> None:
    try:
        prices = Prices.from_json(stored)
    except ValueError:
        return
    assert prices.price(1, 100) > 0


def test_measuring_again_can_be_asked_for(passes: list[float], state: Path) -> None:
    build().close()
    assert build(remeasure=True).report()["prices_from"] == "measured"
    assert len(passes) == 2


def test_the_file_may_be_elsewhere_or_nowhere(passes: list[float], state: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "new" / "prices.json"
    build(price_file=str(elsewhere)).close()
    assert json.loads(elsewhere.read_text())["version"] == store.VERSION
    assert build(price_file=str(elsewhere)).report()["prices_from"] == f"file {elsewhere}"
    build(price_file=None).close()
    assert not (state / "prices").exists()


def test_a_place_that_can_not_be_written_stops_nothing(
    passes: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        build(price_file=str(tmp_path / "file" / "prices.json")).close()
    assert "can't be written" in caplog.text
    caplog.clear()
    monkeypatch.setenv("TANDEM_STATE_DIR", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        build().close()
    assert "the state directory can't be made" in caplog.text


def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    passes: list[float], state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build().close()
    before = only_file(state).read_bytes()

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.os, "replace", full)
    taught(build()).close()
    assert only_file(state).read_bytes() == before


def test_prices_are_kept_now_and_then_when_a_generation_opens() -> None:
    now, kept = [0.0], []
    server = Shared(Prices({1: 1.0, 8: 2.0}), options(), keep=kept.append, clock=lambda: now[0])
    server.open()
    now[0] = 10_000.0
    server.open()
    assert kept == [], "nothing was learned yet"
    server.prices.observe(1, 10, 1.0)
    server.open()
    assert kept == [server]
    server.open()
    assert kept == [server], "it was kept a moment ago"
    server.close()
    assert kept == [server, server]


def test_a_served_model_reports_and_keeps_what_it_learned(platform: Any, state: Path) -> None:
    host = platform(drafters={"lookup": {}}, choosers={"staircut": {}})
    answer = host.chat("Say it.", script=["abcdefgh " * 40], max_tokens=200)
    assert answer.text == ("abcdefgh " * 40)[:200]
    report = host.engine.snapshot()["speculation"]
    assert report["chooser"] == "staircut"
    assert set(report["verify_ms"]) >= {"1024"}
    assert json.dumps(report)
    host.close()
    assert json.loads(only_file(state).read_text())["prices"]
