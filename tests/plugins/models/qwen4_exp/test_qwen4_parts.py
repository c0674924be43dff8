"""The layers of its own that a Qwen4-Exp model has, each against a twin that goes row by row."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from torch.nn.functional import linear

from tandem.plugins._ops import tree
from tandem.plugins.models.qwen4_exp.hyper import HyperConnection, Mixer
from tandem.plugins.models.qwen4_exp.indexer import Indexer, Selection
from tandem.plugins.models.qwen4_exp.lineage import Lineage
from tandem.plugins.models.qwen4_exp.ple import NGramHash, Ple
from tandem.plugins.models.qwen4_exp.qsa import attend_selected
from tandem.plugins.models.qwen4_exp.states import IndexState

EPS = 1e-6


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def matrix(out: int, width: int, seed: int = 0) -> Any:
    weight = random(out, width, seed=seed) / math.sqrt(width)
    return lambda rows: linear(rows, weight)


def zrms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt((x * x).mean() + EPS) * (1 + weight)


trees = st.integers(1, 12).flatmap(lambda n: st.tuples(*(st.integers(-1, row - 1) for row in range(n))))


def path_to(parents: tuple[int, ...], row: int) -> list[int]:
    """The rows from the block's start down to `row`."""
    path = []
    while row >= 0:
        path.append(row)
        row = parents[row]
    return path[::-1]


def lineage_of(parents: tuple[int, ...]) -> Lineage:
    return Lineage(tree.ancestors(parents), len(parents))


def longest(parents: tuple[int, ...]) -> list[int]:
    return max((path_to(parents, row) for row in range(len(parents))), key=len)


# ------------------------------------------------------------------------------------------------------- lineage


@given(trees, st.integers(0, 9))
def test_a_lineage_names_each_rows_own_path(parents: tuple[int, ...], reach: int) -> None:
    lineage = lineage_of(parents)
    back = lineage.back(reach)
    assert lineage.longest == len(longest(parents))
    for row in range(len(parents)):
        path = path_to(parents, row)
        assert int(lineage.depth[row]) == len(path) - 1
        before = list(range(reach)) + [reach + r for r in path]
        assert back[row].tolist() == before[-reach - 1 :]


@given(trees, st.integers(0, 9), st.data())
def test_a_tree_read_in_steps_has_the_paths_of_the_whole(
    parents: tuple[int, ...], reach: int, data: st.DataObject
) -> None:
    whole, ancestors, at = lineage_of(parents), tree.ancestors(parents), 0
    while at < len(parents):
        end = data.draw(st.integers(at + 1, len(parents)))
        step = Lineage(ancestors[at:end, :end], end - at, at)
        assert torch.equal(step.back(reach), whole.back(reach)[at:end])
        assert torch.equal(step.depth, whole.depth[at:end])
        at = end


def test_a_chain_read_in_steps_has_the_paths_of_the_whole() -> None:
    assert torch.equal(Lineage(None, 2, 3).back(4), Lineage(None, 5).back(4)[3:])


# ------------------------------------------------------------------------------------------------- hyper-connection


def test_streams_are_read_and_written_as_the_formula_says() -> None:
    streams, width, rank = 3, 8, 5
    norm, down, up, inject = random(24, seed=1), matrix(rank, 24, 2), matrix(24, rank, 3), matrix(streams, 24, 4)
    residual, result = random(6, 24, seed=5), random(6, width, seed=6)
    connection = HyperConnection(norm, down, up, streams, EPS, inject)
    read, weights = connection.open(residual, torch.float32)
    kept = residual.clone()
    connection.close(kept, result, weights)
    for row in range(6):
        normed = torch.cat(
            [zrms(residual[row, s * width : (s + 1) * width], norm[s * width : (s + 1) * width]) for s in range(3)]
        )
        low = down(normed) / 3
        gate = torch.sigmoid(up(low * torch.sigmoid(low)))
        torch.testing.assert_close(read[row], (gate * normed).view(3, width).sum(0) / 3, atol=1e-5, rtol=1e-5)
        for s in range(3):
            weight = 2 * torch.sigmoid(inject(normed)[s] / 3)
            want = residual[row, s * width : (s + 1) * width] + weight * result[row]
            torch.testing.assert_close(kept[row, s * width : (s + 1) * width], want, atol=1e-5, rtol=1e-5)
    last = Mixer(norm, down, up, streams, EPS)
    torch.testing.assert_close(last.read(residual, torch.float32), read)


# ---------------------------------------------------------------------------------------------------------- PLE

EOS, VOCAB, STREAMS, WIDTH = 7, 50, 2, 6
HASH = NGramHash(
    torch.tensor([2**40 + 15, 2**39 + 77, 2**38 + 1]),
    torch.tensor([11, 13, 17, 19]),
    torch.tensor([0, 11, 24, 41]),
    EOS,
)
TABLE = random(60, 3, seed=10)


def ple() -> Ple:
    flat = STREAMS * WIDTH
    return Ple(
        HASH, lambda rows: TABLE[rows], matrix(flat, 12, 11), matrix(WIDTH, 12, 12), random(flat, seed=13),
        random(flat, seed=14), random(flat, seed=15), random(flat, 4, seed=16), STREAMS, EPS,
    )  # fmt: skip


def hash_twin(text: list[int], at: int) -> list[int]:
    """Rows of the table for the token `at`, in Python's own whole numbers."""
    window, ended = [text[at]], False
    for back in (1, 2):
        ended = ended or at - back < 0 or text[at - back] == EOS
        window.append(EOS if ended else text[at - back])
    first, second, third = HASH.multipliers.tolist()
    bigram = (window[0] * first) ^ (window[1] * second)
    trigram = bigram ^ (window[2] * third)
    hashes = [bigram, bigram, trigram, trigram]
    return [h % size + off for h, size, off in zip(hashes, HASH.sizes.tolist(), HASH.offsets.tolist(), strict=True)]


def ple_twin(layer: Ple, residual: torch.Tensor, text: list[int]) -> torch.Tensor:
    """All rows of a text from its start, one after another."""
    inputs, out = [], []
    for at in range(len(text)):
        embedded = torch.cat([TABLE[row] for row in hash_twin(text, at)])
        gated, normed = [], []
        for s in range(STREAMS):
            part = slice(s * WIDTH, (s + 1) * WIDTH)
            key = zrms(layer.key(embedded)[part], layer.norm_key[part])
            score = float(key @ zrms(residual[at, part], layer.norm_query[part])) / math.sqrt(WIDTH)
            score = math.copysign(math.sqrt(max(abs(score), 1e-6)), score)
            gated.append(layer.value(embedded) / (1 + math.exp(-score)))
            normed.append(zrms(gated[-1], layer.norm_conv[part]))
        inputs.append(torch.cat(normed))
        conv = sum(inputs[at - 3 * (3 - tap)] * layer.conv[:, tap] for tap in range(4) if at - 3 * (3 - tap) >= 0)
        out.append(torch.cat(gated) + conv * torch.sigmoid(conv))
    return torch.stack(out)


def test_no_product_of_the_hash_overflows_with_the_real_multipliers() -> None:
    multipliers = torch.tensor([23703573157769, 20109073645365, 8052911324071])
    sizes = torch.tensor([20000003, 20000171])
    real = NGramHash(multipliers, sizes, torch.tensor([0, 20000003]), 248044)
    window = torch.tensor([[248319, 248319, 248319], [248319, 248044, 5], [4, 3, 248044]])
    for row, (c, b, a) in zip(real.rows(window).tolist(), window.tolist(), strict=True):
        c = 248044 if b == 248044 else c
        m0, m1, m2 = multipliers.tolist()
        bigram = (a * m0) ^ (b * m1)
        assert row == [bigram % 20000003, (bigram ^ (c * m2)) % 20000171 + 20000003]


texts = st.lists(st.one_of(st.integers(0, VOCAB - 1), st.just(EOS)), min_size=1, max_size=30)


@settings(max_examples=40, deadline=None)
@given(texts, st.data())
def test_ple_in_any_chunks_is_the_layer_token_by_token(text: list[int], data: st.DataObject) -> None:
    layer, residual = ple(), random(len(text), STREAMS * WIDTH, seed=20)
    state, got, at = layer.new_state(), [], 0
    while at < len(text):
        count = data.draw(st.integers(1, len(text) - at))
        part = slice(at, at + count)
        got.append(layer(residual[part], torch.tensor(text[part]), [(state, Lineage(None, count))]))
        state.commit(range(count))
        at += count
    torch.testing.assert_close(torch.cat(got), ple_twin(layer, residual, text), atol=1e-5, rtol=1e-5)


@settings(max_examples=40, deadline=None)
@given(texts, trees, st.integers(0, 2**31))
def test_ple_reads_each_path_of_a_tree_as_a_text(prefix: list[int], parents: tuple[int, ...], seed: int) -> None:
    layer, count = ple(), len(parents)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCAB, (count,), generator=generator)
    tokens[torch.rand(count, generator=generator) < 0.2] = EOS
    residual = random(len(prefix) + count, STREAMS * WIDTH, seed=21)
    state = layer.new_state()
    layer(residual[: len(prefix)], torch.tensor(prefix), [(state, Lineage(None, len(prefix)))])
    state.commit(range(len(prefix)))
    got = layer(residual[len(prefix) :], tokens, [(state, lineage_of(parents))])
    for row in range(count):
        path = path_to(parents, row)
        text = prefix + tokens[path].tolist()
        want = ple_twin(layer, torch.cat([residual[: len(prefix)], residual[len(prefix) :][path]]), text)
        torch.testing.assert_close(got[row], want[-1], atol=1e-5, rtol=1e-5)
    path = longest(parents)
    state.commit(path)
    straight, text = layer.new_state(), torch.tensor(prefix + tokens[path].tolist())
    rows = torch.cat([residual[: len(prefix)], residual[len(prefix) :][path]])
    layer(rows, text, [(straight, Lineage(None, len(text)))])
    straight.commit(range(len(text)))
    torch.testing.assert_close(state.conv, straight.conv, atol=1e-6, rtol=1e-6)
    assert torch.equal(state.tokens, straight.tokens)


def test_ple_blocks_of_two_sequences_do_not_see_each_other() -> None:
    layer, residual, tokens = ple(), random(7, STREAMS * WIDTH, seed=22), torch.randint(0, VOCAB, (7,))
    states = layer.new_state(), layer.new_state()
    lineages = Lineage(None, 3), lineage_of((-1, 0, 0, 1))
    together = layer(residual, tokens, list(zip(states, lineages, strict=True)))
    apart = [
        layer(rows, ids, [(layer.new_state(), lineage)])
        for rows, ids, lineage in zip(residual.split([3, 4]), tokens.split([3, 4]), lineages, strict=True)
    ]
    torch.testing.assert_close(together, torch.cat(apart))


def test_a_dropped_ple_block_leaves_the_state_as_it_was() -> None:
    layer = ple()
    state = layer.new_state()
    layer(random(5, STREAMS * WIDTH), torch.arange(5), [(state, Lineage(None, 5))])
    state.commit(range(5))
    before = state.snapshot()
    layer(random(3, STREAMS * WIDTH), torch.arange(3), [(state, Lineage(None, 3))])
    state.commit(())
    assert torch.equal(before["conv"], state.conv)
    assert torch.equal(before["tokens"], state.tokens)


# ------------------------------------------------------------------------------------------------------- indexer

SIZE, HEADS, ROTARY, HIDDEN = 8, 2, 4, 10


def indexer(ratio: int, budget: int) -> Indexer:
    project = matrix((HEADS + 1) * SIZE, HIDDEN, 31)
    return Indexer(project, random(SIZE, seed=32), random(SIZE, seed=33), HEADS, ratio, budget, EPS)


def turns(positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    angles = positions[:, None].float() * torch.tensor([1.0, 0.1])
    return angles.cos(), angles.sin()


def turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """One head `[SIZE]` by one row's tables `[ROTARY / 2]`."""
    out = x.clone()
    for i in range(ROTARY // 2):
        a, b = x[i], x[i + ROTARY // 2]
        out[i], out[i + ROTARY // 2] = a * cos[i] - b * sin[i], b * cos[i] + a * sin[i]
    return out


def visible_twin(layer: Indexer, x: torch.Tensor, positions: torch.Tensor) -> set[int]:
    """The tokens that the last row of a text attends to."""
    cos, sin = turns(positions)
    raw = layer.project(x).view(len(x), HEADS + 1, SIZE)
    query = torch.stack([turn(zrms(raw[-1, h], layer.norm_query), cos[-1], sin[-1]) for h in range(HEADS)])
    scores = {}
    for block in range(len(x) // layer.ratio):
        first = block * layer.ratio
        mean = sum(raw[first + i, HEADS] for i in range(layer.ratio)) / layer.ratio
        key = turn(zrms(mean, layer.norm_key), cos[first], sin[first])
        scores[block] = sum(max(0.0, float(query[h] @ key)) for h in range(HEADS)) / math.sqrt(SIZE)
    best = sorted(scores, key=lambda b: -scores[b])[: layer.budget // layer.ratio]
    chosen = {block * layer.ratio + i for block in best for i in range(layer.ratio)}
    return chosen | set(range(len(x) // layer.ratio * layer.ratio, len(x)))


def chosen_by(selection: Selection | None, row: int, sees: list[int]) -> set[int]:
    """The row's tokens by their places in its own text; `sees` are their numbers in prefix and block."""
    if selection is None:
        return set(range(len(sees)))
    tokens, valid = selection.tokens[row].tolist(), selection.valid[row].tolist()
    kept = list(itertools.compress(tokens, valid))
    assert len(kept) == len(set(kept)), "a token is attended to once"
    return {sees.index(token) for token in kept}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 40), trees, st.sampled_from([(1, 4), (2, 4), (3, 6), (4, 8)]), st.integers(0, 999))
@example(0, tuple(range(-1, 11)), (2, 4), 0)  # the first rows see fewer blocks than the last ones choose
@example(1, (-1, 0, 1, 2, 3, 4, 0, -1), (1, 4), 0)
def test_each_row_of_a_tree_attends_to_the_tokens_of_its_own_best_blocks(
    length: int, parents: tuple[int, ...], sizes: tuple[int, int], seed: int
) -> None:
    layer, count = indexer(*sizes), len(parents)
    lineage = lineage_of(parents)
    x = random(length + count, HIDDEN, seed=seed)
    positions = torch.cat([torch.arange(length), length + lineage.depth]) * 3
    cos, sin = turns(positions)
    state = layer.new_state(ROTARY, torch.float32)
    for start in range(0, length, 7):
        part = slice(start, min(length, start + 7))
        layer(x[part], cos[part], sin[part], [(state, Lineage(None, part.stop - start))])
        state.commit(range(part.stop - start))
    (selection,) = layer(x[length:], cos[length:], sin[length:], [(state, lineage)])
    for row in range(count):
        sees = list(range(length)) + [length + r for r in path_to(parents, row)]
        want = visible_twin(layer, x[sees], positions[sees])
        got = chosen_by(selection, row, sees)
        assert len(got) == len(want)
        assert got == want or _differ_by_ties(layer, x[sees], positions[sees], got, want)
    path = longest(parents)
    state.commit(path)
    straight = layer.new_state(ROTARY, torch.float32)
    sees = list(range(length)) + [length + r for r in path]
    layer(x[sees], cos[sees], sin[sees], [(straight, Lineage(None, len(sees)))])
    straight.commit(range(len(sees)))
    _assert_same(state, straight)
    twin = layer.new_state(ROTARY, torch.float32)
    twin.restore(state.snapshot())
    _assert_same(twin, straight)


def _differ_by_ties(layer: Indexer, x: torch.Tensor, positions: torch.Tensor, got: set[int], want: set[int]) -> bool:
    """Whether the two choices differ in blocks of equal score only: relu gives many a block exactly 0."""
    cos, sin = turns(positions)
    raw = layer.project(x).view(len(x), HEADS + 1, SIZE)
    query = torch.stack([turn(zrms(raw[-1, h], layer.norm_query), cos[-1], sin[-1]) for h in range(HEADS)])

    def score(token: int) -> float:
        first = token // layer.ratio * layer.ratio
        mean = raw[first : first + layer.ratio, HEADS].mean(0)
        key = turn(zrms(mean, layer.norm_key), cos[first], sin[first])
        return float(torch.relu(query @ key).sum()) / math.sqrt(SIZE)

    swapped = [sorted(score(token) for token in one - other) for one, other in ((got, want), (want, got))]
    return all(abs(a - b) < 1e-5 for a, b in zip(*swapped, strict=True))


def _assert_same(one: IndexState, other: IndexState) -> None:
    assert one.length == other.length
    torch.testing.assert_close(one.keys, other.keys, atol=1e-5, rtol=1e-5)
    kept = one.length % one.ratio
    if kept:
        torch.testing.assert_close(one.raw[-kept:], other.raw[-kept:], atol=1e-5, rtol=1e-5)


def test_a_row_attends_to_everything_until_its_blocks_pass_the_budget() -> None:
    layer = indexer(4, 8)
    x, (cos, sin) = random(13, HIDDEN, seed=3), turns(torch.arange(13))
    for count, dense in ((11, True), (12, False), (13, False)):
        state = layer.new_state(ROTARY, torch.float32)
        (selection,) = layer(x[:count], cos[:count], sin[:count], [(state, Lineage(None, count))])
        assert (selection is None) is dense


@pytest.mark.parametrize("tile", [1, 3, 32])
def test_attention_over_a_selection_is_attention_under_its_mask(tile: int) -> None:
    q, keys, values = random(5, 4, 6), random(2, 9, 6, seed=1), random(2, 9, 6, seed=2)
    tokens = torch.tensor([[0, 3, 8], [1, 2, 4], [5, 6, 0], [7, 0, 0], [8, 7, 6]])
    valid = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]]).bool()
    got = attend_selected(q, keys, values, Selection(tokens, valid), 0.5, tile)
    for row in range(5):
        sees = tokens[row][valid[row]]
        for head in range(4):
            weights = (keys[head // 2, sees] @ q[row, head] * 0.5).softmax(0)
            torch.testing.assert_close(got[row, head], weights @ values[head // 2, sees], atol=1e-5, rtol=1e-5)
