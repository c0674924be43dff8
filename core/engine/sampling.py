"""Drawing the next token from a row of logits.

The draw is Gumbel-max with noise that is a function of (seed, position, token id) alone, so a seeded text does not
depend on how many rows were verified at once. Order of filters: penalties and bias, temperature, top_p, top_k, min_p.
All of top_p, top_k and min_p keep a prefix of the tokens in falling probability, so the kept set is the shortest one.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from tandem.core.engine.request import Sampling, TokenLogprob

NGRAM_PENALTY = 4.0
"""Nats that a token pays for completing an n-gram of the text: a strong hint, never a ban."""
GREEDY_BELOW = 1e-5
"""Temperatures below this divide logits out of float range; they mean greedy."""
FIRST_CANDIDATES = 256
"""How many candidates top_p looks at first; a flat distribution makes it look at more."""


class Sampler:
    """Draws one generation's tokens. `push` tells it each token that became part of the text, in order.

    `draw` is a pure function of the row and the text so far, so drawing twice gives the same token.
    """

    def __init__(
        self, sampling: Sampling, prompt: Seq[int], vocab_size: int, device: torch.device | None = None
    ) -> None:
        self.sampling = sampling
        self.greedy = sampling.temperature < GREEDY_BELOW
        self.seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        self.position = len(prompt)
        self._device = device
        self._bias = _bias(sampling.logit_bias, device)
        self._penal = _Penalties(sampling, prompt, vocab_size, device)
        self.plain = self.greedy and self._bias is None and not self._penal.active and sampling.logprobs is None
        """The draw is the row's argmax and nothing else."""

    def push(self, token: int) -> None:
        self.position += 1
        if self._penal.active:
            self._penal.push(token)

    def draw(self, row: Tensor, mask: Tensor | None = None) -> int:
        """The token for this row. `row` is float32 `[vocab]` and is left as it was; `mask` (bool `[vocab]`) says
        which tokens may be drawn, None = all."""
        if self.plain:
            return int(row.argmax() if mask is None else row.masked_fill(~mask, -math.inf).argmax())
        ids, scores = self.scores(row, mask)
        best = int(scores.argmax())
        return int(ids[best]) if ids is not None else best

    def margin(self, row: Tensor, mask: Tensor | None = None) -> float:
        """How far the drawn token leads the next one, in nats of the score that decides."""
        _, scores = self.scores(row, mask)
        if scores.numel() < 2:
            return math.inf
        top = scores.topk(2).values
        return float(top[0] - top[1])

    def scores(self, row: Tensor, mask: Tensor | None = None) -> tuple[Tensor | None, Tensor]:
        """The deciding score of each candidate; `ids` is None when the candidates are the whole vocabulary."""
        row = self.adjusted(row)
        if mask is not None:
            row = row.masked_fill(~mask, -math.inf)
        if self.greedy:
            return None, row
        row = row / self.sampling.temperature
        ids, kept = kept_tokens(row, self.sampling)
        noise = gumbel(self.seed, self.position, row.numel() if ids is None else ids, row.device)
        return ids, kept.double() + noise

    def adjusted(self, row: Tensor) -> Tensor:
        """The row after penalties and bias."""
        if self._penal.active:
            row = self._penal.apply(row)
        if self._bias is not None:
            ids, values = self._bias
            row = row.index_add(0, ids, values)
        return row

    def logprob(self, row: Tensor, token: int) -> TokenLogprob | None:
        """What the client asked to know about this position, or None when it asked nothing."""
        count = self.sampling.logprobs
        if count is None:
            return None
        logprobs = torch.log_softmax(row, dim=-1)
        top = logprobs.topk(count) if count else None
        best = tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True)) if top is not None else ()
        return TokenLogprob(token, float(logprobs[token]), best)


def kept_tokens(row: Tensor, sampling: Sampling) -> tuple[Tensor | None, Tensor]:
    """Apply top_p, top_k and min_p to a tempered row `[vocab]`.

    Returns the kept ids in falling logit order with their logits, or `(None, row)` when no filter is set.
    """
    top_p, top_k, min_p = sampling.top_p, sampling.top_k, sampling.min_p
    vocab = row.numel()
    if top_p >= 1.0 and not 0 < top_k < vocab and min_p <= 0.0:
        return None, row
    room = min(top_k, vocab) if top_k > 0 else vocab
    total = torch.logsumexp(row, dim=-1)
    count = min(room, FIRST_CANDIDATES)
    while True:
        logits, ids = row.topk(count)
        before = torch.exp(logits - total).cumsum(0) - torch.exp(logits - total)  # mass of the tokens ahead, [count]
        keep = (before < top_p) if top_p < 1.0 else torch.ones_like(before, dtype=torch.bool)
        if min_p > 0.0:
            keep &= logits >= logits[0] + math.log(min_p)
        keep[0] = True
        if count == room or not bool(keep[-1]):
            break
        count = min(room, count * 8)
    length = int(keep.sum())
    return ids[:length], logits[:length]


def gumbel(seed: int, position: int, ids: Tensor | int, device: torch.device | None = None) -> Tensor:
    """Gumbel noise, float64, for each id (an int means ids 0..n-1).

    Counter-based: splitmix64's finaliser over key(seed, position) + id * golden ratio, so any element can be had
    without the others and the same (seed, position, id) gives the same noise everywhere.
    """
    if isinstance(ids, int):
        ids = torch.arange(ids, dtype=torch.int64, device=device)
    state = ids * _GOLDEN + _signed(_mix(_mix(seed & _MASK) + position * 0x9E3779B97F4A7C15))
    state = (state ^ _shift(state, 30)) * _M1
    state = (state ^ _shift(state, 27)) * _M2
    state = state ^ _shift(state, 31)
    uniform = (_shift(state, 11).double() + 0.5) * 2.0**-53  # in (0, 1), never an end
    return -torch.log(-torch.log(uniform))


_MASK = (1 << 64) - 1


def _signed(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _mix(value: int) -> int:
    """splitmix64's finaliser (Steele, Lea, Flood 2014) on a 64-bit integer."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_M1 = _signed(0xBF58476D1CE4E5B9)
_M2 = _signed(0x94D049BB133111EB)


def _shift(value: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64 (torch's is arithmetic)."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _bias(bias: object, device: torch.device | None) -> tuple[Tensor, Tensor] | None:
    pairs = {token: value for token, value in dict(bias).items() if value} if bias else {}  # type: ignore[call-overload]
    if not pairs:
        return None
    ids = torch.tensor(list(pairs), dtype=torch.int64, device=device)
    return ids, torch.tensor(list(pairs.values()), dtype=torch.float32, device=device)


class _Penalties:
    """Repetition, presence, frequency and n-gram penalties over the text so far."""

    def __init__(self, sampling: Sampling, prompt: Seq[int], vocab_size: int, device: torch.device | None) -> None:
        self.repetition = sampling.repetition_penalty
        self.presence = sampling.presence_penalty
        self.frequency = sampling.frequency_penalty
        self.order = sampling.no_repeat_ngram_size
        self.counting = self.presence != 0.0 or self.frequency != 0.0
        self.active = self.repetition != 1.0 or self.counting or self.order > 0
        if not self.active:
            return
        self.seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)  # in prompt or output
        self.counts = torch.zeros(vocab_size, dtype=torch.float32, device=device)  # in the output
        self.seen[torch.tensor(list(prompt), dtype=torch.int64, device=device)] = True
        self.tail: list[int] = []
        self.followers: dict[tuple[int, ...], set[int]] = {}
        if self.order:
            for token in prompt:
                self._follow(token)

    def push(self, token: int) -> None:
        self.seen[token] = True
        self.counts[token] += 1.0
        if self.order:
            self._follow(token)

    def _follow(self, token: int) -> None:
        if len(self.tail) == self.order - 1:
            self.followers.setdefault(tuple(self.tail), set()).add(token)
        self.tail = [*self.tail, token][-(self.order - 1) :] if self.order > 1 else []

    def apply(self, row: Tensor) -> Tensor:
        if self.repetition != 1.0:
            punished = torch.where(row > 0, row / self.repetition, row * self.repetition)
            row = torch.where(self.seen, punished, row)
        if self.counting:
            row = row - self.presence * (self.counts > 0) - self.frequency * self.counts
        if self.order and len(self.tail) == self.order - 1:
            repeats = self.followers.get(tuple(self.tail))
            if repeats:
                row = row.clone()
                row[torch.tensor(sorted(repeats), dtype=torch.int64, device=row.device)] -= NGRAM_PENALTY
        return row
