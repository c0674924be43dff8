"""The ASGI application: every route over one platform and its engine."""

from __future__ import annotations

import logging

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tandem.api.errors import ApiError, broken, on_api_error, on_http_exception
from tandem.api.generate import CHAT, COMPLETIONS, GenerateRoute
from tandem.api.host import ServedHost
from tandem.api.info import InfoRoutes
from tandem.api.metrics import Metrics
from tandem.api.routes import plugin_routes
from tandem.api.service import Service
from tandem.core.engine.engine import Engine
from tandem.core.kernel import Platform

log = logging.getLogger("tandem.api")

ROUTE_LABELS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/models": "models",
    "/v1/plugins": "plugins",
    "/health": "health",
    "/metrics": "metrics",
}


def build_app(platform: Platform, engine: Engine) -> Starlette:
    """The application. `app.state.service` is the `Service` behind it. Raises StartError for a required plugin."""
    service = Service(platform, engine)
    info = InfoRoutes(service)
    own: list[BaseRoute] = [
        Route("/v1/chat/completions", GenerateRoute(service, CHAT).handle, methods=["POST"]),
        Route("/v1/completions", GenerateRoute(service, COMPLETIONS).handle, methods=["POST"]),
        Route("/v1/models", info.models),
        Route("/v1/models/{id:path}", info.model),
        Route("/v1/plugins", info.plugins),
        Route("/health", info.health),
        Route("/metrics", info.metrics),
    ]
    app = Starlette(
        routes=[*own, *plugin_routes(service, ServedHost(service), own)],
        middleware=[Middleware(_Outermost, metrics=service.metrics)],
        exception_handlers={HTTPException: on_http_exception, ApiError: on_api_error},
    )
    app.state.service = service
    return app


class _Outermost:
    """Counts each request by route and status, and turns what nobody caught into a 500, logged once."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def counted(message: Message) -> None:
            nonlocal started
            if not started:
                started = True
                self._metrics.http(_label(scope["path"]), message["status"])
            await send(message)

        try:
            await self._app(scope, receive, counted)
        except Exception:
            if started:
                raise  # half a response can't be mended; the server closes the connection
            log.exception("%s %s failed", scope["method"], scope["path"])
            await broken("the server failed; its log says why").response()(scope, receive, counted)


def _label(path: str) -> str:
    if path.startswith("/v1/models/"):
        return "models"
    return ROUTE_LABELS.get(path, "other")
