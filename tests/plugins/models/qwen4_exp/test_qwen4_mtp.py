"""The draft head against a twin written from the published description alone, row by row.

No public implementation of this head can be run beside it, so what is checked here is that the model computes what the
description says; whether the description is right shows in how many drafts are accepted with the real weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from qwen4_tiny import TEXT, add_mtp, announce_mtp, make, text

from tandem.core.plugin import Block, ModelError

CLOSE = {"atol": 1e-4, "rtol": 0.0}
HIDDEN, STREAMS, HEADS, KV_HEADS, SIZE = 32, 4, 4, 2, 16
INDEX_HEADS, INDEX_SIZE, ROTARY, THETA = TEXT["indexer_n_heads"], 8, 8, 5000.0


@dataclass
class Twin:
    """One path through the head: rows are added one at a time."""

    weights: dict[str, torch.Tensor]
    embedding: torch.Tensor
    lm_head: torch.Tensor
    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    raw: list[torch.Tensor] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)

    def fork(self) -> Twin:
        lists = (list(kept) for kept in (self.keys, self.values, self.raw, self.positions))
        return Twin(self.weights, self.embedding, self.lm_head, *lists)

    def add(self, token: int, hidden: torch.Tensor, position: int) -> torch.Tensor:
        """A token and the four streams of the place before it; its own four streams, `[128]`."""
        from_token = self.matrix("mtp.fc_embedding") @ norm(self.embedding[token], self.vector("embedding"))
        wide = norm(hidden, self.vector("hidden"))
        streams = [self.matrix("mtp.fc_hidden") @ wide[s * HIDDEN :][:HIDDEN] + from_token for s in range(STREAMS)]
        x, back = self.read(streams, "mtp.layers.0.attn_hyper_connection")
        out = self.attend(x, position)
        streams = [stream + w * out for stream, w in zip(streams, back, strict=True)]
        x, back = self.read(streams, "mtp.layers.0.mlp_hyper_connection")
        out = self.experts(x)
        return torch.cat([stream + w * out for stream, w in zip(streams, back, strict=True)])

    def logits(self, streams: torch.Tensor) -> torch.Tensor:
        x, _ = self.read(list(streams.split(HIDDEN)), "mtp.hyper_connection_mixer")
        return self.lm_head @ x

    def matrix(self, name: str) -> torch.Tensor:
        return self.weights[f"{name}.weight"]

    def vector(self, which: str) -> torch.Tensor:
        return self.weights[f"mtp.pre_fc_norm_{which}.weight"]

    def read(self, streams: list[torch.Tensor], name: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
        weight = self.matrix(f"{name}.hc_norm")
        normed = torch.cat([norm(x, weight[s * HIDDEN :][:HIDDEN]) for s, x in enumerate(streams)])
        low = self.matrix(f"{name}.input_mix_weight_down") @ normed / STREAMS
        gate = torch.sigmoid(self.matrix(f"{name}.input_mix_weight_up") @ (low * torch.sigmoid(low)))
        mixed = sum((gate * normed).split(HIDDEN)) / STREAMS
        if f"{name}.block_inject_weight.weight" not in self.weights:
            return mixed, []
        back = 2 * torch.sigmoid(self.matrix(f"{name}.block_inject_weight") @ normed / STREAMS)
        return mixed, list(back)

    def attend(self, x: torch.Tensor, position: int) -> torch.Tensor:
        at = "mtp.layers.0.self_attn"
        self.positions.append(position)
        self.values.append((self.matrix(f"{at}.v_proj") @ x).view(KV_HEADS, SIZE))
        keys = (self.matrix(f"{at}.k_proj") @ x).view(KV_HEADS, SIZE)
        self.keys.append(torch.stack([turn(norm(k, self.matrix(f"{at}.k_norm")), position) for k in keys]))
        chosen = self.choose(x, position)
        outs = []
        for head, both in enumerate((self.matrix(f"{at}.q_proj") @ x).view(HEADS, 2 * SIZE)):
            query = turn(norm(both[:SIZE], self.matrix(f"{at}.q_norm")), position)
            group = head // (HEADS // KV_HEADS)
            scores = torch.stack([query @ self.keys[t][group] for t in chosen]) / math.sqrt(SIZE)
            seen = sum(w * self.values[t][group] for w, t in zip(scores.softmax(0), chosen, strict=True))
            outs.append(seen * torch.sigmoid(both[SIZE:]))
        return self.matrix(f"{at}.o_proj") @ torch.cat(outs)

    def choose(self, x: torch.Tensor, position: int) -> list[int]:
        at = "mtp.layers.0.self_attn.indexer"
        parts = (self.matrix(f"{at}.index_qk_proj") @ x).view(INDEX_HEADS + 1, INDEX_SIZE)
        queries = [turn(norm(q, self.matrix(f"{at}.q_layernorm")), position) for q in parts[:-1]]
        self.raw.append(parts[-1])
        scores = []
        for first in range(0, len(self.raw) - 3, 4):
            mean = norm(sum(self.raw[first : first + 4]) / 4, self.matrix(f"{at}.k_layernorm"))
            key = turn(mean, self.positions[first])
            scores.append((sum(max(0.0, float(q @ key)) for q in queries), first))
        best = sorted(scores, reverse=True)[:2]
        tail = range(len(self.raw) // 4 * 4, len(self.raw))
        return [first + step for _, first in best for step in range(4)] + list(tail)

    def experts(self, x: torch.Tensor) -> torch.Tensor:
        at = "mtp.layers.0.mlp"
        odds = (self.matrix(f"{at}.gate") @ x).softmax(0)
        best = odds.argsort(descending=True)[:3]
        out = torch.zeros(HIDDEN)
        for expert in best.tolist():
            gate, up = (self.weights[f"{at}.experts.gate_up_proj"][expert] @ x).chunk(2)
            down = self.weights[f"{at}.experts.down_proj"][expert] @ (gate * torch.sigmoid(gate) * up)
            out += odds[expert] / odds[best].sum() * down
        gate = self.matrix(f"{at}.shared_expert.gate_proj") @ x
        inner = gate * torch.sigmoid(gate) * (self.matrix(f"{at}.shared_expert.up_proj") @ x)
        opened = torch.sigmoid(self.matrix(f"{at}.shared_expert_gate") @ x)
        return out + opened * (self.matrix(f"{at}.shared_expert.down_proj") @ inner)


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt((x * x).mean() + 1e-6) * (1 + weight)


def turn(x: torch.Tensor, position: int) -> torch.Tensor:
    out = x.clone()
    for pair in range(ROTARY // 2):
        angle = position * THETA ** (-2 * pair / ROTARY)
        a, b = x[pair], x[pair + ROTARY // 2]
        out[pair] = a * math.cos(angle) - b * math.sin(angle)
        out[pair + ROTARY // 2] = b * math.cos(angle) + a * math.sin(angle)
    return out


@dataclass
class Pair:
    """A model with its head, and what a twin of it takes from transformers."""

    model: Any
    oracle: Any
    weights: dict[str, torch.Tensor]

    def streams(self, tokens: list[int]) -> torch.Tensor:
        """The trunk's residual in front of its last mixer, `[n, 128]`."""
        seen: list[torch.Tensor] = []
        mixer = self.oracle.model.language_model.hyper_connection_mixer
        hook = mixer.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
        self.oracle(input_ids=torch.tensor([tokens]))
        hook.remove()
        return seen[0][0]

    def twin(self, tokens: list[int]) -> tuple[Twin, torch.Tensor]:
        """The head behind a committed text, and the last row of the trunk's streams."""
        streams = self.streams(tokens)
        embedding = self.oracle.model.language_model.embed_tokens.weight
        twin = Twin(self.weights, embedding, self.oracle.lm_head.weight)
        for at in range(1, len(tokens)):
            twin.add(tokens[at], streams[at - 1], at)
        return twin, streams[-1]

    def logits(self, tokens: list[int], drafted: list[int], parents: list[int]) -> torch.Tensor:
        """Of each node of a tree behind a text."""
        start, last = self.twin(tokens)
        nodes: list[tuple[Twin, torch.Tensor, int]] = []
        out = []
        for token, parent in zip(drafted, parents, strict=True):
            above, hidden, depth = nodes[parent] if parent >= 0 else (start, last, -1)
            twin = above.fork()
            streams = twin.add(token, hidden, len(tokens) + depth + 1)
            nodes.append((twin, streams, depth + 1))
            out.append(twin.logits(streams))
        return torch.stack(out)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, load4: Callable[..., Any]) -> Pair:
    path = tmp_path_factory.mktemp("qwen4_mtp")
    oracle = make(path)
    weights = add_mtp(path)
    return Pair(load4(path), oracle, weights)


@pytest.mark.parametrize("length", [1, 2, 6, 21])
def test_the_head_guesses_what_its_description_says(
    length: int, pair: Pair, read4: Callable[..., torch.Tensor]
) -> None:
    model, tokens = pair.model, text(length, seed=21)
    sequence = model.new_sequence(100)
    read4(model, sequence, tokens, 8)
    drafted, parents = text(8, seed=22), [-1, 0, 0, 1, 3, 2, 4, 6]
    want = pair.logits(tokens, drafted, parents)
    assert float(want.std()) > 0.5
    model.head.start(sequence)
    got = [
        model.head.extend(sequence, drafted[start:end], parents[start:end])
        for start, end in ((0, 1), (1, 3), (3, 4), (4, 8))
    ]
    torch.testing.assert_close(torch.cat(got), want, **CLOSE)


def test_the_head_chooses_its_tokens_as_the_trunk_does(pair: Pair, read4: Callable[..., torch.Tensor]) -> None:
    """The twin without a choice differs, so the one above says something."""
    tokens, everything = text(30, seed=23), Pair(pair.model, pair.oracle, pair.weights)

    class Dense(Twin):
        def choose(self, x: torch.Tensor, position: int) -> list[int]:
            super().choose(x, position)
            return list(range(len(self.raw)))

    twin, last = pair.twin(tokens)
    dense = Dense(twin.weights, twin.embedding, twin.lm_head)
    streams = everything.streams(tokens)
    for at in range(1, len(tokens)):
        dense.add(tokens[at], streams[at - 1], at)
    one, other = (each.logits(each.add(7, last, 30)) for each in (twin, dense))
    assert float((one - other).abs().max()) > 0.01


def test_accepted_drafts_become_text_that_the_head_has_read(pair: Pair, read4: Callable[..., torch.Tensor]) -> None:
    model, tokens, drafted = pair.model, text(13, seed=24), text(5, seed=25)
    sequence = model.new_sequence(100)
    read4(model, sequence, tokens, 5)
    model.head.start(sequence)
    model.head.extend(sequence, drafted[:2], [-1, 0])
    model.forward([Block(sequence, drafted, (-1, 0, 0, 2, 3), range(5))])
    sequence.commit((0, 2, 3))
    said = [*tokens, drafted[0], drafted[2], drafted[3]]
    kept = sequence.snapshot()
    other = model.new_sequence(100)
    other.restore(kept)
    for user in (sequence, other):
        model.head.start(user)
        got = model.head.extend(user, [9, 8], [-1, 0])
        torch.testing.assert_close(got, pair.logits(said, [9, 8], [-1, 0]), **CLOSE)


def test_the_trunk_computes_the_same_with_a_head(pair: Pair, tiny4: Any, read4: Callable[..., torch.Tensor]) -> None:
    tokens = text(40, seed=26)
    with_head = read4(pair.model, pair.model.new_sequence(40), tokens, 9)
    torch.testing.assert_close(with_head, read4(tiny4, tiny4.new_sequence(40), tokens, 9), atol=1e-5, rtol=0)


def test_a_checkpoint_whose_head_was_left_out_has_none(tmp_path: Path, load4: Callable[..., Any]) -> None:
    make(tmp_path)
    announce_mtp(tmp_path)
    assert load4(tmp_path).head is None
    with pytest.raises(ModelError, match=r"mtp: on.*no mtp\.\* tensors"):
        load4(tmp_path, mtp="on")


def test_the_head_can_be_left_on_the_disk(tmp_path: Path, load4: Callable[..., Any]) -> None:
    make(tmp_path)
    add_mtp(tmp_path)
    assert load4(tmp_path, mtp="on").head is not None
    assert load4(tmp_path, mtp="off").head is None
