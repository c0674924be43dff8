"""`POST /v1/chat/completions/control`: a hand on a running answer."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tandem.api.body import read_json
from tandem.api.errors import ApiError
from tandem.api.readers import shown
from tandem.api.service import Service

END_THINKING = "end_thinking"


class ControlRoute:
    """Acts on a streamed answer by its id, which every chunk carries."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def handle(self, request: Request) -> Response:
        """`{"id": "chatcmpl-...", "action": "end_thinking"}` closes the reasoning; the answer follows at once."""
        body = await read_json(request)
        name, action = body.get("id"), body.get("action") or END_THINKING
        if not isinstance(name, str) or not name:
            raise ApiError(400, "id is missing; send the id of the answer that is running", param="id")
        if action != END_THINKING:
            raise ApiError(400, f"action must be {END_THINKING}, not {shown(action)}", param="action")
        listener = self._service.running.get(name)
        if listener is None or not listener.end_thinking():
            raise ApiError(404, f"no answer with the id {name} is running", param="id", code="not_running")
        return JSONResponse({"id": name, "action": action, "done": True})
