"""The bridge between the two threads: the engine's events, heard on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence as Seq

from tandem.core.engine.engine import Engine
from tandem.core.engine.request import Event, Failed, Finished, Generate


class Listener:
    """One job of the engine, read from the event loop.

    The engine hands over its events on its own thread; they hop to the loop, and all that have arrived by the time
    the reader wakes are read as one batch. Everything but the sink runs on the loop. Raises Refused when the engine
    does not take the request.
    """

    def __init__(self, engine: Engine, request: Generate) -> None:
        self._loop = asyncio.get_running_loop()
        self._heard: list[Event] = []
        self._reader: asyncio.Future[None] | None = None
        self.ended = False
        """The engine has sent its last event."""
        self._engine = engine
        self._job = engine.submit(request, self._sink)

    @property
    def waiting(self) -> bool:
        """Whether the job still stands in the queue."""
        return self._job.started is None

    @property
    def started(self) -> float | None:
        """When the job left the queue, in seconds of `time.perf_counter`."""
        return self._job.started

    def outlook(self) -> tuple[int, float | None] | None:
        """The position in the queue (1 = the next) and the expected wait in seconds; None when it does not wait."""
        return self._engine.outlook(self._job) if self.waiting else None

    def _sink(self, events: list[Event]) -> None:
        # The loop is closed when a forced stop did not wait for the engine; nobody is left to read then.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._hear, events)

    def _hear(self, events: Seq[Event]) -> None:
        self._heard += events
        if isinstance(events[-1], Finished | Failed):
            self.ended = True
        self.wake()

    def wake(self) -> None:
        """Let the reader go on, with or without events."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def cancel(self) -> None:
        """Nobody wants the rest: the engine drops the job at its next chunk or block, and says so in a last event."""
        if not self.ended:
            self._job.cancel()

    def end_thinking(self) -> bool:
        """The answer should begin: close the reasoning at the next block. False when the job does not run (yet)."""
        return not self.ended and self._job.end_thinking()

    async def events(self) -> list[Event]:
        """What was heard since the last call. Waits for some; empty when somebody called `wake`."""
        if not self._heard:
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        heard, self._heard = self._heard, []
        return heard

    async def last(self) -> Finished | Failed:
        """Skip to the last event."""
        while True:
            for event in await self.events():
                if isinstance(event, Finished | Failed):
                    return event
