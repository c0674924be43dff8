"""The routes that plugins add."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Awaitable, Callable, Sequence as Seq
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import BaseRoute, Match, Route

from tandem.api.errors import ApiError, broken
from tandem.api.service import Service
from tandem.core.plugin import Host, HttpRoute

log = logging.getLogger("tandem.api")


def plugin_routes(service: Service, host: Host, existing: Seq[BaseRoute]) -> list[Route]:
    """The routes of every plugin that is on.

    A plugin whose path and method exist already, or whose route can't be made, is failed with all its routes.
    """
    mounted: list[Route] = []
    for name, declared in service.platform.build("routes", host):
        try:
            made = [_route(service, name, route) for route in declared]
            _check_free(made, [*existing, *mounted])
        except Exception as error:
            service.platform.fail("routes", name, traceback.format_exception_only(error)[-1].strip())
        else:
            mounted += made
    return mounted


def _route(service: Service, name: str, declared: HttpRoute) -> Route:
    if not isinstance(declared, HttpRoute):
        raise TypeError(f"build must return HttpRoute objects, not {type(declared).__name__}")
    return Route(declared.path, _guarded(service, name, declared), methods=list(declared.methods))


def _check_free(made: Seq[Route], existing: Seq[BaseRoute]) -> None:
    """Raises ValueError for the first path and method that another route answers."""
    for position, route in enumerate(made):
        for method in sorted((route.methods or set()) - {"HEAD"}):
            scope = {"type": "http", "path": route.path, "method": method, "root_path": ""}
            if any(other.matches(scope)[0] is Match.FULL for other in [*existing, *made[:position]]):
                raise ValueError(f"the route {method} {route.path} exists already")


def _guarded(service: Service, name: str, declared: HttpRoute) -> Callable[[Request], Awaitable[Any]]:
    """The plugin's handler. What it raises becomes an error body, is counted, and is logged once."""

    async def handle(request: Request) -> Any:
        try:
            return await declared.handler(request)
        except (HTTPException, ApiError):
            raise
        except Exception:
            service.metrics.plugin_fault("routes", name)
            log.exception("the route %s of the plugin %s failed", declared.path, name)
            return broken(f"the route {declared.path} of the plugin {name} failed").response()

    handle.__doc__ = declared.doc  # what the OpenAPI document says about it
    return handle
