"""A plain answer: run every choice to its end, then answer once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from starlette.types import Receive

from tandem.api.errors import cut_off, failed, waited_too_long
from tandem.api.listener import Listener
from tandem.api.presenting import Message, Presenter
from tandem.api.record import Record
from tandem.api.replay import RecordedListener, Recorder
from tandem.core.engine.engine import Engine
from tandem.core.engine.request import CallPiece, Failed, Finished, Generate, Piece, Refused, Stats, TokenLogprob

ABANDONED = "abandoned"
LAST_WORD_S = 30.0
"""How long an abandoned request waits for the engine's last event, which has its counts."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One whole answer."""

    message: Message
    logprobs: list[TokenLogprob]
    reason: str
    stats: Stats


class Choices:
    """The choices of one request: at most `width` at a time, so that a large `n` does not fill everybody's queue."""

    def __init__(
        self,
        engine: Engine,
        work: Seq[Generate],
        presenter: Presenter,
        *,
        width: int,
        patience_s: float,
        record: Record,
        recorder: Recorder | None = None,
    ) -> None:
        self._presenter = presenter
        self._engine = engine
        self._work = work
        self._width = width
        self._patience_s = patience_s
        self._record = record
        self._recorder = recorder
        self._listeners: set[RecordedListener] = set()
        self._left = False

    async def run(self) -> list[Choice]:
        """All choices, in order. Raises Refused or ApiError when one can't be had; the others are dropped then."""
        try:
            if len(self._work) == 1:
                return [await self._collect(self._submit(self._work[0]))]
            return await self._run_all()
        finally:
            for listener in self._listeners:
                listener.cancel()

    def leave(self) -> None:
        """The client is gone: what runs ends soon as `abandoned`, and nothing new is begun."""
        self._left = True
        for listener in self._listeners:
            listener.cancel()

    async def _run_all(self) -> list[Choice]:
        waiting = deque(enumerate(self._work))
        running: dict[asyncio.Task[Choice], int] = {}
        done: dict[int, Choice] = {}
        try:
            while running or (waiting and not self._left):
                while waiting and not self._left and len(running) < self._width:
                    index, request = waiting[0]
                    try:
                        listener = self._submit(request)
                    except Refused as refusal:
                        # The queue is full of others; a place comes free when one of these ends.
                        if refusal.code != "queue_full" or not (running or done):
                            raise
                        if running:
                            break
                        listener = self._submit(replace(request, follows=True))
                    waiting.popleft()
                    running[asyncio.ensure_future(self._collect(listener))] = index
                for task in (await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED))[0]:
                    done[running.pop(task)] = task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        return [done[index] for index in sorted(done)]

    def _submit(self, request: Generate) -> RecordedListener:
        listener = RecordedListener(self._engine, request)
        self._listeners.add(listener)
        return listener

    async def _collect(self, listener: RecordedListener) -> Choice:
        patience = Patience(listener, self._patience_s)
        message = Message(self._presenter)
        logprobs: list[TokenLogprob] = []
        try:
            while True:
                for event in await listener.events():
                    if isinstance(event, Piece | CallPiece):
                        message.add(event)
                        logprobs += event.logprobs if isinstance(event, Piece) else ()
                    elif isinstance(event, Finished | Failed):
                        self._record.heard(event)
                        if self._recorder is not None:
                            self._recorder.ended(message, listener.tokens, event, listener.hidden)
                        return self._choice(event, message, logprobs)
                if patience.over:
                    raise waited_too_long(self._patience_s)
        finally:
            patience.end()
            listener.cancel()
            self._listeners.discard(listener)

    def _choice(self, last: Finished | Failed, message: Message, logprobs: list[TokenLogprob]) -> Choice:
        if isinstance(last, Failed):
            raise failed(last)
        if last.reason == ABANDONED and not self._left:
            raise cut_off()
        return Choice(message, logprobs, last.reason, last.stats)


class Patience:
    """How long a job may stand in the queue. Wakes the listener when that is over."""

    def __init__(self, listener: Listener, seconds: float) -> None:
        self._listener = listener
        self._passed = False
        self._timer = asyncio.get_running_loop().call_later(seconds, self._pass)

    @property
    def over(self) -> bool:
        """The time has passed and the job still waits."""
        return self._passed and self._listener.waiting

    def _pass(self) -> None:
        self._passed = True
        self._listener.wake()

    def end(self) -> None:
        self._timer.cancel()


async def until_gone(receive: Receive) -> None:
    """Returns when the client has closed its connection (or the response is complete)."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def run_unless_left(choices: Choices, receive: Receive) -> list[Choice] | None:
    """The choices, or None when the client left before they were whole."""
    run = asyncio.ensure_future(choices.run())
    gone = asyncio.ensure_future(until_gone(receive))
    try:
        await asyncio.wait({run, gone}, return_when=asyncio.FIRST_COMPLETED)
        if run.done():
            return run.result()
        choices.leave()
        await asyncio.wait({run}, timeout=LAST_WORD_S)
        if run.done():
            run.exception()
        return None
    finally:
        gone.cancel()
        run.cancel()
