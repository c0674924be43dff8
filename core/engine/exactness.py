"""Proof that speculation changes no token: every way of running a prompt against plain decoding.

The reference is a loop of single rows, written down here on its own. Each other way (drafters that are always wrong,
half right, or the served ones; two sequences at once) must give its tokens. A first difference is allowed only
at a near tie: the drawn token led the next one by less than the stated gap in the reference. More rows in one
product can round a logit differently, so ties can fall either way; anything else is a bug.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence as Seq
from dataclasses import dataclass, field

import torch

from tandem.core.engine.drafting import FixedCut
from tandem.core.engine.drafts import Drafts, Opener
from tandem.core.engine.generation import Generation, Phase
from tandem.core.engine.request import Generate, Sampling
from tandem.core.engine.round import run_round
from tandem.core.engine.sampling import Sampler
from tandem.core.plugin import Block, DraftTree, Model

OWN = "the model's own"
TIE_NATS = 0.125
"""The largest lead that still counts as a near tie."""

SAMPLINGS: dict[str, Sampling] = {
    "greedy": Sampling(),
    "greedy, penalties": Sampling(
        repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.1, no_repeat_ngram_size=4, logprobs=2
    ),
    "seeded": Sampling(temperature=0.8, top_p=0.95, top_k=40, min_p=0.02, seed=1234),
}


@dataclass(frozen=True, slots=True)
class Reference:
    """A plain run: its tokens and, for each draw (the end token's included), the drawn token's lead in nats."""

    tokens: list[int]
    leads: list[float]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a run parted from plain decoding."""

    prompt: int
    position: int
    lead: float


@dataclass(slots=True)
class Outcome:
    """One way of running under one sampling, over all prompts."""

    way: str
    sampling: str
    prompts: int = 0
    identical: int = 0
    rounds: int = 0
    tokens: int = 0
    differences: list[Difference] = field(default_factory=list)

    def failures(self, tie_nats: float) -> list[Difference]:
        """The differences that no near tie explains."""
        return [difference for difference in self.differences if difference.lead > tie_nats]


@torch.inference_mode()
def plain_run(model: Model, request: Generate) -> Reference:
    """Decode one row at a time."""
    sampler = Sampler(request.sampling, request.prompt, model.tokenizer.vocab_size)
    sequence = model.new_sequence(len(request.prompt) + request.max_tokens)
    tokens: list[int] = []
    leads: list[float] = []
    try:
        rows: Seq[int] = request.prompt
        while True:
            (logits,) = model.forward([Block(sequence, rows, logits=(len(rows) - 1,))])
            sequence.commit(range(len(rows)))
            token = sampler.draw(logits[0])
            leads.append(sampler.margin(logits[0]))
            if token in model.tokenizer.eos_ids:
                break
            sampler.push(token)
            tokens.append(token)
            if len(tokens) >= request.max_tokens:
                break
            rows = (token,)
    finally:
        sequence.close()
    return Reference(tokens, leads)


class WrongDraft:
    """Drafts trees out of tokens that can't be next; `share` of the nodes are right after all."""

    def __init__(self, truth: Seq[int], share: float, vocab_size: int, seed: int) -> None:
        self._truth = list(truth)
        self._share = share
        self._vocab = vocab_size
        self._random = random.Random(seed)
        self._at = -1  # tokens of the answer so far; the first `extend` is the prompt

    def extend(self, tokens: Seq[int]) -> None:
        self._at = 0 if self._at < 0 else self._at + len(tokens)

    def propose(self, root: int, limit: int) -> DraftTree | None:
        tree = DraftTree(source="exactness")
        spine = -1
        for depth in range(min(6, limit // 2)):
            place = self._at + 1 + depth
            truth = self._truth[place] if place < len(self._truth) else None
            wrong = self._other_than(truth)
            right = truth is not None and self._random.random() < self._share
            q = 0.5 ** (depth + 1)
            side = tree.add(wrong, spine, q / 2)
            spine = tree.add(truth, spine, q) if right and truth is not None else side
        return tree if len(tree) else None

    def close(self) -> None:
        return

    def _other_than(self, truth: int | None) -> int:
        token = self._random.randrange(self._vocab)
        return token if token != truth else (token + 1) % self._vocab


Opening = Callable[[Reference], Drafts]


def verify(
    model: Model,
    prompts: Seq[Seq[int]],
    drafters: Seq[Opener] = (),
    *,
    max_tokens: int = 64,
    samplings: dict[str, Sampling] | None = None,
    only: Seq[str] | None = None,
) -> Iterator[Outcome]:
    """Run every prompt every way; yields an outcome for each way and sampling as it is done.

    `only` names the ways to run: `plain round`, `always wrong`, `half right`, a drafter's name, `all drafters`,
    `two at once`; None = all.
    """
    vocab = model.tokenizer.vocab_size
    ways: dict[str, Opening] = {
        "plain round": lambda reference: Drafts(),
        "always wrong": _guessing(0.0, vocab, seed=1),
        "half right": _guessing(0.5, vocab, seed=2),
        **{name: _served([(name, opener)]) for name, opener in drafters},
    }
    if model.drafter() is not None:
        ways[OWN] = lambda reference: Drafts()
    if len(drafters) > 1:
        ways["all drafters"] = _served(drafters)
    for name, sampling in (samplings or SAMPLINGS).items():
        requests = [Generate(prompt, max_tokens, sampling) for prompt in prompts]
        references = [plain_run(model, request) for request in requests]
        for way, opening in ways.items():
            if only is None or way in only:
                yield _compare(way, name, model, requests, references, opening, together=1)
        if model.caps.joint and (only is None or "two at once" in only):
            yield _compare("two at once", name, model, requests, references, ways["half right"], together=2)


def _guessing(share: float, vocab: int, seed: int) -> Opening:
    return lambda reference: Drafts([("guess", lambda start: WrongDraft(reference.tokens, share, vocab, seed))], _raise)


def _served(openers: Seq[Opener]) -> Opening:
    return lambda reference: Drafts(openers, _raise)


def _raise(name: str, reason: str) -> None:
    raise RuntimeError(f"the drafter {name} failed: {reason}")


def _compare(
    way: str,
    sampling: str,
    model: Model,
    requests: Seq[Generate],
    references: Seq[Reference],
    opening: Opening,
    together: int,
) -> Outcome:
    outcome = Outcome(way, sampling)
    for start in range(0, len(requests), together):
        group = range(start, min(start + together, len(requests)))
        running = [
            Generation(requests[i], model, drafts=opening(references[i]), chooser=FixedCut(), own_draft=way == OWN)
            for i in group
        ]
        while any(generation.phase is not Phase.DONE for generation in running):
            run_round(model, [generation for generation in running if generation.phase is not Phase.DONE])
        for i, generation in zip(group, running, strict=True):
            outcome.prompts += 1
            outcome.rounds += generation.stats.rounds
            outcome.tokens += len(generation.output)
            place = _first_difference(references[i].tokens, generation.output)
            if place is None:
                outcome.identical += 1
            else:
                outcome.differences.append(Difference(i, place, references[i].leads[place]))
    return outcome


def _first_difference(expected: Seq[int], got: Seq[int]) -> int | None:
    for place, (a, b) in enumerate(zip(expected, got, strict=False)):
        if a != b:
            return place
    return None if len(expected) == len(got) else min(len(expected), len(got))
