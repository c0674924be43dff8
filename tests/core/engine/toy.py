"""A tiny model whose logits are a function of the whole path of tokens: any row run with the wrong prefix shows."""

from __future__ import annotations

import random
from collections.abc import Sequence as Seq
from typing import Any

import torch

from tandem.core.engine.drafts import Drafts
from tandem.core.plugin import Anchor, Block, Caps, DraftSession, DraftTree

VOCAB = 12
EOS = 0


class ToyTokenizer:
    vocab_size = VOCAB
    eos_ids = frozenset({EOS})

    def encode(self, text: str) -> list[int]:
        return [1 + (ord(c) - ord("a")) % (VOCAB - 1) for c in text]

    def token_bytes(self, token: int) -> bytes:
        return b"" if token == EOS else bytes([96 + token])


class ToySequence:
    def __init__(self, max_len: int) -> None:
        self.tokens: list[int] = []
        self.max_len = max_len
        self.pending: Block | None = None
        self.closed = False

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def nbytes(self) -> int:
        return len(self.tokens)

    def path(self, block: Block, row: int) -> list[int]:
        out: list[int] = []
        while row >= 0:
            out.append(block.tokens[row])
            row = row - 1 if block.parents is None else block.parents[row]
        return out[::-1]

    def commit(self, path: Seq[int]) -> None:
        assert self.pending is not None
        block, self.pending = self.pending, None
        before = -1
        for row in path:
            assert (row - 1 if block.parents is None else block.parents[row]) == before
            self.tokens.append(block.tokens[row])
            before = row

    def anchor(self) -> Anchor:
        return Anchor(len(self.tokens), 0)

    def trim(self, length: int, anchor: Anchor | None = None) -> None:
        del self.tokens[length:]

    def snapshot(self, anchor: Anchor | None = None) -> Any:
        return self.tokens[: None if anchor is None else anchor.length]

    def restore(self, snapshot: Any) -> None:
        self.tokens = list(snapshot)

    def close(self) -> None:
        self.closed = True


class ToyModel:
    """`eos_bias` makes the end token likelier; `scale` spreads the logits."""

    def __init__(
        self, *, scale: float = 3.0, eos_bias: float = -4.0, memory: int = 4, caps: Caps | None = None
    ) -> None:
        self.name = "toy"
        self.caps = caps or Caps(max_len=512)
        self.tokenizer = ToyTokenizer()
        self.template = "{% for m in messages %}{{ m.content }}{% endfor %}"
        self.template_vars: dict[str, Any] = {}
        self.facts: dict[str, Any] = {}
        self.scale, self.eos_bias, self.memory = scale, eos_bias, memory
        self.rows_run = 0
        self.passes = 0
        self.break_at: int | None = None

    def logits_after(self, tokens: Seq[int]) -> torch.Tensor:
        """What the model says after these tokens (it remembers the last `memory` and their count's parity)."""
        seed = hash((tuple(tokens[-self.memory :]), len(tokens) % 2)) & 0xFFFFFFFF
        generator = random.Random(seed)
        row = torch.tensor([generator.gauss(0, self.scale) for _ in range(VOCAB)])
        row[EOS] += self.eos_bias
        return row

    vision = None
    head = None
    fingerprint = None

    def new_sequence(self, max_len: int) -> ToySequence:
        return ToySequence(max_len)

    def drafter(self) -> None:
        return None

    def forward(self, blocks: Seq[Block]) -> list[torch.Tensor]:
        self.passes += 1
        if self.break_at is not None and self.passes >= self.break_at:
            raise RuntimeError("the toy is broken")
        out = []
        for block in blocks:
            sequence = block.sequence
            assert sequence.pending is None
            assert not sequence.closed
            assert sequence.length + len(block.tokens) <= sequence.max_len
            sequence.pending = block
            self.rows_run += len(block.tokens)
            rows = [self.logits_after([*sequence.tokens, *sequence.path(block, row)]) for row in block.logits]
            out.append(torch.stack(rows) if rows else torch.empty(0, VOCAB))
        return out

    def close(self) -> None:
        return


def drafts(session: DraftSession) -> Drafts:
    """One open session; a fault in it fails the test."""

    def fail(name: str, reason: str) -> None:
        raise AssertionError(reason)

    return Drafts([("toy", lambda start: session)], fail)


class RandomDrafter:
    """Proposes random trees; `truth` (the text to come) makes some branches right."""

    def __init__(self, seed: int, truth: Seq[int] = (), share_right: float = 0.5) -> None:
        self.random = random.Random(seed)
        self.truth = list(truth)
        self.share_right = share_right
        self.seen: list[int] = []
        self.prompt = 0

    def extend(self, tokens: Seq[int]) -> None:
        if not self.seen:
            self.prompt = len(tokens)
        self.seen.extend(tokens)

    def close(self) -> None:
        return

    def propose(self, root: int, limit: int) -> DraftTree | None:
        tree = DraftTree(source="random")
        at = len(self.seen) - self.prompt + 1
        node = -1
        for depth in range(self.random.randrange(0, 6)):
            if len(tree) >= limit:
                break
            right = at + depth < len(self.truth) and self.random.random() < self.share_right
            token = self.truth[at + depth] if right else self.random.randrange(VOCAB)
            node = tree.add(token, node, 0.5**depth)
            for sibling in range(self.random.randrange(0, 3)):
                other = self.random.randrange(VOCAB)
                if (
                    len(tree) < limit
                    and other != token
                    and all(
                        not (tree.tokens[i] == other and tree.parents[i] == tree.parents[node])
                        for i in range(len(tree))
                    )
                ):
                    tree.add(other, tree.parents[node], 0.1**depth * 0.4 / (sibling + 1))
        return tree if len(tree) else None
