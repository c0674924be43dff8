"""The drafters of one generation, and the chooser over them, kept from harming it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence as Seq
from typing import Any

import pytest
from toy import RandomDrafter, ToyModel

from tandem.core.engine.drafting import MAX_NODES, FixedCut, FixedCutting, GuardedChoosing, checked
from tandem.core.engine.drafts import Drafts
from tandem.core.engine.generation import Generation, Phase
from tandem.core.engine.request import Generate
from tandem.core.engine.round import run_round
from tandem.core.plugin import DraftStart, DraftTree, TreeChooser

START = DraftStart(sequence=None)  # type: ignore[arg-type]


class Session:
    """Proposes chains of `size` nodes, or fewer where fewer are asked for."""

    def __init__(self, size: int, first: int = 0, fault: str = "") -> None:
        self.size, self.first, self.fault = size, first, fault
        self.calls: list[Any] = []

    def _call(self, *call: Any) -> None:
        self.calls.append(call)
        if self.fault == call[0]:
            raise LookupError("the shelf is empty")

    def extend(self, tokens: Seq[int]) -> None:
        self._call("extend", list(tokens))

    def propose(self, root: int, limit: int) -> DraftTree | None:
        self._call("propose", root, limit)
        size = min(self.size, limit)
        tree = DraftTree(source="s")
        for i in range(size):
            tree.add(self.first + i, i - 1, 0.9**i)
        return tree

    def close(self) -> None:
        self._call("close")


def opened(**sessions: Session) -> tuple[Drafts, list[tuple[str, str]]]:
    failed: list[tuple[str, str]] = []
    openers = [(name, lambda start, session=session: session) for name, session in sessions.items()]
    drafts = Drafts(openers, lambda name, reason: failed.append((name, reason)))
    drafts.open(START)
    return drafts, failed


def test_only_those_that_the_chooser_wants_are_asked_and_each_is_told_of() -> None:
    told: list[tuple[str, int, bool]] = []

    class Picky(FixedCut):
        def wants(self, drafter: str, context: int) -> bool:
            return drafter != "b"

        def drafted(self, drafter: str, tree: DraftTree | None, seconds: float) -> None:
            told.append((drafter, len(tree or ()), seconds >= 0))

    a, b, c = Session(3), Session(3), Session(0)
    drafts, _ = opened(a=a, b=b, c=c)
    trees = drafts.propose(7, MAX_NODES, Picky(), 100)
    assert [len(tree) for tree in trees] == [3]
    assert told == [("a", 3, True), ("c", 0, True)]
    assert b.calls == []


@pytest.mark.parametrize("limit", range(1, 31))
def test_near_the_end_all_trees_together_keep_to_the_room_that_is_left(limit: int) -> None:
    drafts, failed = opened(a=Session(20, 0), b=Session(20, 100), c=Session(20, 200))
    trees = drafts.propose(7, limit, FixedCut(), 100)
    assert 1 <= sum(len(tree) for tree in trees) <= limit
    assert failed == []


def test_with_room_enough_each_may_fill_a_pass() -> None:
    drafts, _ = opened(a=Session(31, 0), b=Session(31, 100))
    assert [len(tree) for tree in drafts.propose(7, MAX_NODES, FixedCut(), 100)] == [31, 31]


@pytest.mark.parametrize("fault", ["extend", "propose", "close"])
def test_a_session_that_raises_is_dropped_and_the_others_go_on(fault: str) -> None:
    drafts, failed = opened(bad=Session(3, fault=fault), good=Session(3))
    drafts.extend([1, 2])
    trees = drafts.propose(7, MAX_NODES, FixedCut(), 100)
    drafts.extend([7])
    drafts.close()
    assert failed == [("bad", "LookupError: the shelf is empty")]
    assert len(trees) == (2 if fault == "close" else 1)


def test_a_session_is_closed_once() -> None:
    session = Session(3)
    drafts, _ = opened(a=session)
    drafts.close()
    drafts.close()
    assert session.calls == [("close",)]


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (DraftTree([1, 2], [-1], [0.5, 0.5]), "differ in length"),
        (DraftTree([1, 2, 3], [-1, 0, 1], [0.5, 0.4, 0.3]), "3 nodes where 2"),
        (DraftTree([1, 2], [1, -1], [0.5, 0.5]), "does not come before it"),
        (DraftTree([1], [-2], [0.5]), "does not come before it"),
        (DraftTree([1], [-1], [1.5]), "no probability"),
        (DraftTree([1], [-1], [-0.5]), "no probability"),
        (DraftTree([1, 2], [-1, 0], [float("nan"), 0.5]), "no probability"),
        (DraftTree([1, 2], [-1, 0], [0.5, float("nan")]), "no probability"),
    ],
)
def test_a_tree_that_breaks_the_contract_is_refused(tree: DraftTree, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        checked(tree, 2)


def test_no_tree_and_an_empty_one_are_the_same() -> None:
    assert checked(None, 2) is None
    assert checked(DraftTree(), 2) is None


# --------------------------------------------------------------------------------------------- choosers that fail


class Faulty:
    """A chooser that raises in one of its methods, or gives what can't be verified."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.closed = 0

    def _maybe(self, name: str) -> None:
        if self.fault == name:
            raise ZeroDivisionError("counted to nothing")

    def open(self) -> TreeChooser:
        self._maybe("open")
        return self

    def wants(self, drafter: str, context: int) -> bool:
        self._maybe("wants")
        return True

    def drafted(self, drafter: str, tree: DraftTree | None, seconds: float) -> None:
        self._maybe("drafted")

    def choose(self, trees: Seq[DraftTree], context: int, others: int) -> DraftTree | None:
        self._maybe("choose")
        if self.fault == "tree":
            return DraftTree([1] * 40, list(range(-1, 39)), [0.1] * 40)
        return trees[0]

    def learn(self, tree: DraftTree, accepted: Seq[int]) -> None:
        self._maybe("learn")

    def observe(self, rows: int, context: int, seconds: float) -> None:
        self._maybe("observe")

    def report(self) -> Mapping[str, Any]:
        self._maybe("report")
        return {"fine": True}

    def close(self) -> None:
        self.closed += 1
        self._maybe("close")


def written(chooser: TreeChooser | None, drafter: Callable[[], Any] | None) -> list[int]:
    """A greedy answer of the toy model."""
    model = ToyModel(eos_bias=-50.0)
    drafts = Drafts([("toy", lambda start: drafter())] if drafter else [])
    generation = Generation(Generate([1, 2, 3], 40), model, drafts=drafts, chooser=chooser)
    while generation.phase is not Phase.DONE:
        run_round(model, [generation])
    return generation.output


@pytest.mark.parametrize("fault", ["open", "wants", "drafted", "choose", "tree", "learn", "observe"])
def test_a_chooser_that_fails_is_switched_off_and_the_answer_is_the_same(fault: str) -> None:
    plain = written(None, None)
    failed: list[str] = []
    choosing = GuardedChoosing(Faulty(fault), failed.append)
    assert written(choosing.open(), lambda: RandomDrafter(1, plain, 0.8)) == plain
    assert len(failed) == 1
    assert failed[0].startswith("ValueError: gave 40" if fault == "tree" else "ZeroDivisionError: counted")
    assert isinstance(choosing.open(), FixedCut), "later generations do without it"
    assert choosing.report() == {}


def test_a_chooser_without_a_fault_is_left_alone() -> None:
    failed: list[str] = []
    faulty = Faulty("")
    choosing = GuardedChoosing(faulty, failed.append)
    plain = written(None, None)
    assert written(choosing.open(), lambda: RandomDrafter(1, plain, 0.8)) == plain
    assert choosing.report() == {"fine": True}
    choosing.close()
    assert (faulty.closed, failed) == (1, [])


def test_a_report_or_an_end_that_fails_is_told_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    failed: list[str] = []
    assert GuardedChoosing(Faulty("report"), failed.append).report() == {
        "error": "ZeroDivisionError: counted to nothing"
    }
    GuardedChoosing(Faulty("close"), failed.append).close()
    assert "counted to nothing" in caplog.text
    assert failed == []


def test_without_a_chooser_eight_nodes_are_verified() -> None:
    session = Session(20)
    drafts, _ = opened(a=session)
    chooser = FixedCutting().open()
    chosen = chooser.choose(drafts.propose(7, MAX_NODES, chooser, 0), 0, 0)
    assert chosen is not None
    assert len(chosen) == 8
