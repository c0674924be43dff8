"""`/v1/conductor/`: the documents that the conductor goes by: read, changed, brought back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tandem.api.body import read_json
from tandem.api.errors import ApiError
from tandem.api.readers import shown
from tandem.api.service import Service
from tandem.core.conductor import Conflict, StoreError, UnknownDocument, Version
from tandem.core.conductor.config import DOCUMENTS
from tandem.core.kernel import ManifestError

T = TypeVar("T")
LONGEST_NOTE = 1000


class DocumentRoutes:
    """Handlers of the routes of documents. A version that was made here holds for the next request."""

    def __init__(self, service: Service) -> None:
        self._conductor = service.conductor
        self._documents = service.conductor.documents

    async def config(self, request: Request) -> Response:
        """Every document as it is in force, with what is wrong with newer versions."""

        def told() -> list[dict[str, Any]]:
            return [self._told(name, self._documents.version(name)) for name in DOCUMENTS]

        documents = await self._done(told)
        return JSONResponse({"object": "conductor.config", "documents": documents, "report": self._conductor.report()})

    async def read(self, request: Request) -> Response:
        """The current version, or the one that `?version=` names."""
        name, number = request.path_params["name"], _number(request.query_params.get("version"), "version")
        return JSONResponse(self._told(name, await self._done(lambda: self._documents.version(name, number))))

    async def versions(self, request: Request) -> Response:
        name = request.path_params["name"]
        return JSONResponse({"object": "list", "data": await self._done(lambda: self._documents.versions(name))})

    async def schema(self, request: Request) -> Response:
        name = request.path_params["name"]
        return JSONResponse(await self._done(lambda: self._documents.schema(name)))

    async def put(self, request: Request) -> Response:
        """`{"value": {...}, "note": "why", "base": 3}`; with `base` a 409 when that is not the newest version."""
        name, body = request.path_params["name"], await read_json(request)
        value, note, base = body.get("value"), _note(body), _number(body.get("base"), "base")
        if not isinstance(value, dict):
            raise ApiError(400, f"value must be the whole document as an object, not {shown(value)}", param="value")
        return JSONResponse(self._told(name, await self._done(lambda: self._documents.put(name, value, note, base))))

    async def restore(self, request: Request) -> Response:
        """`{"version": 2, "note": "why"}`"""
        name, body = request.path_params["name"], await read_json(request)
        number, note = _number(body.get("version"), "version"), _note(body)
        if number is None:
            raise ApiError(400, "version is missing; send the number of the version to bring back", param="version")
        return JSONResponse(self._told(name, await self._done(lambda: self._documents.restore(name, number, note))))

    def _told(self, name: str, version: Version) -> dict[str, Any]:
        problems = self._documents.current().problems.get(name, ())
        told = {"object": "conductor.document", "name": name, **version.facts}
        return {**told, "problems": list(problems), "value": version.value}

    async def _done(self, work: Callable[[], T]) -> T:
        """Done on a thread, since it reads and writes files; what goes wrong becomes an ApiError."""
        try:
            return await asyncio.to_thread(work)
        except UnknownDocument as error:
            raise ApiError(404, str(error), param="name", code="not_found") from None
        except ManifestError as error:
            first = error.problems[0]
            param = ".".join(["value", *([first.path] if first.path else [])])
            raise ApiError(400, "; ".join(map(str, error.problems)), param=param, code="invalid_document") from None
        except Conflict as error:
            raise ApiError(409, str(error), code="version_conflict") from None
        except StoreError as error:
            raise ApiError(503, str(error), kind="service_unavailable", code="not_kept") from None


def _note(body: Mapping[str, Any]) -> str:
    """The note of a new version, which everybody has to write who makes one."""
    note = body.get("note")
    if not isinstance(note, str) or not note.strip():
        raise ApiError(400, "note is missing; say in a few words why the document changes", param="note")
    if len(note) > LONGEST_NOTE:
        raise ApiError(400, f"note has {len(note)} characters, and may have {LONGEST_NOTE}", param="note")
    return note.strip()


def _number(value: Any, param: str) -> int | None:
    """A version's number, out of a body or a query."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise ApiError(400, f"{param} must be a version's number, not {shown(value)}", param=param)
