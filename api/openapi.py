"""`GET /openapi.json`: this server's routes as an OpenAPI 3.1 document.

The requests come from the field tables (`api/fields.py`), the answers from `api/answer_schemas.py`, and a plugin's
routes from their own sentences. It is made once, when the application is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from tandem.api.answer_schemas import ANSWERS, TEXT
from tandem.api.fields import TABLES, Disposition, Field
from tandem.api.readers import Schema

VERSION = "3.1.1"

ERRORS: Mapping[int, str] = {
    400: "The body, or a field of it, is wrong; `param` names the field.",
    401: "The route asks for a token.",
    404: "There is no such thing.",
    409: "Somebody else changed it in the meantime.",
    413: "The body is larger than the server reads.",
    429: "A request without a stream waited too long for its place.",
    500: "The server's own fault.",
    503: "The server can't take the request now; `Retry-After` says when another try makes sense.",
}
GENERATION = (400, 413, 429, 500, 503)


@dataclass(frozen=True, slots=True)
class About:
    """What the document says about one route of the server's own."""

    doc: str
    answer: str | None = None
    """A name of `ANSWERS`; None for text."""
    errors: tuple[int, ...] = ()
    asks: str | None = None
    """The request's name among the schemas."""


# By the path, or where a path takes several methods by method and path.
ROUTES: Mapping[str, About] = {
    "/v1/chat/completions": About(
        "Answers a conversation, whole or as a stream.", "ChatCompletion", GENERATION, "ChatRequest"
    ),
    "/v1/chat/completions/control": About(
        "Ends the reasoning of a running stream, by its id.",
        "Controlled",
        (400, 404, 413),
        "ControlRequest",
    ),
    "/v1/completions": About(
        "Continues a plain prompt, or each of several, without a chat template.",
        "Completion",
        GENERATION,
        "CompletionRequest",
    ),
    "/v1/models": About("The served model: its name, context length, what it reads and its facts.", "ModelList"),
    "/v1/models/{id}": About("The same model by its name; a 404 for any other name.", "Model", (404,)),
    "/v1/plugins": About(
        "Every installed plugin with its state, and the reason of each that failed.",
        "PluginList",
        (401,),
    ),
    "/v1/cache/stats": About(
        "What each cache tier holds, and what is kept of earlier turns: counters, and sizes in bytes.",
        "CacheStats",
        (401,),
    ),
    "/v1/cache/clear": About(
        "Empties every cache tier and forgets earlier turns, with what rules wrote into them; running answers go on.",
        "CacheCleared",
        (401,),
    ),
    "/v1/conductor/config": About(
        "The conductor's documents as they are in force, and what is wrong with newer versions.", "Config", (401,)
    ),
    "GET /v1/conductor/documents/{name}": About(
        "One document: `profiles`, `settings` or `monitor`; `?version=N` asks for an older version.",
        "ConductorDocument",
        (400, 401, 404, 503),
    ),
    "PUT /v1/conductor/documents/{name}": About(
        "Makes a new version of a document; the next request goes by it.",
        "ConductorDocument",
        (400, 401, 404, 409, 413, 503),
        "DocumentRequest",
    ),
    "/v1/conductor/documents/{name}/versions": About(
        "Every version of a document, the newest first: when, why, and whether it is in force.",
        "VersionList",
        (401, 404),
    ),
    "/v1/conductor/documents/{name}/schema": About("The document's JSON Schema.", "JsonSchema", (401, 404)),
    "/v1/conductor/documents/{name}/restore": About(
        "Brings an old version of a document back, as a new one.",
        "ConductorDocument",
        (400, 401, 404, 409, 413, 503),
        "RestoreRequest",
    ),
    "/v1/conductor/events": About(
        "What rules decided, newest first: `limit`, `since`, `task`, `session`, `action`.", "Decisions", (400, 401)
    ),
    "/v1/conductor/watch": About(
        "Every session that is remembered, with what each task knows of it.", "Sessions", (401,)
    ),
    "/v1/conductor/sessions/{key}": About("One session's decisions, oldest first.", "Timeline", (401, 404)),
    "/v1/conductor/sessions/{key}/export": About(
        "The same as a page (`format=md`) or as JSON (`format=json`).", None, (400, 401, 404)
    ),
    "/health": About("Is it taking requests: 200, or 503 while it drains.", "Health", (503,)),
    "/metrics": About("Counters and times for Prometheus.", None, (401,)),
    "/openapi.json": About("These routes and every field of their requests as an OpenAPI 3.1 document.", "Document"),
}


async def openapi(request: Request) -> Response:
    """The route."""
    return JSONResponse(request.app.state.openapi)


def document(version: str, routes: Iterable[BaseRoute]) -> dict[str, Any]:
    """The document of these routes: those of `ROUTES` in full, a plugin's with its sentence and its methods."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if isinstance(route, Route):
            path = re.sub(r":\w+}", "}", route.path)
            for method in sorted((route.methods or set()) - {"HEAD"}):
                about = ROUTES.get(f"{method} {path}") or ROUTES.get(path)
                operation = _operation(about) if about else _of_a_plugin(route)
                paths.setdefault(path, {})[method.lower()] = {
                    "operationId": _name(method, path),
                    **_parameters(path),
                    **operation,
                }
    return {
        "openapi": VERSION,
        "info": {
            "title": "Tandem",
            "version": version,
            "description": "Language models on one machine behind the OpenAI API. Fields that stand in no schema pass "
            "untouched, and null is the same as leaving a field out.",
        },
        "paths": paths,
        "components": {
            "schemas": {**REQUESTS, **ANSWERS},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "Asked for once there is a token."}
            },
        },
    }


def _name(method: str, path: str) -> str:
    """`post_v1_chat_completions`"""
    return "_".join([method.lower(), *re.findall(r"\w+", path)])


def _parameters(path: str) -> dict[str, Any]:
    names = re.findall(r"{(\w+)}", path)
    return {"parameters": [_in_path(name) for name in names]} if names else {}


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": TEXT}


def _operation(about: About) -> dict[str, Any]:
    """One of the server's own."""
    out: dict[str, Any] = {"summary": about.doc}
    if 401 in about.errors:
        out["security"] = [{}, {"token": []}]
    if about.asks is not None:
        out["requestBody"] = {"required": True, "content": _json(_ref(about.asks))}
    good: dict[str, Any] = {"description": "The answer."}
    if about.answer is None:
        good["content"] = {"text/plain": {"schema": TEXT}}
    else:
        good["content"] = _json(_ref(about.answer))
    if about.errors == GENERATION:
        good["description"] += " With `stream` it comes as events, one chunk each, and ends with `data: [DONE]`."
        good["content"]["text/event-stream"] = {}
    out["responses"] = {"200": good, **{str(status): _error(status, about) for status in about.errors}}
    return out


def _error(status: int, about: About) -> dict[str, Any]:
    # Who drains is not well, and says so in the same words as who is.
    schema = _ref("Health") if about.answer == "Health" else _ref("Error")
    return {"description": ERRORS[status], "content": _json(schema)}


def _of_a_plugin(route: Route) -> dict[str, Any]:
    doc = (route.endpoint.__doc__ or "").strip() or "A plugin's route."
    return {
        "summary": doc,
        "responses": {
            "200": {"description": HTTPStatus.OK.phrase},
            "default": {"description": "It went wrong."},
        },
    }


def _json(schema: Schema) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


# ------------------------------------------------------------------------------------------------------- requests


def request_schema(table: Mapping[str, Field], required: str) -> dict[str, Any]:
    """A table's request body. `required` must be there; every other field may be null."""
    return {
        "type": "object",
        "required": [required],
        "properties": {name: _property(field, nullable=name != required) for name, field in table.items()},
    }


def _property(field: Field, *, nullable: bool) -> dict[str, Any]:
    words = {Disposition.ACCEPTED: "Taken, without effect: ", Disposition.REFUSED: "Refused: "}
    described = {"description": words.get(field.disposition, "") + field.doc}
    if field.disposition is Disposition.HONOURED and nullable:
        return {**described, "anyOf": [field.schema, {"type": "null"}]}
    return {**described, **field.schema}


NOTE: Schema = {"type": "string", "minLength": 1, "maxLength": 1000, "description": "Why it changes."}

REQUESTS: Mapping[str, Schema] = {
    "ChatRequest": request_schema(TABLES["chat"], "messages"),
    "CompletionRequest": request_schema(TABLES["completions"], "prompt"),
    "ControlRequest": {
        "type": "object",
        "required": ["id"],
        "properties": {
            "id": {"type": "string", "minLength": 1, "description": "The id that every chunk of the answer carries."},
            "action": {"const": "end_thinking"},
        },
    },
    "DocumentRequest": {
        "type": "object",
        "required": ["value", "note"],
        "properties": {
            "value": {"type": "object", "description": "The whole document, as its schema has it."},
            "note": NOTE,
            "base": {"type": ["integer", "null"], "minimum": 0, "description": "The version that it was made from."},
        },
    },
    "RestoreRequest": {
        "type": "object",
        "required": ["version", "note"],
        "properties": {
            "version": {"type": "integer", "minimum": 0, "description": "The version to bring back; 0 is as shipped."},
            "note": NOTE,
        },
    },
}
"""By their names in the document."""
