"""The check that every drafter passes before it serves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence as Seq
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from toy import EOS, VOCAB, RandomDrafter, ToyModel

from tandem.core.engine.engine import Engine
from tandem.core.engine.options import SERVER_OPTIONS
from tandem.core.engine.selfcheck import check_drafters, fault_of
from tandem.core.plugin import DraftStart, DraftTree
from tandem.core.plugin.part import with_defaults


class Session:
    """Proposes one made tree again and again."""

    def __init__(self, tree: Callable[[int], DraftTree | None]) -> None:
        self._tree = tree
        self.closed = 0

    def extend(self, tokens: Seq[int]) -> None:
        return

    def propose(self, root: int, limit: int) -> DraftTree | None:
        return self._tree(limit)

    def close(self) -> None:
        self.closed += 1


def check(session: Any, model: ToyModel | None = None, **more: Any) -> dict[str, str]:
    opener = session if callable(session) else (lambda start: session)
    return dict(check_drafters(model or ToyModel(eos_bias=-100.0), [("new", opener)], **more))


def chain(*nodes: tuple[int, float]) -> DraftTree:
    tree = DraftTree()
    for place, (token, q) in enumerate(nodes):
        tree.add(token, place - 1, q)
    return tree


@pytest.mark.parametrize("seed", range(4))
def test_a_drafter_that_keeps_the_contract_passes_however_wrong_it_is(seed: int) -> None:
    assert check(lambda start: RandomDrafter(seed)) == {}


def test_a_drafter_that_says_nothing_passes() -> None:
    session = Session(lambda limit: None)
    assert check(session) == {}
    assert session.closed == 4, "each generation closed its session"


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (lambda limit: chain((VOCAB, 0.5)), f"the token {VOCAB}; the vocabulary ends at {VOCAB - 1}"),
        (lambda limit: chain((-1, 0.5)), "the token -1"),
        (lambda limit: chain((1, math.nan)), "the q nan"),
        (lambda limit: chain((1, 1.5)), "the q 1.5"),
        (lambda limit: chain((1, -0.1)), "the q -0.1"),
        (lambda limit: chain((1, 0.2), (2, 0.4)), "q never grows"),
        (lambda limit: chain(*[(1, 0.5)] * (limit + 1)), "where"),
        (lambda limit: DraftTree([1], [0], [0.5]), "does not come before it"),
        (lambda limit: DraftTree([1, 2], [-1, -2], [0.5, 0.5]), "does not come before it"),
        (lambda limit: DraftTree([1, 2], [-1], [0.5]), "1 parents"),
    ],
)
def test_a_tree_that_breaks_the_contract_is_named(tree: Callable[[int], DraftTree], words: str) -> None:
    assert words in check(Session(tree))["new"]


def test_one_that_raises_is_named_with_what_it_raised() -> None:
    def broken(limit: int) -> DraftTree:
        raise KeyError("page")

    assert "KeyError: 'page'" in check(Session(broken))["new"]

    def no_session(start: DraftStart) -> Any:
        raise OSError("no store")

    assert "OSError: no store" in check(no_session)["new"]


class Meddling:
    """Writes into the sequence that it should only read."""

    def __init__(self, start: DraftStart) -> None:
        self._sequence: Any = start.sequence

    def extend(self, tokens: Seq[int]) -> None:
        if self._sequence.length > 26:
            self._sequence.tokens[-2] = 1 + self._sequence.tokens[-2] % (VOCAB - 1)

    def propose(self, root: int, limit: int) -> DraftTree | None:
        return None

    def close(self) -> None:
        return


def test_one_that_changes_a_token_is_found() -> None:
    assert "changed the answer's token" in check(Meddling)["new"]


class TreesCollide(ToyModel):
    """Can't run two children of one row."""

    def forward(self, blocks):  # type: ignore[no-untyped-def]
        for block in blocks:
            if block.parents is not None and len(set(block.parents)) < len(block.parents):
                raise RuntimeError("two rows in one place")
        return super().forward(blocks)


def test_a_pass_that_fails_over_the_tree_is_the_drafters_end() -> None:
    tree = DraftTree([1, 2], [-1, -1], [0.5, 0.4])
    model = TreesCollide(eos_bias=-100.0)
    assert "a pass over its tree failed: two rows in one place" in check(Session(lambda limit: tree), model)["new"]
    assert check(Session(lambda limit: chain((1, 0.5))), model) == {}


class Rounding(ToyModel):
    """All tokens nearly tied, and a whole block rounds differently than one row."""

    def logits_after(self, tokens):  # type: ignore[no-untyped-def]
        return super().logits_after(tokens) * 0.001

    def forward(self, blocks):  # type: ignore[no-untyped-def]
        out = super().forward(blocks)
        for block, rows in zip(blocks, out, strict=True):
            if len(block.tokens) > 1:
                rows += 0.01 * torch.sin(torch.arange(rows.numel()).view_as(rows) * 1.7)
                rows[:, EOS] -= 4
        return out


def test_a_near_tie_is_no_fault() -> None:
    assert check(lambda start: RandomDrafter(3), Rounding()) == {}


def test_the_check_is_bounded_in_time_and_still_looks_at_each_drafter() -> None:
    now = 0.0

    class Slow(ToyModel):
        def forward(self, blocks):  # type: ignore[no-untyped-def]
            nonlocal now
            now += 1.0
            return super().forward(blocks)

    model = Slow(eos_bias=-100.0)
    found = dict(
        check_drafters(
            model,
            [("good", lambda start: RandomDrafter(1)), ("bad", lambda start: Session(lambda limit: chain((99, 0.5))))],
            seconds=3.0,
            clock=lambda: now,
        )
    )
    assert list(found) == ["bad"]
    assert model.passes < 16


def test_a_model_that_ends_at_once_leaves_nothing_to_check() -> None:
    assert check(lambda start: RandomDrafter(1), ToyModel(eos_bias=100.0)) == {}


@given(st.integers(0, 5000), st.integers(1, 31))
def test_what_a_proper_drafter_proposes_has_no_fault(seed: int, limit: int) -> None:
    tree = RandomDrafter(seed).propose(1, limit)
    assert tree is None or fault_of(tree, limit, VOCAB) is None


# --------------------------------------------------------------------------------------------------- in the engine


class Host:
    """What the engine reads of a platform."""

    def __init__(self, drafters: dict[str, Any], **options: Any) -> None:
        self.model = ToyModel(eos_bias=-100.0)
        self.failed: dict[str, str] = {}
        self.built: list[str] = []
        self._drafters = drafters
        settings = with_defaults(SERVER_OPTIONS, options)
        self.manifest = SimpleNamespace(section=lambda name: settings, sections={})
        self.registry = SimpleNamespace(names=lambda kind: [])

    def active(self, kind: str) -> list[Any]:
        return []

    def build(self, kind: str, *args: Any) -> list[tuple[str, Any]]:
        self.built.append(kind)
        return list(self._drafters.items()) if kind == "drafters" else []

    def fail(self, kind: str, name: str, reason: str) -> None:
        self.failed[name] = reason


def start(host: Host) -> list[str]:
    """The drafters that serve."""
    engine = Engine(host)  # type: ignore[arg-type]
    engine.start()
    names = [name for name, _ in engine._openers]
    engine.stop()
    return names


def test_the_server_starts_without_a_drafter_that_fails_its_check() -> None:
    host = Host({"good": lambda start: RandomDrafter(1), "bad": lambda start: Session(lambda limit: chain((99, 1.0)))})
    assert start(host) == ["good"]
    assert list(host.failed) == ["bad"]
    assert "the token 99" in host.failed["bad"]
    assert host.built[-1] == "choosers", "this is where a required drafter's failure stops the start"


def test_the_check_can_be_switched_off() -> None:
    host = Host({"bad": lambda start: Session(lambda limit: chain((99, 1.0)))}, drafter_check=False)
    start(host)
    assert host.failed == {}
    assert host.model.passes == 0
