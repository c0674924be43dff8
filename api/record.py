"""One row for each request: what was asked of the engine and how it ended. The log and the metrics read it."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass, field

from tandem.api.presenting import Presenter
from tandem.core.conductor import Watch
from tandem.core.engine.ledger import Row
from tandem.core.engine.request import Failed, Finished, Stats

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
    """`stop`, `length`, `tool_calls`, `timeout`, `abandoned`, `error` or `refused`."""
    detail: str = ""
    """Why exactly, as the engine says it; for a refusal its code."""
    image_tokens: int = 0
    """Prompt tokens that are rows of pictures."""
    stats: list[Stats] = field(default_factory=list)
    """One for each choice that ended."""
    on_end: Callable[[Record], None] | None = None
    """Told when the request is over."""
    watch: Watch | None = None
    """Its supervision."""
    call_ids: Seq[str] = ()
    """The calls of its answers."""

    def watched(self, watch: Watch | None, presenter: Presenter) -> None:
        """The request is under supervision, and the presenter names its calls."""
        self.watch, self.call_ids = watch, presenter.made
        if watch is not None:
            watch.begun()

    def heard(self, last: Finished | Failed) -> None:
        """A choice has ended."""
        self.stats.append(last.stats)
        self.detail = last.detail if isinstance(last, Finished) else "failed"

    def spoke(self) -> None:
        """Text goes out now."""
        if self.first_text is None:
            self.first_text = time.perf_counter()

    @property
    def prompt_tokens(self) -> int:
        """Each prompt once, however many choices continue it."""
        return sum(choice.prompt_tokens - choice.hidden_prompt_tokens for choice in self.stats) // self.n

    @property
    def cached_tokens(self) -> int:
        """What of them came from a cache; the choice that reads the prompt for the others reports it."""
        return sum(choice.cached_tokens - choice.hidden_cached_tokens for choice in self.stats)

    @property
    def total_s(self) -> float:
        return time.perf_counter() - self.began

    def write(self) -> None:
        """The request's log line: counts and times, never text."""
        stats = self.stats
        log.info(
            "%s %s %s%s client=%s prompt=%d cached=%d completion=%d queue_ms=%.0f wait_own_ms=%.0f wait_mem_ms=%.0f"
            " prefill_ms=%.0f decode_ms=%.0f total_ms=%.0f",
            self.id,
            self.reason,
            self.route,
            " stream" if self.stream else "",
            self.client,
            self.prompt_tokens,
            self.cached_tokens,
            sum(choice.completion_tokens for choice in stats),
            sum(choice.queue_ms for choice in stats),
            sum(choice.wait_own_ms for choice in stats),
            sum(choice.wait_mem_ms for choice in stats),
            sum(choice.prefill_ms for choice in stats),
            sum(choice.decode_ms for choice in stats),
            self.total_s * 1e3,
        )

    def row(self) -> Row:
        """The request in the ledger."""
        stats = self.stats
        first = None if self.first_text is None else (self.first_text - self.began) * 1e3
        return Row(
            id=self.id,
            ended_at=time.time(),
            route=self.route,
            client=self.client,
            session=None if self.session is None else hashlib.sha256(self.session.encode()).hexdigest()[:16],
            stream=self.stream,
            choices=self.n,
            reason=self.reason,
            detail=self.detail,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            forwarded_tokens=max(0, self.prompt_tokens - self.cached_tokens),
            image_tokens=self.image_tokens,
            completion_tokens=sum(choice.completion_tokens for choice in stats),
            reasoning_tokens=sum(choice.reasoning_tokens for choice in stats),
            rounds=sum(choice.rounds for choice in stats),
            draft_tokens=sum(choice.draft_tokens for choice in stats),
            draft_accepted=sum(choice.draft_accepted for choice in stats),
            cache_source=next((choice.cache_source for choice in stats if choice.cached_tokens), "none"),
            lane=next((choice.lane for choice in stats if choice.lane), None),
            wait_own_ms=sum(choice.wait_own_ms for choice in stats),
            queue_ms=sum(choice.queue_ms for choice in stats),
            prefill_ms=sum(choice.prefill_ms for choice in stats),
            decode_ms=sum(choice.decode_ms for choice in stats),
            first_text_ms=first,
            total_ms=self.total_s * 1e3,
            wait_mem_ms=sum(choice.wait_mem_ms for choice in stats),
            hidden_tokens=sum(choice.hidden_tokens for choice in stats),
            hidden_prompt_tokens=sum(choice.hidden_prompt_tokens for choice in stats),
            acts=self.watch.acts if self.watch is not None else 0,
            mode=self.watch.shown_mode if self.watch is not None else "",
        )
