"""The side lane and giving way, over the engine's own thread: a guest gets its answer, and nobody else notices."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Callable, Iterator, Sequence as Seq
from pathlib import Path
from typing import Any

import pytest
from served import LONG, Client, FakePlatform, SlowToy, ask
from toy import RandomDrafter, ToyModel, ToySequence

from tandem.core.engine.engine import Engine
from tandem.core.engine.request import Failed, Finished, Piece, PrefillProgress, Rank, Sampling, TokenLogprob
from tandem.core.plugin import Block, CacheTier, DraftSession, DraftStart
from tandem.testing.server import until

LLAMA = Path(__file__).parents[2] / "plugins" / "models" / "llama" / "conftest.py"
_spec = importlib.util.spec_from_file_location("llama_checkpoints", LLAMA)
assert _spec is not None
assert _spec.loader is not None
_llama = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_llama)
load, make_tokenizer, make_tiny = _llama.load, _llama.make_tokenizer, _llama.make_tiny
"""Fixtures of the llama builder's tests: tiny random checkpoints."""

Engines = Callable[..., Engine]


@pytest.fixture
def engines() -> Iterator[Engines]:
    """`engines(model, drafters=..., tiers=..., **options)` starts an engine with one place and the lane on."""
    running: list[Engine] = []

    def make(model: Any, drafters: Seq[Any] = (), tiers: Seq[Any] = (), **options: Any) -> Engine:
        platform = FakePlatform(model, **{"parallel": 1, "side_lane": "on", **options})
        platform.drafters, platform.tiers = list(drafters), list(tiers)
        engine = Engine(platform)  # type: ignore[arg-type]
        engine.start()
        running.append(engine)
        return engine

    yield make
    for engine in running:
        engine.stop()


def logprobs(client: Client) -> list[TokenLogprob]:
    return [each for event in client.got if isinstance(event, Piece) for each in event.logprobs]


def lane_of(client: Client) -> str | None:
    last = client.wait()
    assert isinstance(last, Finished)
    return last.stats.lane


# ------------------------------------------------------------------------------------------- nobody else notices

TELL = {"logprobs": 2}


def toy() -> tuple[Any, int, list[int], list[int]]:
    """A model, its vocabulary, a long prompt and a guest's."""
    return SlowToy(**LONG), 12, [1 + place % 11 for place in range(150)], [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture(params=["toy", "llama"])
def served(request: pytest.FixtureRequest) -> tuple[Any, int, list[int], list[int]]:
    if request.param == "toy":
        return toy()
    folder = request.getfixturevalue("make_tiny")(max_position_embeddings=2048)[0]
    model = request.getfixturevalue("load")(folder, dtype="float32")
    phrase = [40 + place * 7 % 90 for place in range(25)]
    return model, 320, phrase * 6, [60 + place for place in range(40)]


@pytest.mark.parametrize("sampling", [Sampling(**TELL), Sampling(temperature=0.9, seed=3, **TELL)])  # type: ignore[arg-type]
def test_a_holder_beside_guests_writes_what_it_writes_alone_bit_for_bit(
    engines: Engines, served: Any, sampling: Sampling
) -> None:
    model, _, prompt, short = served
    options = {"prefill_chunk": 8, "drafter_check": False}
    plain, _ = ask(engines(model, **options), prompt, 200, sampling=sampling)
    plain.wait()
    truth = [each.token for each in logprobs(plain)]
    drafters = [("random", lambda start: RandomDrafter(4, truth))]
    alone, _ = ask(engines(model, drafters, **options), prompt, 200, sampling=sampling)
    assert isinstance(alone.wait(), Finished)
    guest_alone, _ = ask(engines(model, **options), short, 12, sampling=sampling)
    guest_alone.wait()

    engine = engines(model, drafters, **options)
    holder, holding = ask(engine, prompt, 200, sampling=sampling)
    lanes = []
    for moment in (PrefillProgress, Piece):
        holder.first(moment)
        for _ in range(2):
            guest, _ = ask(engine, short, 12, sampling=sampling)
            lanes.append(lane_of(guest))
            assert guest.text == guest_alone.text
            assert [each.token for each in logprobs(guest)] == [each.token for each in logprobs(guest_alone)]
    assert holding in engine._admission.running, "the guests ended beside it"
    last = holder.wait()
    assert isinstance(last, Finished)
    assert set(lanes) == {"prefill", "decode"}
    assert last.stats.lane is None
    assert last.stats.draft_accepted > 0
    assert logprobs(holder) == logprobs(alone), "tokens and floats"
    assert len(logprobs(holder)) == last.stats.completion_tokens


# ------------------------------------------------------------------------------------------------- what a guest has


class Counted(ToyModel):
    """Keeps its sequences, and takes a moment for each pass."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.made: list[ToySequence] = []
        self.together: list[list[Any]] = []
        self.breaks: Callable[[Block], bool] = lambda block: False

    def new_sequence(self, max_len: int) -> ToySequence:
        self.made.append(super().new_sequence(max_len))
        return self.made[-1]

    def forward(self, blocks: Seq[Block]) -> Any:
        time.sleep(0.003)
        self.together.append([block.sequence for block in blocks])
        if any(map(self.breaks, blocks)):
            raise RuntimeError("this one is broken")
        return super().forward(blocks)


class Asked(CacheTier):
    """A tier that counts who comes."""

    def __init__(self) -> None:
        self.prompts: list[list[int]] = []

    def lookup(self, tokens: Any) -> None:
        self.prompts.append(list(tokens))

    def offer(self, moment: Any, tokens: Any, sequence: Any) -> None:
        self.prompts.append(list(tokens))

    def stats(self) -> dict[str, float]:
        return {}


def test_a_guest_has_a_small_sequence_and_neither_caches_nor_drafters_nor_a_pass_with_others(engines: Engines) -> None:
    model, tier = Counted(**LONG), Asked()
    opened: list[DraftStart] = []

    def opener(start: DraftStart) -> DraftSession:
        opened.append(start)
        return RandomDrafter(1)

    engine = engines(model, [("toy", opener)], [("asked", tier)], drafter_check=False)
    holder, holding = ask(engine, max_tokens=400)
    holder.first(Piece)
    guest, _ = ask(engine, [7, 7, 7, 7, 7], 9)
    assert lane_of(guest) == "decode"
    own = model.made[1]
    assert own.max_len == 5 + 9
    assert own.closed
    assert len(opened) == 1
    assert not [prompt for prompt in tier.prompts if 7 in prompt[:1]]
    assert all(len(sequences) == 1 for sequences in model.together)
    holding.cancel()


def test_the_holder_goes_on_while_a_guest_is_served(engines: Engines) -> None:
    model = Counted(**LONG)
    engine = engines(model)
    holder, holding = ask(engine, max_tokens=400)
    holder.first(Piece)
    guest, _ = ask(engine, [7], 40)
    guest.wait()
    of_guest = [at for at, sequences in enumerate(model.together) if sequences == [model.made[1]]]
    between = of_guest[-1] - of_guest[0] + 1 - len(of_guest)
    assert between > 10, "the holder had its passes in between"
    holding.cancel()


@pytest.mark.parametrize("mode", ["off", "decode"])
def test_where_the_lane_is_closed_a_short_request_waits_in_the_queue(engines: Engines, mode: str) -> None:
    engine = engines(Counted(**LONG), side_lane=mode, prefill_chunk=1)
    holder, holding = ask(engine, [1] * 300, 100)
    holder.first(PrefillProgress)
    guest, waiting = ask(engine, [7], 4)
    time.sleep(0.05)
    assert waiting.started is None
    assert engine.snapshot()["lane"] == {"mode": mode, "running": 0}
    holding.cancel()
    assert lane_of(guest) is None


def test_the_engine_tells_who_is_in_the_lane_and_does_not_learn_from_it(engines: Engines) -> None:
    engine = engines(Counted(**LONG))
    holder, holding = ask(engine, max_tokens=400)
    holder.first(Piece)
    guest, guesting = ask(engine, [7], 64)
    guest.first(Piece)
    state = engine.snapshot()
    assert (state["running"], state["max_running"], state["lane"]) == (1, 1, {"mode": "on", "running": 1})
    assert engine.outlook(guesting) is None
    guest.wait()
    until(lambda: engine.snapshot()["lane"]["running"] == 0)
    assert engine.snapshot()["totals"]["lane_requests"] == 1
    assert not engine._waits._ended
    holding.cancel()
    holder.wait()
    assert len(engine._waits._ended) == 1


def test_a_guest_that_leaves_frees_the_lane(engines: Engines) -> None:
    engine = engines(Counted(**LONG))
    holder, holding = ask(engine, max_tokens=450)
    holder.first(Piece)
    first, leaving = ask(engine, [7], 64)
    second, _ = ask(engine, [8], 4)
    first.first(Piece)
    leaving.cancel()
    last = first.wait()
    assert isinstance(last, Finished)
    assert (last.reason, last.stats.lane) == ("abandoned", "decode")
    assert lane_of(second) == "decode"
    holding.cancel()


def test_a_guest_whose_pass_fails_ends_alone(engines: Engines) -> None:
    model = Counted(**LONG)
    engine = engines(model)
    holder, _ = ask(engine, max_tokens=60)
    holder.first(Piece)
    model.breaks = lambda block: block.sequence.max_len == 1 + 8
    guest, _ = ask(engine, [7], 8)
    failed = guest.wait()
    assert isinstance(failed, Failed)
    assert failed.stats.lane == "decode"
    last = holder.wait()
    assert isinstance(last, Finished)
    assert last.stats.completion_tokens == 60


def test_a_guest_stays_when_its_holder_goes_and_the_next_turn_gets_the_place(engines: Engines) -> None:
    engine = engines(Counted(**LONG))
    holder, holding = ask(engine, max_tokens=400)
    holder.first(Piece)
    guest, _ = ask(engine, [7], 64)
    guest.first(Piece)
    holding.cancel()
    turn, _ = ask(engine, [1, 2], 100)
    last = turn.wait()
    assert isinstance(last, Finished)
    assert last.stats.lane is None
    assert lane_of(guest) == "decode"


# ------------------------------------------------------------------------------------------------------ giving way


def test_own_work_gives_way_at_once_and_writes_what_it_writes_alone(engines: Engines) -> None:
    alone, _ = ask(engines(SlowToy(**LONG)), max_tokens=200)
    alone.wait()
    engine = engines(SlowToy(**LONG))
    own, owning = ask(engine, max_tokens=200, rank=Rank.BACKGROUND)
    own.first(Piece)
    turn, _ = ask(engine, [5, 6], 100)
    last = turn.wait()
    assert isinstance(last, Finished)
    assert 0 < last.stats.wait_own_ms <= last.stats.queue_ms < 1000
    assert not any(isinstance(event, Finished) for event in list(own.events.queue)), "it went before"
    assert isinstance(own.wait(), Finished)
    assert own.text == alone.text
    assert owning.passed == 1


def test_own_work_that_gave_way_can_still_be_dropped_or_run_out_of_time(engines: Engines) -> None:
    model = Counted(**LONG)
    engine = engines(model)
    own, owning = ask(engine, max_tokens=400, rank=Rank.BACKGROUND)
    own.first(Piece)
    turn, turning = ask(engine, [5, 6], 400)
    turn.first(Piece)
    owning.cancel()
    last = own.wait()
    assert isinstance(last, Finished)
    assert last.reason == "abandoned"
    assert last.stats.completion_tokens > 0
    assert model.made[0].closed
    turning.cancel()


def test_a_turn_is_not_told_to_wait_for_own_work(engines: Engines) -> None:
    engine = engines(Counted(**LONG), side_lane="off")
    holder, holding = ask(engine, max_tokens=400)
    holder.first(Piece)
    _, side = ask(engine, rank=Rank.SIDE)
    _, own = ask(engine, rank=Rank.BACKGROUND)
    _, turn = ask(engine)
    positions = [outlook[0] for outlook in map(engine.outlook, (turn, side, own)) if outlook]
    assert positions == [1, 2, 3]
    for job in (side, own, turn, holding):
        job.cancel()


# --------------------------------------------------------------------------------------------------------- errands


def test_an_errand_that_nobody_waits_for_any_more_harms_nobody(engines: Engines) -> None:
    engine = engines(Counted(**LONG))
    inside, go_on = threading.Event(), threading.Event()
    busy = engine.errand(lambda: (inside.set(), go_on.wait(10)))
    assert inside.wait(10)
    left = engine.errand(lambda: pytest.fail("nobody waited for it"))
    kept = engine.errand(lambda: "done")
    assert left.cancel()
    go_on.set()
    assert kept.result(10) == "done"
    assert busy.done()
    assert isinstance(ask(engine)[0].wait(), Finished)


def test_errands_that_come_too_late_are_cancelled(engines: Engines) -> None:
    engine = engines(Counted(**LONG))
    inside, go_on = threading.Event(), threading.Event()
    engine.errand(lambda: (inside.set(), go_on.wait(10)))
    assert inside.wait(10)
    late = [engine.errand(lambda: None) for _ in range(2)]
    stopping = threading.Thread(target=engine.stop)
    stopping.start()
    until(lambda: engine._stopping)
    go_on.set()
    stopping.join(10)
    assert all(future.done() for future in late)
    assert engine.errand(lambda: None).cancelled()
