"""Plain decoding, written down on its own: one row a pass, one token a step, everything worked out anew each time.

It is what every drafted run is compared with, so it shares nothing with the round: no trees, no steering, no answer
filters. It has the sampler and the grammar's automaton in common with it, which have tests of their own.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tandem.core.engine.request import Generate, Sampling, TokenLogprob
from tandem.core.engine.sampling import Sampler
from tandem.core.plugin import Block, Model

FARTHEST = 32.0
"""Nats. Logits that would have to move farther have nothing to do with rounding."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What a plain run wrote."""

    tokens: list[int]
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """Of the tokens that were drawn and became text, where the request asks for them."""


class PlainRun:
    """A request on its way. `advance` writes one more token; the same request always writes the same.

    Raises ValueError for what it can't follow: reasoning that the prompt does not open, pictures.
    """

    def __init__(self, model: Model, request: Generate) -> None:
        if request.images or (request.thinking is not None and not request.thinking.opened):
            raise ValueError("plain decoding follows no pictures, and reasoning only where the prompt opens it")
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self._model = model
        self._request = request
        self._sampler = Sampler(request.sampling, request.prompt, model.tokenizer.vocab_size)
        self._constraint = request.constraint() if request.constraint else None
        self._phrase: list[int] | None = None  # what is left to write of the phrase that closes the reasoning
        self._unread: Seq[int] = request.prompt
        self._row: Tensor | None = None
        self._sequence = model.new_sequence(len(request.prompt) + request.max_tokens)

    def finish(self) -> Reference:
        """Write to the end, and close."""
        try:
            while self.advance():
                pass
        finally:
            self.close()
        return Reference(self.tokens, self.logprobs)

    def close(self) -> None:
        self._sequence.close()

    def advance(self) -> bool:
        """One token more; False when the text is at its end."""
        if len(self.tokens) >= self._request.max_tokens:
            return False
        phrase = self._closing_phrase()
        if phrase:
            self._append(phrase.pop(0))
            return True
        if self._constraint is not None and self._constraint.complete:
            return False
        row = self.row()
        token = self._sampler.draw(row, self._mask(row))
        if token in self._model.tokenizer.eos_ids:
            return False
        if (logprob := self._sampler.logprob(row, token)) is not None:
            self.logprobs.append(logprob)
        self._append(token)
        return True

    @torch.inference_mode()
    def row(self) -> Tensor:
        """The logits behind the text so far, float32 `[vocab]`."""
        if self._unread:
            rows, self._unread = self._unread, ()
            (logits,) = self._model.forward([Block(self._sequence, rows, logits=(len(rows) - 1,))])
            self._sequence.commit(range(len(rows)))
            self._row = logits[0]
        assert self._row is not None
        return self._row

    def nudge(self, tokens: Seq[int]) -> float:
        """The fewest nats by which the logits here would have to move for one of `tokens` to be drawn; infinite when
        no small move does it.

        A move of d raises the token by d, or lowers the drawn one by d. The borders of `top_p` and `min_p` may slip
        as far as the other logits, moved by no more, could shift them.
        """
        if self._closing_phrase():
            return math.inf
        row = self.row()
        drawn = self._sampler.draw(row, self._mask(row))
        return 0.0 if drawn in tokens else min((self._nudge(row, drawn, t) for t in tokens), default=math.inf)

    def _nudge(self, row: Tensor, drawn: int, token: int) -> float:
        if not self._moves(row, drawn, token, FARTHEST):
            return math.inf
        near, far = 0.0, FARTHEST
        while far - near > 1e-4 * max(1.0, near):
            middle = (near + far) / 2
            near, far = (near, middle) if self._moves(row, drawn, token, middle) else (middle, far)
        return far

    def _moves(self, row: Tensor, drawn: int, token: int, nats: float) -> bool:
        """Whether a move of so many nats draws the token."""
        for place, shift in ((token, nats), (drawn, -nats)):
            moved = row.clone()
            moved[place] += shift
            mask = self._mask(moved)
            for slip in (0.0, nats, -nats):
                sampler = copy.copy(self._sampler)
                sampler.sampling = _slipped(sampler.sampling, slip)
                if sampler.draw(moved, mask) == token:
                    return True
        return False

    def _append(self, token: int) -> None:
        if self._constraint is not None and self._answering():
            self._constraint.accept(token)
        self._sampler.push(token)
        self.tokens.append(token)
        self._unread = [*self._unread, token]

    def _mask(self, row: Tensor) -> Tensor | None:
        return self._constraint.mask(row) if self._constraint is not None and self._answering() else None

    def _answering(self) -> bool:
        """No reasoning is open."""
        thinking = self._request.thinking
        if thinking is None:
            return True
        return thinking.tags[1].encode() in b"".join(map(self._model.tokenizer.token_bytes, self.tokens))

    def _closing_phrase(self) -> list[int]:
        """What must be written now: nothing, unless the reasoning's budget is spent."""
        thinking = self._request.thinking
        if self._phrase is None and thinking is not None and thinking.budget is not None:
            spent = len(self.tokens) >= thinking.budget
            self._phrase = list(thinking.closing) if spent and not self._answering() else None
        return self._phrase or []


def _slipped(sampling: Sampling, nats: float) -> Sampling:
    """The filters with their borders moved by so many nats: outwards where positive."""
    top_p, min_p = sampling.top_p, sampling.min_p
    if top_p < 1.0:
        odds = top_p / (1.0 - top_p) * math.exp(nats)
        top_p = min(odds / (1.0 + odds), 1.0 - 1e-12)
    return replace(sampling, top_p=top_p, min_p=min(1.0, min_p * math.exp(-nats)))
