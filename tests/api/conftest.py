"""Servers for the tests: the real engine over the scripted model, and an engine that a test moves by hand."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx2
import openai
import pytest

from tandem.api.app import build_app
from tandem.core.conductor import Conductor
from tandem.core.engine.options import SECTIONS
from tandem.core.engine.request import Event, Finished, Generate, Piece, Refused, Sink, Stats
from tandem.core.kernel import assemble, load_manifest
from tandem.testing.box import Box
from tandem.testing.server import serving, until


class HandJob:
    """A job whose events the test sends."""

    def __init__(self, request: Generate, sink: Sink) -> None:
        self.request = request
        self.started: float | None = None
        self.cancelled = False
        self._sink = sink

    def start(self) -> None:
        self.started = time.perf_counter()

    def send(self, *events: Event) -> None:
        """Hand events over in one batch, as the engine does after a step."""
        if self.started is None:
            self.start()
        self._sink(list(events))

    def finish(self, *texts: str, reason: str = "stop", **stats: Any) -> None:
        self.send(*map(Piece, texts), Finished(reason, Stats(**stats)))

    def cancel(self) -> None:
        self.cancelled = True


class HandEngine:
    """What the API sees of the engine, moved by the test: every submitted job waits until something is sent."""

    max_len = 1000

    def __init__(self) -> None:
        self.jobs: list[HandJob] = []
        self.refusal: Refused | None = None
        self.wait: float | None = None
        """What a waiting request is told."""
        self.draining = False

    def submit(self, request: Generate, sink: Sink) -> HandJob:
        if self.refusal is not None:
            raise self.refusal
        self.jobs.append(HandJob(request, sink))
        return self.jobs[-1]

    def job(self, index: int = 0) -> HandJob:
        """The job with this number, as soon as it was submitted."""
        until(lambda: len(self.jobs) > index)
        return self.jobs[index]

    def outlook(self, job: HandJob) -> tuple[int, float | None] | None:
        waiting = [other for other in self.jobs if other.started is None]
        return (waiting.index(job) + 1, self.wait) if job in waiting else None

    def snapshot(self) -> dict[str, Any]:
        waiting = sum(job.started is None for job in self.jobs)
        return {
            "running": len(self.jobs) - waiting,
            "waiting": waiting,
            "max_running": 2,
            "max_queue": 8,
            "draining": self.draining,
            "totals": {},
            "caches": {},
            "cache_events": [],
        }


class Server:
    """A served app and the engine behind it."""

    def __init__(self, url: str, engine: HandEngine) -> None:
        self.url = url
        self.engine = engine
        self.http = httpx2.Client(base_url=url, timeout=20, trust_env=False)

    def metric(self, line: str) -> float:
        """The value of one sample in /metrics; 0 while it has not appeared."""
        for sample in self.http.get("/metrics").text.splitlines():
            name, _, value = sample.rpartition(" ")
            if name == line:
                return float(value)
        return 0.0


@pytest.fixture
def hand() -> Iterator[Callable[..., Server]]:
    """Starts an app over a `HandEngine`: `hand(keepalive_s=0.1)` takes options of the server section."""
    closing: list[Callable[[], Any]] = []

    def start(**options: Any) -> Server:
        manifest = {"tandem": 1, "model": {"plugin": "scripted"}, "server": options}
        platform = assemble(load_manifest(manifest, sections=SECTIONS))
        engine: Any = HandEngine()
        engine.conductor = Conductor(platform)
        running = serving(build_app(platform, engine))
        server = Server(running.__enter__(), engine)
        closing.extend([lambda: running.__exit__(None, None, None), server.http.close])
        return server

    yield start
    for close in reversed(closing):
        close()


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    """The real engine over the scripted model."""
    with Box() as running:
        yield running


@pytest.fixture(scope="module")
def http(box: Box) -> Iterator[httpx2.Client]:
    """A plain HTTP client of the box, for what the box's own methods don't send."""
    with httpx2.Client(base_url=box.url, timeout=20, trust_env=False) as client:
        yield client


@pytest.fixture(scope="module")
def sdk(box: Box) -> Iterator[openai.OpenAI]:
    """OpenAI's own client, which tries nothing twice."""
    with openai.OpenAI(base_url=f"{box.url}/v1", api_key="none", max_retries=0, timeout=20) as client:
        yield client


@pytest.fixture
def script() -> Callable[..., list[Mapping[str, str]]]:
    """The messages that make the scripted model write these entries."""

    def messages(*entries: Any, end: bool = True) -> list[Mapping[str, str]]:
        return [{"role": "user", "content": json.dumps({"script": entries, "end": end})}]

    return messages
