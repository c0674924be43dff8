"""How those who read, those who write and the guest share the time, by a clock that the test moves."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from served import LONG
from toy import RandomDrafter, ToyModel, drafts

from tandem.core.engine.drafting import FixedCut
from tandem.core.engine.generation import Generation, Phase
from tandem.core.engine.placing import JOINT_ROWS
from tandem.core.engine.request import Generate, Sampling
from tandem.core.engine.round import run_round
from tandem.core.engine.turns import FIRST_ROWS, LEAST_ROWS, RETRY, Turn, Turns
from tandem.core.plugin import Block

QUANTUM = 0.05


@dataclass(eq=False)
class Runner:
    """A generation as far as turns look at it."""

    prompt: int = 0
    done: int = 0
    chunk: int = 512
    got: float = 0.0
    """Seconds of the passes that it was in."""

    @property
    def reading(self) -> bool:
        return self.done < self.prompt


class Machine:
    """Where a pass takes a fixed time, and a bit for each row. Longer prompts take longer a row."""

    def __init__(self, turns: Turns, fixed: float = 0.005, a_row: float = 0.0005) -> None:
        self.turns, self.fixed, self.a_row = turns, fixed, a_row
        self.passes: list[tuple[Turn, float]] = []

    def step(self, runners: Seq[Any], guest: Any = None) -> tuple[Turn, float]:
        turn = self.turns.next(runners, guest)
        seconds = self.fixed
        for one in turn.generations:
            if one.reading:  # type: ignore[truthy-function]
                rows = min(turn.chunk or one.chunk, one.prompt - one.done)  # type: ignore[attr-defined]
                seconds += rows * self.a_row * (1 + one.done / 10_000)
                one.done += rows
        for one in turn.generations:
            one.got += seconds  # type: ignore[attr-defined]
        self.turns.took(turn, seconds)
        self.passes.append((turn, seconds))
        return turn, seconds


def machine(share: float = 0.5, **costs: float) -> Machine:
    return Machine(Turns(QUANTUM, share), **costs)


# ------------------------------------------------------------------------------------------------------- readers


def test_alone_or_with_its_like_everything_is_as_if_nobody_shared() -> None:
    many = machine()
    for runners in ([Runner(5000)], [Runner(5000), Runner(5000)], [Runner()], [Runner(), Runner()]):
        for _ in range(5):
            turn, _ = many.step(runners)
            assert (list(turn.generations), turn.chunk, turn.guest) == (runners, None, False)


@given(
    share=st.floats(0, 0.9),
    fixed=st.floats(0.0005, 0.02),
    a_row=st.floats(0.00001, 0.002),
    writers=st.integers(1, 4),
    readers=st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_writing_keeps_its_share_and_waits_for_one_short_pass_at_most(
    share: float, fixed: float, a_row: float, writers: int, readers: int
) -> None:
    many = machine(share, fixed=fixed, a_row=a_row)
    writing = [Runner() for _ in range(writers)]
    reading = [Runner(10**7, done=20_000) for _ in range(readers)]
    for _ in range(400):
        many.step([*reading, *writing])
    mixed = [seconds for turn, seconds in many.passes if turn.mixed]
    alone = [seconds for turn, seconds in many.passes if not turn.mixed]
    assert all(set(writing) <= set(turn.generations) for turn, _ in many.passes), "each pass moves all who write"
    assert all(len(turn.generations) == writers + 1 for turn, _ in many.passes if turn.mixed)
    owed = (sum(mixed) - mixed[-1]) * share / (1 - share)
    assert sum(alone) >= owed - 1e-9
    assert sum(alone) <= sum(mixed) * share / (1 - share) + (len(mixed) + 1) * fixed, "and the prompt is read"
    # A first pass is a guess. From then on one takes a quantum, two where a length is tried (and a bit, because the
    # prompt before it has grown), or has the fewest rows.
    least = fixed + 2 * LEAST_ROWS * a_row * (1 + max(one.done for one in reading) / 10_000)
    settled = mixed[3 * readers :]
    assert all(seconds <= max(QUANTUM * 2.3, least) + 1e-9 for seconds in settled)
    about = [seconds for seconds in settled if seconds <= max(QUANTUM * 1.1, least) + 1e-9]
    assert len(about) >= 0.85 * len(settled) - 2 * readers


def test_several_readers_take_turns() -> None:
    many = machine()
    reading = [Runner(50_000), Runner(50_000), Runner(50_000)]
    for _ in range(3000):
        many.step([*reading, Runner()])
    done = [one.done for one in reading]
    assert max(done) < 1.1 * min(done)


def test_the_first_chunk_beside_others_is_short_where_nothing_is_known() -> None:
    turn, _ = machine().step([Runner(5000), Runner()])
    assert turn.chunk == FIRST_ROWS


def test_what_was_measured_alone_counts_beside_others() -> None:
    many = machine(fixed=0.001, a_row=0.00001)
    reader = Runner(5000)
    many.step([reader])
    turn, _ = many.step([reader, Runner()])
    assert turn.chunk == 512, "a whole chunk takes no quantum here"


def test_a_kernel_that_costs_the_same_for_many_rows_is_used_for_many() -> None:
    many = machine(fixed=0.04, a_row=0.0000001)
    reader = Runner(50_000)
    for _ in range(30):
        many.step([reader, Runner()])
    assert [turn.chunk for turn, _ in many.passes if turn.mixed][-1] == 512


def test_one_slow_pass_does_not_cut_chunks_for_ever() -> None:
    many = machine(fixed=0.01, a_row=0.0001)
    reader = Runner(10**6)
    many.step([reader, Runner()])
    many.fixed = 1.0
    for _ in range(3):
        many.step([reader, Runner()])
    many.fixed = 0.01
    lengths = [turn.chunk for turn, _ in (many.step([reader, Runner()]) for _ in range(300)) if turn.mixed]
    assert max(lengths[-RETRY:]) >= 256


# ------------------------------------------------------------------------------------------------------- the guest


def test_a_guest_is_served_at_once_and_shares_no_pass() -> None:
    many = machine()
    writer, guest = Runner(), Runner(30)
    for _ in range(10):
        many.step([writer])
    turn, _ = many.step([writer], guest)
    assert turn.guest
    assert list(turn.generations) == [guest]
    for _ in range(50):
        turn, _ = many.step([writer], guest)
        assert list(turn.generations) == ([guest] if turn.guest else [writer])


@pytest.mark.parametrize("holder", [Runner(100_000), Runner()])
def test_a_guest_has_half_of_the_time_and_its_chunks_are_short(holder: Runner) -> None:
    many = machine()
    guest = Runner(2000)
    for _ in range(300):
        many.step([holder], guest)
    assert guest.got == pytest.approx(holder.got, rel=0.2)
    assert all(seconds < 2.2 * QUANTUM for turn, seconds in many.passes if turn.guest)
    assert all(turn.chunk is None for turn, _ in many.passes if not turn.guest), "nobody else is cut for a guest"


def test_a_guest_that_was_left_alone_owes_nothing_to_who_comes_next() -> None:
    many = machine()
    guest = Runner(2000)
    turn, _ = many.step([], guest)
    assert turn.chunk is None, "alone it reads whole chunks"
    for _ in range(50):
        many.step([], guest)
    holder = Runner()
    for _ in range(40):
        many.step([holder], guest)
    assert holder.got == pytest.approx(0.1, abs=0.02)


# ------------------------------------------------------------------------------------------------- cut blocks


@settings(max_examples=60, deadline=None)
@given(length=st.integers(1, 200), grid=st.sampled_from([16, 24, 64]), data=st.data())
def test_cut_chunks_end_on_every_line_of_the_grid_and_change_no_token(length: int, grid: int, data: Any) -> None:
    prompt = [1 + place % 11 for place in range(length)]
    request = Generate(prompt, 6, Sampling())
    whole = Generation(request, ToyModel(), prefill_chunk=grid)
    cut = Generation(request, ToyModel(), prefill_chunk=grid)
    ends = []
    while cut.phase is not Phase.DONE:
        rows = data.draw(st.sampled_from([None, grid, grid // 2, grid // 4]))
        run_round(cut.model, [cut], rows)
        ends.append(cut.done)
    while whole.phase is not Phase.DONE:
        run_round(whole.model, [whole])
    assert set(range(grid, length + 1, grid)) <= set(ends)
    assert cut.output == whole.output


class Watching(ToyModel):
    """Notes how many rows each pass writes."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.written: list[list[int]] = []

    def forward(self, blocks: Seq[Block]) -> Any:
        self.written.append([len(block.tokens) for block in blocks])
        return super().forward(blocks)


class Bushy(RandomDrafter):
    """As many children of the root as may be."""

    def propose(self, root: int, limit: int) -> Any:
        from tandem.core.plugin import DraftTree

        tree = DraftTree(source="bushy")
        for node in range(limit):
            tree.add(1 + node % 11, node - 1 if node % 11 == 0 else tree.parents[node - 1], 0.9 ** (1 + node // 11))
        return tree


@pytest.mark.parametrize("count", [1, 2, 3, 4, 20, 40])
def test_trees_are_cut_to_a_share_of_one_pass_and_no_text_changes(count: int) -> None:
    model = Watching(**LONG)
    ask = [Generate([1 + place % 11, 3], 60) for place in range(count)]
    together = [
        Generation(one, model, drafts=drafts(Bushy(0)), chooser=FixedCut()) for one in ask
    ]  # fmt: skip
    while going := [one for one in together if one.phase is not Phase.DONE]:
        run_round(model, going)
    drafted = [rows for rows in model.written if max(rows) > 2]
    if count <= JOINT_ROWS // 2:
        assert drafted, "nothing was drafted, so nothing was shared"
        assert max(map(max, drafted)) == JOINT_ROWS // count
    assert all(sum(rows) <= max(JOINT_ROWS, count) for rows in model.written if len(rows) == count and max(rows) > 2)
    for one, request in zip(together, ask, strict=True):
        lone = Generation(request, ToyModel(**LONG))
        while lone.phase is not Phase.DONE:
            run_round(lone.model, [lone])
        assert one.output == lone.output


def test_what_becomes_of_a_cut_tree_teaches_the_chooser_nothing() -> None:
    learned: list[int] = []

    class Learning(FixedCut):
        def learn(self, tree: Any, accepted: Any) -> None:
            learned.append(len(tree))

    model = ToyModel(**LONG)
    pair = [Generation(Generate([1, 2], 60), model, drafts=drafts(Bushy(0)), chooser=Learning()) for _ in range(2)]
    while all(one.phase is not Phase.DONE for one in pair):
        run_round(model, pair)
    assert max(learned) < JOINT_ROWS // 2, "only trees that near the end were small enough"
    assert sum(one.stats.draft_tokens for one in pair) > sum(learned)
