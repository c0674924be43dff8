"""Servers to test against over real sockets: any app in a thread, and `tandem serve` as a process of its own."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence as Seq
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

PATIENCE_S = 30.0


@contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """`app` on a free port of this machine, in a thread. Yields its URL, `http://127.0.0.1:PORT`."""
    listener = socket.create_server(("127.0.0.1", 0))
    # Connections inherit it. asyncio sets it itself only on sockets that name their protocol, and without it every
    # second small write waits 40 ms for the other side's acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server = uvicorn.Server(
        uvicorn.Config(app, log_config=None, ws="none", lifespan="off", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="test-server", daemon=True)
    thread.start()
    until(lambda: server.started or not thread.is_alive())
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)


def until(condition: object, seconds: float = PATIENCE_S) -> None:
    """Wait for `condition()` to become true. Raises AssertionError when it doesn't."""
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not true after {seconds:g} s")
        time.sleep(0.005)


class ServerProcess:
    """`tandem serve MANIFEST --port 0` with further arguments, ready when the constructor returns."""

    command: Seq[str] = (sys.executable, "-c", "from tandem.api.command import main; main()")
    """What stands for `tandem`."""

    def __init__(self, manifest: str, *arguments: str) -> None:
        # A file, not a pipe: a pipe that nobody reads fills up, and the server would stop at its next log line.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed in __exit__
        self.process = subprocess.Popen(
            [*self.command, "serve", manifest, "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        assert self.process.stdout is not None
        self.greeting = self.process.stdout.readline()
        """The line that the server prints when it is ready."""
        found = re.search(r"http://\S+?(?=/v1)", self.greeting)
        if found is None:
            raise AssertionError(f"the server did not start: {self.wait()[1]}")
        self.url = found.group()
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        self.address = host, int(port)

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = PATIENCE_S) -> tuple[int, str]:
        """Wait for the end: the exit code, and what was written to stderr."""
        code = self.process.wait(seconds)
        self._errors.seek(0)
        return code, self._errors.read()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._errors.close()


def raw_request(path: str, body: bytes, headers: Seq[tuple[str, str]] = ()) -> bytes:
    """A POST as it goes over the wire."""
    lines = [f"POST {path} HTTP/1.1", "Host: test", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join([*lines, "", ""]).encode() + body
