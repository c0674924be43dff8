"""The memory gate over a machine that the test makes up: what is opened, what gives way for it, who waits."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence as Seq
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from toy import ToyModel, ToySequence

from tandem.core.engine import memory
from tandem.core.engine.caches import CacheStack
from tandem.core.engine.engine import Engine
from tandem.core.engine.generation import Phase
from tandem.core.engine.memory import EVENTS, RECHECK_S, Limits, MemoryGate
from tandem.core.engine.meter import Reading
from tandem.core.engine.options import SERVER_OPTIONS
from tandem.core.engine.placing import JOINT_ROWS
from tandem.core.engine.request import Event, Failed, Finished, Generate, NoMemory, PlacedPicture, SharedPrompt
from tandem.core.engine.sizes import DRAWING, LEAST_ANSWER, LEAST_WORKSPACE, LOGIT, WORKSPACE_KV, Sizes
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
        self.copies = False

    def lookup(self, tokens: Seq[int]) -> Match | None:
        return Match(min(self.rows, len(tokens)), None, self.copies) if self.sizes else None

    def adopt(self, tokens: Seq[int], sequence: Any) -> bool:
        return False


def gate(
    machine: Machine,
    *tiers: Tier,
    ceiling: int = 10**9,
    peak: int = 10**9,
    floor: int = 0,
    parallel_floor: int = 0,
    loaded: int = 0,
) -> MemoryGate:
    def fail(name: str, reason: str) -> None:
        raise AssertionError(f"{name}: {reason}")

    stack = CacheStack([(f"tier{place}", tier) for place, tier in enumerate(tiers)], fail)
    limits = Limits(ceiling, peak, floor, parallel_floor)
    return MemoryGate(limits, SIZES, machine, stack, clock=lambda: machine.now, loaded=loaded)


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


PICTURED = Sizes(
    per_sequence=0,
    per_row=0,
    workspace_per_row=1,
    chunk=100,
    image_row=10,
    image_kept=200,
    image_workspace_per_row=50,
)


def shown(start: int, rows: int) -> PlacedPicture:
    picture: Any = SimpleNamespace(rows=rows, id="0" * 64)
    return PlacedPicture(start, picture)


def test_pictures_count_with_their_rows_as_far_as_they_are_kept_and_the_towers_work_on_the_largest() -> None:
    need = PICTURED.of_request(asking(40, images=(shown(0, 4), shown(10, 6))))
    assert need.pictures == 10 * (4 + 6)
    assert need.workspace == 50 * 6, "more than the pass over 40 rows takes, and it is over before that begins"
    assert PICTURED.of_request(asking(40, images=(shown(0, 30),))).pictures == 300, "the latest one's are kept anyway"
    assert PICTURED.of_request(asking(90, images=(shown(0, 15), shown(20, 15)))).pictures == 200
    assert PICTURED.of_request(asking(40, images=(shown(0, 4),)), given=10) == PICTURED.need(40, 0, 10), "read already"


def test_the_copy_that_other_choices_go_on_from_counts_for_the_one_that_makes_it() -> None:
    sizes = Sizes(per_sequence=7, per_row=1, workspace_per_row=0, chunk=10)
    first, later = SharedPrompt(), SharedPrompt(state=object())
    assert sizes.of_request(asking(100, shared=first)).total == 7 + 200 + 7 + 100
    assert sizes.of_request(asking(100, shared=later)).total == 7 + 200
    reading = begun(100, held=50, phase=Phase.PREFILL)
    reading.request = asking(100, shared=first)
    assert sizes.left(reading).total == 7 + 200 - 50 + 107
    reading.request = asking(100, shared=later)
    assert sizes.left(reading).total == 7 + 200 - 50


def test_what_a_pass_looks_back_to_counts_once_for_all_that_run() -> None:
    sizes = Sizes(per_sequence=0, per_row=0, workspace_per_row=1, chunk=10, workspace_per_token=2, workspace=5)
    need = sizes.need(100, 0)
    assert (need.rows, need.look) == (10, 205)
    assert sizes.beside(need, [begun(100, held=0), begun(50, held=0)]) == 0
    assert sizes.beside(need, [begun(400, held=0, phase=Phase.PREFILL)]) == 10 + 600
    assert sizes.beside(need, []) == 0


def test_a_silent_models_logits_count_by_the_vocabulary() -> None:
    told = {"kv_bytes_per_token": 4, "workspace_bytes_per_row": 9, "workspace_bytes": 1000}
    assert Sizes.of(told, 64, vocab=10).workspace == 1000 + DRAWING * 10
    silent = Sizes.of({"kv_bytes_per_token": 4}, 64, vocab=10)
    assert silent.workspace == (LOGIT * JOINT_ROWS + DRAWING) * 10
    assert silent.workspace_per_token == 4, "a buffer that grows stands beside the one before"


# ----------------------------------------------------------------------------------------------------- the limits


def limits(now: Reading, total: int | None = 64 * GIB, longest: int = GIB, **given: Any) -> Limits:
    options = {f"mem_{name}_gib": given.get(name, "auto") for name in ("ceiling", "peak", "floor")}
    options["parallel_floor_gib"] = given.get("parallel", "auto")
    return Limits.of(options, now, total, longest)


def test_auto_leaves_the_floor_free_and_the_longest_prompt_its_room() -> None:
    found = limits(Reading(held=2 * GIB, available=40 * GIB))
    assert found == Limits(ceiling=37 * GIB, peak=38 * GIB, floor=4 * GIB, parallel_floor=8 * GIB)


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


def test_a_request_beside_others_leaves_more_free_than_one_alone() -> None:
    machine = Machine(left=300)
    guard = gate(machine, floor=80, parallel_floor=200)
    assert not guard.admit(asking(51), [begun(1, held=2)]).opens
    assert "stay free (server.parallel_floor_gib)" in guard.why_waits
    machine.now += RECHECK_S
    assert guard.admit(asking(50), [begun(1, held=2)]).opens
    assert guard.admit(asking(110), []).opens, "alone it may have all but the floor"


def test_a_parallel_floor_below_the_floor_changes_nothing() -> None:
    machine = Machine(left=300)
    guard = gate(machine, floor=80, parallel_floor=0)
    assert guard.admit(asking(110), [begun(1, held=2)]).opens
    assert not guard.admit(asking(110), [begun(2, held=2)]).opens
    assert "server.mem_floor_gib" in guard.why_waits


def test_rows_that_a_tier_would_copy_are_not_given_away() -> None:
    tier = Keeper(Machine(), 50)
    stack = CacheStack([("keeper", tier)], lambda name, reason: None)
    assert stack.kept([1] * 60) == 50
    tier.copies = True
    assert stack.kept([1] * 60) == 0


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
    machine = Machine(held=300)
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
    assert guard.admit(asking(50, cache=False), []).opens
    assert keeper.asked, "what does not take the conversation over may take its bytes"


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


def test_no_cache_is_emptied_for_what_would_not_fit_into_empty_ones() -> None:
    machine = Machine(held=100)
    tiers = Tier(machine, 200, 200), Tier(machine, 100)
    guard = gate(machine, *tiers, peak=600, loaded=100)
    verdict = guard.admit(asking(251), [])  # 502 bytes, where 500 is all there will ever be
    assert verdict.refusal is not None
    assert "server.mem_peak_gib" in verdict.refusal
    assert [tier.asked for tier in tiers] == [[], []]
    assert machine.collected == 0
    assert guard.admit(asking(250), []).opens, "one that fits into empty ones has them emptied"
    assert machine.held == 100


def test_what_never_fits_does_not_wait_for_the_others_either() -> None:
    machine = Machine(held=500)
    guard = gate(machine, peak=600, loaded=100)
    holder = begun(200, held=400)
    assert guard.admit(asking(251), [holder]).refusal is not None
    assert guard.admit(asking(250), [holder]) == memory.WAITS
    assert outcomes(guard) == ["refused", "waits"]


def test_where_the_floor_is_the_limit_what_other_programs_hold_counts_as_lost() -> None:
    machine = Machine(held=100, left=500)
    tier = Tier(machine, 100)
    guard = gate(machine, tier, floor=50, loaded=100)
    verdict = guard.admit(asking(226), [])  # 452 bytes, where 400 + 100 - 50 can be had
    assert verdict.refusal is not None
    assert "server.mem_floor_gib" in verdict.refusal
    assert tier.asked == []
    machine.left += 100  # another program has ended
    machine.now += 1
    assert guard.admit(asking(226), []).opens


def test_a_conversation_that_only_fits_because_it_is_taken_over_is_no_hopeless_one() -> None:
    machine = Machine(held=100)
    keeper = Keeper(machine, 90)
    guard = gate(machine, keeper, peak=220, loaded=100)
    assert guard.admit(asking(95), []).opens, "read anew it would take 190 of 120"
    assert keeper.asked == []


def test_an_event_says_which_limit_was_short_and_why() -> None:
    machine = Machine(held=50, left=10_000)
    tier = Tier(machine, *[10] * 20)
    guard = gate(machine, tier, ceiling=150, peak=400, floor=9000, loaded=50)
    guard.admit(asking(1), [])
    guard.admit(asking(130), [])
    machine.free(-100)
    guard.admit(asking(150), [begun(90, held=100)])
    machine.free(100)
    machine.left = 9050
    machine.now += 1
    guard.admit(asking(60), [])
    told = guard.report()["events"]
    assert [(event["outcome"], event["limit"]) for event in told] == [
        ("opened", "ceiling"),
        ("opened", "peak"),
        ("waits", "peak"),
        ("refused", "floor"),
    ]
    assert "more is held than server.mem_ceiling_gib" in told[0]["why"]
    assert "are needed, which is more than server.mem_peak_gib" in told[1]["why"]
    assert "and the 1 running will take" in told[2]["why"]
    assert told[3]["why"].startswith("the request needs")


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

        most = min(ceiling + above, machine.left + machine.held - floor)
        fitted = need + taken <= room() and machine.held - (own if beside else 0) <= ceiling
        before = [len(tier.asked) for tier in made]
        verdict = guard.admit(asking(rows, max_tokens), present)
        shed = [len(tier.asked) for tier in made] != before
        if need > most:
            assert verdict.refusal is not None
            assert not shed, "no cache is emptied for what never fits"
            continue
        if fitted:
            assert verdict.opens
            assert not shed
        assert verdict.opens == (need + taken <= room())
        if not verdict.opens:
            assert (verdict.refusal is None) == bool(present)
            assert all(not tier.sizes for tier in made if tier.honest >= 0.6), "there was more to give"


# ----------------------------------------------------------------------------------------------------- on a GPU


class Card:
    """A GPU of 1000 bytes and torch's allocator on it: a freed block stays reserved until it is given back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, allocated: int) -> None:
        self.allocated = self.reserved = allocated
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000 - self.reserved, 1000))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: self.reserved)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: self.allocated)
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda device: SimpleNamespace(is_integrated=False, total_memory=1000)
        )
        monkeypatch.setattr(torch.cuda, "empty_cache", self.empty)

    def empty(self) -> None:
        self.reserved = self.allocated

    def take(self, nbytes: int) -> None:
        self.allocated += nbytes
        self.reserved = max(self.reserved, self.allocated)

    def free(self, nbytes: int) -> None:
        self.allocated -= nbytes


class CardTier(Tier):
    def __init__(self, card: Card, *sizes: int) -> None:
        self.card, self.sizes, self.asked = card, list(sizes), []
        card.take(sum(sizes))

    def shed(self, nbytes: int) -> int:
        self.asked.append(nbytes)
        said = 0
        while said < nbytes and self.sizes:
            said += self.sizes.pop(0)
        self.card.free(said)
        return said


def gpu_gate(card: Card, tier: CardTier) -> MemoryGate:
    stack = CacheStack([], lambda name, reason: None)
    options = with_defaults(SERVER_OPTIONS, {"prefill_chunk": 8, "mem_peak_gib": 900 / GIB, "mem_floor_gib": 0})
    options["mem_ceiling_gib"] = 900 / GIB
    facts = {"device": "cuda:0", "kv_bytes_per_token": 1, "workspace_bytes_per_row": 1}
    model: Any = SimpleNamespace(facts=facts, tokenizer=SimpleNamespace(vocab_size=0))
    guard = MemoryGate.for_model(model, options, stack, max_len=100)
    stack.add([("tier", tier)])
    return guard


def test_on_a_gpu_the_allocators_free_blocks_are_room_and_a_shed_tier_is_seen_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = Card(monkeypatch, allocated=400)
    empty = CardTier(card)
    guard = gpu_gate(card, empty)
    told = guard.report()
    assert (told["held_bytes"], told["available_bytes"], told["reusable_bytes"]) == (400, 600, 0)
    card.take(500)
    card.free(300)  # a request has ended: 900 reserved, 600 allocated
    assert guard.report()["reusable_bytes"] == 300
    assert guard.admit(asking(140), []).opens, "2 x 140 + 8 bytes fit into free blocks, up to the peak"
    assert card.reserved == 900, "so nothing is given back to the driver"
    empty.sizes.append(150)
    guard._clock = lambda: time.monotonic() + 10
    assert guard.admit(asking(200), []).opens
    assert empty.asked == [108]
    assert (card.allocated, card.reserved) == (450, 450)
    (event,) = guard.report()["events"]
    assert event["shed"]["tier"] == {"said": 150, "freed": 150}


def test_on_a_gpu_what_never_fits_beside_the_weights_empties_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(monkeypatch, allocated=400)
    tier = CardTier(card)
    guard = gpu_gate(card, tier)
    tier.sizes.append(200)
    card.take(200)
    assert guard.admit(asking(247), []).refusal is not None  # 494 + 8 of 500
    assert (tier.asked, card.reserved) == ([], 600)
    assert guard.admit(asking(246), []).opens
    assert tier.asked


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
        registry=SimpleNamespace(names=lambda kind: []),
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
