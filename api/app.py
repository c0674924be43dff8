"""The ASGI application: every route over one platform and its engine."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence as Seq
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tandem.api import probes
from tandem.api.auth import Access, Gate, Guard, read_gate
from tandem.api.caches import CacheRoutes
from tandem.api.conductor import DocumentRoutes
from tandem.api.control import ControlRoute
from tandem.api.errors import ApiError, broken, on_api_error, on_http_exception
from tandem.api.generate import CHAT, COMPLETIONS, GenerateRoute
from tandem.api.host import ServedHost
from tandem.api.info import InfoRoutes
from tandem.api.metrics import Metrics
from tandem.api.monitor import MonitorRoutes
from tandem.api.openapi import document, openapi
from tandem.api.routes import plugin_routes
from tandem.api.service import Service
from tandem.core.engine.engine import Engine
from tandem.core.kernel import Platform

log = logging.getLogger("tandem.api")


@dataclass(frozen=True, slots=True)
class OwnRoute:
    """One route of the server's own."""

    path: str
    handler: Callable[[Any], Awaitable[Any]]
    label: str
    """Its name in the metrics."""
    access: Access
    """What it asks for once there is an admin token."""
    methods: tuple[str, ...] = ("GET",)


def own_routes(service: Service, gate: Gate) -> list[OwnRoute]:
    """Every route that is there without a plugin."""
    info, caches, monitor = InfoRoutes(service, gate), CacheRoutes(service), MonitorRoutes(service)
    chat, completions = GenerateRoute(service, CHAT), GenerateRoute(service, COMPLETIONS)
    return [
        OwnRoute("/v1/chat/completions", chat.handle, "chat", Access.OPEN, ("POST",)),
        OwnRoute("/v1/chat/completions/control", ControlRoute(service).handle, "control", Access.OPEN, ("POST",)),
        OwnRoute("/v1/completions", completions.handle, "completions", Access.OPEN, ("POST",)),
        OwnRoute("/v1/models", info.models, "models", Access.OPEN),
        OwnRoute("/v1/models/{id:path}", info.model, "models", Access.OPEN),
        OwnRoute("/v1/plugins", info.plugins, "plugins", Access.ADMIN),
        OwnRoute("/v1/cache/stats", caches.stats, "cache", Access.ADMIN),
        OwnRoute("/v1/cache/clear", caches.clear, "cache", Access.BEARER, ("POST",)),
        OwnRoute("/v1/conductor/events", monitor.events, "conductor", Access.ADMIN),
        OwnRoute("/v1/conductor/watch", monitor.watch, "conductor", Access.ADMIN),
        OwnRoute("/v1/conductor/sessions/{key}/export", monitor.export, "conductor", Access.ADMIN),
        OwnRoute("/v1/conductor/sessions/{key}", monitor.session, "conductor", Access.ADMIN),
        *_document_routes(DocumentRoutes(service)),
        # Everybody may know whether it is well; the rest of the body asks for more.
        OwnRoute("/health", info.health, "health", Access.OPEN),
        OwnRoute("/metrics", info.metrics, "metrics", Access.METRICS),
        OwnRoute("/openapi.json", openapi, "openapi", Access.OPEN),
    ]


def _document_routes(documents: DocumentRoutes) -> list[OwnRoute]:
    """What the conductor goes by. Changing it asks for the token as a header: it says what rules may do."""
    one = "/v1/conductor/documents/{name}"
    return [
        OwnRoute("/v1/conductor/config", documents.config, "conductor", Access.ADMIN),
        OwnRoute(one, documents.read, "conductor", Access.ADMIN),
        OwnRoute(one, documents.put, "conductor", Access.BEARER, ("PUT",)),
        OwnRoute(f"{one}/versions", documents.versions, "conductor", Access.ADMIN),
        OwnRoute(f"{one}/schema", documents.schema, "conductor", Access.ADMIN),
        OwnRoute(f"{one}/restore", documents.restore, "conductor", Access.BEARER, ("POST",)),
    ]


def build_app(platform: Platform, engine: Engine) -> Starlette:
    """The application. `app.state.service` is the `Service` behind it, `app.state.openapi` its description.

    Raises StartError for a required plugin, ManifestError for a token that is none.
    """
    gate = read_gate(platform.manifest)
    service = Service(platform, engine)
    own = own_routes(service, gate)
    routes: list[BaseRoute] = [
        Route(
            route.path,
            route.handler,
            methods=list(route.methods),
            middleware=[Middleware(Guard, gate=gate, access=route.access)],
        )
        for route in own
    ]
    app = Starlette(
        routes=[*routes, *plugin_routes(service, ServedHost(service), routes)],
        middleware=[Middleware(_Outermost, metrics=service.metrics, labels=_Labels(own))],
        exception_handlers={HTTPException: on_http_exception, ApiError: on_api_error},
    )
    app.state.service = service
    app.state.openapi = document(service.version, app.routes)
    return app


class _Labels:
    """The name of a request's route in the metrics."""

    def __init__(self, own: Seq[OwnRoute]) -> None:
        self._exact = {route.path: route.label for route in own if "{" not in route.path}
        self._below = {route.path.partition("{")[0]: route.label for route in own if "{" in route.path}

    def of(self, path: str, status: int) -> str:
        if path in self._exact:
            return self._exact[path]
        if probes.is_probe(path, status):
            return probes.LABEL
        return next((label for start, label in self._below.items() if path.startswith(start)), "other")


class _Outermost:
    """Counts each request by route and status, and turns what nobody caught into a 500, logged once."""

    def __init__(self, app: ASGIApp, metrics: Metrics, labels: _Labels) -> None:
        self._app = app
        self._metrics = metrics
        self._labels = labels

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def counted(message: Message) -> None:
            nonlocal started
            if not started:
                started = True
                status = message["status"]
                self._metrics.http(self._labels.of(scope["path"], status), status)
            await send(message)

        try:
            await self._app(scope, receive, counted)
        except Exception:
            if started:
                raise  # half a response can't be mended; the server closes the connection
            log.exception("%s %s failed", scope["method"], scope["path"])
            await broken("the server failed; its log says why").response()(scope, receive, counted)
