"""What all generations of one server share: prices, acceptance, the drafters' costs; and the price file."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tandem.core.plugin import Model, Options, TreeChooser
from tandem.plugins.choosers.staircut import store
from tandem.plugins.choosers.staircut.asking import DrafterRecord
from tandem.plugins.choosers.staircut.calibration import Source
from tandem.plugins.choosers.staircut.chooser import StairCut
from tandem.plugins.choosers.staircut.measure import measure
from tandem.plugins.choosers.staircut.prices import CLASSES, Prices

log = logging.getLogger("tandem.staircut")


class Shared:
    """The `Choosing`: opens a StairCut for each generation, says what was learned, keeps the price file."""

    SAVE_EVERY_S = 300.0
    FEW_GAPS = 8
    MEMORY = 0.99
    """How much of the counts of tokens and rows is left after another round."""

    def __init__(
        self,
        prices: Prices,
        options: Options,
        *,
        branches: bool = True,
        drafters: Mapping[str, DrafterRecord] | None = None,
        keep: Callable[[Shared], None] = lambda shared: None,
        clock: Callable[[], float] = time.perf_counter,
        origin: str = "measured",
    ) -> None:
        self.prices = prices
        self.branches = branches
        self.max_nodes: int = options["max_nodes"]
        self.exploration: float = options["exploration"]
        self.least_gain = 1.0 + float(options["margin"])
        self.drafted = self.plain = self.tried = 0
        """Rounds: with drafts verified; without; verified although it did not seem to pay."""
        self._memory: float = options["memory"]
        self._drafters = dict(drafters or {})
        self._sources: dict[str, Source] = {}
        self._tokens, self._rows = 1.0, 1.0
        self._keep = keep
        self._clock = clock
        self._origin = origin
        self._saved = clock()
        self.between = 0.0
        """Seconds of a round outside its pass and its drafting: drawing the root, telling what was accepted."""
        self._gaps = 0
        self._pass_ended: float | None = None
        self._drafting = 0.0

    # ---------------------------------------------------------------------------------------- the engine's side

    def open(self) -> TreeChooser:
        if self.prices.observed and self._clock() - self._saved > self.SAVE_EVERY_S:
            self._save()
        return StairCut(self)

    def close(self) -> None:
        self._save()

    def _save(self) -> None:
        self._saved = self._clock()
        self._keep(self)

    # ------------------------------------------------------------------------------------- the generations' side

    @property
    def tokens_per_row(self) -> float:
        """Tokens that a row of a pass brings, of late."""
        return self._tokens / self._rows

    def count(self, tokens: int, rows: int) -> None:
        """A round of one sequence is over."""
        self._tokens = self._tokens * self.MEMORY + tokens
        self._rows = self._rows * self.MEMORY + rows
        self.plain += rows == 1

    def spent_drafting(self, seconds: float) -> None:
        self._drafting += seconds

    def passed(self, rows: int, context: int, seconds: float) -> None:
        """A pass of one sequence is over: its price, and what the round took besides."""
        now, plain = self._clock(), self.prices.price(1, context)
        if self._pass_ended is not None:
            gap = min(max(now - self._pass_ended - seconds - self._drafting, 0.0), 2.0 * plain)
            if self._gaps >= self.FEW_GAPS:
                # the queue may have been empty, or another's prompt been read: that is no part of a round
                gap = min(gap, 2.0 * self.between + 0.02 * plain)
            self._gaps += 1
            self.between += max(0.03, 1.0 / self._gaps) * (gap - self.between)
        self._pass_ended, self._drafting = now, 0.0
        self.prices.observe(rows, context, seconds)

    def drafter(self, name: str) -> DrafterRecord:
        record = self._drafters.get(name)
        if record is None:
            record = self._drafters[name] = DrafterRecord()
        return record

    def source(self, name: str) -> Source:
        source = self._sources.get(name)
        if source is None:
            source = self._sources[name] = Source(self._memory)
        return source

    # ---------------------------------------------------------------------------------------------- what is known

    def report(self) -> Mapping[str, Any]:
        prices = self.prices
        return {
            "chooser": "staircut",
            "prices_from": self._origin,
            "passes_learned": prices.observed,
            "verify_ms": prices.report(),
            "plain_step_ms": {str(kind): round(prices.price(1, kind) * 1e3, 3) for kind in CLASSES},
            "between_passes_ms": round(self.between * 1e3, 3),
            "rounds": {"drafted": self.drafted, "plain": self.plain, "tried": self.tried},
            "tokens_per_row": round(self.tokens_per_row, 3),
            "sources": {name: source.report() for name, source in sorted(dict(self._sources).items())},
            "drafters": {name: record.report() for name, record in sorted(dict(self._drafters).items())},
        }

    def drafting_json(self) -> dict[str, dict[str, list[float]]]:
        """Drafter -> context class -> [seconds, times asked]."""
        return {name: record.to_json() for name, record in sorted(dict(self._drafters).items())}


def prepare(options: Options, model: Model) -> Shared:
    """Prices from the file of this machine and model, else measured now."""
    about = store.subject(model)
    path = store.place(options["price_file"], about)
    known = _kept(path, about) if path is not None and not options["remeasure"] else None
    prices, drafters = known if known is not None else (Prices(measure(model, options["measure_s"])), {})
    return Shared(
        prices,
        options,
        branches=model.caps.tree,
        drafters=drafters,
        keep=lambda shared: _keep(path, about, shared),
        origin=f"file {path}" if known is not None else "measured",
    )


def _kept(path: Path, about: store.Subject) -> tuple[Prices, dict[str, DrafterRecord]] | None:
    stored = store.read(path, about)
    if stored is None:
        return None
    try:
        prices = Prices.from_json(stored.get("prices"))
        drafting = stored.get("drafting")
        if not isinstance(drafting, dict):
            raise ValueError("has no drafting costs")
        return prices, {name: DrafterRecord.from_json(costs) for name, costs in drafting.items()}
    except ValueError as error:
        store.ignored(path, error)
        return None


def _keep(path: Path | None, about: store.Subject, shared: Shared) -> None:
    if path is None:
        return
    try:
        store.write(path, about, shared.prices.to_json(), shared.drafting_json())
    except OSError as error:
        log.warning("the price file %s can't be written: %s", path, error.strerror or error)
