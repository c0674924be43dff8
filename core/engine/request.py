"""What the engine is asked and what it answers: one frozen request in, a stream of events out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tandem.core.conductor import Watch
    from tandem.core.engine.constraint import Constraint
    from tandem.core.engine.hidden import HiddenTurns
    from tandem.core.plugin import AnswerParser
    from tandem.core.plugin.vision import Picture


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn. The filters run in this order: penalties and bias, temperature, top_p, top_k,
    min_p."""

    temperature: float = 0.0
    """0 = greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 = off."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """Divides (positive) or multiplies (negative) the logits of every token in prompt and output."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of each token in the output."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit once for each time it is in the output."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    no_repeat_ngram_size: int = 0
    """Tokens that would complete an n-gram of the text pay 4 nats; 0 = off."""
    seed: int | None = None
    """The noise at a position depends on seed and position alone; None = a fresh seed for the request."""
    logprobs: int | None = None
    """None = no log-probabilities; k = the drawn token's and the k likeliest."""


@dataclass(frozen=True, slots=True)
class Thinking:
    """How this generation reasons."""

    tags: tuple[str, str]
    """What opens and what closes the reasoning."""
    opened: bool
    """The prompt ends inside the reasoning. Otherwise the model may open it with its first word."""
    budget: int | None = None
    """The most reasoning tokens, the closing phrase not counted; None = no limit."""
    closing: tuple[int, ...] = ()
    """The tokens that are written when the budget is spent; they close the reasoning."""
    hide_closing: str = ""
    """Whose budget it is (`client`, `reserve`, a task's name) when the closing tokens are hidden from the client, which
    then reads the closing tag alone. Empty = they are part of the reasoning that it reads."""


@dataclass(frozen=True, slots=True)
class Calls:
    """How tool calls are read out of the answer."""

    parser: Callable[[], AnswerParser]
    wanted: bool = True
    """The request offered tools. Otherwise calls are read and dropped."""
    limit: int | None = None
    """The most calls that go out; None = any number."""
    opener: str | None = None
    """How a call begins in this notation."""


@dataclass(slots=True, eq=False)
class SharedPrompt:
    """One prompt that several choices continue: read once, by the choice that starts first.

    All requests that hold the same object must have the same prompt. The engine's thread alone looks inside.
    """

    reading: bool = False
    """A choice is reading the prompt now; the others wait for it."""
    state: Any = None
    """What the reader left: a snapshot of the sequence, and the logits of the prompt's last row."""


class Rank(IntEnum):
    """Who goes first when several requests wait."""

    TURN = 0
    """Somebody waits for this answer."""
    SIDE = 1
    """What a client asks beside a turn: a title, tags, a summary."""
    BACKGROUND = 2
    """The server's own work. It gives its place to anything else that waits."""


@dataclass(frozen=True, slots=True)
class PlacedPicture:
    """A picture in the prompt, whose placeholder stands there once for each of its rows."""

    start: int
    """The place of its first row among the prompt's tokens."""
    picture: Picture


@dataclass(frozen=True, slots=True)
class Generate:
    """One generation."""

    prompt: Seq[int]
    """Token ids, at least one, below the vocabulary's size."""
    max_tokens: int
    """At least 1; the caller has clamped it to what fits behind the prompt."""
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    """Matched in the answer alone, never in the reasoning."""
    thinking: Thinking | None = None
    """None = the model does not reason, or nobody needs to know."""
    calls: Calls | None = None
    """None = the answer is text only."""
    constraint: Callable[[], Constraint] | None = None
    """Makes the constraint of the answer. Answers under one that is no `Recipe` are not kept for other requests."""
    messages: tuple[Mapping[str, Any], ...] = ()
    """The client's messages, for rules; empty for a plain completion."""
    client: str = "plain"
    """The client shape's name."""
    cache: bool = True
    """Whether cached state may be used and kept."""
    images: tuple[PlacedPicture, ...] = ()
    """The prompt's pictures, in order."""
    keep_text: bool = True
    """Whether the text may be kept for other requests, by a drafter's store for instance."""
    shared: SharedPrompt | None = None
    """Set for the choices of one request, so that the prompt is read once."""
    rank: Rank = Rank.TURN
    watch: Watch | None = None
    """The request's supervision, once its plan is made; None = the engine begins one."""
    masks: Mapping[str, str] = field(default_factory=dict)
    """Words that the client is not to read, and what stands in their place."""
    sentence: tuple[str, str] | None = None
    """`(task, text)`: a rule gave up before the prefill, and the text is the whole answer."""
    hidden: HiddenTurns | None = None
    """Writes what is put to the model in the middle of its answer; None = nothing can be."""
    hidden_prompt: tuple[range, ...] = ()
    """Places of the prompt that the client did not send."""
    head: int | None = None
    """How many prompt tokens reach through its first user message, where answers follow it: a conversation that goes
    on. None = it begins one, or nobody knows."""
    follows: bool = False
    """It is a part of a request of which others were answered already: a full queue does not turn it away."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probabilities (nats) at one position, of the model's own distribution before any filter."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    """The likeliest `(token, logprob)`, best first."""


class Channel(Enum):
    """Which part of the generation a piece belongs to."""

    OPEN = "open"
    """The tag that opens the reasoning, as the prompt or the model wrote it."""
    REASONING = "reasoning"
    CLOSE = "close"
    """The tag that closes it, and the blank lines behind."""
    CONTENT = "content"


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that is final: it will not be taken back or changed. May be empty while characters are incomplete."""

    text: str
    tokens: int = 1
    """How many tokens this piece accounts for (0 for text that the model did not write)."""
    logprobs: tuple[TokenLogprob, ...] = ()
    channel: Channel = Channel.CONTENT


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of a tool call; final, like all that is sent."""

    index: int
    name: str | None
    """On the first piece of a call."""
    arguments: str
    """JSON text; the pieces of a call joined are an object, unless the call was cut."""
    done: bool = False


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """A prefill chunk was read."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Stats:
    """The counts and times of one generation. Times in milliseconds."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens whose state came from a cache."""
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    """Completion tokens that are reasoning, through its closing tag."""
    rounds: int = 0
    """Forward passes of the decode phase."""
    draft_tokens: int = 0
    draft_accepted: int = 0
    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    cache_source: str = "none"
    hidden_prompt_tokens: int = 0
    """Prompt tokens that the client did not send; `prompt_tokens` counts them too."""
    hidden_cached_tokens: int = 0
    """Those of them whose state came from a cache."""
    hidden_tokens: int = 0
    """Tokens written into the answer's context that the client does not see; no other count has them."""
    acts: int = 0
    """What rules did to the answer."""
    lane: str | None = None
    """What it was served beside in the side lane, `decode` or `prefill`; None = it had a place of its own. Its times
    say nothing about the speed of others."""
    wait_own_ms: float = 0.0
    """Which part of `queue_ms` passed while the server's own work held the place that it got."""
    wait_mem_ms: float = 0.0
    """Which part of `queue_ms` passed while memory kept it back."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The generation is over."""

    reason: str
    """`stop`, `length`, `tool_calls`, `timeout` or `abandoned`."""
    stats: Stats
    detail: str = ""
    """Why exactly: `eos`, `stop_string`, `max_tokens`, `constraint`, `rule:NAME`."""
    stop: str | None = None
    """The stop string that ended the answer."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The generation broke. What was sent before stays valid."""

    message: str
    stats: Stats


@dataclass(frozen=True, slots=True)
class NoMemory(Failed):
    """There is no room for the request, and no running one whose end could make some. It may be sent again."""

    code: str = "insufficient_memory"
    retry_after: int = 30
    """Seconds: nothing runs, so it is other programs that have to end."""


Event = Piece | CallPiece | PrefillProgress | Finished | Failed
Sink = Callable[[list[Event]], None]
"""Called on the engine's thread with the events of one step, in order. Must not block."""


class Refused(Exception):
    """The engine can't take the request now. `code` is one of `queue_full`, `draining`, `no_model`."""

    def __init__(self, code: str, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after
        """Seconds after which another try makes sense."""
