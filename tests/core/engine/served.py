"""An engine without a manifest around it, and clients that collect what it sends: shared by this room's tests."""

from __future__ import annotations

import queue
import time
from types import SimpleNamespace
from typing import Any

from toy import ToyModel

from tandem.core.engine.engine import Engine
from tandem.core.engine.options import SERVER_OPTIONS
from tandem.core.engine.request import Event, Failed, Finished, Generate, Piece
from tandem.core.plugin.part import with_defaults


class FakePlatform:
    """What the engine reads of a platform. The side lane is off unless `options` say otherwise."""

    def __init__(self, model: Any, **options: Any) -> None:
        self.model = model
        self.failed: list[tuple[str, str, str]] = []
        self.rules: list[Any] = []
        self.tiers: list[tuple[str, Any]] = []
        self.drafters: list[tuple[str, Any]] = []
        settings = with_defaults(SERVER_OPTIONS, {"side_lane": "off", **options})
        self.manifest = SimpleNamespace(section=lambda name: settings, sections={})
        self.registry = SimpleNamespace(names=lambda kind: [])

    def active(self, kind: str) -> list[Any]:
        assert kind == "rules"
        return [
            SimpleNamespace(name=rule.name, part=rule, options=with_defaults(rule.options, given))
            for rule, given in self.rules
        ]

    def build(self, kind: str, *args: Any) -> list[tuple[str, Any]]:
        return {"caches": self.tiers, "drafters": self.drafters, "choosers": []}[kind]

    def fail(self, kind: str, name: str, reason: str) -> None:
        self.failed.append((kind, name, reason))


class Client:
    """Collects one job's events."""

    def __init__(self) -> None:
        self.events: queue.Queue[Event] = queue.Queue()
        self.got: list[Event] = []

    def sink(self, events: list[Event]) -> None:
        for event in events:
            self.events.put(event)

    def wait(self) -> Finished | Failed:
        while True:
            event = self.events.get(timeout=20)
            self.got.append(event)
            if isinstance(event, Finished | Failed):
                return event

    def first(self, kind: type) -> Event:
        while True:
            event = self.events.get(timeout=20)
            self.got.append(event)
            if isinstance(event, kind):
                return event

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.got if isinstance(event, Piece))


LONG = {"eos_bias": -100.0}


def ask(engine: Engine, prompt: list[int] | None = None, max_tokens: int = 8, **more: Any) -> tuple[Client, Any]:
    client = Client()
    return client, engine.submit(Generate(prompt or [1, 2, 3], max_tokens, **more), client.sink)


class SlowToy(ToyModel):
    """Takes a moment for each pass, so that a test can act in the middle."""

    def forward(self, blocks):  # type: ignore[no-untyped-def]
        time.sleep(0.005)
        return super().forward(blocks)
