"""A request's body, read as one JSON object."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NoReturn

from tandem.core.plugin import RequestError

if TYPE_CHECKING:
    from starlette.requests import Request

MAX_BODY = 64 * 2**20
"""Bytes, as for every other route. A conversation of a million tokens is a tenth of it."""

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


async def read_body(request: Request, limit: int = MAX_BODY) -> dict[str, Any]:
    """Raises RequestError: 400 for what is no JSON object, 413 for more than `limit` bytes."""
    kind = (request.headers.get("content-type") or "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise RequestError(400, f"the body must be JSON: send Content-Type: application/json, not {kind}")
    raw = bytearray()
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        # What is too large is read on for a while and dropped, so that the client hears why.
        if size <= limit:
            raw += chunk
        elif size > 2 * limit:
            break
    if size > limit:
        raise RequestError(413, f"the body is larger than {limit} bytes", code="body_too_large")
    try:
        body = json.loads(bytes(raw), parse_constant=_no_constant)
    except RecursionError:
        raise RequestError(400, "the body is nested too deeply") from None
    except ValueError as error:
        raise RequestError(400, f"the body is not JSON: {error}" if raw else "the body is empty") from None
    if not isinstance(body, dict):
        raise RequestError(400, "the body must be a JSON object")
    # A text that was cut inside an emoji ends in half of a pair, written as an escape. No tokenizer can encode it.
    return _whole(body) if b"\\u" in raw else body


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _whole(value: Any) -> Any:
    """The value with U+FFFD for each half of a surrogate pair."""
    if isinstance(value, str):
        return _LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    return value
