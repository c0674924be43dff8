"""What each drafter must show before it serves: trees that keep the contract, and no token changed.

At start every drafter runs a few short generations over arbitrary tokens, with everything that it proposes verified,
and the text is compared with plain decoding. A drafter that fails here would fail in the middle of somebody's answer,
or change it. The check is short and bounded in time; `tandem verify-exactness` is the thorough one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence as Seq
from dataclasses import dataclass, replace

from tandem.core.engine.drafting import FixedCut
from tandem.core.engine.drafts import Drafts, Opener
from tandem.core.engine.exactness import Difference, difference_of
from tandem.core.engine.generation import Generation, Phase
from tandem.core.engine.plain import PlainRun, Reference
from tandem.core.engine.request import Failed, Generate, Sampling
from tandem.core.engine.round import run_round
from tandem.core.plugin import DraftSession, DraftStart, DraftTree, Model

SECONDS = 4.0
"""All plain runs together take no longer, and no drafter does; a slow model is checked on less text."""
TOKENS = 16
"""Tokens of each generation, at most."""
TIE_NATS = 0.5
"""How far logits may be moved here for a difference to be a near tie: wider than where one looks on purpose, since
behind arbitrary tokens many words are equally likely, and a drafter is switched off for what is found."""
ROUNDING = 1e-3
"""Relative: a q that was multiplied up in a short number format may be off by so much."""
SAMPLINGS = (Sampling(), Sampling(temperature=0.9, top_p=0.95, seed=7))


def check_drafters(
    model: Model, openers: Seq[Opener], *, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic
) -> Iterator[tuple[str, str]]:
    """The drafters that must not serve: name and reason of each.

    Nothing of the model's or of a drafter's is left behind but what a drafter itself keeps of a request that says
    that none of its text may be kept.
    """
    if not openers:
        return
    end = clock() + seconds
    runs: list[tuple[Generate, Reference]] = []
    for prompt in _prompts(model):
        for sampling in SAMPLINGS:
            if runs and clock() >= end:
                break
            request = Generate(prompt, TOKENS, sampling, cache=False, keep_text=False)
            if (run := _plain(model, request, end, clock)) is not None:
                runs.append(run)
    for name, opener in openers:
        reason = _reason(model, name, opener, runs, clock() + seconds, clock)
        if reason is not None:
            yield name, reason


def fault_of(tree: DraftTree, limit: int, vocab_size: int) -> str | None:
    """How a proposed tree breaks the contract, or None."""
    count = len(tree.tokens)
    if not count == len(tree.parents) == len(tree.q):
        return f"proposed a tree of {count} tokens, {len(tree.parents)} parents and {len(tree.q)} values of q"
    if count > limit:
        return f"proposed {count} nodes where {limit} were asked for"
    for node, (token, parent, q) in enumerate(zip(tree.tokens, tree.parents, tree.q, strict=True)):
        if not 0 <= token < vocab_size:
            return f"proposed the token {token}; the vocabulary ends at {vocab_size - 1}"
        if not -1 <= parent < node:
            return f"proposed a node whose parent does not come before it (node {node}, parent {parent})"
        if not 0.0 <= q <= 1.0 + ROUNDING:  # NaN is not between either
            return f"gave a node the q {q}; a probability is between 0 and 1"
        if parent >= 0 and q > tree.q[parent] * (1.0 + ROUNDING):
            return f"gave a node the q {q:.6g} under one of {tree.q[parent]:.6g}; q never grows from parent to child"
    return None


# ------------------------------------------------------------------------------------------------------- the runs


@dataclass(slots=True)
class _Verdict:
    """Why a drafter must not serve: what went wrong first."""

    reason: str | None = None

    def fail(self, reason: str) -> None:
        self.reason = self.reason or reason


class _Inspected:
    """A session whose trees are looked at before anybody uses them."""

    def __init__(self, session: DraftSession, vocab_size: int, verdict: _Verdict) -> None:
        self._session = session
        self._vocab = vocab_size
        self._verdict = verdict

    def extend(self, tokens: Seq[int]) -> None:
        self._session.extend(tokens)

    def propose(self, root: int, limit: int) -> DraftTree | None:
        tree = self._session.propose(root, limit)
        if tree is not None and (fault := fault_of(tree, limit, self._vocab)) is not None:
            self._verdict.fail(f"it {fault}")
            return None
        return tree

    def close(self) -> None:
        self._session.close()


def _prompts(model: Model) -> list[list[int]]:
    """Arbitrary tokens that write something, the same at each start; they repeat, so that a drafter that copies has
    something to say."""
    vocab, ends = model.tokenizer.vocab_size, model.tokenizer.eos_ids
    state, words = 1, []
    for _ in range(400):
        state = (state * 1103515245 + 12345) % (1 << 31)
        token = (state >> 8) % vocab
        if token not in ends and model.tokenizer.token_bytes(token):
            words.append(token)
        if len(words) == 17:
            break
    room = model.caps.max_len - TOKENS
    prompts = [words[:7] * 3 + words[:3], words[7:] + words[9:14]]
    return [prompt[:room] for prompt in prompts if prompt[:room]]


def _plain(
    model: Model, request: Generate, end: float, clock: Callable[[], float]
) -> tuple[Generate, Reference] | None:
    """What plain decoding writes in the time that is left, and the request for just that; None = nothing."""
    run = PlainRun(model, request)
    cut = False
    try:
        while not cut and run.advance():
            cut = clock() >= end
    finally:
        run.close()
    if not run.tokens:
        return None
    return replace(request, max_tokens=len(run.tokens)) if cut else request, Reference(run.tokens)


def _reason(
    model: Model,
    name: str,
    opener: Callable[[DraftStart], DraftSession],
    runs: Seq[tuple[Generate, Reference]],
    end: float,
    clock: Callable[[], float],
) -> str | None:
    """Why this drafter must not serve, or None."""
    vocab = model.tokenizer.vocab_size
    for place, (request, reference) in enumerate(runs):
        if place and clock() >= end:
            break
        verdict = _Verdict()
        drafts = Drafts(
            [(name, lambda start, verdict=verdict: _Inspected(opener(start), vocab, verdict))],  # type: ignore[misc]
            lambda name, reason, verdict=verdict: verdict.fail(f"it raised {reason}"),  # type: ignore[misc]
        )
        generation = Generation(request, model, drafts=drafts, chooser=FixedCut(), own_draft=False)
        try:
            while generation.phase is not Phase.DONE and verdict.reason is None and (place == 0 or clock() < end):
                run_round(model, [generation])
        except Exception as error:  # the pass over its tree failed
            verdict.fail(f"a pass over its tree failed: {error}")
        whole = generation.phase is Phase.DONE
        if not whole:
            generation.end("abandoned")
        if isinstance(last := generation.events[-1], Failed):
            verdict.fail(last.message)
        if verdict.reason is not None:
            return f"in the check at start {verdict.reason}"
        expected = reference if whole else Reference(reference.tokens[: len(generation.output)])
        difference = difference_of(model, request, expected, generation.output)
        if difference is not None and not difference.nats <= TIE_NATS:
            return _changed(difference)
    return None


def _changed(difference: Difference) -> str:
    gap = (
        "which no small move of the logits explains"
        if math.isinf(difference.nats)
        else f"{difference.nats:.2f} nats off"
    )
    return f"in the check at start it changed the answer's token {difference.position}, {gap}"
