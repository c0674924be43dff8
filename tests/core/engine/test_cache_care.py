"""The cache stack over tiers that complain, and what the idle engine does about them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence as Seq
from typing import Any

import pytest
from served import FakePlatform
from toy import ToyModel, ToySequence

from tandem.core.engine import care
from tandem.core.engine.caches import CLEARED, EVENTS, CacheStack
from tandem.core.engine.care import EVERY_S, IDLE_S, IdleCare
from tandem.core.engine.engine import Engine
from tandem.core.engine.request import Event, Finished, Generate
from tandem.core.plugin import CacheTier, Match, Moment


class Tier(CacheTier):
    """Knows prompts that begin with `known`; complains until `heals`, if that is a number of clears."""

    def __init__(self, known: Seq[int] = (), complains: bool = False, heals: bool = True) -> None:
        self.known = list(known)
        self.complains, self.heals = complains, heals
        self.checks = self.clears = 0
        self.offers: list[Moment] = []
        self.gone = False

    def lookup(self, tokens: Seq[int]) -> Match | None:
        found = self.known and list(tokens[: len(self.known)]) == self.known
        return Match(len(self.known), self) if found else None

    def resume(self, match: Match, new_sequence: Callable[[], Any]) -> Any:
        if self.gone:
            return None
        sequence = new_sequence()
        sequence.restore(self.known)
        return sequence

    def offer(self, moment: Moment, tokens: Seq[int], sequence: Any) -> None:
        self.offers.append(moment)

    def shed(self, nbytes: int) -> int:
        return 0

    def stats(self) -> Mapping[str, float]:
        return {"bytes": 0, "entries": bool(self.known), "clears": self.clears}

    def clear(self) -> None:
        self.clears += 1
        if self.heals:
            self.complains = False

    def check(self) -> list[str]:
        self.checks += 1
        return ["a row is not what its token says"] if self.complains else []


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def stack(*tiers: Tier, stores: Seq[tuple[str, Any]] = ()) -> tuple[CacheStack, list[tuple[str, str]]]:
    failed: list[tuple[str, str]] = []
    named = [(f"tier{place}", tier) for place, tier in enumerate(tiers)]
    return CacheStack(named, lambda *why: failed.append(why), stores), failed


def resumed(caches: CacheStack, *tokens: int) -> tuple[str, int]:
    _, name, rows = caches.resume(tokens, lambda: ToySequence(99))  # type: ignore[arg-type]
    return name, rows


# ---------------------------------------------------------------------------------------------------- what is counted


def counts(caches: CacheStack) -> list[tuple[float, float]]:
    return [(told["hits"], told["misses"]) for told in caches.stats().values()]


def test_who_gave_the_state_has_a_hit_who_had_none_a_miss_and_who_was_outbid_neither() -> None:
    caches, _ = stack(Tier([1, 2]), Tier([1, 2, 3]), Tier([7]))
    assert resumed(caches, 1, 2, 3, 4) == ("tier1", 3)
    assert counts(caches) == [(0, 0), (1, 0), (0, 1)]
    assert resumed(caches, 9, 9) == ("none", 0)
    assert counts(caches) == [(0, 1), (1, 1), (0, 2)]


def test_a_state_that_is_gone_when_it_is_wanted_is_a_miss() -> None:
    gone = Tier([1, 2, 3])
    gone.gone = True
    caches, _ = stack(gone, Tier([1, 2]))
    assert resumed(caches, 1, 2, 3, 4) == ("tier1", 2)
    assert counts(caches) == [(0, 1), (1, 0)]


def test_what_the_gate_asks_is_not_counted() -> None:
    class Giver(Tier):
        def adopt(self, tokens: Seq[int], sequence: Any) -> bool:
            return False

    caches, _ = stack(Giver([1, 2]))
    assert caches.kept([1, 2, 3]) == 2
    assert caches.kept([3, 3, 3]) == 0
    assert counts(caches) == [(0, 0)]


def test_a_store_is_listed_emptied_and_asked_first_to_give_way_but_never_for_a_match() -> None:
    class Rows:
        """A store that is no tier: it has none of a tier's methods."""

        def __init__(self) -> None:
            self.held = 30

        def shed(self, nbytes: int) -> int:
            freed, self.held = self.held, 0
            return freed

        def stats(self) -> Mapping[str, float]:
            return {"bytes": self.held, "entries": 1, "hits": 5}

        def clear(self) -> None:
            self.held = 0

        def check(self) -> list[str]:
            return []

    rows = Rows()
    caches, failed = stack(Tier([1]), Tier(), stores=[("image_rows", rows)])
    assert caches.shedding() == ["image_rows", "tier1", "tier0"]
    assert caches.stats()["image_rows"] == {"bytes": 30, "entries": 1, "hits": 5}
    resumed(caches, 1, 2)
    caches.offer(Moment.GRID, [1], ToySequence(9))  # type: ignore[arg-type]
    assert not caches.adopt([1], ToySequence(9))  # type: ignore[arg-type]
    assert caches.shed("image_rows", 10) == 30
    rows.held = 30
    caches.clear()
    assert rows.held == 0
    assert (caches.check(), failed) == ({}, [])


# -------------------------------------------------------------------------------------------------------- the repair


def test_a_tier_that_complains_is_cleared_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    ill, well = Tier([1], complains=True), Tier([2])
    caches, failed = stack(ill, well)
    for name in caches.names():
        caches.care(name)
    assert (ill.clears, well.clears, failed) == (1, 0, [])
    assert caches.names() == ["tier0", "tier1"]
    (event,) = caches.events()
    assert (event["tier"], event["what"], event["why"]) == ("tier0", "cleared", "a row is not what its token says")
    assert abs(event["at"] - time.time()) < 60
    assert "tier0 is cleared: a row is not what its token says" in caplog.text


def test_one_that_still_complains_is_switched_off() -> None:
    caches, failed = stack(Tier([1], complains=True, heals=False), Tier([2]))
    caches.care("tier0")
    assert caches.names() == ["tier1"]
    ((name, why),) = failed
    assert name == "tier0"
    assert "still is once it was cleared: a row is not" in why
    assert [event["what"] for event in caches.events()] == ["dropped"]
    assert resumed(caches, 1, 2) == ("none", 0), "what it knows is served no more"


def test_one_that_breaks_again_and_again_is_switched_off() -> None:
    tier = Tier([1])
    caches, failed = stack(tier)
    for _ in range(CLEARED + 1):
        tier.complains = True
        caches.care("tier0")
    assert [event["what"] for event in caches.events()] == ["cleared"] * CLEARED + ["dropped"]
    assert "again and again" in failed[0][1]


@pytest.mark.parametrize("broken", ["check", "clear"])
def test_one_that_raises_is_switched_off_once_with_its_reason(broken: str) -> None:
    tier = Tier([1], complains=True)

    def fails() -> Any:
        raise OSError("no such place")

    setattr(tier, broken, fails)
    caches, failed = stack(tier)
    caches.care("tier0")
    assert failed == [("tier0", "OSError: no such place")]
    assert [event["what"] for event in caches.events()] == ["dropped"]


def test_the_last_events_are_kept_and_no_more() -> None:
    caches, _ = stack()
    for number in range(EVENTS + 3):
        tier = Tier(complains=True, heals=False)
        caches.add([(f"t{number}", tier)])
        caches.care(f"t{number}")
    assert [event["tier"] for event in caches.events()] == [f"t{number}" for number in range(3, EVENTS + 3)]


# --------------------------------------------------------------------------------------------------------- idle time


def test_a_tier_is_checked_after_five_idle_seconds_once_for_what_has_changed() -> None:
    tier, clock = Tier([1]), Clock()
    idle = IdleCare(stack(tier)[0], clock)
    assert idle.due_in() is None, "nothing has run yet"
    idle.worked()
    assert idle.due_in() == IDLE_S
    clock.now += IDLE_S - 1
    idle.worked()  # not idle after all
    assert idle.due_in() == IDLE_S
    idle.run(lambda: False)
    assert tier.checks == 0
    clock.now += IDLE_S
    assert idle.due_in() == 0
    idle.run(lambda: False)
    assert (tier.checks, idle.due_in()) == (1, None)
    clock.now += 10 * EVERY_S
    assert idle.due_in() is None, "nothing has changed since"


def test_it_is_checked_once_a_minute_at_most() -> None:
    tier, clock = Tier([1]), Clock()
    idle = IdleCare(stack(tier)[0], clock)
    idle.worked()
    clock.now += IDLE_S
    idle.run(lambda: False)
    idle.worked()
    clock.now += IDLE_S
    assert idle.due_in() == EVERY_S - IDLE_S
    idle.run(lambda: False)
    assert tier.checks == 1
    clock.now += EVERY_S - IDLE_S
    idle.run(lambda: False)
    assert tier.checks == 2


def test_work_that_arrives_waits_for_one_tier_and_the_others_have_their_turn_later() -> None:
    tiers, clock = [Tier([1]), Tier([2]), Tier([3])], Clock()
    idle = IdleCare(stack(*tiers)[0], clock)
    idle.worked()
    clock.now += IDLE_S
    idle.run(lambda: tiers[0].checks == 1)  # somebody comes during the first check
    assert [tier.checks for tier in tiers] == [1, 0, 0]
    idle.worked()
    clock.now += IDLE_S
    idle.run(lambda: False)
    assert [tier.checks for tier in tiers] == [1, 1, 1]
    clock.now += EVERY_S
    idle.run(lambda: False)
    assert [tier.checks for tier in tiers] == [2, 1, 1]


# ------------------------------------------------------------------------------------------------- inside the engine


class Slow(Tier):
    """A tier whose check takes until the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.may_end = threading.Event(), threading.Event()

    def check(self) -> list[str]:
        self.began.set()
        self.may_end.wait(20)
        return super().check()


@pytest.fixture
def engine_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[Engine, FakePlatform]]]:
    monkeypatch.setattr(care, "IDLE_S", 0.02)
    started: list[Engine] = []

    def engine_of(*tiers: Tier) -> tuple[Engine, FakePlatform]:
        platform = FakePlatform(ToyModel(eos_bias=-100.0))
        platform.tiers = [(f"tier{place}", tier) for place, tier in enumerate(tiers)]
        engine = Engine(platform)  # type: ignore[arg-type]
        started.append(engine)
        engine.start()
        return engine, platform

    yield engine_of
    for engine in started:
        engine.stop()


def ask(engine: Engine) -> threading.Event:
    """Submit a request; set once it has its answer."""
    done = threading.Event()

    def sink(events: list[Event]) -> None:
        if isinstance(events[-1], Finished):
            done.set()

    engine.submit(Generate([1, 2, 3], 3), sink)
    return done


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end, "it did not come to pass in 20 s"
        time.sleep(0.005)


def test_the_idle_engine_clears_a_broken_tier_drops_a_hopeless_one_and_serves_on(engine_of: Any) -> None:
    ill, dead, well = Tier(complains=True), Tier(complains=True, heals=False), Tier()
    engine, platform = engine_of(ill, dead, well)
    assert ill.checks == 0, "nothing has changed since the start"
    assert ask(engine).wait(20)
    until(lambda: well.checks == 1)
    told = engine.snapshot()
    assert [(event["tier"], event["what"]) for event in told["cache_events"]] == [
        ("tier0", "cleared"),
        ("tier1", "dropped"),
    ]
    assert list(told["caches"]) == ["tier0", "tier2"]
    assert [failed[:2] for failed in platform.failed] == [("caches", "tier1")]
    assert ask(engine).wait(20)


def test_a_request_during_a_check_is_served_before_the_next_tier_is_checked(engine_of: Any) -> None:
    slow, next_one = Slow(), Tier()
    engine, _ = engine_of(slow, next_one)
    assert ask(engine).wait(20)
    assert slow.began.wait(20)
    done = ask(engine)
    assert not done.wait(0.05)
    offers = len(next_one.offers)
    assert next_one.checks == 0
    slow.may_end.set()
    assert done.wait(20)
    until(lambda: next_one.checks == 1)
    assert len(next_one.offers) > offers


def test_an_engine_stops_at_once_while_it_waits_for_the_next_check(engine_of: Any) -> None:
    engine, _ = engine_of(Tier())
    assert ask(engine).wait(20)
    start = time.monotonic()
    engine.stop()
    assert time.monotonic() - start < 5
