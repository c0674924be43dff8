"""The sockets and the signals of a running server."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from tandem.core.engine.engine import Engine
from tandem.core.kernel import StartError

log = logging.getLogger("tandem.api")

KEEP_ALIVE_S = 75
"""How long an idle connection stays open. Longer than clients keep theirs (5 s is usual), so that it is the client who
closes it: a server that closes first races with the next request."""
CLOSING_S = 2
"""How long the last bytes may take to leave after the drain."""
POLL_S = 0.02


def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets bound to every address of `host`, not listening yet. Port 0 takes a free one.

    Raises StartError with one sentence when that is not possible.
    """
    sockets: list[socket.socket] = []
    absent: OSError | None = None
    try:
        infos = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(infos):
            try:
                sockets.append(_bound(family, (address[0], port, *address[2:])))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                absent = error  # a name may have an address of a family that this machine lacks
            else:
                port = sockets[-1].getsockname()[1]
        if absent is not None and not sockets:
            raise absent
    except OSError as error:
        for bound in sockets:
            bound.close()
        raise cannot_listen(host, port, error) from None
    return sockets


def _bound(family: int, address: tuple[Any, ...]) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. An event loop sets it itself only on sockets that name their protocol, and without it
        # a token may wait 40 ms for the acknowledgement of the one before.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def cannot_listen(host: str, port: int, error: OSError) -> StartError:
    if error.errno == errno.EADDRINUSE:
        return StartError(
            f"{host}:{port} is in use by another program; choose another with --port, or 0 for a free one"
        )
    return StartError(f"can't listen on {host}:{port}: {error.strerror or error}")


class DrainingServer(uvicorn.Server):
    """A server that stops gently.

    The first SIGTERM or SIGINT starts the drain: the engine takes no new work, the sockets stay open so that who comes
    is told so (503), and what runs goes on to its end, for at most `drain_timeout_s`. A second signal stops at once.
    """

    def __init__(
        self, app: ASGIApp, engine: Engine, *, drain_timeout_s: float, ready: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="auto",
                loop="auto",
                ws="none",
                proxy_headers=False,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=CLOSING_S,
            )
        )
        self.forced = False
        """A second signal cut the drain short."""
        self._engine = engine
        self._drain_timeout_s = drain_timeout_s
        self._ready = ready
        self._drain: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except OSError as error:
            # Two programs may bind one address; only one may listen on it.
            host, port = sockets[0].getsockname()[:2] if sockets else ("", 0)
            raise cannot_listen(host, port, error) from None
        self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handled = []
        for number in (signal.SIGINT, signal.SIGTERM):
            # Not in the main thread, or no such thing on this system: whoever runs the server calls `stop`.
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, self.stop)
                handled.append(number)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """The first call drains, a second one stops at once. To be called on the server's event loop."""
        if self._drain is None:
            self._drain = asyncio.ensure_future(self._drained())
        else:
            log.warning("stopping at once; running answers are cut off")
            self.forced = self.force_exit = self.should_exit = True

    async def _drained(self) -> None:
        self._engine.drain()
        state = self._engine.snapshot()
        log.info("draining: %d running, %d waiting", state["running"], state["waiting"])
        deadline = asyncio.get_running_loop().time() + self._drain_timeout_s
        # Tasks are requests on their way to the socket: an idle engine may still have its last chunks there.
        while not (self._engine.idle and not self.server_state.tasks):
            if asyncio.get_running_loop().time() >= deadline:
                log.warning("the drain took longer than %g s; running answers are cut off", self._drain_timeout_s)
                # Its jobs end as abandoned, and each stream says so to its client. A thread of its own, because the
                # pass that runs now may take long, and nothing waits for it here.
                threading.Thread(target=self._engine.stop, name="tandem-stop", daemon=True).start()
                await self._wait_for_tasks(CLOSING_S)
                break
            await asyncio.sleep(POLL_S)
        self.should_exit = True

    async def _wait_for_tasks(self, seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        while self.server_state.tasks and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(POLL_S)


def serve_until_stopped(server: DrainingServer, sockets: list[socket.socket]) -> None:
    """Run the event loop until the server has stopped."""
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(server.serve(sockets))


def shown_host(host: str) -> str:
    """The host as a URL on this machine writes it."""
    if host in ("", "0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
