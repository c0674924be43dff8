"""The routes that tell about the server: its models, its plugins, its health, its metrics."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tandem.api.auth import Access, Gate
from tandem.api.errors import DRAINING_RETRY_S, ApiError
from tandem.api.service import Service

QUEUE = ("running", "waiting", "max_running", "max_queue", "lane")
"""What `/health` tells of the engine's queue."""


class InfoRoutes:
    """Handlers of the routes that only read."""

    def __init__(self, service: Service, gate: Gate) -> None:
        self._service = service
        self._gate = gate

    async def models(self, request: Request) -> Response:
        service = self._service
        return JSONResponse({"object": "list", "data": [self._model()] if service.served_name else []})

    async def model(self, request: Request) -> Response:
        wanted, served = request.path_params["id"], self._service.served_name
        if served is None or wanted != served:
            what = f"it serves {served}" if served else "no model is loaded"
            raise ApiError(404, f"this server has no model {wanted}; {what}", param="model", code="model_not_found")
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        service = self._service
        return {
            "id": service.served_name,
            "object": "model",
            "created": service.started,
            "owned_by": "tandemllm",
            "context_length": service.engine.max_len,
            "input_modalities": list(service.reads),
            "meta": dict(service.facts),
        }

    async def plugins(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": self._service.platform.records()})

    async def health(self, request: Request) -> Response:
        """200 while requests are taken; 503 while the server drains, so that a balancer sends them elsewhere.

        Everybody gets the status; who may read the admin routes gets the rest.
        """
        service = self._service
        status = "draining" if service.engine.draining else "ok" if service.served_name else "no_model"
        body: dict[str, Any] = {"status": status}
        if self._gate.allows(Access.ADMIN, request.scope):
            body |= self._details()
        if status == "draining":
            return JSONResponse(body, 503, {"retry-after": str(DRAINING_RETRY_S)})
        return JSONResponse(body)

    def _details(self) -> dict[str, Any]:
        service = self._service
        snapshot = service.engine.snapshot()
        records = service.platform.records()
        return {
            "model": service.served_name,
            "version": service.version,
            "uptime_s": round(time.time() - service.metrics.started, 1),
            "queue": {name: snapshot[name] for name in QUEUE if name in snapshot},
            "parallel": snapshot.get("parallel", {}),
            "totals": snapshot["totals"],
            "sampling": {"regenerate": service.regenerations.told()},
            "caches": snapshot["caches"],
            "cache_events": snapshot["cache_events"],
            "conductor": {**service.conductor.report(), "journal": service.conductor.journal.report()},
            "replay": service.replay_stats(),
            "memory": snapshot.get("memory", {}),
            "ledger": service.ledger_state(),
            "plugins": {
                "states": dict(Counter(record["state"] for record in records)),
                "failed": [record for record in records if record["state"] == "failed"],
            },
        }

    async def metrics(self, request: Request) -> Response:
        return Response(self._service.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})
