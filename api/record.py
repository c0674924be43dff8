"""One row for each request: what was asked of the engine and how it ended. The log and the metrics read it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tandem.core.engine.request import Stats

log = logging.getLogger("tandem.api")


@dataclass(slots=True)
class Record:
    """A generation request on its way. Times are seconds of `time.perf_counter`."""

    id: str
    route: str
    """`chat` or `completions`."""
    client: str
    session: str | None
    stream: bool
    n: int = 1
    """Choices of each prompt."""
    began: float = field(default_factory=time.perf_counter)
    first_text: float | None = None
    """When the first text went out; None while there is none."""
    reason: str = "error"
    """`stop`, `length`, `timeout`, `abandoned`, `error` or `refused`."""
    stats: list[Stats] = field(default_factory=list)
    """One for each choice that ended."""
    on_end: Callable[[Record], None] | None = None
    """Told when the request is over."""

    def spoke(self) -> None:
        """Text goes out now."""
        if self.first_text is None:
            self.first_text = time.perf_counter()

    @property
    def prompt_tokens(self) -> int:
        """Each prompt once, however many choices continue it."""
        return sum(choice.prompt_tokens for choice in self.stats) // self.n

    @property
    def cached_tokens(self) -> int:
        """What of them came from a cache; the choice that reads the prompt for the others reports it."""
        return sum(choice.cached_tokens for choice in self.stats)

    @property
    def total_s(self) -> float:
        return time.perf_counter() - self.began

    def write(self) -> None:
        """The request's log line: counts and times, never text."""
        stats = self.stats
        log.info(
            "%s %s %s%s client=%s prompt=%d cached=%d completion=%d queue_ms=%.0f prefill_ms=%.0f decode_ms=%.0f"
            " total_ms=%.0f",
            self.id,
            self.reason,
            self.route,
            " stream" if self.stream else "",
            self.client,
            self.prompt_tokens,
            self.cached_tokens,
            sum(choice.completion_tokens for choice in stats),
            sum(choice.queue_ms for choice in stats),
            sum(choice.prefill_ms for choice in stats),
            sum(choice.decode_ms for choice in stats),
            self.total_s * 1e3,
        )
