from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from served import LONG, Client, FakePlatform, SlowToy, ask
from toy import ToyModel

from tandem.core.engine.engine import Engine
from tandem.core.engine.request import (
    Calls,
    Channel,
    Event,
    Failed,
    Finished,
    Generate,
    Piece,
    PrefillProgress,
    Refused,
    Sampling,
    SharedPrompt,
    Thinking,
)
from tandem.core.plugin import Action, BlockEvent, CacheTier, DraftTree, FinishEvent, Match, Moment, Rule, SafePoint


@pytest.fixture
def engines():  # type: ignore[no-untyped-def]
    running: list[Engine] = []

    def make(platform: FakePlatform) -> Engine:
        engine = Engine(platform)  # type: ignore[arg-type]
        engine.start()
        running.append(engine)
        return engine

    yield make
    for engine in running:
        engine.stop()


def test_a_request_runs_to_its_end(engines: Any) -> None:
    engine = engines(FakePlatform(ToyModel(**LONG)))
    client, _ = ask(engine, max_tokens=6)
    last = client.wait()
    assert isinstance(last, Finished)
    assert (last.reason, last.stats.completion_tokens, last.stats.prompt_tokens) == ("length", 6, 3)
    assert len(client.text) == 6
    assert isinstance(client.got[0], PrefillProgress)
    assert engine.idle
    assert engine.snapshot()["totals"]["completion_tokens"] == 6


class Guessing:
    """A session that always has a draft."""

    def extend(self, tokens: object) -> None:
        return

    def close(self) -> None:
        return

    def propose(self, root: int, limit: int) -> DraftTree:
        return DraftTree([1], [-1], [0.9], "guess")


@pytest.mark.parametrize("drafted", [False, True])
def test_the_first_token_goes_out_before_the_pass_that_reads_it(engines: Any, drafted: bool) -> None:
    heard = threading.Event()

    class Listening(ToyModel):
        def forward(self, blocks):  # type: ignore[no-untyped-def]
            assert self.passes != 1 or heard.wait(10), "the prompt was read, and nothing was heard of the first token"
            return super().forward(blocks)

    platform = FakePlatform(Listening(**LONG), drafter_check=False)
    platform.drafters = [("guess", lambda start: Guessing())] if drafted else []
    client = Client()

    def sink(events: list[Event]) -> None:
        client.sink(events)
        if any(isinstance(event, Piece) and event.text for event in events):
            heard.set()

    engines(platform).submit(Generate([1, 2, 3], 6), sink)
    last = client.wait()
    assert isinstance(last, Finished)
    assert len(client.text) == 6
    assert (last.stats.draft_tokens > 0) is drafted


def test_parallel_requests_share_passes_and_keep_their_texts(engines: Any) -> None:
    lone = []
    for prompt in ([1, 2], [3, 4, 5]):
        client, _ = ask(engines(FakePlatform(ToyModel(**LONG))), prompt, 30)
        client.wait()
        lone.append(client.text)
    model = SlowToy(**LONG)
    engine = engines(FakePlatform(model, parallel=2))
    clients = [ask(engine, [1, 2], 30)[0], ask(engine, [3, 4, 5], 30)[0]]
    for client in clients:
        client.wait()
    assert [client.text for client in clients] == lone
    assert model.passes < 55, "two requests of 30 tokens share most passes"


def test_a_full_queue_refuses_with_a_time_to_retry(engines: Any) -> None:
    engine = engines(FakePlatform(SlowToy(**LONG), parallel=1, max_queue=1))
    jobs = [ask(engine, max_tokens=300)[1], ask(engine, max_tokens=5)[1]]
    with pytest.raises(Refused) as refusal:
        ask(engine)
    assert refusal.value.code == "queue_full"
    assert refusal.value.retry_after > 0
    for job in jobs:
        job.cancel()


def test_cancelling_frees_the_place_at_once(engines: Any) -> None:
    engine = engines(FakePlatform(SlowToy(**LONG), parallel=1))
    first, job = ask(engine, max_tokens=400)
    second, _ = ask(engine, max_tokens=3)
    first.first(Piece)
    job.cancel()
    last = first.wait()
    assert isinstance(last, Finished)
    assert last.reason == "abandoned"
    assert isinstance(second.wait(), Finished)


def test_a_job_cancelled_in_the_queue_never_runs(engines: Any) -> None:
    model = SlowToy(**LONG)
    engine = engines(FakePlatform(model, parallel=1))
    running, job = ask(engine, max_tokens=400)
    running.first(Piece)
    waiting, waiting_job = ask(engine)
    waiting_job.cancel()
    last = waiting.wait()
    assert isinstance(last, Finished)
    assert (last.reason, last.stats.completion_tokens) == ("abandoned", 0)
    assert waiting.got == [last]
    job.cancel()


def test_a_prefill_is_left_at_the_next_chunk(engines: Any) -> None:
    model = SlowToy(**LONG)
    engine = engines(FakePlatform(model, prefill_chunk=2))
    client, job = ask(engine, [1] * 400)
    client.first(PrefillProgress)
    job.cancel()
    client.wait()
    assert model.passes < 150


def test_a_broken_pass_fails_its_requests_and_the_engine_lives(engines: Any) -> None:
    model = ToyModel(**LONG)
    engine = engines(FakePlatform(model))
    model.break_at = model.passes + 3
    client, _ = ask(engine)
    last = client.wait()
    assert isinstance(last, Failed)
    assert "the toy is broken" in last.message
    model.break_at = None
    client, _ = ask(engine)
    assert isinstance(client.wait(), Finished)


def test_a_request_that_runs_too_long_ends_with_timeout(engines: Any) -> None:
    engine = engines(FakePlatform(SlowToy(**LONG), request_timeout_s=0.1))
    client, _ = ask(engine, max_tokens=450)
    last = client.wait()
    assert isinstance(last, Finished)
    assert last.reason == "timeout"
    assert client.text


def test_draining_refuses_new_work_and_finishes_the_old(engines: Any) -> None:
    engine = engines(FakePlatform(SlowToy(**LONG)))
    client, _ = ask(engine, max_tokens=20)
    engine.drain()
    with pytest.raises(Refused) as refusal:
        ask(engine)
    assert refusal.value.code == "draining"
    last = client.wait()
    assert isinstance(last, Finished)
    assert last.stats.completion_tokens == 20


def test_without_a_model_every_request_is_refused(engines: Any) -> None:
    engine = engines(FakePlatform(None))
    with pytest.raises(Refused) as refusal:
        ask(engine)
    assert refusal.value.code == "no_model"


def test_a_sink_that_raises_drops_its_request_only(engines: Any) -> None:
    engine = engines(FakePlatform(SlowToy(**LONG)))

    def broken(events: list[Event]) -> None:
        raise OSError("gone")

    engine.submit(Generate([1], 400), broken)
    client, _ = ask(engine)
    assert isinstance(client.wait(), Finished)
    deadline = time.time() + 10
    while not engine.idle and time.time() < deadline:
        time.sleep(0.01)
    assert engine.idle


# ------------------------------------------------------------------------------------------------------ caches


class Memory(CacheTier):
    """A tier that keeps the state at the end of each prompt."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, ...], Any] = {}
        self.moments: list[tuple[Moment, int]] = []

    def lookup(self, tokens: Any) -> Match | None:
        best = [key for key in self.kept if tuple(tokens[: len(key)]) == key]
        return Match(len(max(best, key=len)), max(best, key=len)) if best else None

    def resume(self, match: Match, new_sequence: Any) -> Any:
        sequence = new_sequence()
        sequence.restore(self.kept[match.handle])
        return sequence

    def offer(self, moment: Moment, tokens: Any, sequence: Any) -> None:
        assert list(tokens) == sequence.tokens, "the tier is told other tokens than the sequence holds"
        self.moments.append((moment, len(tokens)))
        if moment is not Moment.GRID:
            self.kept[tuple(tokens)] = sequence.snapshot()

    def stats(self) -> dict[str, float]:
        return {"entries": len(self.kept)}

    def check(self) -> list[str]:
        return []


def test_a_follow_up_reads_only_what_is_new(engines: Any) -> None:
    platform = FakePlatform(ToyModel(**LONG), prefill_chunk=4)
    tier = Memory()
    platform.tiers = [("memory", tier)]
    engine = engines(platform)
    first, _ = ask(engine, [1, 2, 3, 4, 5], 6)
    first.wait()
    cold, _ = ask(engine, [1, 2, 3, 4, 5, 6, 7], 6, cache=False)
    cold.wait()
    warm, _ = ask(engine, [1, 2, 3, 4, 5, 6, 7], 6)
    last = warm.wait()
    assert warm.text == cold.text
    assert (last.stats.cached_tokens, last.stats.cache_source) == (5, "memory")
    assert [m for m, _ in tier.moments[:3]] == [Moment.GRID, Moment.GRID, Moment.PROMPT_END]
    assert tier.moments[3][0] is Moment.GENERATION_END


def test_the_whole_prompt_is_never_taken_from_a_cache(engines: Any) -> None:
    platform = FakePlatform(ToyModel(**LONG))
    platform.tiers = [("memory", Memory())]
    engine = engines(platform)
    texts, cached = [], []
    for _ in range(2):
        client, _ = ask(engine, [1, 2, 3], 6)
        cached.append(client.wait().stats.cached_tokens)
        texts.append(client.text)
    assert texts[0] == texts[1]
    assert cached == [0, 0], "the state after all three tokens has no logits to go on from"


@pytest.mark.parametrize("method", ["lookup", "resume", "offer"])
def test_a_tier_that_raises_is_dropped_and_the_request_served(engines: Any, method: str) -> None:
    platform = FakePlatform(ToyModel(**LONG))
    tier = Memory()
    platform.tiers = [("memory", tier)]
    engine = engines(platform)
    ask(engine, [1, 2], 4)[0].wait()

    def broken(*args: Any) -> Any:
        raise OSError("the disk is gone")

    setattr(tier, method, broken)
    client, _ = ask(engine, [1, 2, 3], 4)
    assert isinstance(client.wait(), Finished)
    assert platform.failed == [("caches", "memory", "OSError: the disk is gone")]


def test_a_half_restored_sequence_is_not_used(engines: Any) -> None:
    platform = FakePlatform(ToyModel(**LONG))
    tier = Memory()
    platform.tiers = [("memory", tier)]
    engine = engines(platform)
    ask(engine, [1, 2], 4)[0].wait()

    def half(match: Match, new_sequence: Any) -> Any:
        sequence = new_sequence()
        sequence.restore([1])
        return sequence

    tier.resume = half  # type: ignore[method-assign]
    client, _ = ask(engine, [1, 2, 3], 4)
    assert client.wait().stats.cached_tokens == 0
    cold, _ = ask(engine, [1, 2, 3], 4, cache=False)
    cold.wait()
    assert client.text == cold.text


# ------------------------------------------------------------------------------------------------------- rules


def test_a_rule_ends_the_answer_between_two_blocks(engines: Any) -> None:
    platform = FakePlatform(ToyModel(**LONG))

    def check(event: BlockEvent, task: Any, sup: Any) -> Action | None:
        return Action.give_up(" [stopped]", "long enough") if event.tokens >= task.params["after"] else None

    rule = Rule("short", at=SafePoint.SP1, check=check, params={"after": {"type": "integer", "default": 3}})
    platform.rules = [(rule, {})]
    engine = engines(platform)
    client, _ = ask(engine, max_tokens=50)
    last = client.wait()
    assert isinstance(last, Finished)
    assert (last.reason, last.detail, last.stats.completion_tokens) == ("stop", "rule:short", 3)
    assert client.text.endswith(" [stopped]")
    assert engine.journal.entries()[-1]["reason"] == "long enough"


def test_a_rule_at_the_end_adds_its_sentence(engines: Any) -> None:
    platform = FakePlatform(ToyModel(**LONG))
    seen: list[FinishEvent] = []

    def check(event: FinishEvent, task: Any, sup: Any) -> Action:
        seen.append(event)
        return Action.give_up("!")

    platform.rules = [(Rule("end", at=SafePoint.SP2, check=check), {})]
    client, _ = ask(engines(platform), max_tokens=4)
    assert client.wait().detail == "rule:end"  # type: ignore[union-attr]
    assert client.text == seen[0].answer + "!"


def test_a_rule_before_the_prefill_answers_without_a_pass(engines: Any) -> None:
    model = ToyModel(**LONG)
    platform = FakePlatform(model)
    platform.rules = [(Rule("no", at=SafePoint.SP4, check=lambda e, t, s: Action.give_up("not today")), {})]
    client, _ = ask(engines(platform))
    last = client.wait()
    assert client.text == "not today"
    assert last.stats.completion_tokens == 0
    assert model.passes == 0


def test_shadow_changes_no_byte_and_is_journaled(engines: Any) -> None:
    plain, _ = ask(engines(FakePlatform(ToyModel(**LONG))), max_tokens=9)
    plain.wait()
    platform = FakePlatform(ToyModel(**LONG))
    platform.rules = [
        (Rule("end", at=SafePoint.SP1, check=lambda e, t, s: Action.give_up("!", "found")), {"mode": "shadow"})
    ]
    engine = engines(platform)
    client, _ = ask(engine, max_tokens=9)
    client.wait()
    assert client.text == plain.text
    entries = engine.journal.entries()
    assert {(entry["action"], entry["done"]) for entry in entries} == {("give_up", False)}


def test_a_rule_that_keeps_raising_is_switched_off_and_the_request_goes_on(engines: Any) -> None:
    platform = FakePlatform(ToyModel(**LONG))

    def check(event: Any, task: Any, sup: Any) -> Action:
        raise KeyError("oops")

    platform.rules = [(Rule("broken", at=SafePoint.SP1, check=check), {})]
    engine = engines(platform)
    client, _ = ask(engine, max_tokens=9)
    last = client.wait()
    assert isinstance(last, Finished)
    assert last.stats.completion_tokens == 9
    assert [entry["action"] for entry in engine.journal.entries()] == ["fault"] * 3
    (failed,) = platform.failed
    assert failed[:2] == ("rules", "broken")
    assert "KeyError: 'oops'" in failed[2]


def test_submitting_from_many_threads_loses_nothing(engines: Any) -> None:
    engine = engines(FakePlatform(ToyModel(**LONG), parallel=4, max_queue=100))
    clients: list[Client] = []
    lock = threading.Lock()

    def submit() -> None:
        for _ in range(5):
            client, _ = ask(engine, max_tokens=5, sampling=Sampling(temperature=1.0))
            with lock:
                clients.append(client)

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(clients) == 20
    for client in clients:
        last = client.wait()
        assert isinstance(last, Finished)
        assert sum(isinstance(e, Finished | Failed) for e in client.got) == 1


# ----------------------------------------------------------------------------------------- several choices, one prompt


def test_choices_read_their_prompt_once_and_write_what_they_write_alone(engines: Any) -> None:
    prompt = [1, 2, 3, 4, 5, 6, 7] * 10
    samplings = [Sampling(temperature=1.0, seed=seed) for seed in range(5)]
    alone = []
    for sampling in samplings:
        client, _ = ask(engines(FakePlatform(ToyModel(**LONG))), prompt, 10, sampling=sampling)
        client.wait()
        alone.append(client.text)
    model = ToyModel(**LONG)
    engine = engines(FakePlatform(model, parallel=3, prefill_chunk=16))
    shared = SharedPrompt()
    clients = [ask(engine, prompt, 10, sampling=sampling, shared=shared)[0] for sampling in samplings]
    for client in clients:
        client.wait()
    assert [client.text for client in clients] == alone
    assert model.rows_run <= len(prompt) + 5 * 10


def test_when_the_reader_leaves_another_choice_reads_the_prompt(engines: Any) -> None:
    engine = engines(FakePlatform(SlowToy(**LONG), parallel=3, prefill_chunk=2))
    shared = SharedPrompt()
    first, job = ask(engine, [1] * 200, 5, shared=shared)
    second, _ = ask(engine, [1] * 200, 5, shared=shared)
    first.first(PrefillProgress)
    job.cancel()
    assert first.wait().reason == "abandoned"  # type: ignore[union-attr]
    last = second.wait()
    assert isinstance(last, Finished)
    assert last.stats.completion_tokens == 5


# ---------------------------------------------------------------------------------------------------- broken parts


class Raising:
    """A drafting session that works until it is asked."""

    def extend(self, tokens: Any) -> None:
        return

    def close(self) -> None:
        return

    def propose(self, root: int, limit: int) -> Any:
        raise LookupError("no such page")


class Broken:
    """Proposes a tree that is none."""

    def extend(self, tokens: Any) -> None:
        return

    def close(self) -> None:
        return

    def propose(self, root: int, limit: int) -> DraftTree:
        return DraftTree([1, 2], [5, 0], [0.5, 0.5], "broken")


@pytest.mark.parametrize(("session", "words"), [(Raising, "no such page"), (Broken, "does not come before it")])
def test_a_drafter_that_fails_is_dropped_and_every_answer_goes_on(engines: Any, session: Any, words: str) -> None:
    plain, _ = ask(engines(FakePlatform(ToyModel(**LONG))), max_tokens=9)
    plain.wait()
    platform = FakePlatform(ToyModel(**LONG))
    platform.drafters = [("bad", lambda start: session())]
    engine = engines(platform)
    clients = [ask(engine, max_tokens=9)[0] for _ in range(2)]
    for client in clients:
        assert isinstance(client.wait(), Finished)
        assert client.text == plain.text
    assert {failure[:2] for failure in platform.failed} == {("drafters", "bad")}
    assert words in platform.failed[0][2]


def test_a_parser_that_raises_ends_its_own_answer_alone(engines: Any) -> None:
    class Parser:
        def feed(self, text: str) -> Any:
            raise ZeroDivisionError("parsed too far")

        def end(self, cut: bool) -> Any:
            return []

    engine = engines(FakePlatform(SlowToy(**LONG)))
    healthy, _ = ask(engine, max_tokens=20)
    broken, _ = ask(engine, max_tokens=20, calls=Calls(Parser))
    failed, finished = broken.wait(), healthy.wait()
    assert isinstance(failed, Failed)
    assert "parsed too far" in failed.message
    assert isinstance(finished, Finished)
    assert finished.stats.completion_tokens == 20


def test_a_rule_reads_the_answer_without_the_reasoning(engines: Any) -> None:
    platform = FakePlatform(ToyModel(**LONG))
    seen: list[tuple[str, str]] = []

    def look(event: BlockEvent, task: Any, sup: Any) -> None:
        seen.append((event.answer, event.new))

    platform.rules = [(Rule("look", at=SafePoint.SP1, check=look), {})]
    thinking = Thinking(("jj", "kk"), True, 4, (11, 11))  # "kk" is written when the budget is spent
    client, _ = ask(engines(platform), max_tokens=12, thinking=thinking)
    client.wait()
    content = "".join(e.text for e in client.got if isinstance(e, Piece) and e.channel is Channel.CONTENT)
    assert seen[0] == ("", "")
    assert content.startswith(seen[-1][0])
    assert "".join(new for _, new in seen) == seen[-1][0]
    assert seen[-1][0], "no answer was seen, so nothing was proven"


# ------------------------------------------------------------------------------------------------------- waits


def test_a_waiting_request_knows_its_position_and_after_a_few_others_its_wait(engines: Any) -> None:
    engine = engines(FakePlatform(SlowToy(**LONG), parallel=1))
    for _ in range(5):
        ask(engine, [1, 2], 60)[0].wait()
    _, first = ask(engine, [1, 2], 200)
    deadline = time.time() + 10
    while first.started is None and time.time() < deadline:
        time.sleep(0.005)
    assert engine.outlook(first) is None
    _, second = ask(engine, [1, 2], 30)
    _, third = ask(engine, [1, 2], 30)
    outlooks = [engine.outlook(job) for job in (second, third)]
    first.cancel()
    assert [outlook[0] for outlook in outlooks if outlook] == [1, 2]
    (_, sooner), (_, later) = [outlook for outlook in outlooks if outlook]
    assert sooner is not None
    assert later is not None
    assert later > sooner
