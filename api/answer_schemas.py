"""The JSON Schemas of what the server's own routes answer."""

from __future__ import annotations

from collections.abc import Mapping

from tandem.api.readers import Schema

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
TIMES: Schema = {"type": "object", "description": "Counts, and times in milliseconds."}


def _nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _object(always: Mapping[str, Schema], sometimes: Mapping[str, Schema] | None = None) -> Schema:
    return {"type": "object", "required": list(always), "properties": {**always, **(sometimes or {})}}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


ERROR = _object(
    {
        "error": _object(
            {
                "message": TEXT,
                "type": TEXT,
                "param": {"type": ["string", "null"], "description": "The path of the field that is wrong."},
                "code": {"type": ["string", "null"]},
            }
        )
    }
)

USAGE = _object(
    {
        "prompt_tokens": COUNT,
        "completion_tokens": COUNT,
        "total_tokens": COUNT,
        "prompt_tokens_details": _object({"cached_tokens": COUNT}, {"image_tokens": COUNT}),
        "completion_tokens_details": _object({"reasoning_tokens": COUNT}),
    }
)

TOOL_CALL = _object(
    {"id": TEXT, "type": {"const": "function"}, "function": _object({"name": TEXT, "arguments": TEXT})},
)

MESSAGE = _object(
    {"role": {"const": "assistant"}, "content": {"type": ["string", "null"]}, "refusal": {"type": "null"}},
    {"reasoning_content": TEXT, "tool_calls": _list(TOOL_CALL)},
)


def _answer(kind: str, says: Mapping[str, Schema]) -> Schema:
    """An answer whose choices carry `says`."""
    choice = _object(
        {
            "index": COUNT,
            **says,
            "logprobs": _nullable({"type": "object"}),
            "finish_reason": {"type": "string", "description": "`stop`, `length`, `tool_calls`, `timeout` or `error`."},
        }
    )
    return _object(
        {
            "id": TEXT,
            "object": {"const": kind},
            "created": {"type": "integer"},
            "model": TEXT,
            "system_fingerprint": TEXT,
            "choices": _list(choice),
            "usage": _ref("Usage"),
        },
        {"timings": TIMES, "metrics": TIMES},
    )


MODEL = _object(
    {
        "id": TEXT,
        "object": {"const": "model"},
        "created": {"type": "integer"},
        "owned_by": TEXT,
        "context_length": COUNT,
        "input_modalities": _list({"enum": ["text", "image"]}),
        "meta": {"type": "object"},
    }
)

PLUGIN = _object(
    {
        "kind": TEXT,
        "name": TEXT,
        "distribution": TEXT,
        "version": TEXT,
        "state": {"enum": ["found", "enabled", "active", "failed"]},
        "reason": {"type": ["string", "null"]},
    }
)


def _listed(items: Schema) -> Schema:
    return _object({"object": {"const": "list"}, "data": _list(items)})


NUMBERS: Schema = {"type": "object", "additionalProperties": {"type": "number"}}
TIERS: Schema = {"type": "object", "additionalProperties": NUMBERS}
"""Each cache tier's own numbers by its name."""

VERSION: Mapping[str, Schema] = {
    "version": COUNT,
    "at": {"type": ["number", "null"], "description": "Seconds since 1970; null for what is shipped."},
    "note": TEXT,
    "restored": {"type": ["integer", "null"], "description": "The version that it brought back."},
}
"""What there is to say about a version of a document."""

CONDUCTOR_DOCUMENT = _object(
    {
        "object": {"const": "conductor.document"},
        "name": {"enum": ["monitor", "profiles", "settings"]},
        **VERSION,
        "problems": _list(TEXT),
        "value": {"type": "object"},
    }
)

DECISION = _object(
    {
        "request": COUNT,
        "rule": TEXT,
        "point": TEXT,
        "action": TEXT,
        "reason": TEXT,
        "done": {"type": "boolean", "description": "Whether it took effect."},
        "task": TEXT,
        "mode": TEXT,
        "session": TEXT,
        "client": TEXT,
        "detail": {"type": "object"},
        "score": {"type": ["number", "null"]},
        "position": COUNT,
        "reasoning_tokens": COUNT,
        "hidden": {"type": "string", "description": "What the model read and the client did not."},
        "hidden_tokens": COUNT,
        "time": {"type": "number", "description": "Seconds since 1970."},
        "kind": {"enum": ["monitor", "route"]},
        "answer": {"type": "string", "description": "The answer's id, once the request has ended."},
        "finish_reason": TEXT,
        "completion_tokens": {"type": ["integer", "null"]},
        "next_checker": {"enum": ["", "PASS", "FAIL"]},
    }
)
"""A decision of a rule, as the journal has it."""

SESSION = _object(
    {
        "session": TEXT,
        "client": TEXT,
        "profile": TEXT,
        "running": COUNT,
        "idle_minutes": {"type": ["number", "null"], "description": "null while a request of it runs."},
        "turns": COUNT,
        "acts_hour": {"type": "integer", "minimum": 0, "description": "What was done in it within the last hour."},
        "tasks": {"type": "object", "description": "What each task remembers of it."},
    }
)

ANSWERS: Mapping[str, Schema] = {
    "Error": ERROR,
    "Usage": USAGE,
    "ChatCompletion": _answer("chat.completion", {"message": MESSAGE}),
    "Completion": _answer("text_completion", {"text": TEXT}),
    "Controlled": _object({"id": TEXT, "action": TEXT, "done": {"const": True}}),
    "Model": MODEL,
    "ModelList": _listed(_ref("Model")),
    "PluginList": _listed(PLUGIN),
    "CacheStats": _object({"object": {"const": "cache.stats"}, "tiers": TIERS, "replay": NUMBERS}),
    "CacheCleared": _object({"object": {"const": "cache.cleared"}, "before": TIERS, "replay": NUMBERS}),
    "Config": _object(
        {
            "object": {"const": "conductor.config"},
            "documents": _list(_ref("ConductorDocument")),
            "report": {"type": "object"},
        }
    ),
    "ConductorDocument": CONDUCTOR_DOCUMENT,
    "VersionList": _listed(
        _object({**VERSION, "problem": {"type": ["string", "null"]}, "current": {"type": "boolean"}})
    ),
    "Decision": DECISION,
    "Decisions": _listed(_ref("Decision")),
    "Session": SESSION,
    "Sessions": _object({"object": {"const": "list"}, "mode": TEXT, "data": _list(_ref("Session"))}),
    "Timeline": _object(
        {
            "object": {"const": "conductor.session"},
            "session": TEXT,
            "now": {"anyOf": [_ref("Session"), {"type": "null"}]},
            "data": _list(_ref("Decision")),
        }
    ),
    "Health": _object(
        {"status": {"enum": ["ok", "draining", "no_model"]}},
        {
            "model": {"type": ["string", "null"]},
            "version": TEXT,
            "uptime_s": {"type": "number"},
            "queue": {"type": "object"},
            "totals": {"type": "object"},
            "sampling": {"type": "object"},
            "caches": {"type": "object"},
            "replay": NUMBERS,
            "conductor": {"type": "object"},
            "plugins": {"type": "object"},
        },
    ),
    "JsonSchema": {"type": "object", "description": "A JSON Schema, draft 2020-12."},
    "Document": {"type": "object", "description": "This document."},
}
"""By their names in the OpenAPI document."""
