"""The route contract: HTTP routes that a feature adds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence as Seq
from dataclasses import dataclass
from typing import Any

from tandem.core.plugin.host import Host
from tandem.core.plugin.part import Options, Part


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """One route: `handler(request)` takes a Starlette request and returns a Starlette response."""

    path: str
    """Starts with `/`; path parameters as `{name}`."""
    handler: Callable[[Any], Awaitable[Any]]
    methods: tuple[str, ...] = ("GET",)
    doc: str = ""
    """One sentence, shown in the list of routes."""


@dataclass(frozen=True, kw_only=True)
class Routes(Part):
    """A set of routes: `build(options, host)` returns them. A path that exists already is refused."""

    build: Callable[[Options, Host], Seq[HttpRoute]]
