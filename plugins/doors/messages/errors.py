"""Errors in Anthropic's shape."""

from __future__ import annotations

from typing import Any

from tandem.core.plugin import RequestError
from tandem.plugins.doors.messages.request import UNTHREADED

KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_body(error: RequestError) -> dict[str, Any]:
    """The error as a body, and as the event that ends a broken stream."""
    kind = KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    told: dict[str, Any] = {"type": kind, "message": str(error)}
    if error.code == UNTHREADED:
        told["details"] = {"error_code": error.code, "unsupported": [error.param]}
    return {"type": "error", "error": told}
