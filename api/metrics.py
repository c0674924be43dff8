"""Prometheus metrics. Each app has a registry of its own, so two apps in one process don't meet."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import psutil
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from tandem.api.record import Record
from tandem.core.conductor import Conductor
from tandem.core.engine.engine import Engine

PREFIX = "tandem"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
PER_TOKEN_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2.5)
TOKENS = tuple(2**power for power in range(19))
CACHE_GAUGES = (("bytes", "Bytes that a cache holds."), ("entries", "Entries of a cache."))
CACHE_COUNTS = (
    ("hits", "Lookups that found something."),
    ("misses", "Lookups that found nothing."),
    ("evictions", "Entries given up for room."),
)
MEMORY_GAUGES = (
    ("held_bytes", "Memory that the engine holds, the allocator's free blocks included."),
    ("reusable_bytes", "Those free blocks, as far as the allocator tells."),
    ("available_bytes", "Memory that could be taken besides."),
)
MEMORY_LIMITS = (
    ("ceiling_bytes", "What the engine may hold between requests."),
    ("peak_bytes", "What it may hold while a prompt is read."),
    ("floor_bytes", "What must stay available."),
)
MEMORY_COUNTS = (
    ("sheds", "Times that a cache gave way for a request."),
    ("shed_bytes", "Bytes that caches gave back for requests."),
    ("waits", "Requests that waited for memory."),
    ("refused", "Requests that were refused for want of memory."),
)
CONDUCTOR_COUNTS = (
    ("hidden_tokens", "Tokens that the model read and the client did not see.", "task"),
    ("acts", "Decisions that were done and changed an answer.", "task"),
    ("faults", "Checks that failed.", "rule"),
    ("asked", "Questions that rules put to the model.", "task"),
    ("asked_failed", "Those of them that it could not be asked.", "task"),
)
RATES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000)


class Metrics:
    """Everything that is counted while the server runs. All methods are called on the event loop."""

    def __init__(self, engine: Engine, info: dict[str, str]) -> None:
        self.registry = CollectorRegistry()
        self.started = time.time()
        self._requests = self._counter("requests", "Generation requests that ended.", "finish_reason", "client")
        self._success = self._counter("request_success", "Requests that ended with stop, length or tool_calls.")
        self._refused = self._counter("requests_refused", "Requests that the engine did not take.", "reason")
        self._errors = self._counter("errors", "Requests that broke.", "type")
        self._http = self._counter("http_requests", "HTTP requests.", "route", "code")
        self._plugin_faults = self._counter("plugin_faults", "Exceptions of plugins at run time.", "kind", "name")
        self._prompt = self._counter("prompt_tokens", "Prompt tokens of ended requests.")
        self._cached = self._counter("prompt_tokens_cached", "Prompt tokens whose state came from a cache.")
        self._reused = self._counter("prefill_tokens_reused", "The same count, under the name of the prefill.")
        self._forwarded = self._counter("prefill_tokens_forwarded", "Prompt tokens that the model read.")
        self._generated = self._counter("generation_tokens", "Tokens written.")
        self._reasoning = self._counter("reasoning_tokens", "Those of them that are reasoning.")
        self._drafted = self._counter("spec_decode_num_draft_tokens", "Drafted tokens that were verified.")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Drafted tokens that were accepted.")
        self._images = self._counter("images", "Images that a prompt showed.")
        self._left_out = self._counter("images_left_out", "Images of conversations that had more than fit.")
        self._first = self._histogram("time_to_first_token_seconds", "From the request to its first text.", SECONDS)
        self._per_token = self._histogram("time_per_output_token_seconds", "Decode time by token.", PER_TOKEN_S)
        self._latency = self._histogram("e2e_request_latency_seconds", "From the request to its end.", SECONDS)
        self._queue = self._histogram("request_queue_seconds", "Time in the queue.", SECONDS)
        self._prefill = self._histogram("request_prefill_seconds", "Time in the prefill.", SECONDS)
        self._decode_rate = self._histogram("request_decode_tokens_per_second", "Decode speed.", RATES)
        self._prefill_rate = self._histogram("request_prefill_tokens_per_second", "Prefill speed.", RATES)
        self._prompt_size = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", TOKENS)
        self._answer_size = self._histogram("request_completion_tokens", "Tokens of an answer.", TOKENS)
        build = Gauge(f"{PREFIX}_build_info", "What is running.", sorted(info), registry=self.registry)
        build.labels(**info).set(1)
        self.registry.register(_EngineState(engine, self.started))
        self.registry.register(_ConductorState(engine.conductor))

    def http(self, route: str, code: int) -> None:
        self._http.labels(route, str(code)).inc()

    def refused(self, reason: str) -> None:
        self._refused.labels(reason).inc()

    def error(self, kind: str) -> None:
        self._errors.labels(kind).inc()

    def plugin_fault(self, kind: str, name: str) -> None:
        self._plugin_faults.labels(kind, name).inc()

    def images(self, shown: int, left_out: int) -> None:
        """A request brought images: so many are shown, so many are not."""
        self._images.inc(shown)
        self._left_out.inc(left_out)

    def ended(self, record: Record) -> None:
        """Count a request that is over."""
        self._requests.labels(record.reason, record.client).inc()
        if record.reason in ("stop", "length", "tool_calls"):
            self._success.inc()
        if record.reason != "refused":
            self._latency.observe(record.total_s)
        if record.first_text is not None:
            self._first.observe(record.first_text - record.began)
        if record.stats:
            read = sum(stats.prefill_ms for stats in record.stats) > 0  # else it left the queue by the back door
            forwarded = record.prompt_tokens - record.cached_tokens if read else 0
            self._prompt.inc(record.prompt_tokens)
            self._cached.inc(record.cached_tokens)
            self._reused.inc(record.cached_tokens)
            self._forwarded.inc(forwarded)
            self._prompt_size.observe(record.prompt_tokens)
        for stats in record.stats:
            self._generated.inc(stats.completion_tokens)
            self._reasoning.inc(stats.reasoning_tokens)
            self._drafted.inc(stats.draft_tokens)
            self._accepted.inc(stats.draft_accepted)
            self._queue.observe(stats.queue_ms / 1e3)
            self._answer_size.observe(stats.completion_tokens)
            if stats.prefill_ms:
                self._prefill.observe(stats.prefill_ms / 1e3)
            if stats.completion_tokens > 1 and stats.decode_ms and stats.lane is None:
                self._decode_rate.observe((stats.completion_tokens - 1) * 1e3 / stats.decode_ms)
                self._per_token.observe(stats.decode_ms / 1e3 / stats.completion_tokens)
        if len(record.stats) == 1 and record.stats[0].prefill_ms and record.stats[0].lane is None:
            self._prefill_rate.observe(forwarded * 1e3 / record.stats[0].prefill_ms)

    def text(self) -> bytes:
        """The exposition format that Prometheus scrapes."""
        return generate_latest(self.registry)

    def _counter(self, name: str, doc: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}_{name}", doc, labels, registry=self.registry)

    def _histogram(self, name: str, doc: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"{PREFIX}_{name}", doc, buckets=buckets, registry=self.registry)


class _EngineState(Collector):
    """What is true at the moment of the scrape, read from the engine's snapshot."""

    def __init__(self, engine: Engine, started: float) -> None:
        self._engine = engine
        self._started = started

    def describe(self) -> Iterable[Metric]:
        # Without this the registry would collect once just to learn the names.
        return []

    def collect(self) -> Iterator[Metric]:
        state = self._engine.snapshot()
        yield self._gauge("requests_running", "Requests that are being generated.", state["running"])
        yield self._gauge("requests_waiting", "Requests in the queue.", state["waiting"])
        yield self._gauge("up", "1, and 0 while the server drains.", 0 if self._engine.draining else 1)
        yield self._gauge("engine_start_time_seconds", "When the server started, in Unix time.", self._started)
        yield self._gauge("engine_uptime_seconds", "Seconds since the start.", time.time() - self._started)
        yield self._gauge(
            "process_resident_memory_bytes", "Resident memory of the process.", psutil.Process().memory_info().rss
        )
        yield from self._caches(state["caches"])
        yield from self._memory(state.get("memory") or {})

    @staticmethod
    def _caches(stats: Mapping[str, Mapping[str, float]]) -> Iterator[Metric]:
        """The numbers that every tier reports; what a tier counts besides is in `/health`."""
        for family, kind in ((GaugeMetricFamily, CACHE_GAUGES), (CounterMetricFamily, CACHE_COUNTS)):
            for name, doc in kind:
                metric = family(f"{PREFIX}_cache_{name}", doc, labels=["cache"])
                for cache, numbers in stats.items():
                    if name in numbers:
                        metric.add_metric([cache], numbers[name])
                if metric.samples:
                    yield metric

    @classmethod
    def _memory(cls, told: Mapping[str, Any]) -> Iterator[Metric]:
        """What the memory gate tells; nothing without a model."""
        if not told:
            return
        for names, numbers in ((MEMORY_GAUGES, told), (MEMORY_LIMITS, told["limits"])):
            for name, doc in names:
                yield cls._gauge(f"memory_{name}", doc, numbers[name])
        for name, doc in MEMORY_COUNTS:
            yield CounterMetricFamily(f"{PREFIX}_memory_{name}", doc, told["counts"][name])

    @staticmethod
    def _gauge(name: str, doc: str, value: float) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"{PREFIX}_{name}", doc, value)


class _ConductorState(Collector):
    """What rules did, as the journal counts it."""

    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        counts = self._conductor.journal.counts()
        labels = ["task", "action", "mode", "done"]
        decisions = CounterMetricFamily(f"{PREFIX}_conductor_decisions", "What rules decided.", labels=labels)
        for one, number in counts.decisions.items():
            decisions.add_metric([one.task, one.action, one.mode, str(one.done).lower()], number)
        yield decisions
        for name, doc, label in CONDUCTOR_COUNTS:
            metric = CounterMetricFamily(f"{PREFIX}_conductor_{name}", doc, labels=[label])
            for key, number in getattr(counts, name).items():
                metric.add_metric([key], number)
            yield metric
        closed = SummaryMetricFamily(
            f"{PREFIX}_conductor_closed_reasoning_tokens", "Reasoning tokens when it was closed.", labels=["task"]
        )
        for task, closes in counts.closes.items():
            closed.add_metric([task], count_value=closes, sum_value=counts.closed_tokens[task])
        yield closed
        off = len(self._conductor.supervisor.off)
        yield GaugeMetricFamily(f"{PREFIX}_conductor_rules_off", "Rules that were switched off for their faults.", off)
