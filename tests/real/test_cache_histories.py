"""Conversations of every history, over a running engine with caches: continued, edited, asked again, forked, left.

Each answer is compared with plain decoding, which reads everything and knows no cache; and the count of cached tokens
with a little model of the tiers, which says what they may know at most and must know at least.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cached_turns import Served, abandon, parts_by, plain_row
from hypothesis import HealthCheck, Phase, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tandem.core.engine.request import Generate, Piece, PrefillProgress
from tandem.core.plugin import common_prefix

CHUNK = 32
LONGEST = 320
"""Prompts stay shorter, so that an example takes a moment."""
LEAST = 16
"""The resident tier finds nothing shorter."""
ROUNDING = 1e-3
"""Nats; see `test_cache_equality`."""


def text(count: int, seed: int) -> list[int]:
    return torch.randint(3, 259, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


SYSTEMS = ([], text(24, 1001), text(CHUNK * 2, 1002))


# -------------------------------------------------------------------------------------- the little model of the tiers


@dataclass(slots=True)
class Known:
    """The beginning of a text, of which a tier holds at least `sure` rows."""

    tokens: list[int]
    sure: int


@dataclass
class Shelf:
    """What the tiers may know and must know. It has no states, budgets or files: texts only.

    At most: what was read with the caches on, since they were emptied; and where a state can't be cut back, only as far
    as a line of the grid, the end of a prompt or the end of the text. At least: what docs/caches.md promises.
    """

    trim: bool
    leave: int
    tiers: Seq[str]
    read: list[tuple[list[int], set[int] | None]] = field(default_factory=list)
    """Texts, and the lengths at which their state was; None = any."""
    kept: list[Known] = field(default_factory=list)
    """In the resident tier."""
    copied: list[Known] = field(default_factory=list)
    """In the state store."""
    filed: list[Known] = field(default_factory=list)
    """In files that are written for sure."""

    def most(self, prompt: list[int]) -> int:
        room = len(prompt) - self.leave
        found = 0
        for tokens, places in self.read:
            shared = min(common_prefix(tokens, prompt), room)
            found = max(found, shared if places is None else max((p for p in places if p <= shared), default=0))
        return found

    def least(self, prompt: list[int]) -> int:
        found = max((self._usable(k, prompt) for k in [*self.kept, *self.copied, *self.filed]), default=0)
        return found if found >= LEAST else 0

    def _usable(self, known: Known, prompt: list[int]) -> int:
        shared, room = common_prefix(known.tokens, prompt), len(prompt) - self.leave
        if self.trim:
            return min(shared, known.sure, room)
        return known.sure if shared == len(known.tokens) <= room else 0

    def asked(self, prompt: list[int]) -> None:
        """The resident tier may have given a sequence to this prompt, cut to what the two share; it copies instead
        when that is less than half of it."""
        for known in list(self.kept):
            shared = common_prefix(known.tokens, prompt)
            if shared >= known.sure // 2:
                if self.trim:
                    known.tokens, known.sure = known.tokens[:shared], min(known.sure, shared)
                else:
                    self.kept.remove(known)

    def answered(self, prompt: list[int], whole: list[int], any_place: bool = False) -> None:
        """All of the prompt was read, and of the answer all but the last token at least."""
        lines = set(range(CHUNK, len(prompt) + 1, CHUNK))
        places = lines | {len(prompt), len(whole) - 1, len(whole)}
        self.read.append((whole, None if self.trim or any_place else places))
        if "resident" in self.tiers:
            self.kept.append(Known(whole, len(whole) - 1))
        if "state_store" in self.tiers:
            self.copied.append(Known(prompt, len(prompt)))

    def half_read(self, prompt: list[int], rows: int) -> None:
        self.read.append((prompt[:rows], None if self.trim else {*range(CHUNK, rows + 1, CHUNK), rows}))
        if "resident" in self.tiers:
            self.kept.append(Known(prompt[:rows], rows))

    def shed(self, everything: bool) -> None:
        self.kept, self.copied = [], []
        if everything and "disk" not in self.tiers:
            self.read = []

    def cleared(self) -> None:
        self.kept, self.copied, self.filed, self.read = [], [], [], []

    def restarted(self) -> None:
        if "disk" in self.tiers:
            self.filed += [known for known in self.kept if len(known.tokens) >= LEAST]
        self.shed(everything=True)


# ----------------------------------------------------------------------------------------------------------- histories


@dataclass(slots=True)
class Talk:
    """A conversation: the prompt of its last turn and what was answered, as far as it came."""

    prompt: list[int]
    answer: list[int]

    @property
    def text(self) -> list[int]:
        return [*self.prompt, *self.answer]


@dataclass(frozen=True)
class Setup:
    """What a machine runs on."""

    model: Any
    tiers: tuple[str, ...]
    draft: bool = False

    def options(self, path: Path) -> dict[str, dict[str, Any]]:
        given: dict[str, dict[str, Any]] = {
            "resident": {"conversations": 1000, "anchor_every": CHUNK},
            "state_store": {"every": CHUNK},
            "disk": {"path": str(path), "admit_after": 2, "min_tokens": LEAST, "leave_free_gib": 0},
        }
        return {name: given[name] for name in self.tiers}


SEEDS = st.integers(0, 10**6)
NEW = st.integers(1, 70)
"""Tokens of a new message."""


class Histories(RuleBasedStateMachine):
    """One engine, stopped and started again; every rule is something that a client or the machine does."""

    setup: Setup

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="histories-"))
        caps = self.setup.model.caps
        self.served = Served(self.setup.model, self.setup.options(self.path), CHUNK, self.setup.draft)
        self.shelf = Shelf(caps.trim, caps.resume_rows, self.setup.tiers)
        self.talks: list[Talk] = []

    def teardown(self) -> None:
        self.served.stop()
        shutil.rmtree(self.path)

    # --------------------------------------------------------------------------------------------- what is checked

    def ask(self, prompt: list[int]) -> None:
        """A turn, answered to its end."""
        least, most = self.shelf.least(prompt), self.shelf.most(prompt)
        asked = self.served.ask(prompt)
        assert least <= asked.stats.cached_tokens <= most, asked.stats.cache_source
        self.shelf.asked(prompt)
        self.shelf.answered(prompt, asked.text)
        self.compare(asked.request, asked.output, asked.row)
        self.talks.append(Talk(prompt, asked.output))

    def compare(self, request: Generate, output: list[int], row: torch.Tensor | None = None) -> None:
        model = self.setup.model
        if row is not None:
            assert float((plain_row(model, request) - row).abs().max()) < ROUNDING
        parts = parts_by(model, request, output)
        assert parts is None or parts < ROUNDING

    @invariant()
    def nothing_is_broken(self) -> None:
        assert not self.served.problems()

    def talk(self, pick: int) -> Talk:
        return self.talks[pick % len(self.talks)]

    # ------------------------------------------------------------------------------------------------ what happens

    @initialize(seed=SEEDS)
    def first(self, seed: int) -> None:
        self.ask([*SYSTEMS[1], *text(40, seed)])

    @rule(system=st.sampled_from(SYSTEMS), count=st.integers(LEAST + 4, 110), seed=SEEDS)
    def start(self, system: list[int], count: int, seed: int) -> None:
        self.ask([*system, *text(count, seed)])

    @rule(pick=SEEDS, count=NEW, seed=SEEDS, forget=st.booleans())
    def go_on(self, pick: int, count: int, seed: int, forget: bool) -> None:
        """A next turn; without `forget` the conversation can be gone on with another time from the same place."""
        talk = self.talk(pick)
        if len(talk.text) + count <= LONGEST:
            if forget:
                self.talks.remove(talk)
            self.ask([*talk.text, *text(count, seed)])

    @rule(pick=SEEDS, place=SEEDS, count=NEW, seed=SEEDS)
    def edit(self, pick: int, place: int, count: int, seed: int) -> None:
        """An earlier message is another one, and nothing follows it."""
        words = self.talk(pick).text
        kept = words[: place % len(words)]
        if LEAST < len(kept) + count <= LONGEST:
            self.ask([*kept, *text(count, seed)])

    @rule(pick=SEEDS)
    def regenerate(self, pick: int) -> None:
        self.ask(self.talk(pick).prompt)

    @rule(pick=SEEDS, count=NEW, seed=SEEDS)
    def ask_without_caches(self, pick: int, count: int, seed: int) -> None:
        """It reads everything, and leaves the caches as they are."""
        talk = self.talk(pick)
        if len(talk.text) + count <= LONGEST:
            asked = self.served.ask([*talk.text, *text(count, seed)], cache=False)
            assert asked.stats.cached_tokens == 0
            self.compare(asked.request, asked.output, asked.row)

    @rule(pick=SEEDS, count=NEW, seed=SEEDS)
    def leave_while_it_is_answered(self, pick: int, count: int, seed: int) -> None:
        prompt = [*self.talk(pick).text, *text(count, seed)]
        if len(prompt) > LONGEST:
            return
        job, _ = abandon(self.served, prompt, Piece, 40)
        output = list(job.generation.output)
        self.shelf.asked(prompt)
        self.shelf.answered(prompt, [*prompt, *output])
        if output:
            self.compare(replace(job.request, max_tokens=len(output)), output)
            self.talks.append(Talk(prompt, output))

    @rule(pick=SEEDS, count=st.integers(2 * CHUNK, 4 * CHUNK), seed=SEEDS)
    def leave_while_it_is_read(self, pick: int, count: int, seed: int) -> None:
        prompt = [*self.talk(pick).text, *text(count, seed)]
        if len(prompt) > LONGEST:
            return
        before = len(self.served.model.log)
        job, last = abandon(self.served, prompt, PrefillProgress, 40)
        output = list(job.generation.output)
        rows = last.stats.cached_tokens + sum(one.rows for one in self.served.model.log[before:])
        self.shelf.asked(prompt)
        if rows >= len(prompt):  # it was read before the engine heard of it
            self.shelf.answered(prompt, [*prompt, *output])
        else:
            self.shelf.half_read(prompt, rows)
        self.talks.append(Talk(prompt, output))

    @rule(picks=st.tuples(SEEDS, SEEDS), counts=st.tuples(NEW, NEW), seed=SEEDS)
    def two_at_once(self, picks: tuple[int, int], counts: tuple[int, int], seed: int) -> None:
        """Two turns side by side, of one conversation maybe: whoever comes second can't have what the first took."""
        prompts = [[*self.talk(p).text, *text(n, seed + i)] for i, (p, n) in enumerate(zip(picks, counts, strict=True))]
        if max(map(len, prompts)) > LONGEST:
            return
        most = [self.shelf.most(prompt) for prompt in prompts]
        shared = common_prefix(*prompts)  # the second may find copies of what the first has read
        running = [self.served.submit(prompt) for prompt in prompts]
        ended = [client.wait() for client, _ in running]
        for prompt in prompts:
            self.shelf.asked(prompt)
        for prompt, (_, job), last, bound in zip(prompts, running, ended, most, strict=True):
            assert last.stats.cached_tokens <= max(bound, min(shared, len(prompt) - self.shelf.leave))
            output = list(job.generation.output)
            self.shelf.answered(prompt, [*prompt, *output], any_place=True)
            self.compare(job.request, output)
            self.talks.append(Talk(prompt, output))
        for prompt in prompts:  # the second may have begun when the first had ended
            self.shelf.asked(prompt)

    @rule(everything=st.booleans())
    def memory_is_short(self, everything: bool) -> None:
        caches = self.served.engine.caches
        for name in self.setup.tiers:
            self.served.on_thread(lambda name=name: caches.shed(name, 2**40 if everything else 1))
        self.shelf.shed(everything)

    @rule()
    def clear(self) -> None:
        self.served.on_thread(self.served.engine.caches.clear)
        self.shelf.cleared()

    @rule()
    def restart(self) -> None:
        self.served.stop()
        self.served.start()
        self.shelf.restarted()


def run(setup: Setup, examples: int, steps: int = 12) -> None:
    machine = type("OfThisSetup", (Histories,), {"setup": setup})
    quick = settings(
        max_examples=examples,
        stateful_step_count=steps,
        phases=(Phase.generate,),  # threads decide too who comes first: a shorter history may not fail again
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    run_state_machine_as_test(machine, settings=quick)  # type: ignore[no-untyped-call]


TIERS = (("resident",), ("state_store",), ("resident", "disk"), ("resident", "state_store", "disk"))


@pytest.mark.parametrize("tiers", TIERS, ids="+".join)
def test_no_history_of_conversations_changes_an_answer(tiers: tuple[str, ...], tiny_llama: Any) -> None:
    run(Setup(tiny_llama, tiers), examples=25)


def test_nor_with_drafts(tiny_llama: Any) -> None:
    run(Setup(tiny_llama, TIERS[-1], draft=True), examples=20)


@pytest.mark.parametrize("tiers", TIERS[1:], ids="+".join)
def test_nor_on_a_hybrid_whose_state_cannot_be_cut(tiers: tuple[str, ...], hybrid: Any) -> None:
    run(Setup(hybrid, tiers), examples=5, steps=10)


def test_nor_on_smollm2(smollm2: Any) -> None:
    run(Setup(smollm2, TIERS[-1]), examples=2, steps=6)


@pytest.mark.slow
@pytest.mark.parametrize("tiers", TIERS, ids="+".join)
@pytest.mark.parametrize(("name", "examples"), [("tiny_llama", 60), ("hybrid", 25), ("smollm2", 6)])
def test_many_histories(name: str, examples: int, tiers: tuple[str, ...], models: Callable[[str], Any]) -> None:
    run(Setup(models(name), tiers, draft=True), examples, steps=25)
