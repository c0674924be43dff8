"""`/v1/cache/`: what the caches hold, and emptying them."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tandem.api.service import Service


class CacheRoutes:
    """The cache tiers from outside."""

    def __init__(self, service: Service) -> None:
        self._engine = service.engine

    async def stats(self, request: Request) -> Response:
        """Each tier's own counters and sizes, by its name. Sizes are in bytes."""
        return JSONResponse({"object": "cache.stats", "tiers": self._stats()})

    async def clear(self, request: Request) -> Response:
        """Empty every tier. Running answers go on; the next prompts are read whole. Answers with the stats before."""
        before = self._stats()
        await asyncio.wrap_future(self._engine.errand(lambda: self._engine.caches.clear()))
        return JSONResponse({"object": "cache.cleared", "before": before})

    def _stats(self) -> dict[str, dict[str, float]]:
        return {name: dict(stats) for name, stats in self._engine.caches.stats().items()}
