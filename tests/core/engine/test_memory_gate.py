"""The memory gate over a machine that the test makes up: what is opened, what gives way for it, who waits."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence as Seq
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from toy import ToyModel, ToySequence

from tandem.core.engine import memory
from tandem.core.engine.caches import CacheStack
from tandem.core.engine.engine import Engine
from tandem.core.engine.generation import Phase
from tandem.core.engine.memory import (
    EVENTS,
    LEAST_ANSWER,
    LEAST_WORKSPACE,
    RECHECK_S,
    WORKSPACE_KV,
    Limits,
    MemoryGate,
    Sizes,
)
from tandem.core.engine.meter import Reading
from tandem.core.engine.options import SERVER_OPTIONS
from tandem.core.engine.request import Event, Failed, Finished, Generate, NoMemory, SharedPrompt
from tandem.core.kernel import StartError
from tandem.core.plugin import CacheTier, Match
from tandem.core.plugin.part import with_defaults

GIB = 2**30
SIZES = Sizes(per_sequence=0, per_row=1, workspace_per_row=0, chunk=10)
"""A request without an answer needs two bytes a prompt token."""


class Machine:
    """The meter, and the clock. Memory is what the test says: `held` and `left` are plain numbers."""

    def __init__(self, held: int = 0, left: int = 10**9) -> None:
        self.held, self.left = held, left
        self.reusable = 0
        self.garbage = 0
        """Bytes that only the collector finds."""
        self.now = 0.0
        self.reads = self.collected = 0

    def read(self) -> Reading:
        self.reads += 1
        return Reading(self.held, self.left, self.reusable)

    def free(self, nbytes: int) -> None:
        self.held -= nbytes
        self.left += nbytes

    def release(self) -> None:
        self.free(self.reusable)
        self.reusable = 0

    def collect(self) -> None:
        self.collected += 1
        self.free(self.garbage)
        self.garbage = 0
        self.release()


class Tier(CacheTier):
    """Entries of these sizes. `honest` is the part of what it says that it frees in truth."""

    def __init__(self, machine: Machine, *sizes: int, honest: float = 1.0) -> None:
        self.machine, self.sizes, self.honest = machine, list(sizes), honest
        self.asked: list[int] = []
        machine.held += round(sum(sizes) * honest)
        machine.left -= round(sum(sizes) * honest)

    def lookup(self, tokens: Seq[int]) -> Match | None:
        return None

    def shed(self, nbytes: int) -> int:
        self.asked.append(nbytes)
        said = 0
        while said < nbytes and self.sizes:
            said += self.sizes.pop(0)
        self.machine.free(round(said * self.honest))
        return said


class Keeper(Tier):
    """Keeps one conversation, which it gives away as it is."""

    def __init__(self, machine: Machine, rows: int) -> None:
        super().__init__(machine, rows)
        self.rows = rows

    def lookup(self, tokens: Seq[int]) -> Match | None:
        return Match(min(self.rows, len(tokens)), None) if self.sizes else None

    def adopt(self, tokens: Seq[int], sequence: Any) -> bool:
        return False


def gate(machine: Machine, *tiers: Tier, ceiling: int = 10**9, peak: int = 10**9, floor: int = 0) -> MemoryGate:
    def fail(name: str, reason: str) -> None:
        raise AssertionError(f"{name}: {reason}")

    stack = CacheStack([(f"tier{place}", tier) for place, tier in enumerate(tiers)], fail)
    return MemoryGate(Limits(ceiling, peak, floor), SIZES, machine, stack, clock=lambda: machine.now)


def asking(rows: int, max_tokens: int = 0, **more: Any) -> Generate:
    return Generate([1] * rows, max_tokens, **more)


def begun(rows: int, held: int, phase: Phase = Phase.DECODE, max_tokens: int = 0) -> Any:
    return SimpleNamespace(request=asking(rows, max_tokens), sequence=SimpleNamespace(nbytes=held), phase=phase)


def outcomes(of: MemoryGate) -> list[str]:
    return [event["outcome"] for event in of.report()["events"]]


# -------------------------------------------------------------------------------------------------- the estimate


def test_the_need_is_made_of_the_models_own_numbers() -> None:
    facts = {
        "kv_bytes_per_token": 100,
        "mtp_kv_bytes_per_token": 10,
        "state_bytes": 5000,
        "conv_bytes": 500,
        "workspace_bytes_per_row": 7,
    }
    need = Sizes.of(facts, chunk=64).need(prompt=1000, max_tokens=400)
    assert need.kept == 5500 + 2 * 110 * (1000 + 100)
    assert need.workspace == 7 * 64


def test_a_model_that_does_not_tell_its_workspace_has_it_by_rule() -> None:
    assert Sizes.of({"kv_bytes_per_token": 65536}, 64).workspace_per_row == WORKSPACE_KV * 65536
    silent = Sizes.of({"kv_bytes_per_token": None, "architecture": "odd"}, 64)
    assert (silent.per_row, silent.per_sequence, silent.workspace_per_row) == (0, 0, LEAST_WORKSPACE)
    assert silent.need(3, 10).workspace == 3 * LEAST_WORKSPACE  # a short prompt is one short chunk


def test_max_tokens_never_counts_alone() -> None:
    short, huge = SIZES.need(10, 400), SIZES.need(10, 10**6)
    assert short.kept == 2 * (10 + 100)  # a quarter of it
    assert huge.kept == 2 * (10 + LEAST_ANSWER)
    assert SIZES.need(1000, 10**6).kept == 2 * (1000 + 1000)  # at most the prompt once more


def test_what_a_running_request_holds_is_not_counted_again() -> None:
    sizes = Sizes(per_sequence=0, per_row=1, workspace_per_row=3, chunk=10)
    assert sizes.left(begun(100, held=50, phase=Phase.PREFILL)).total == 200 - 50 + 30
    assert sizes.left(begun(100, held=50)).total == 150
    assert sizes.left(begun(100, held=500)).total == 0
    assert sizes.left(begun(100, held=0, phase=Phase.DONE)).total == 0


# ----------------------------------------------------------------------------------------------------- the limits


def limits(now: Reading, total: int | None = 64 * GIB, longest: int = GIB, **given: Any) -> Limits:
    options = {f"mem_{name}_gib": given.get(name, "auto") for name in ("ceiling", "peak", "floor")}
    return Limits.of(options, now, total, longest)


def test_auto_leaves_the_floor_free_and_the_longest_prompt_its_room() -> None:
    found = limits(Reading(held=2 * GIB, available=40 * GIB))
    assert found == Limits(ceiling=37 * GIB, peak=38 * GIB, floor=4 * GIB)


def test_auto_never_asks_for_a_floor_that_a_full_machine_does_not_have() -> None:
    found = limits(Reading(held=GIB, available=GIB), longest=100 * GIB)
    assert found.floor == GIB // 4
    assert found.peak == GIB + GIB * 3 // 4
    assert found.ceiling == GIB + GIB * 3 // 8, "half of the room, where the longest prompt would take all of it"


def test_given_limits_are_taken_and_the_others_follow() -> None:
    now = Reading(held=2 * GIB, available=40 * GIB)
    assert limits(now, peak=10, ceiling=4, floor=0) == Limits(4 * GIB, 10 * GIB, 0)
    assert limits(now, peak=10).ceiling == 9 * GIB
    assert limits(now, ceiling=50).peak == 50 * GIB
    assert limits(now, ceiling=1).ceiling == GIB  # caches are of no use then, but everything is served


def test_a_device_that_does_not_tell_its_size_has_limits_too() -> None:
    assert limits(Reading(held=0, available=2**62), total=None).floor == 8 * GIB


def test_limits_under_which_nothing_can_be_served_stop_the_start() -> None:
    now = Reading(held=2 * GIB, available=40 * GIB)
    with pytest.raises(StartError, match=r"server\.mem_peak_gib is 1\.5, but .* 2\.0 GiB are held already"):
        limits(now, peak=1.5)
    with pytest.raises(StartError, match=r"server\.mem_ceiling_gib is 12, more than server\.mem_peak_gib"):
        limits(now, peak=10, ceiling=12)


# ---------------------------------------------------------------------------------------------- nothing is tight


def test_a_request_that_fits_is_opened_and_nothing_is_touched() -> None:
    machine = Machine()
    tier = Tier(machine, 500)
    guard = gate(machine, tier, peak=1000)
    assert guard.admit(asking(250), []).opens
    assert (tier.asked, machine.collected, outcomes(guard)) == ([], 0, [])
    assert guard.report()["counts"]["opened"] == 1


def test_the_memory_is_read_once_in_a_while() -> None:
    machine = Machine()
    guard = gate(machine, peak=1000)
    for _ in range(50):
        assert guard.admit(asking(10), []).opens
    assert machine.reads == 1
    machine.now += 1
    guard.admit(asking(10), [])
    assert machine.reads == 2


def test_the_gate_takes_microseconds_when_nothing_is_tight() -> None:
    machine = Machine()
    guard = gate(machine)
    request, running = asking(1000, 100), [begun(100, 10), begun(100, 10)]
    best = min(_seconds(lambda: guard.admit(request, running)) for _ in range(200))
    assert best < 1e-4, f"{best * 1e6:.0f} us"


def _seconds(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


# ------------------------------------------------------------------------------------------------ caches give way


def test_the_tier_that_stands_last_in_the_manifest_gives_way_first() -> None:
    machine = Machine()
    first, last = Tier(machine, 100, 100), Tier(machine, 100)
    guard = gate(machine, first, last, peak=300)
    assert guard.admit(asking(25), []).opens
    assert (first.asked, last.asked) == ([], [50])
    assert guard.admit(asking(75), []).opens
    assert first.asked == [50], "what the last one could not give"
    assert machine.held == 100
    events = guard.report()["events"]
    assert [event["shed"] for event in events] == [
        {"tier1": {"said": 100, "freed": 100}},
        {"tier0": {"said": 100, "freed": 100}},
    ]
    assert guard.report()["counts"]["shed_bytes"] == 200


def test_a_tier_is_asked_for_what_is_missing_and_no_more() -> None:
    machine = Machine()
    tier = Tier(machine, *[10] * 10)
    assert gate(machine, tier, peak=100).admit(asking(17), []).opens
    assert tier.asked == [34]
    assert len(tier.sizes) == 6


def test_free_blocks_are_taken_before_anything_is_shed() -> None:
    machine = Machine(held=100)
    machine.reusable = 60
    tier = Tier(machine, 100)
    guard = gate(machine, tier, peak=200)
    assert guard.admit(asking(30), []).opens, "it fits into the blocks that the allocator has"
    assert machine.reusable == 60
    machine.reusable = 0
    assert guard.admit(asking(30), []).opens
    machine.now += 1
    assert guard.admit(asking(30), []).opens
    assert tier.asked == [60]


def test_the_floor_holds_as_the_peak_does() -> None:
    machine = Machine(left=300)
    tier = Tier(machine, 100, 100)  # 100 left
    guard = gate(machine, tier, floor=80)
    assert guard.admit(asking(10), []).opens
    assert tier.asked == []
    assert guard.admit(asking(11), []).opens
    assert tier.asked == [2]
    machine.left = 0  # another program has taken it all
    machine.now += 1
    verdict = guard.admit(asking(50), [])
    assert verdict.refusal is not None
    assert "server.mem_floor_gib" in verdict.refusal


def test_caches_are_brought_under_the_ceiling_even_where_the_request_fits() -> None:
    machine = Machine(held=50)
    tier = Tier(machine, *[10] * 20)
    guard = gate(machine, tier, ceiling=150, peak=10_000)
    assert guard.admit(asking(1), []).opens
    assert machine.held == 150
    assert guard.admit(asking(1), []).opens
    assert tier.asked == [100]


def test_what_runs_does_not_count_against_the_ceiling() -> None:
    machine = Machine(held=500)
    tier = Tier(machine, 100)
    guard = gate(machine, tier, ceiling=150, peak=10_000)
    assert guard.admit(asking(1), [begun(200, held=460)]).opens
    assert tier.asked == []


def test_a_model_over_the_ceiling_is_served_without_caches() -> None:
    machine = Machine(held=500)
    tier = Tier(machine, 100)
    assert gate(machine, tier, ceiling=400, peak=1000).admit(asking(10), []).opens
    assert tier.sizes == []


@pytest.mark.parametrize("honest", [0.0, 0.3])
def test_a_tier_that_frees_less_than_it_says_is_not_asked_again(honest: float) -> None:
    machine = Machine()
    liar, other = Tier(machine, *[100] * 9, honest=honest), Tier(machine, 30)
    guard = gate(machine, other, liar, peak=300 + machine.held - 330)
    verdict = guard.admit(asking(150), [])
    assert len(liar.asked) == 1
    assert len(other.asked) == 1, "the next tier is asked all the same"
    assert not verdict.opens
    again = guard.admit(asking(150), [])
    assert len(liar.asked) == 2, "another admission asks anew"
    assert not again.opens


def test_a_tier_whose_buffers_are_half_empty_is_asked_on() -> None:
    machine = Machine()
    tier = Tier(machine, *[20] * 20, honest=0.6)
    guard = gate(machine, tier, peak=machine.held)
    assert guard.admit(asking(50), []).opens
    assert len(tier.asked) > 1
    assert tier.asked == sorted(tier.asked, reverse=True)


def test_a_conversation_that_a_tier_gives_away_is_not_needed_twice() -> None:
    machine = Machine()
    keeper = Keeper(machine, 90)
    guard = gate(machine, keeper, peak=120)
    assert guard.admit(asking(100), []).opens  # 2 x 10 new rows beside 90 held
    assert keeper.asked == []
    assert not guard.admit(asking(100, cache=False), []).opens, "it reads all of it again"
    machine.now += 1
    assert keeper.asked, "so the conversation was asked for its bytes"


def test_a_choice_that_copies_a_read_prompt_takes_no_conversation() -> None:
    machine = Machine()
    guard = gate(machine, Keeper(machine, 90), peak=120)
    shared = SharedPrompt(state=object())
    assert not guard.admit(asking(100, shared=shared), []).opens
    machine = Machine()
    guard = gate(machine, Keeper(machine, 90), peak=120)
    assert not guard.admit(asking(100), [], cached=False).opens, "and neither does a guest of the side lane"


def test_a_tier_that_breaks_while_it_sheds_is_dropped_and_the_others_are_asked() -> None:
    machine = Machine()

    class Broken(Tier):
        def shed(self, nbytes: int) -> int:
            raise OSError("gone")

    broken, well = Broken(machine, 10), Tier(machine, 100)
    failed: list[str] = []
    stack = CacheStack([("well", well), ("broken", broken)], lambda name, reason: failed.append(name))
    guard = MemoryGate(Limits(10**9, 150, 0), SIZES, machine, stack, clock=lambda: machine.now)
    assert guard.admit(asking(50), []).opens
    assert failed == ["broken"]
    assert stack.shedding() == ["well"]


# ------------------------------------------------------------------------------------------- refused, or waiting


def test_what_never_fits_is_refused_in_words_about_memory() -> None:
    machine = Machine(held=3 * GIB, left=60 * GIB)
    guard = gate(machine, peak=4 * GIB)
    guard.sizes = Sizes(per_sequence=0, per_row=2**20, workspace_per_row=0, chunk=10)
    verdict = guard.admit(asking(1024), [])
    assert not verdict.opens
    assert verdict.refusal is not None
    assert "needs 2.0 GiB of memory, and 1.0 GiB can be had below server.mem_peak_gib (4.0 GiB)" in verdict.refusal
    for word in ("context", "length", "token"):
        assert word not in verdict.refusal
    assert machine.collected == 1, "the collector was asked before"
    assert outcomes(guard) == ["refused"]
    assert guard.admit(asking(512), []).opens, "a smaller one is served"


def test_what_the_collector_finds_opens_a_request() -> None:
    machine = Machine(held=100)
    machine.garbage = 80
    guard = gate(machine, peak=100)
    assert guard.admit(asking(30), []).opens
    assert machine.collected == 1


def test_beside_others_it_waits_until_one_ends() -> None:
    machine = Machine(held=100)
    guard = gate(machine, peak=300)
    request, holder = asking(100), begun(100, held=100)
    assert guard.admit(request, [holder]).opens is False
    machine.now += 0.2
    waiting = guard.admit(request, [holder])
    assert (waiting.opens, waiting.refusal) == (False, None)
    machine.now += 4
    machine.free(100)  # the holder has ended
    assert guard.admit(request, []).opens
    assert outcomes(guard) == ["waits", "opened"]
    assert guard.report()["events"][1]["waited_s"] == pytest.approx(4.2)
    assert guard.report()["counts"]["waits"] == 1
    assert guard.report()["counts"]["waited_s"] == pytest.approx(4.2)


def test_one_that_waits_is_looked_at_when_one_ends_and_once_a_second() -> None:
    machine = Machine(held=1000)
    guard = gate(machine, peak=1000)
    request, two = asking(100), [begun(1, 0), begun(1, 0)]
    guard.admit(request, two)
    assert machine.collected == 1
    for _ in range(20):
        machine.now += 0.01
        guard.admit(request, two)
    tight = guard.report()["counts"]["tight"]
    assert tight == 1
    guard.admit(request, two[:1])
    assert guard.report()["counts"]["tight"] == 2
    machine.now += RECHECK_S + 0.01
    guard.admit(request, two[:1])
    assert guard.report()["counts"]["tight"] == 3
    assert machine.collected == 1, "the collector takes long, and runs once while others run"
    assert outcomes(guard) == ["waits"]


def test_two_that_wait_are_told_apart() -> None:
    machine = Machine(held=1000)
    guard = gate(machine, peak=1000)
    one, other, running = asking(100), asking(100), [begun(1, 0)]
    for _ in range(10):
        guard.admit(one, running)
        guard.admit(other, running)
    assert guard.report()["counts"]["tight"] == 2
    assert guard.report()["counts"]["waits"] == 2


def test_what_running_requests_will_still_take_is_kept_for_them() -> None:
    machine = Machine(held=100)
    guard = gate(machine, peak=400)
    assert guard.admit(asking(100), []).opens
    assert not guard.admit(asking(100), [begun(100, held=0)]).opens
    assert guard.admit(asking(100), [begun(100, held=200)]).opens


def test_one_that_gave_its_place_up_is_never_refused() -> None:
    machine = Machine(held=1000)
    guard = gate(machine, peak=1000)
    paused = begun(100, held=20)
    assert guard.admit(paused.request, [], begun=paused).opens
    verdict = guard.admit(paused.request, [begun(1, 0)], begun=paused)
    assert (verdict.opens, verdict.refusal) == (False, None)


def test_the_last_events_are_kept_and_no_more() -> None:
    machine = Machine(held=1000)
    guard = gate(machine, peak=1000)
    for rows in range(1, EVENTS + 11):
        guard.admit(asking(rows), [])
    events = guard.report()["events"]
    assert [event["prompt_tokens"] for event in events] == list(range(11, EVENTS + 11))
    assert guard.report()["counts"]["refused"] == EVENTS + 10
    assert abs(events[-1]["at"] - time.time()) < 60


# ------------------------------------------------------------------------------------------------------ always so


@settings(max_examples=200, deadline=None)
@given(
    tiers=st.lists(st.tuples(st.lists(st.integers(1, 200), max_size=6), st.floats(0, 1)), max_size=3),
    held=st.integers(0, 400),
    left=st.integers(0, 1500),
    reusable=st.integers(0, 100),
    garbage=st.integers(0, 50),
    ceiling=st.integers(0, 800),
    above=st.integers(0, 400),
    floor=st.integers(0, 300),
    asked=st.lists(st.tuples(st.integers(1, 200), st.integers(0, 400), st.booleans()), min_size=1, max_size=4),
    running=st.lists(st.tuples(st.integers(1, 100), st.integers(0, 300)), max_size=2),
)
def test_nothing_is_opened_over_the_peak_and_nothing_shed_that_fits(
    tiers: Any,
    held: int,
    left: int,
    reusable: int,
    garbage: int,
    ceiling: int,
    above: int,
    floor: int,
    asked: Any,
    running: Any,
) -> None:
    machine = Machine(held + reusable + garbage, left)
    machine.reusable, machine.garbage = reusable, garbage
    made = [Tier(machine, *sizes, honest=honest) for sizes, honest in tiers]
    guard = gate(machine, *made, ceiling=ceiling, peak=ceiling + above, floor=floor)
    holders = [begun(rows, nbytes) for rows, nbytes in running]
    others = sum(SIZES.left(one).total for one in holders)
    own = sum(nbytes for _, nbytes in running)
    for rows, max_tokens, beside in asked:
        machine.now += 1
        present, taken = (holders, others) if beside else ([], 0)
        need = SIZES.need(rows, max_tokens).total

        def room() -> int:
            return min(ceiling + above - machine.held, machine.left - floor) + machine.reusable

        fitted = need + taken <= room() and machine.held - (own if beside else 0) <= ceiling
        before = [len(tier.asked) for tier in made]
        verdict = guard.admit(asking(rows, max_tokens), present)
        shed = [len(tier.asked) for tier in made] != before
        if fitted:
            assert verdict.opens
            assert not shed
        assert verdict.opens == (need + taken <= room())
        if not verdict.opens:
            assert (verdict.refusal is None) == bool(present)
            assert all(not tier.sizes for tier in made if tier.honest >= 0.6), "there was more to give"


# ----------------------------------------------------------------------------------------------- inside the engine


class Client:
    def __init__(self) -> None:
        self.events: queue.Queue[Event] = queue.Queue()

    def sink(self, events: list[Event]) -> None:
        for event in events:
            self.events.put(event)

    def last(self) -> Finished | Failed:
        while not isinstance(event := self.events.get(timeout=20), Finished | Failed):
            pass
        return event


class HeavySequence(ToySequence):
    """Each row takes a byte of the machine that the test made up."""

    machine: Machine

    def commit(self, path: Seq[int]) -> None:
        before = len(self.tokens)
        super().commit(path)
        self.machine.free(before - len(self.tokens))

    def close(self) -> None:
        if not self.closed:
            self.machine.free(len(self.tokens))
        super().close()


class HeavyModel(ToyModel):
    def __init__(self, machine: Machine) -> None:
        super().__init__(eos_bias=-100.0)
        self.facts = {"kv_bytes_per_token": 1, "workspace_bytes_per_row": 1}
        self.machine = machine
        self.most = 0

    def new_sequence(self, max_len: int) -> HeavySequence:
        sequence = HeavySequence(max_len)
        sequence.machine = self.machine
        return sequence

    def forward(self, blocks: Any) -> Any:
        time.sleep(0.002)
        self.most = max(self.most, self.machine.held)
        return super().forward(blocks)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    machine = Machine(held=1000, left=10**6)
    monkeypatch.setattr(memory, "Meter", lambda device: machine)
    model = HeavyModel(machine)
    options = with_defaults(SERVER_OPTIONS, {"parallel": 4, "prefill_chunk": 8, "mem_peak_gib": 3000 / GIB})
    platform = SimpleNamespace(
        model=model,
        manifest=SimpleNamespace(section=lambda name: options, sections={}),
        active=lambda kind: [],
        build=lambda kind, *args: [],
        fail=lambda *args: None,
    )
    running = Engine(platform)  # type: ignore[arg-type]
    running.start()
    yield running
    running.stop()


def submit(engine: Engine, rows: int, max_tokens: int = 4) -> Client:
    client = Client()
    engine.submit(Generate([1 + row % 9 for row in range(rows)], max_tokens), client.sink)
    return client


def test_the_engine_refuses_what_does_not_fit_and_serves_on(engine: Engine) -> None:
    refused = submit(engine, 1200).last()
    assert isinstance(refused, NoMemory)
    assert refused.retry_after > 0
    assert refused.stats.prompt_tokens == 1200
    assert isinstance(submit(engine, 300).last(), Finished)
    assert engine.idle
    assert engine.snapshot()["memory"]["counts"]["refused"] == 1


def test_the_engine_lets_a_request_wait_for_the_memory_of_others(engine: Engine) -> None:
    clients = [submit(engine, 400, 40) for _ in range(4)]  # each needs 2 x 410 + 8, and there are 2000
    assert all(isinstance(client.last(), Finished) for client in clients)
    told = engine.snapshot()["memory"]
    assert told["counts"]["waits"] >= 1
    assert told["counts"]["refused"] == 0
    assert "waits" in [event["outcome"] for event in told["events"]]
    assert engine.model.most <= 1000 + 2 * 440, "never three at once"  # type: ignore[union-attr]
