"""What goes wrong, in the shape that OpenAI clients turn into typed exceptions."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tandem.core.engine.request import Failed, NoMemory, Refused

QUEUE_TIMEOUT_RETRY_S = 10
"""`Retry-After` of a request that waited too long for its place."""

DRAINING_RETRY_S = 30


class ApiError(Exception):
    """An answer that is an error. `param` names the field of the request that is wrong, when one is."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.headers = {"retry-after": str(retry_after)} if retry_after is not None else {}

    @property
    def error(self) -> dict[str, Any]:
        """The error object, as it stands in a body or in a stream."""
        return {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}

    def response(self, headers: Mapping[str, str] | None = None) -> Response:
        return JSONResponse({"error": self.error}, self.status, {**self.headers, **(headers or {})})


def refused(refusal: Refused) -> ApiError:
    """The engine can't take the request now: a 503 that says when to come back."""
    return ApiError(503, str(refusal), kind="service_unavailable", code=refusal.code, retry_after=refusal.retry_after)


def waited_too_long(seconds: float) -> ApiError:
    """A request without a stream waited `seconds` for its place and can't show that it is alive."""
    return ApiError(
        429,
        f"the request waited {seconds:g} s for a free place; try again, or stream the answer to wait longer",
        kind="rate_limit_error",
        code="queue_timeout",
        retry_after=QUEUE_TIMEOUT_RETRY_S,
    )


def cut_off() -> ApiError:
    """The server went down in the middle of the answer, and the client is still there."""
    return ApiError(
        503,
        "the server stopped before the answer was whole",
        kind="service_unavailable",
        code="draining",
        retry_after=DRAINING_RETRY_S,
    )


def draining() -> Refused:
    """No work is taken any more."""
    return Refused("draining", "the server is shutting down", DRAINING_RETRY_S)


def broken(message: str) -> ApiError:
    """The server's own fault."""
    return ApiError(500, message, kind="server_error", code="internal_error")


def failed(last: Failed) -> ApiError:
    """The engine could not answer: for want of memory, which is a 503 that says when to come back, or by a fault."""
    if isinstance(last, NoMemory):
        kind = "service_unavailable"
        return ApiError(503, last.message, kind=kind, code=last.code, retry_after=last.retry_after)
    return broken(last.message)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """404 and 405 of the router, and what a plugin's route raises, in the same shape as every error."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    message, code = str(error.detail), None
    if error.status_code == 404 and message == HTTPStatus.NOT_FOUND.phrase:
        message, code = f"there is no route {path}; the API lies under /v1", "not_found"
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"{path} does not take {request.method}" + (f"; it takes {allowed}" if allowed else "")
        code = "method_not_allowed"
    kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    return ApiError(error.status_code, message, kind=kind, code=code).response(error.headers)


async def on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()
