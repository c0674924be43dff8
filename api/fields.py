"""Every request field of the OpenAI API in one table: honoured, accepted without effect, or refused.

A field is added by one entry in `CHAT` or `COMPLETIONS`. Its reader checks the value and turns it into what the typed
request holds; a wrong value raises `FieldError`, which names the field. Fields that are in no table pass untouched,
because clients send extensions meant for other servers. `null` is the same as leaving the field out.

`tandem explain fields`, the pages of the documentation and the OpenAPI document are written from these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tandem.api.documents import response_format, structured_outputs
from tandem.api.messages import messages
from tandem.api.prompts import prompts
from tandem.api.readers import (
    FieldError,
    Place,
    Reader,
    Schema,
    boolean,
    integer,
    later,
    logit_bias,
    mapping,
    number,
    one_of,
    only,
    stop_strings,
    stream_options,
    text,
)
from tandem.api.thinking import CAPS, NUMBERS, OFF, TYPES, UNLIMITED
from tandem.api.tools import tool_choice, tools


class Disposition(Enum):
    """What a field gets."""

    HONOURED = "honoured"
    ACCEPTED = "accepted"
    """Taken, and without effect by its own definition."""
    REFUSED = "refused"
    """A 400 that names the field: pretending would give the client an answer it did not ask for."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a request body."""

    name: str
    disposition: Disposition
    doc: str
    """What it does, in a sentence; for a refused field, what to do instead."""
    read: Reader[Any] | None = None
    """Checks the value of an honoured field and returns what the request holds."""

    @property
    def schema(self) -> Schema:
        """The JSON Schema of the values that it takes. A refused field takes null alone."""
        if self.read is not None:
            return self.read.schema
        return {"type": "null"} if self.disposition is Disposition.REFUSED else {}


def honoured(name: str, read: Reader[Any], doc: str) -> Field:
    return Field(name, Disposition.HONOURED, doc, read)


def accepted(name: str, doc: str) -> Field:
    return Field(name, Disposition.ACCEPTED, doc)


def refused(name: str, doc: str) -> Field:
    return Field(name, Disposition.REFUSED, doc)


def _table(*fields: Field) -> Mapping[str, Field]:
    return {field.name: field for field in fields}


def _tokens(name: str, doc: str) -> Field:
    """A thinking budget. `api/thinking.py` checks all of them together, since one may overrule another."""
    assert name in NUMBERS
    return honoured(name, later({"type": "integer", "minimum": -1 if name in UNLIMITED else 0}), doc)


REASONING_FORMATS = ("tags", "reasoning_content", "both", "hidden")
EFFORTS: Schema = {"type": "string", "enum": [*OFF, *CAPS]}
BUDGET: Schema = {"type": ["integer", "null"], "minimum": 0}
REASONING: Schema = {
    "type": "object",
    "properties": {
        "effort": {"anyOf": [EFFORTS, {"type": "null"}]},
        "max_tokens": BUDGET,
        "enabled": {"type": ["boolean", "null"]},
    },
}
THINKING: Schema = {
    "type": "object",
    "properties": {"type": {"enum": [*TYPES, None]}, "budget_tokens": BUDGET},
}
TEMPLATE: Schema = {
    "type": "object",
    "properties": {
        "enable_thinking": {"type": ["boolean", "null"]},
        "reasoning_effort": {"anyOf": [EFFORTS, {"type": "null"}]},
        "thinking_budget": BUDGET,
    },
}

_SHARED = (
    honoured("model", text(), "A name that the client may give; one model is served, whatever it says."),
    honoured("stream", boolean, "Whether the answer comes as server-sent events while it is written."),
    honoured("stream_options", stream_options, "`include_usage`: a chunk of its own for the usage, or none at all."),
    honoured("max_tokens", integer(1), "The most tokens to write; cut to what fits behind the prompt."),
    honoured("stop", stop_strings, "The answer ends before the first of these texts, at most 16."),
    honoured("temperature", number(0, 2), "How freely tokens are drawn; 0 always takes the likeliest."),
    honoured("top_p", number(0, 1, above=True), "Draw among the likeliest tokens that have this probability together."),
    honoured("seed", integer(-(2**63), 2**63 - 1), "Makes a sampled answer repeatable, with any drafter or none."),
    honoured("presence_penalty", number(-2, 2), "Taken once from the logit of every token that the answer has."),
    honoured("frequency_penalty", number(-2, 2), "Taken from a token's logit for each time that the answer has it."),
    honoured("logit_bias", logit_bias, "Token id to what is added to its logit, -100 to 100."),
    honoured("n", integer(1, 16), "How many answers; more than one only without `stream`."),
    accepted("user", "No answer is made of it; a client shape may take it for the name of the session."),
    # This server's own.
    honoured("top_k", integer(-1), "Draw among this many of the likeliest tokens; 0 and -1 are off."),
    honoured("min_p", number(0, 1), "Leave out tokens less likely than this part of the likeliest one."),
    honoured(
        "repetition_penalty", number(0, 10, above=True), "Divides the logits of tokens that prompt or answer have."
    ),
    honoured("no_repeat_ngram_size", integer(0), "Makes repeating so many tokens in a row unlikely; 0 is off."),
    honoured("cache_prompt", boolean, "`false` reads the whole prompt and leaves the caches alone."),
    accepted("draft_temperature", "Drafts change the speed of an answer, never its text."),
)

CHAT = _table(
    *_SHARED,
    honoured(
        "messages",
        messages,
        "The conversation; a system or developer message comes first. Images where the model reads them.",
    ),
    honoured("max_completion_tokens", integer(1), "The newer name of `max_tokens`, and the one that counts."),
    honoured("logprobs", boolean, "Whether each token comes with its log-probability."),
    honoured("top_logprobs", integer(0, 20), "With `logprobs`: so many of the likeliest tokens at each place."),
    honoured("tools", tools, "The functions that the model may call."),
    honoured("tool_choice", tool_choice, "Whether it may, must or must not call, or the one function to call."),
    honoured(
        "parallel_tool_calls", boolean, "`false` sends the first call alone; `true` lets a forced answer be many."
    ),
    honoured("response_format", response_format, "A JSON object, or a document that fits a JSON Schema."),
    honoured("structured_outputs", structured_outputs, "Exactly one of `regex`, `choice` and `json`, a schema."),
    honoured("modalities", only(["text"]), "What to answer with; this server writes text."),
    honoured("chat_template_kwargs", Reader(mapping.read, TEMPLATE), "Variables for the chat template."),
    honoured("reasoning_format", one_of(*REASONING_FORMATS), "Where the reasoning goes."),
    honoured("reasoning_effort", later(EFFORTS), "How much to think, in a word; `none` and `off` are not at all."),
    honoured("reasoning", later(REASONING), "How much to think: `effort`, `max_tokens` or `enabled`."),
    honoured("thinking", later(THINKING), "Whether to think (`type`), and for how many tokens (`budget_tokens`)."),
    honoured("enable_thinking", later({"type": "boolean"}), "Whether to think."),
    _tokens("max_reasoning_tokens", "The most tokens of reasoning; 0 is no limit."),
    _tokens("thinking_budget", "As `max_reasoning_tokens`."),
    _tokens("thinking_token_budget", "As `max_reasoning_tokens`; -1 is no limit as well."),
    _tokens("reasoning_budget", "As `max_reasoning_tokens`; -1 is no limit as well."),
    _tokens("reasoning_budget_tokens", "As `max_reasoning_tokens`; -1 is no limit as well."),
    _tokens("thinking_budget_tokens", "As `max_reasoning_tokens`; -1 is no limit as well."),
    accepted("metadata", "Notes of the client for itself; nothing is kept."),
    honoured("store", boolean, "`false` keeps the text out of what drafts are made of for others; no answer is kept."),
    accepted("service_tier", "There is one tier."),
    accepted("prompt_cache_key", "Caches find prompts by their tokens."),
    accepted("prompt_cache_retention", "The caches' sizes say how long they keep what."),
    accepted("prompt_cache_options", "Caches find prompts by their tokens."),
    accepted("safety_identifier", "No user is told from another."),
    accepted("prediction", "Drafts are made of what is known already; a prediction would change the speed alone."),
    refused("audio", "this server writes text"),
    refused("functions", "use tools"),
    refused("function_call", "use tool_choice"),
    refused("web_search_options", "offer a search of your own in tools"),
    refused("verbosity", "say in the prompt how long the answer should be"),
    refused("moderation", "this server has no moderation model"),
)

COMPLETIONS = _table(
    *_SHARED,
    honoured("prompt", prompts, "A text, token ids, or a batch of either; no chat template is put around it."),
    honoured("logprobs", integer(0, 5), "Log-probabilities of the tokens, and of so many of the likeliest ones."),
    honoured("best_of", integer(1, 16), "1, or the same as `n`: every answer that is made is sent."),
    honoured("echo", only(False), "The prompt is never sent back."),
    refused("suffix", "put the text that follows into the prompt"),
)

TABLES: Mapping[str, Mapping[str, Field]] = {"chat": CHAT, "completions": COMPLETIONS}
"""Kind of request -> its fields."""


def read_fields(body: Mapping[str, Any], table: Mapping[str, Field], vocab_size: int) -> dict[str, Any]:
    """The honoured fields of `body`, checked, in the body's order. Raises FieldError for the first wrong one."""
    values: dict[str, Any] = {}
    for name, value in body.items():
        field = table.get(name)
        if field is None or value is None or field.disposition is Disposition.ACCEPTED:
            continue
        if field.disposition is Disposition.REFUSED:
            raise FieldError(name, f"{name} is not supported; {field.doc}")
        values[name] = field.read(value, Place(name, vocab_size)) if field.read else value
    return values


def names(table: Mapping[str, Field], disposition: Disposition) -> list[str]:
    """The fields of one disposition, in the table's order."""
    return [field.name for field in table.values() if field.disposition is disposition]
