"""`/v1/cache/`: what the caches and the replay store hold, and emptying them."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tandem.api.service import Service


class CacheRoutes:
    """The cache tiers from outside."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._engine = service.engine

    async def stats(self, request: Request) -> Response:
        """Each tier's own counters and sizes, by its name, and those of the replayed turns. Sizes are in bytes."""
        replay = self._service.replay_stats()
        return JSONResponse({"object": "cache.stats", "tiers": self._stats(), "replay": replay})

    async def clear(self, request: Request) -> Response:
        """Empty every tier, and forget the turns of earlier answers. Running answers go on; the next prompts are read
        whole, and as they are sent. Answers with the stats before."""
        before, replay = self._stats(), self._service.replay_stats()
        self._service.forget_turns()
        await asyncio.wrap_future(self._engine.errand(lambda: self._engine.caches.clear()))
        return JSONResponse({"object": "cache.cleared", "before": before, "replay": replay})

    def _stats(self) -> dict[str, dict[str, float]]:
        return {name: dict(stats) for name, stats in self._engine.caches.stats().items()}
