"""An engine whose model is watched: what each turn read, what it answered, and the logits of its prompt's last row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch
from served import Client, FakePlatform

from tandem.core.engine.engine import Engine
from tandem.core.engine.exactness import difference_of
from tandem.core.engine.plain import PlainRun
from tandem.core.engine.request import Finished, Generate, Stats
from tandem.core.plugin import Block
from tandem.core.plugin.part import with_defaults
from tandem.plugins.caches import disk, resident, state_store
from tandem.plugins.drafters import lookup

PARTS = {part.name: part for module in (resident, state_store, disk) for part in module.tandem_caches()}
Tiers = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Pass:
    """One block that went through the model."""

    rows: int
    shown: int
    """How many of them show a picture."""
    logits: torch.Tensor | None
    """The last that were wanted of it, `[vocab]`."""


class Watched:
    """A model that notes what goes through it."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.log: list[Pass] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, blocks: Seq[Block]) -> list[torch.Tensor]:
        out: list[torch.Tensor] = self._model.forward(blocks)
        for block, rows in zip(blocks, out, strict=True):
            shown = sum(each.count for each in block.images)
            self.log.append(Pass(len(block.tokens), shown, rows[-1].clone() if len(rows) else None))
        return out


@dataclass(frozen=True, slots=True)
class Asked:
    """A turn that was answered, alone on its engine."""

    request: Generate
    output: list[int]
    stats: Stats
    read: int
    """Prompt rows that went through the model."""
    shown: int
    """How many of them show a picture."""
    row: torch.Tensor
    """The logits of the prompt's last row, `[vocab]`."""

    @property
    def text(self) -> list[int]:
        """The prompt and the answer."""
        return [*self.request.prompt, *self.output]


class Served:
    """One engine after another over the same model, with these cache tiers; `tiers` holds each one's options."""

    def __init__(self, model: Any, tiers: Tiers, chunk: int = 64, draft: bool = False, **options: Any) -> None:
        self.model = Watched(model)
        self._tiers = tiers
        self._draft = draft
        self._options = {"prefill_chunk": chunk, "parallel": 2, "drafter_check": False, **options}
        self.start()

    def start(self) -> None:
        self.platform = FakePlatform(self.model, **self._options)
        self.platform.tiers = [
            (name, PARTS[name].build(with_defaults(PARTS[name].options, given), self.model))  # type: ignore[arg-type]
            for name, given in self._tiers.items()
        ]
        if self._draft:
            (part,) = lookup.tandem_drafters()
            self.platform.drafters = [("lookup", part.build(with_defaults(part.options, {}), self.model))]  # type: ignore[arg-type]
        self.engine = Engine(self.platform)  # type: ignore[arg-type]
        self.engine.start()

    def stop(self) -> None:
        self.engine.stop()

    def submit(self, prompt: Seq[int], max_tokens: int = 8, **more: Any) -> tuple[Client, Any]:
        client = Client()
        return client, self.engine.submit(Generate(list(prompt), max_tokens, **more), client.sink)

    def ask(self, prompt: Seq[int], max_tokens: int = 8, **more: Any) -> Asked:
        """One turn, while no other runs."""
        before = len(self.model.log)
        client, job = self.submit(prompt, max_tokens, **more)
        last = client.wait()
        assert isinstance(last, Finished), last
        passes = self.model.log[before:]
        whole = next(place for place, one in enumerate(passes) if one.logits is not None)
        read, shown = (sum(getattr(one, what) for one in passes[: whole + 1]) for what in ("rows", "shown"))
        assert read == last.stats.prompt_tokens - last.stats.cached_tokens, "the counts are not what was read"
        row = passes[whole].logits
        assert row is not None
        return Asked(job.request, list(job.generation.output), last.stats, read, shown, row)

    def on_thread(self, work: Any) -> Any:
        """What `work` returns, done on the engine's thread between two rounds."""
        return self.engine.errand(work).result(20)

    def problems(self) -> Any:
        """What the tiers find wrong with themselves, and what failed; empty when all is well."""
        return self.on_thread(self.engine.caches.check) or self.platform.failed


def abandon(served: Served, prompt: Seq[int], at: type, max_tokens: int = 200) -> tuple[Any, Finished]:
    """Ask, and leave when the first event of this kind comes, or the answer is over: the job, and its last event."""
    client, job = served.submit(prompt, max_tokens)
    last = client.first((at, Finished))  # type: ignore[arg-type]
    job.cancel()
    if not isinstance(last, Finished):
        last = client.wait()
    assert isinstance(last, Finished), last
    return job, last


def parts_by(model: Any, request: Generate, output: Seq[int]) -> float | None:
    """How far, in nats, the logits of plain decoding are from this greedy answer where they part; None = nowhere.

    Plain decoding reads the prompt in one pass and shares nothing with caches, drafts or chunks.
    """
    difference = difference_of(model, request, PlainRun(model, request).finish(), output)
    return None if difference is None else difference.nats


def plain_row(model: Any, request: Generate) -> torch.Tensor:
    """The logits of the prompt's last row, read in one pass, `[vocab]`."""
    run = PlainRun(model, request)
    try:
        return run.row()
    finally:
        run.close()
