"""A generation request as the server understood it: read once, typed, frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tandem.api.documents import Document
from tandem.api.fields import CHAT, COMPLETIONS, read_fields
from tandem.api.messages import Messages
from tandem.api.prompts import PlainPrompt
from tandem.api.readers import FieldError
from tandem.api.thinking import Wish, read_wish
from tandem.api.tools import ToolChoice, Tools, function_names
from tandem.core.engine.request import Sampling
from tandem.core.plugin.vision import Picture

AUTO = ToolChoice("auto")
SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "seed")
"""A client that sends one of these gets what it sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What the manifest's `server` section says for fields that a request leaves out."""

    temperature: float
    top_p: float
    top_k: int
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """What both kinds of request ask for."""

    stream: bool
    include_usage: bool | None
    """Streams only. None: usage on the finish chunk; True: a chunk of its own; False: none."""
    max_tokens: int
    """As asked, before it is clamped to what fits behind the prompt."""
    stop: tuple[str, ...]
    n: int
    sampling: Sampling
    cache: bool
    sampling_asked: bool = False
    """The client named one of the settings of how tokens are drawn."""
    regenerated: bool = False
    """A conversation that was answered is sent again, so that another answer is drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(GenerationRequest):
    messages: Messages
    pictures: tuple[Picture, ...] = ()
    """One for each image part of the messages, in their order."""
    left_out: int = 0
    """Images, the conversation's oldest, that are not among them."""
    keep_text: bool = True
    """Whether the text may be kept for other requests."""
    tools: Tools = ()
    tool_choice: ToolChoice = AUTO
    parallel_tool_calls: bool | None = None
    """Whether one answer may hold several calls; None = the client did not say."""
    document: Document | None = None
    """What the answer has to fit."""
    wish: Wish = field(default_factory=Wish)
    reasoning_format: str | None = None
    """How the reasoning is sent; None = the client did not say."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def template_tools(self) -> Tools | None:
        """The tools that the template writes; None with `tool_choice` none or without any."""
        return None if self.tool_choice.mode == "none" or not self.tools else self.tools


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest(GenerationRequest):
    prompts: tuple[PlainPrompt, ...]


def read_chat(body: Mapping[str, Any], vocab_size: int, defaults: Defaults) -> ChatRequest:
    """Raises FieldError for the first wrong field."""
    values = read_fields(body, CHAT, vocab_size)
    if "messages" not in values:
        raise FieldError("messages", "messages is missing; send a list with at least one message")
    if "top_logprobs" in values and not values.get("logprobs"):
        raise FieldError("top_logprobs", "top_logprobs needs logprobs: true")
    offered: Tools = values.get("tools", ())
    choice: ToolChoice = values.get("tool_choice", AUTO)
    if choice.mode in ("required", "function") and not offered:
        raise FieldError("tool_choice", f"tool_choice {choice.mode} needs tools")
    if choice.name is not None and choice.name not in function_names(offered):
        raise FieldError("tool_choice", f"tool_choice names {choice.name}, which is not among tools")
    if values.get("response_format") is not None and "structured_outputs" in values:
        raise FieldError("structured_outputs", "structured_outputs can't stand beside a response_format; send one")
    wish = read_wish(body)
    wanted = values.get("max_completion_tokens", values.get("max_tokens", defaults.max_tokens))
    logprobs = values.get("top_logprobs", 0) if values.get("logprobs") else None
    return ChatRequest(
        **_shared(values, wanted, logprobs, defaults),
        messages=values["messages"],
        tools=offered,
        tool_choice=choice,
        parallel_tool_calls=values.get("parallel_tool_calls"),
        document=values.get("response_format") or values.get("structured_outputs"),
        wish=wish,
        reasoning_format=values.get("reasoning_format"),
        template_kwargs=_template_kwargs(values, wish),
        keep_text=values.get("store", True),
    )


def read_completion(body: Mapping[str, Any], vocab_size: int, defaults: Defaults) -> CompletionRequest:
    """Raises FieldError for the first wrong field."""
    values = read_fields(body, COMPLETIONS, vocab_size)
    if "prompt" not in values:
        raise FieldError("prompt", "prompt is missing; send a string or a list of token ids")
    if values.get("best_of", 1) not in (1, values.get("n", 1)):
        raise FieldError("best_of", "best_of is supported as 1 or equal to n only")
    wanted = values.get("max_tokens", defaults.max_tokens)
    return CompletionRequest(**_shared(values, wanted, values.get("logprobs"), defaults), prompts=values["prompt"])


def _shared(values: Mapping[str, Any], max_tokens: int, logprobs: int | None, defaults: Defaults) -> dict[str, Any]:
    stream, n = values.get("stream", False), values.get("n", 1)
    if stream and n > 1:
        raise FieldError("n", f"n is {n}, and a streamed answer has one choice; send n: 1 or stream: false")
    return {
        "stream": stream,
        "include_usage": values.get("stream_options"),
        "max_tokens": max_tokens,
        "stop": values.get("stop", ()),
        "n": n,
        "sampling": Sampling(
            temperature=values.get("temperature", defaults.temperature),
            top_p=values.get("top_p", defaults.top_p),
            # -1 is how other servers write "off".
            top_k=max(0, values.get("top_k", defaults.top_k)),
            min_p=values.get("min_p", 0.0),
            repetition_penalty=values.get("repetition_penalty", 1.0),
            presence_penalty=values.get("presence_penalty", 0.0),
            frequency_penalty=values.get("frequency_penalty", 0.0),
            logit_bias=values.get("logit_bias", {}),
            no_repeat_ngram_size=values.get("no_repeat_ngram_size", 0),
            seed=values.get("seed"),
            logprobs=logprobs,
        ),
        "cache": values.get("cache_prompt", True),
        "sampling_asked": any(name in values for name in SAMPLING_FIELDS),
    }


OWN_NAMES = frozenset({"self", "messages", "tools"})
"""What the server itself gives the renderer."""


def _template_kwargs(values: Mapping[str, Any], wish: Wish) -> dict[str, Any]:
    """The template's switches: the client's own, with its wish about thinking in the template's words."""
    given = dict(values.get("chat_template_kwargs", {}))
    for name in given:
        if name in OWN_NAMES:
            raise FieldError(f"chat_template_kwargs.{name}", f"chat_template_kwargs.{name} is set by the server")
    for name in ("reasoning_effort", "enable_thinking", "thinking_budget"):
        given.pop(name, None)  # read into the wish
    if wish.word is not None:
        given["reasoning_effort"] = wish.word
    if wish.on is not None:
        given["enable_thinking"] = wish.on
    return given


_STEP = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: multiples of it are spread evenly, so no two choices share a seed."""


def choice_seed(seed: int | None, index: int) -> int | None:
    """The seed of choice `index` of a request. Choice 0 keeps the request's own, so it is what `n: 1` would give."""
    if seed is None or index == 0:
        return seed
    return (seed + index * _STEP) % 2**63
