from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence as Seq
from pathlib import Path as FilePath
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from tandem.core.engine.drafting import FixedCut
from tandem.core.engine.drafts import Drafts
from tandem.core.engine.generation import Generation, Phase
from tandem.core.engine.request import Generate, Sampling
from tandem.core.engine.round import run_round
from tandem.core.plugin import Block, Caps, DraftStart, DraftTree
from tandem.plugins.drafters.mtp import Limits, MtpSession, tandem_drafters

VOCAB = 9
Path = tuple[int, ...]


def distribution(seed: int, path: Path, sharpness: float) -> torch.Tensor:
    """The logits that a head gives behind this path (the root first)."""
    generator = random.Random(hash((seed, path)))
    return torch.tensor([generator.gauss(0, sharpness) for _ in range(VOCAB)])


class Head:
    """A head whose guesses are known. It checks that it is called as its contract says."""

    def __init__(self, says: Callable[[Path], torch.Tensor]) -> None:
        self.says = says
        self.started = False
        self.paths: list[Path] = []
        self.calls: list[int] = []

    def start(self, sequence: Any) -> None:
        assert sequence.length > 0, "there is nothing to guess behind"
        self.started, self.paths, self.calls = True, [], []

    def extend(self, sequence: Any, tokens: Seq[int], parents: Seq[int]) -> torch.Tensor:
        assert self.started
        assert len(tokens) == len(parents) > 0
        self.calls.append(len(tokens))
        first = len(self.paths)
        for token, parent in zip(tokens, parents, strict=True):
            assert -1 <= parent < len(self.paths)
            assert (parent == -1) == (not self.paths), "one root, and everything else below it"
            self.paths.append((*(self.paths[parent] if parent >= 0 else ()), token))
        assert len(set(self.paths)) == len(self.paths), "a row is read twice"
        return torch.stack([self.says(path) for path in self.paths[first:]])


def limits(**changed: Any) -> Limits:
    wide = {"depth": 4, "deepest": 4, "breadth": 3, "rows": 1000, "sure": 0.0, "min_q": 0.0, "temperature": 1.0}
    return Limits(**(wide | changed))


def propose(head: Head, chosen: Limits, root: int = 1, limit: int = 31) -> DraftTree | None:
    return MtpSession(head, SimpleNamespace(length=5), chosen).propose(root, limit)  # type: ignore[arg-type]


def paths_of(tree: DraftTree | None) -> dict[Path, float]:
    paths: list[Path] = []
    if tree is None:
        return {}
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    assert len(set(paths)) == len(paths)
    return dict(zip(paths, tree.q, strict=True))


def whole_tree(says: Callable[[Path], torch.Tensor], root: int, chosen: Limits) -> dict[Path, float]:
    """Every path within reach, by going everywhere."""
    found: dict[Path, float] = {}
    level: dict[Path, float] = {(): 1.0}
    for depth in range(chosen.deepest):
        following: dict[Path, float] = {}
        for path, q in level.items():
            bar = max(chosen.min_q, chosen.sure if depth >= chosen.depth else 0.0) if path else 0.0
            if q < bar:
                continue
            shares = (says((root, *path)) / chosen.temperature).softmax(-1)
            for token in shares.argsort(descending=True)[: chosen.breadth].tolist():
                following[*path, token] = q * float(shares[token])
        found |= following
        level = following
    return found


@settings(max_examples=80)
@given(
    st.integers(0, 10_000),
    st.sampled_from([0.5, 2.0, 5.0]),
    st.integers(1, 31),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(1, VOCAB),
    st.sampled_from([0.0, 0.05, 0.3]),
    st.sampled_from([0.1, 0.6]),
    st.sampled_from([0.5, 1.0, 1.4]),
)
def test_the_tree_is_the_best_first_one(
    seed: int,
    sharpness: float,
    limit: int,
    depth: int,
    more: int,
    breadth: int,
    min_q: float,
    sure: float,
    temperature: float,
) -> None:
    def says(path: Path) -> torch.Tensor:
        return distribution(seed, path, sharpness)

    breadth = min(breadth, 3) if depth + more > 4 else breadth
    chosen = limits(
        depth=depth, deepest=min(depth + more, 5), breadth=breadth, min_q=min_q, sure=sure, temperature=temperature
    )
    found = paths_of(propose(Head(says), chosen, root=4, limit=limit))
    reachable = whole_tree(says, 4, chosen)
    best = sorted(reachable.values(), reverse=True)[:limit]
    assert sorted(found.values(), reverse=True) == pytest.approx(best, rel=1e-4)
    assert all(q == pytest.approx(reachable[path], rel=1e-4) for path, q in found.items())
    assert all(q <= found.get(path[:-1], 1.0) for path, q in found.items())


@given(st.integers(0, 1000), st.integers(1, 31), st.integers(1, 5))
def test_a_level_reads_no_more_rows_than_allowed(seed: int, limit: int, rows: int) -> None:
    head = Head(lambda path: distribution(seed, path, 1.0))
    tree = propose(head, limits(rows=rows), limit=limit)
    assert tree is not None
    assert len(tree) <= limit
    assert head.calls[0] == 1
    assert all(count <= rows for count in head.calls)
    assert len(head.calls) <= 4
    assert all(tree.q[i] <= (tree.q[parent] if parent >= 0 else 1.0) for i, parent in enumerate(tree.parents))


def certain(path: Path) -> torch.Tensor:
    """A head that is sure of counting upwards."""
    row = torch.zeros(VOCAB)
    row[(path[-1] + 1) % VOCAB] = 12.0
    return row


def test_a_sure_path_goes_deeper_than_others() -> None:
    deep = propose(Head(certain), limits(depth=2, deepest=6, sure=0.5, breadth=1))
    assert deep is not None
    assert deep.tokens == [2, 3, 4, 5, 6, 7]
    unsure = propose(Head(lambda path: certain(path) / 12), limits(depth=2, deepest=6, sure=0.5, breadth=1))
    assert unsure is not None
    assert len(unsure) == 2


def test_no_path_is_longer_than_the_limit() -> None:
    head = Head(certain)
    tree = propose(head, limits(deepest=8, depth=8), limit=2)
    assert tree is not None
    assert tree.tokens == [2, 3]
    assert len(head.calls) == 2


def test_below_the_least_probability_nothing_is_gone_on_from() -> None:
    head = Head(lambda path: torch.zeros(VOCAB))
    tree = propose(head, limits(min_q=0.2))  # each guess has 1/9
    assert tree is not None
    assert set(tree.parents) == {-1}
    assert head.calls == [1]


def test_a_higher_temperature_flattens() -> None:
    sharp = propose(Head(certain), limits(temperature=1.0))
    flat = propose(Head(certain), limits(temperature=4.0))
    assert sharp is not None
    assert flat is not None
    assert max(flat.q) < max(sharp.q)


def test_without_room_the_head_is_not_asked() -> None:
    head = Head(certain)
    assert propose(head, limits(), limit=0) is None
    assert not head.started
    assert MtpSession(head, SimpleNamespace(length=0), limits()).propose(1, 31) is None  # type: ignore[arg-type]


def test_a_head_that_says_nothing_proposes_nothing_and_keeps_nothing() -> None:
    head = Head(lambda path: torch.full((VOCAB,), float("nan")))
    assert propose(head, limits()) is None
    assert head.paths == []


def test_masked_tokens_are_no_guesses() -> None:
    def says(path: Path) -> torch.Tensor:
        row = torch.full((VOCAB,), float("-inf"))
        row[3] = 0.0
        return row

    tree = propose(Head(says), limits())
    assert tree is not None
    assert set(tree.tokens) == {3}
    assert tree.q == [1.0] * 4


# ------------------------------------------------------------------------------------------------------ the part


def opener(model: Any, **given_options: Any) -> Callable[[DraftStart], Any]:
    (part,) = tandem_drafters()
    options = {name: schema["default"] for name, schema in part.options.items()} | given_options
    return part.build(options, model)


def test_a_model_without_a_head_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="this model has no multi-token prediction head"):
        opener(SimpleNamespace(head=None))


def test_the_part_has_a_default_and_a_sentence_for_each_option() -> None:
    (part,) = tandem_drafters()
    assert part.name == "mtp"
    assert all(option["description"].endswith(".") and "default" in option for option in part.options.values())


def test_a_depth_beyond_the_deepest_counts() -> None:
    session = opener(SimpleNamespace(head=Head(certain)), depth=12, deepest=3, breadth=1)(
        DraftStart(SimpleNamespace(length=1))  # type: ignore[arg-type]
    )
    assert len(session.propose(1, 31)) == 12


# ------------------------------------------------------------------------------------------------- whole answers


class Tokenizer:
    vocab_size = VOCAB
    eos_ids: frozenset[int] = frozenset({0})

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    def token_bytes(self, token: int) -> bytes:
        return bytes([65 + token])


class Sequence:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.pending: Block | None = None

    @property
    def length(self) -> int:
        return len(self.tokens)

    def path(self, row: int) -> list[int]:
        assert self.pending is not None
        out: list[int] = []
        while row >= 0:
            out.append(self.pending.tokens[row])
            row = row - 1 if self.pending.parents is None else self.pending.parents[row]
        return out[::-1]

    def commit(self, path: Seq[int]) -> None:
        self.tokens += self.path(path[-1]) if len(path) else []
        self.pending = None

    def close(self) -> None:
        return


class Model:
    """Logits are a function of the last three tokens. Its head knows them too, but for noise."""

    caps = Caps(max_len=400)
    tokenizer = Tokenizer()
    vision = None

    def __init__(self, noise: float) -> None:
        self.noise = noise
        self.passes = 0
        self.head = ModelHead(self)

    def logits(self, tokens: Seq[int]) -> torch.Tensor:
        row = distribution(1, tuple(tokens[-3:]), 3.0)
        row[0] -= 6.0
        return row

    def new_sequence(self, max_len: int) -> Sequence:
        return Sequence()

    def forward(self, blocks: Seq[Block]) -> list[torch.Tensor]:
        self.passes += 1
        out = []
        for block in blocks:
            block.sequence.pending = block
            rows = [self.logits([*block.sequence.tokens, *block.sequence.path(row)]) for row in block.logits]
            out.append(torch.stack(rows) if rows else torch.empty(0, VOCAB))
        return out

    def drafter(self) -> None:
        return None


class ModelHead(Head):
    def __init__(self, model: Model) -> None:
        super().__init__(lambda path: model.logits([*self.text, *path]) + model.noise * distribution(2, path, 1.0))
        self.text: list[int] = []

    def start(self, sequence: Any) -> None:
        assert sequence.pending is None
        super().start(sequence)
        self.text = list(sequence.tokens)


def answer(model: Any, prompt: Seq[int], drafts: Drafts, count: int, sampling: Sampling) -> Generation:
    generation = Generation(Generate(prompt, count, sampling), model, drafts=drafts, chooser=FixedCut())
    while generation.phase is not Phase.DONE:
        run_round(model, [generation])
    return generation


def failed(name: str, reason: str) -> None:
    raise AssertionError(f"{name}: {reason}")


SAMPLINGS = {"greedy": Sampling(), "seeded": Sampling(temperature=0.9, seed=5)}


@pytest.mark.parametrize("noise", [0.0, 1.0, 20.0])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_text_is_the_same_with_any_head(sampling: str, noise: float) -> None:
    model = Model(noise)
    plain = answer(model, [1, 2, 3], Drafts(), 80, SAMPLINGS[sampling])
    passes, model.passes = model.passes, 0
    drafted = answer(model, [1, 2, 3], Drafts([("mtp", opener(model))], failed), 80, SAMPLINGS[sampling])
    assert drafted.output == plain.output
    assert drafted.stats.draft_tokens > 0
    if noise == 0.0:
        assert model.passes < passes / 2, "a head that knows the model saves passes"


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A tiny random checkpoint of a model that brings a head."""
    room = FilePath(__file__).parents[1] / "models" / "qwen3_5"
    sys.path.insert(0, str(room))
    from qwen35_tiny import load, make

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load(make(tmp_path_factory.mktemp("hybrid")).path, mtp="on")
    torch.set_num_threads(threads)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("prompt", [[9], [5, 6, 7], list(range(20, 90))], ids=len)
def test_a_real_head_changes_no_token(hybrid: Any, prompt: list[int], sampling: str) -> None:
    drafts = Drafts([("mtp", opener(hybrid, temperature=0.3))], failed)
    drafted = answer(hybrid, prompt, drafts, 24, SAMPLINGS[sampling])
    assert drafted.output == answer(hybrid, prompt, Drafts(), 24, SAMPLINGS[sampling]).output
    assert drafted.stats.draft_tokens > 0


def test_a_real_head_is_read_as_its_contract_says(hybrid: Any) -> None:
    """Guessing changes nothing for the pass that follows, whatever was guessed before."""
    prompt = list(range(30, 60))
    drafted = answer(hybrid, prompt, Drafts([("mtp", opener(hybrid, rows=31, min_q=0.0))], failed), 12, Sampling())
    assert drafted.stats.draft_tokens > 5 * (drafted.stats.rounds - 1) > 0  # nothing is drafted behind the first token
    assert drafted.output == answer(hybrid, prompt, Drafts(), 12, Sampling()).output
