"""Proof that speculation changes no token: every way of running a prompt against plain decoding.

The reference is a loop of single rows that is written down on its own (`plain.py`). Each other way must give its
tokens. A first difference is allowed only at a near tie: more rows in one product can round a logit differently, so
where it takes less than the stated nats to draw the other token instead, the tie may fall either way. Anything else is
a fault. Log-probabilities must be those of plain decoding, up to a tolerance of their own.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence as Seq
from dataclasses import dataclass, field, replace

from tandem.core.engine.constraint import Grammars, json_schema_grammar
from tandem.core.engine.drafting import FixedCut
from tandem.core.engine.drafts import Drafts, Fail, Opener
from tandem.core.engine.generation import Generation, Phase
from tandem.core.engine.plain import PlainRun, Reference
from tandem.core.engine.request import Failed, Generate, Piece, Sampling, Thinking, TokenLogprob
from tandem.core.engine.round import run_round
from tandem.core.plugin import Choosing, DraftTree, Model, Tokenizer, TreeChooser

TIE_NATS = 0.125
"""The farthest that logits may be moved for another token and it is still a near tie."""
LOGPROB_NATS = 0.5
"""The farthest that a log-probability may be from plain decoding's. In bfloat16 a single one can be off by some tenths
where the token is unlikely, and nothing is wrong."""

NONE, WRONG, HALF, OWN = "no drafter", "always wrong", "half right", "the model's own"
ALL, SERVED, TWO = "all drafters", "as served", "two at once"

TAGS = ("<think>", "</think>")
BUDGET = 8
"""Reasoning tokens in the cases that think."""
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 16},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3},
    },
    "required": ["name", "count", "tags"],
    "additionalProperties": False,
}


GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class Case:
    """What is asked of every prompt."""

    name: str
    sampling: Sampling = GREEDY
    grammar: str | None = None
    """The constraint on the answer."""
    budget: int | None = None
    """Let the model reason for so many tokens first."""
    every: int = 1
    """Only every so many prompts are asked this."""


def default_cases(tokenizer: Tokenizer) -> tuple[Case, ...]:
    """Greedy and sampled, alone and with all that touches a row."""
    filtered = Sampling(temperature=0.8, top_p=0.95, top_k=40, min_p=0.02, seed=1234)
    words = [token for token in tokenizer.encode(" the, a. of\n in") if token not in tokenizer.eos_ids]
    touched = Sampling(
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.1,
        no_repeat_ngram_size=4,
        logit_bias={token: 0.75 if place % 2 else -0.75 for place, token in enumerate(dict.fromkeys(words))},
        logprobs=2,
    )
    both = replace(filtered, repetition_penalty=1.1, logit_bias=touched.logit_bias, logprobs=2)
    cases = [
        Case("greedy"),
        Case("greedy, penalties, bias, logprobs", touched, every=2),
        Case("seeded", filtered),
        Case("seeded, penalties, bias, logprobs", both, every=2),
        Case("thinking budget", budget=BUDGET, every=3),
    ]
    if tokenizer.eos_ids:  # a constraint ends with the end token
        schema = json_schema_grammar(SCHEMA)
        cases += [
            Case("JSON schema", grammar=schema, every=3),
            Case("thinking, then JSON, seeded", replace(filtered, logprobs=1), schema, BUDGET, every=3),
        ]
    return tuple(cases)


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a run parted from plain decoding."""

    prompt: int
    """Index among all prompts."""
    position: int
    """Tokens that both wrote before."""
    nats: float
    """How far the plain run's logits would have to be moved to go the other way; see `PlainRun.nudge`."""


@dataclass(slots=True)
class Outcome:
    """One way of running under one case, over its prompts."""

    way: str
    case: str
    prompts: int = 0
    identical: int = 0
    rounds: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    differences: list[Difference] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """What went wrong besides: a drafter or a pass that failed, log-probabilities that are not there."""
    drift: float | None = None
    """The farthest that a log-probability was from plain decoding's, in nats; None = none were asked for."""

    def failures(self, tie_nats: float) -> list[Difference]:
        """The differences that no near tie explains."""
        return [difference for difference in self.differences if not difference.nats <= tie_nats]

    def passed(self, tie_nats: float, logprob_nats: float | None = None) -> bool:
        """`logprob_nats`: how far log-probabilities may drift; None = no farther than a tie reaches."""
        off = tie_nats if logprob_nats is None else logprob_nats
        return not self.faults and not self.failures(tie_nats) and (self.drift or 0.0) <= off


class WrongDraft:
    """Drafts trees out of tokens that can't be next; `share` of the nodes on the spine are right after all."""

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
        for depth in range(min(self._random.randint(1, 8), limit // 2)):
            place = self._at + 1 + depth
            truth = self._truth[place] if place < len(self._truth) else None
            wrong = self._other_than(truth)
            right = truth is not None and self._random.random() < self._share
            q = 0.5 ** (depth + 1)
            side = tree.add(wrong, spine, q / 2 if right else q)
            spine = tree.add(truth, spine, q) if right and truth is not None else side
        return tree if len(tree) else None

    def close(self) -> None:
        return

    def _other_than(self, truth: int | None) -> int:
        token = self._random.randrange(self._vocab)
        return token if token != truth else (token + 1) % self._vocab


@dataclass(frozen=True, slots=True)
class Way:
    """One way of running."""

    name: str
    openers: Callable[[Reference], Seq[Opener]] = lambda reference: ()
    chooser: Callable[[], TreeChooser] = FixedCut
    together: int = 1
    """Prompts that run side by side."""
    own: bool = False
    """The model drafts for itself."""


def ways_of(model: Model, drafters: Seq[Opener] = (), choosing: Choosing | None = None) -> list[Way]:
    """Every way that this model can be run with these drafters; `choosing` is what the server cuts with."""
    vocab = model.tokenizer.vocab_size

    def guessing(share: float, seed: int) -> Callable[[Reference], Seq[Opener]]:
        return lambda reference: [("guess", lambda start: WrongDraft(reference.tokens, share, vocab, seed))]

    def served(*openers: Opener) -> Callable[[Reference], Seq[Opener]]:
        return lambda reference: openers

    ways = [Way(NONE), Way(WRONG, guessing(0.0, 1)), Way(HALF, guessing(0.5, 2))]
    ways += [Way(name, served((name, opener))) for name, opener in drafters]
    if model.drafter() is not None:
        ways.append(Way(OWN, own=True))
    if len(drafters) > 1:
        ways.append(Way(ALL, served(*drafters)))
    if drafters and choosing is not None:
        ways.append(Way(SERVED, served(*drafters), choosing.open))
    if model.caps.joint:
        ways.append(Way(TWO, guessing(0.5, 2), together=2))
    return ways


def verify(
    model: Model,
    prompts: Seq[Seq[int]],
    drafters: Seq[Opener] = (),
    *,
    choosing: Choosing | None = None,
    max_tokens: int = 64,
    cases: Seq[Case] | None = None,
    only: Seq[str] | None = None,
    tags: tuple[str, str] = TAGS,
) -> Iterator[Outcome]:
    """Run every prompt every way; yields an outcome for each way and case as it is done.

    `only` names the ways to run (see `ways_of`), None = all. `tags` open and close the reasoning.
    """
    ways = [way for way in ways_of(model, drafters, choosing) if only is None or way.name in only]
    grammars = Grammars(model.tokenizer)
    for case in default_cases(model.tokenizer) if cases is None else cases:
        asked = {
            place: request_of(case, prompts[place], model, max_tokens, grammars, tags)
            for place in range(0, len(prompts), case.every)
        }
        references = {place: PlainRun(model, request).finish() for place, request in asked.items()}
        for way in ways:
            yield _compare(model, way, case, asked, references)


def request_of(
    case: Case, prompt: Seq[int], model: Model, max_tokens: int, grammars: Grammars, tags: tuple[str, str] = TAGS
) -> Generate:
    """The case asked of a prompt. Raises ValueError when the model has no room for an answer."""
    encode = model.tokenizer.encode
    thinking = None
    if case.budget is not None:
        prompt = [*prompt, *encode(f"{tags[0]}\n")]
        thinking = Thinking(tags, True, case.budget, tuple(encode(f"\n{tags[1]}\n\n")))
    room = model.caps.max_len - len(prompt)
    if not prompt or room < 1:
        raise ValueError(f"a prompt has {len(prompt)} tokens; it must have some, and fewer than {model.caps.max_len}")
    grammar = case.grammar
    constraint = (lambda: grammars.single(grammar)) if grammar is not None else None
    return Generate(
        prompt, min(max_tokens, room), case.sampling, thinking=thinking, constraint=constraint, keep_text=False
    )


# ------------------------------------------------------------------------------------------------------- the comparison


@dataclass(slots=True)
class Trial:
    """One prompt run one way."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0


def run_way(model: Model, way: Way, requests: Seq[Generate], references: Seq[Reference]) -> list[Trial]:
    """Run the requests side by side."""
    trials = [Trial() for _ in requests]
    running: list[Generation] = []
    try:
        for request, reference, trial in zip(requests, references, trials, strict=True):
            drafts = Drafts(way.openers(reference), _telling(trial))
            chooser = way.chooser()
            running.append(Generation(request, model, drafts=drafts, chooser=chooser, own_draft=way.own))
        while going := [generation for generation in running if generation.phase is not Phase.DONE]:
            run_round(model, going)
    except Exception as error:  # a pass that fails is what is looked for here
        for trial in trials:
            trial.faults.append(f"a pass failed: {error}")
    for generation, trial in zip(running, trials, strict=False):
        if generation.phase is not Phase.DONE:
            generation.end("abandoned")
        last = generation.events[-1]
        if isinstance(last, Failed):
            trial.faults.append(last.message)
        trial.tokens = generation.output
        trial.logprobs = [each for event in generation.events if isinstance(event, Piece) for each in event.logprobs]
        trial.rounds = generation.stats.rounds
        trial.drafted, trial.accepted = generation.stats.draft_tokens, generation.stats.draft_accepted
    return trials


def _telling(trial: Trial) -> Fail:
    return lambda name, reason: trial.faults.append(f"the drafter {name} failed: {reason}")


def _compare(
    model: Model, way: Way, case: Case, asked: Mapping[int, Generate], references: Mapping[int, Reference]
) -> Outcome:
    outcome = Outcome(way.name, case.name, drift=None if case.sampling.logprobs is None else 0.0)
    places = list(asked)
    for start in range(0, len(places), way.together):
        group = places[start : start + way.together]
        trials = run_way(model, way, [asked[i] for i in group], [references[i] for i in group])
        for place, trial in zip(group, trials, strict=True):
            outcome.prompts += 1
            outcome.tokens += len(trial.tokens)
            outcome.rounds += trial.rounds
            outcome.drafted += trial.drafted
            outcome.accepted += trial.accepted
            outcome.faults += [f"prompt {place}: {fault}" for fault in trial.faults]
            if trial.faults:
                continue
            difference = difference_of(model, asked[place], references[place], trial.tokens, place)
            if difference is None:
                outcome.identical += 1
            else:
                outcome.differences.append(difference)
            _compare_logprobs(outcome, references[place], trial, difference)
    return outcome


def difference_of(
    model: Model, request: Generate, reference: Reference, tokens: Seq[int], prompt: int = 0
) -> Difference | None:
    """The first place where `tokens` are not the reference's, or None."""
    position = _first_difference(reference.tokens, tokens)
    if position is None:
        return None
    run = PlainRun(model, request)
    try:
        while len(run.tokens) < position and run.advance():
            pass
        wanted = tokens[position : position + 1] or sorted(model.tokenizer.eos_ids)
        return Difference(prompt, position, run.nudge(wanted))
    finally:
        run.close()


def _first_difference(expected: Seq[int], got: Seq[int]) -> int | None:
    for place, (a, b) in enumerate(zip(expected, got, strict=False)):
        if a != b:
            return place
    return None if len(expected) == len(got) else min(len(expected), len(got))


def _compare_logprobs(outcome: Outcome, reference: Reference, trial: Trial, difference: Difference | None) -> None:
    """The values of the tokens that both wrote, and of their alternatives by rank: equals may change places."""
    if outcome.drift is None:
        return
    if difference is None and len(reference.logprobs) != len(trial.logprobs):
        outcome.faults.append(f"{len(trial.logprobs)} log-probabilities where {len(reference.logprobs)} were expected")
    for plain, other in zip(reference.logprobs, trial.logprobs, strict=False):
        if plain.token != other.token:
            break
        pairs = [(plain.logprob, other.logprob)]
        pairs += [(a, b) for (_, a), (_, b) in zip(plain.top, other.top, strict=True)]
        for a, b in pairs:
            if not (a == b or abs(a - b) <= outcome.drift):  # NaN is no small number
                outcome.drift = math.inf if math.isnan(a - b) else abs(a - b)
