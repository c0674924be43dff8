"""Errors in OpenAI's shape."""

from __future__ import annotations

from typing import Any

from tandem.core.plugin import RequestError

KINDS = {429: "rate_limit_error", 503: "service_unavailable"}
"""Status -> the error's type, where its class does not say it."""


def error_body(error: RequestError) -> dict[str, Any]:
    """The body of a response that is an error."""
    kind = KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    code = error.code or ("internal_error" if error.status == 500 else None)
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": code}}


def failure(error: RequestError) -> dict[str, Any]:
    """The `error` of a response that failed on the way: the API's own list of codes has two that fit."""
    return {"code": "rate_limit_exceeded" if error.status == 429 else "server_error", "message": str(error)}
