"""A request's body, read once, as a JSON object."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from tandem.api.errors import ApiError

MAX_BODY = 64 * 2**20
"""Bytes. A conversation of a million tokens is a tenth of it."""

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


async def read_json(request: Request, limit: int = MAX_BODY) -> dict[str, Any]:
    """Raises ApiError: 400 for what is no JSON object, 413 for more than `limit` bytes."""
    content_type = (request.headers.get("content-type") or "application/json").split(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise ApiError(400, f"the body must be JSON: send Content-Type: application/json, not {content_type}")
    raw = await _read(request, limit)
    try:
        body = json.loads(raw, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not UTF-8: byte {error.start} fits no character") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ApiError(400, f"the body is not JSON: {error.msg} at {where}" if raw else "the body is empty") from None
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None
    if not isinstance(body, dict):
        raise ApiError(400, f"the body must be a JSON object, not {_kind(body)}")
    # A text that was cut inside an emoji ends in half of a pair, written as an escape. No tokenizer can encode it.
    return _whole(body) if b"\\u" in raw else body


async def _read(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit and "expect" in request.headers:
        raise _too_large(limit)  # the client asked before it sends
    chunks, size = [], 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        size += len(chunk)
        # What is too large is read on for a while and dropped: a client in the middle of sending would take an answer
        # and a closed connection for a broken one.
        if size <= limit:
            chunks.append(chunk)
        else:
            chunks.clear()
        if size > 2 * limit:
            raise _too_large(limit)
        if not message.get("more_body", False):
            break
    if size > limit:
        raise _too_large(limit)
    return b"".join(chunks)


def _too_large(limit: int) -> ApiError:
    error = ApiError(413, f"the body is larger than {limit} bytes", code="body_too_large")
    # What is still on its way is not read, so the connection can't carry another request.
    error.headers["connection"] = "close"
    return error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return {list: "a list", str: "a string", bool: "a boolean"}.get(type(value), "a number")


def _whole(value: Any) -> Any:
    """The value with U+FFFD for each half of a surrogate pair."""
    if isinstance(value, str):
        return _LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    return value
