"""Every request field of the OpenAI API in one table: honoured, accepted without effect, or refused.

A field is added by one line in `CHAT` or `COMPLETIONS`. Its reader checks the value and turns it into what the typed
request holds; a wrong value raises `FieldError`, which names the field. Fields that are in no table pass untouched,
because clients send extensions meant for other servers. `null` is the same as leaving the field out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tandem.api.messages import messages
from tandem.api.prompts import prompts
from tandem.api.readers import (
    FieldError,
    Place,
    anything,
    boolean,
    integer,
    logit_bias,
    mapping,
    number,
    one_of,
    only,
    stop_strings,
    stream_options,
    text,
)
from tandem.api.structured import response_format, structured_outputs
from tandem.api.tools import tool_choice, tools

Reader = Callable[[Any, Place], Any]


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
    read: Reader | None = None
    """Checks the value and returns what the request holds; None takes anything."""
    hint: str = ""
    """What to do instead, for a refused field."""


def honoured(name: str, read: Reader) -> Field:
    return Field(name, Disposition.HONOURED, read)


def accepted(name: str) -> Field:
    return Field(name, Disposition.ACCEPTED)


def refused(name: str, hint: str = "") -> Field:
    return Field(name, Disposition.REFUSED, hint=hint)


def _table(*fields: Field) -> Mapping[str, Field]:
    return {field.name: field for field in fields}


REASONING_FORMATS = ("tags", "reasoning_content", "both", "hidden")

_SHARED = (
    honoured("model", text()),
    honoured("stream", boolean),
    honoured("stream_options", stream_options),
    honoured("max_tokens", integer(1)),
    honoured("stop", stop_strings),
    honoured("temperature", number(0, 2)),
    honoured("top_p", number(0, 1, above=True)),
    honoured("seed", integer(-(2**63), 2**63 - 1)),
    honoured("presence_penalty", number(-2, 2)),
    honoured("frequency_penalty", number(-2, 2)),
    honoured("logit_bias", logit_bias),
    honoured("n", integer(1, 16)),
    accepted("user"),
    # This server's own.
    honoured("top_k", integer(-1)),
    honoured("min_p", number(0, 1)),
    honoured("repetition_penalty", number(0, 10, above=True)),
    honoured("no_repeat_ngram_size", integer(0)),
    honoured("cache_prompt", boolean),
)

CHAT = _table(
    *_SHARED,
    honoured("messages", messages),
    honoured("max_completion_tokens", integer(1)),
    honoured("logprobs", boolean),
    honoured("top_logprobs", integer(0, 20)),
    honoured("tools", tools),
    honoured("tool_choice", tool_choice),
    honoured("parallel_tool_calls", boolean),
    honoured("response_format", response_format),
    honoured("structured_outputs", structured_outputs),
    honoured("modalities", only(["text"])),
    honoured("chat_template_kwargs", mapping),
    # Everything about thinking; `api/thinking.py` checks these together, since one may overrule another.
    honoured("reasoning_format", one_of(*REASONING_FORMATS)),
    honoured("reasoning_effort", anything),
    honoured("max_reasoning_tokens", anything),
    honoured("reasoning", anything),
    honoured("thinking", anything),
    honoured("thinking_budget", anything),
    honoured("thinking_token_budget", anything),
    honoured("reasoning_budget", anything),
    honoured("reasoning_budget_tokens", anything),
    honoured("thinking_budget_tokens", anything),
    honoured("enable_thinking", anything),
    accepted("metadata"),
    accepted("store"),
    accepted("service_tier"),
    accepted("prompt_cache_key"),
    accepted("prompt_cache_retention"),
    accepted("prompt_cache_options"),
    accepted("safety_identifier"),
    accepted("prediction"),
    refused("audio", "this server writes text"),
    refused("functions", "use tools"),
    refused("function_call", "use tool_choice"),
    refused("web_search_options"),
    refused("verbosity", "say in the prompt how long the answer should be"),
    refused("moderation", "this server has no moderation model"),
)

COMPLETIONS = _table(
    *_SHARED,
    honoured("prompt", prompts),
    honoured("logprobs", integer(0, 5)),
    honoured("best_of", integer(1, 16)),
    honoured("echo", only(False)),
    refused("suffix", "put the text that follows into the prompt"),
)


def read_fields(body: Mapping[str, Any], table: Mapping[str, Field], vocab_size: int) -> dict[str, Any]:
    """The honoured fields of `body`, checked, in the body's order. Raises FieldError for the first wrong one."""
    values: dict[str, Any] = {}
    for name, value in body.items():
        field = table.get(name)
        if field is None or value is None or field.disposition is Disposition.ACCEPTED:
            continue
        if field.disposition is Disposition.REFUSED:
            raise FieldError(name, f"{name} is not supported" + (f"; {field.hint}" if field.hint else ""))
        values[name] = field.read(value, Place(name, vocab_size)) if field.read else value
    return values


def names(table: Mapping[str, Field], disposition: Disposition) -> list[str]:
    """The fields of one disposition, in the table's order."""
    return [field.name for field in table.values() if field.disposition is disposition]
