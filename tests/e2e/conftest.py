"""Real clients against a real server: `tandem serve` in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from tandem.testing.server import ServerProcess, until

from .hermes import Hermes
from .opencode import Opencode
from .wire import Wire, tapped


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """The everyday run doesn't even import the SDKs."""
    return True if "not e2e" in config.option.markexpr else None


class Served(ServerProcess):
    """The server, and what can be seen of it from outside."""

    def running(self) -> int:
        """How many answers are being generated."""
        return int(self.get("/health").json()["queue"]["running"])

    def idle(self, seconds: float = 10.0) -> None:
        """Wait until nothing is being generated."""
        until(lambda: self.running() == 0, seconds)

    def get(self, path: str) -> httpx2.Response:
        return httpx2.get(self.url + path, timeout=10, trust_env=False)

    def log(self) -> str:
        """What the server has written to stderr so far."""
        # pread leaves the offset alone at which the server writes on
        return os.pread(self._errors.fileno(), 1 << 22, 0).decode()


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Starts a server of the test's own: `serve("server.parallel=1")`, or of another manifest."""
    with ExitStack() as life:

        def start(*settings: str, manifest: str = "scripted") -> Served:
            arguments = [word for setting in settings for word in ("--set", setting)]
            return life.enter_context(Served(manifest, *arguments))

        yield start


@pytest.fixture(scope="session")
def common_server() -> Iterator[Served]:
    with Served("scripted") as made:
        yield made


@pytest.fixture
def server(common_server: Served) -> Iterator[Served]:
    """The scripted model. Each test must leave it idle."""
    yield common_server
    common_server.idle()


@pytest.fixture
def wire(server: Served) -> Iterator[Wire]:
    """A relay to the common server that keeps what passes."""
    with tapped(server.url) as made:
        yield made


@pytest.fixture
def opencode(tmp_path: Path) -> Callable[[str], Opencode]:
    """opencode for the server at a URL."""
    return lambda url: Opencode(tmp_path / "opencode", url)


@pytest.fixture
def hermes(tmp_path: Path) -> Callable[[str], Hermes]:
    """The Hermes agent for the server at a URL."""
    return lambda url: Hermes(tmp_path / "hermes", url)
