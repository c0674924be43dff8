"""`/v1/conductor/`: what rules decided, and the sessions that they watch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tandem.api.errors import ApiError
from tandem.api.service import Service
from tandem.core.conductor import Query, SessionState
from tandem.core.conductor.sessions import HOUR_S
from tandem.core.conductor.transcript import page

MOST = 10_000
"""The most entries of one answer."""


class MonitorRoutes:
    """The monitor from outside. All of it is read; nothing here changes what rules do."""

    def __init__(self, service: Service) -> None:
        self._conductor = service.conductor

    async def events(self, request: Request) -> Response:
        """The newest decisions, newest first. `limit` (100), `since` (Unix seconds), `task`, `session` and `action`
        choose among them."""
        asked = request.query_params
        query = Query(
            limit=int(_number(asked, "limit", 100, most=MOST)),
            since=_number(asked, "since", 0),
            task=asked.get("task"),
            session=asked.get("session"),
            action=asked.get("action"),
        )
        return _json({"object": "list", "data": await self._select(query)})

    async def watch(self, request: Request) -> Response:
        """Every session that is remembered, the one used last at the end, with what each task knows of it."""
        now = self._conductor.supervisor.clock()
        told = [_session(state, now) for state in self._conductor.sessions.all()]
        return _json({"object": "list", "mode": self._conductor.mode, "data": told})

    async def session(self, request: Request) -> Response:
        """One session's decisions, oldest first, and where it stands now. Raises ApiError for an unknown one."""
        key, entries, state = await self._timeline(request)
        now = self._conductor.supervisor.clock()
        return _json(
            {
                "object": "conductor.session",
                "session": key,
                "now": _session(state, now) if state is not None else None,
                "data": entries,
            }
        )

    async def export(self, request: Request) -> Response:
        """The same as a page to read (`format=md`) or to keep (`format=json`)."""
        form = request.query_params.get("format", "md")
        if form not in ("md", "json"):
            raise ApiError(400, f"format must be md or json, not {form}", param="format")
        key, entries, _ = await self._timeline(request)
        if form == "json":
            return _json({"object": "conductor.session", "session": key, "data": entries})
        return PlainTextResponse(page(key, entries))

    async def _timeline(self, request: Request) -> tuple[str, list[dict[str, Any]], SessionState | None]:
        key = request.path_params["key"]
        entries = await self._select(Query(limit=MOST, session=key))
        state = next((state for state in self._conductor.sessions.all() if state.key == key), None)
        if state is None and not entries:
            raise ApiError(404, f"no session {key} is known; GET /v1/conductor/watch lists them", code="not_found")
        return key, entries[::-1], state

    async def _select(self, query: Query) -> list[dict[str, Any]]:
        return await asyncio.to_thread(self._conductor.journal.select, query)


def _session(state: SessionState, now: float) -> dict[str, Any]:
    return {
        "session": state.key,
        "client": state.client,
        "profile": state.profile,
        "running": state.running,
        "idle_minutes": None if state.ended is None or state.running else round(max(0.0, now - state.ended) / 60, 2),
        "turns": state.turns,
        "acts_hour": sum(1 for acted in tuple(state.acts) if now - acted <= HOUR_S),
        "tasks": _plain(state.tasks),
    }


def _plain(tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What tasks remember, as JSON values. A rule may write to it at this moment, hence the second try."""
    for _ in range(3):
        try:
            plain: dict[str, Any] = json.loads(json.dumps({k: v for k, v in tasks.items() if v}, default=_listed))
            return plain
        except RuntimeError:  # its size changed meanwhile
            continue
        except (TypeError, ValueError, RecursionError):  # a key that is no word
            return {task: str(data) for task, data in tuple(tasks.items()) if data}
    return {}


def _listed(value: Any) -> Any:
    try:
        return list(value)
    except TypeError:
        return str(value)


def _number(asked: Mapping[str, str], name: str, otherwise: float, most: float = float("inf")) -> float:
    text = asked.get(name)
    if text is None:
        return otherwise
    try:
        number = float(text)
    except ValueError:
        number = -1
    if not 0 <= number <= most:
        limit = f" from 0 to {most:g}" if most != float("inf") else " of 0 or more"
        raise ApiError(400, f"{name} must be a number{limit}, not {text}", param=name)
    return number


def _json(body: Any) -> Response:
    return Response(json.dumps(body, ensure_ascii=False, default=str), media_type="application/json")
