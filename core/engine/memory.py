"""The memory gate: a request is opened when what it will hold fits, and caches give way for it.

    need    = state + 2 x bytes a row x (prompt + share of the answer - rows that a tier gives away)
              + rows of pictures + the copy that other choices go on from + workspace
    room    = min(peak - held, available - floor) + reusable
    opened  = need + what the running ones will still take <= room
    refused = need > what there would be with every cache empty and nobody running

All of it is the gate's own estimate, made of the numbers that the model tells about itself and of what the machine
says at the moment. Nothing is reserved: a running request's part is what its estimate says less what its sequence
holds by now.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, Self

from tandem.core.engine.caches import CacheStack
from tandem.core.engine.generation import Generation, prompt_keys
from tandem.core.engine.meter import Meter, Reading, device_of
from tandem.core.engine.request import Generate
from tandem.core.engine.sizes import Need, Sizes
from tandem.core.kernel import StartError
from tandem.core.kernel.memory import in_gib, total_bytes
from tandem.core.plugin import Model

log = logging.getLogger("tandem.memory")

GIB = 2**30
EVENTS = 64
"""Events that are kept."""
FRESH_S = 0.1
"""How long a reading counts while nothing runs."""
RECHECK_S = 1.0
"""How often a request that waits is looked at again while no other one ends."""
FORGET_S = 60.0
"""One that was not asked about for so long has left the queue."""

TRUST = 2
"""A tier may free this many times less than it says: what it counts are buffers, of which up to half may never have
been touched. One that frees still less counts what is not its own."""


class Gauge(Protocol):
    """What the gate measures with: `tandem.core.engine.meter.Meter`, or a test's own."""

    def read(self) -> Reading: ...

    def release(self) -> None: ...

    def collect(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a request may be opened now. One that may not waits, unless it is refused with these words."""

    opens: bool
    refusal: str | None = None


OPENS, WAITS = Verdict(True), Verdict(False)


@dataclass(frozen=True, slots=True)
class Limits:
    """The three limits, in bytes."""

    ceiling: int
    """What the engine may hold between requests; caches give way above it."""
    peak: int
    """What it may hold while a prompt is read."""
    floor: int
    """What must stay free of the machine's memory (or the GPU's)."""
    parallel_floor: int = 0
    """The same for a request that starts beside others."""

    def floor_beside(self, running: int) -> int:
        """What a request has to leave free that starts beside so many others."""
        return max(self.floor, self.parallel_floor) if running else self.floor

    @classmethod
    def of(cls, options: Mapping[str, Any], now: Reading, total: int | None, longest: int) -> Self:
        """As the options say. `now` is read with the model loaded, `longest` is the need of the longest prompt.

        `auto`: the floor is a sixteenth of the machine, at most 8 GiB and a quarter of what is available now; the peak
        is all but the floor; the ceiling leaves the longest prompt its room below the peak, at most half of what there
        is; the parallel floor is twice the floor. Raises StartError for limits under which nothing can be served.
        """
        floor, peak, ceiling = (_bytes(options[f"mem_{name}_gib"]) for name in ("floor", "peak", "ceiling"))
        if floor is None:
            floor = min((total or now.available) // 16, 8 * GIB, now.available // 4)
        if peak is None:
            peak = max(now.held + max(0, now.available - floor), ceiling or 0)
        elif peak <= now.held:
            raise StartError(
                f"server.mem_peak_gib is {options['mem_peak_gib']:g}, but with the model loaded {in_gib(now.held)} are "
                "held already; give it more, or load the weights in fewer bits"
            )
        if ceiling is None:
            ceiling = max(now.held, peak - min(longest, (peak - now.held) // 2))
        elif ceiling > peak:
            raise StartError(
                f"server.mem_ceiling_gib is {options['mem_ceiling_gib']:g}, more than server.mem_peak_gib, which is "
                f"{options['mem_peak_gib']:g}; the ceiling is the lower one of the two"
            )
        parallel = _bytes(options["parallel_floor_gib"])
        return cls(ceiling, peak, floor, 2 * floor if parallel is None else parallel)


@dataclass(slots=True)
class Shed:
    """What a tier gave back for one request, in bytes."""

    said: int = 0
    freed: int = 0
    """As the meter saw it."""


@dataclass(frozen=True, slots=True)
class Event:
    """One request that the gate had to do something for. Times in seconds, sizes in bytes."""

    at: float
    """Unix time."""
    outcome: str
    """`opened`, `waits` or `refused`."""
    limit: str
    """The one that was short: `peak`, `floor`, or `ceiling` where the request fits but caches are over it."""
    why: str
    """The same in words; for one that was refused, what its client was told."""
    prompt_tokens: int
    need_bytes: int
    others_bytes: int
    """What the running requests will still take."""
    room_bytes: int
    """What could be had in the end."""
    running: int
    waited_s: float
    shed: dict[str, Shed]


@dataclass(slots=True)
class Counts:
    """Since the start."""

    opened: int = 0
    tight: int = 0
    """Times that the gate had to look closer."""
    sheds: int = 0
    """Times that a tier was asked to give way and did."""
    shed_bytes: int = 0
    waits: int = 0
    waited_s: float = 0.0
    refused: int = 0


@dataclass(slots=True)
class _Waiting:
    """One in the queue, for which there was no room."""

    request: Generate
    since: float
    running: int
    looked_at: float


@dataclass(slots=True)
class _Case:
    """One closer look."""

    request: Generate
    begun: Generation | None
    cached: bool
    running: Seq[Generation]
    others: int
    need: Need
    reading: Reading
    limit: str
    shed: dict[str, Shed] = field(default_factory=dict)


class MemoryGate:
    """Asked before a generation is opened. All calls but `report` come from the engine's thread."""

    def __init__(
        self,
        limits: Limits,
        sizes: Sizes,
        meter: Gauge,
        caches: CacheStack,
        clock: Callable[[], float] = time.monotonic,
        loaded: int = 0,
    ) -> None:
        """`loaded` is what the process holds before any cache holds something."""
        self.limits = limits
        self.sizes = sizes
        self._meter = meter
        self._caches = caches
        self._clock = clock
        self._least = loaded
        """The least that was ever held: what it comes to when caches and sequences are gone."""
        self._last: tuple[float, Reading] | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._lock = threading.Lock()  # over what `report` tells
        self._counts = Counts()
        self._why_waits = ""
        self._events: deque[Event] = deque(maxlen=EVENTS)

    @classmethod
    def for_model(cls, model: Model, options: Mapping[str, Any], caches: CacheStack, max_len: int) -> Self:
        """The gate of a loaded model, while `caches` hold nothing yet. Raises StartError for limits under which nothing
        can be served."""
        device = device_of(model.facts)
        meter = Meter(device)
        meter.release()  # what loading left behind is not the engine's
        sizes = Sizes.of(model.facts, options["prefill_chunk"], model.tokenizer.vocab_size)
        now = meter.read()
        limits = Limits.of(options, now, total_bytes(device), sizes.need(max_len, 0).total)
        told = (in_gib(size) for size in (limits.ceiling, limits.peak, limits.floor))
        log.info("memory limits: ceiling %s, peak %s, floor %s", *told)
        return cls(limits, sizes, meter, caches, loaded=now.held - now.reusable)

    # ---------------------------------------------------------------------------------------------- the question

    def admit(
        self, request: Generate, running: Seq[Generation], *, begun: Generation | None = None, cached: bool = True
    ) -> Verdict:
        """Whether `request` may be opened beside the `running` ones, after caches have given way for it.

        It waits only while others run, and only for what could fit; what never would is refused at once, and no cache
        is emptied for it. Ask as often as you like; a request that waits is looked at when another one has ended, and
        once a second. `begun`: it gave its place up and wants to go on; what it holds is its own, so it is never
        refused. `cached`: it may take over what a cache tier keeps.
        """
        now = self._clock()
        known = self._waiting.get(id(request))
        if known and len(running) >= known.running and now - known.looked_at < RECHECK_S:
            return WAITS
        need = self.sizes.left(begun) if begun else self.sizes.of_request(request)
        others = self.sizes.beside(need, running)
        # Running sequences grow, and what they hold is counted now: an older reading would miss what they took since.
        reading = self._fresh() if running else self._recent(now)
        if self._over(reading, running) <= 0 and need.total + others <= self._room(reading, running) and known is None:
            return self._open(request, now)
        cached = cached and request.cache and (request.shared is None or request.shared.state is None)
        case = _Case(request, begun, cached, running, others, need, reading, "ceiling")
        if self._short(case) > 0:
            case.limit = "peak" if self._is_peak(reading, len(running)) else "floor"
            if self._never_fits(case):
                return self._refuse(case, now - known.since if known else 0.0, self._most(case.reading), now)
        if self._missing(case) > 0:
            self._make_room(case, thorough=known is None or not running)
        return self._decide(case, known, now)

    def _decide(self, case: _Case, known: _Waiting | None, now: float) -> Verdict:
        waited = now - known.since if known else 0.0
        fits = self._short(case) <= 0
        if fits or (case.begun and not case.running):
            if case.shed or known:
                self._note("opened", case, waited)
            return self._open(case.request, now)
        if case.running:
            if known is None:
                self._note("waits", case, 0.0)
            since = known.since if known else now
            self._why_waits = self._wanting(case)
            self._waiting[id(case.request)] = _Waiting(case.request, since, len(case.running), now)
            return WAITS
        return self._refuse(case, waited, self._room(case.reading, case.running), now)

    def _refuse(self, case: _Case, waited: float, room: int, now: float) -> Verdict:
        words = self._refusal(case, room)
        self._note("refused", case, waited, words)
        self._settle(case.request, now)
        return Verdict(False, words)

    def _open(self, request: Generate, now: float) -> Verdict:
        self._counts.opened += 1
        if self._waiting:
            self._settle(request, now)
        return OPENS

    def _settle(self, request: Generate, now: float) -> None:
        """The request waits no longer, and neither do those that nobody asked about again."""
        if known := self._waiting.pop(id(request), None):
            self._counts.waited_s += now - known.since
        self._waiting = {key: one for key, one in self._waiting.items() if now - one.looked_at < FORGET_S}

    # --------------------------------------------------------------------------------------------- making room

    def _make_room(self, case: _Case, thorough: bool) -> None:
        """Free blocks first, then cache bytes, cheapest tier first, then what only the collector finds.

        Each tier is asked for what is missing until nothing is; one that frees less than it was asked for, or than it
        says, is not asked again.
        """
        self._counts.tight += 1
        self._meter.release()
        self._look(case)
        for tier in self._caches.shedding():
            while (missing := self._missing(case)) > 0:
                said, freed = self._shed(case, tier, missing)
                if said < missing or freed * TRUST < said:
                    break
        if thorough and self._short(case) > 0:
            self._meter.collect()
            self._look(case)

    def _shed(self, case: _Case, tier: str, missing: int) -> tuple[int, int]:
        """Ask one tier; what it says that it freed, and what the meter saw of it."""
        before = case.reading.held - case.reading.reusable
        said = self._caches.shed(tier, missing)
        if said <= 0:
            return 0, 0
        self._meter.release()
        self._look(case)
        freed = max(0, before - (case.reading.held - case.reading.reusable))
        entry = case.shed.setdefault(tier, Shed())
        entry.said += said
        entry.freed += freed
        self._counts.sheds += 1
        self._counts.shed_bytes += freed
        return said, freed

    def _look(self, case: _Case) -> None:
        """Read the memory, and what a tier could give away of the prompt: both change with what is shed."""
        case.reading = self._fresh()
        if case.begun is not None or not case.cached:
            return
        request = case.request
        case.need = self.sizes.of_request(request)
        if self._short(case) > 0:
            case.need = self.sizes.of_request(request, self._caches.kept(prompt_keys(request)))

    def _missing(self, case: _Case) -> int:
        """Bytes that caches should give back; at most 0 when there is room."""
        return max(self._over(case.reading, case.running), self._short(case))

    def _short(self, case: _Case) -> int:
        """Bytes that are wanted for the request to be opened."""
        return case.need.total + case.others - self._room(case.reading, case.running)

    def _never_fits(self, case: _Case) -> bool:
        """Whether the request would not fit if every cache were empty and nobody ran.

        A conversation that a tier gives away may take less than one that is read anew: it is not a doubled buffer.
        """
        most = self._most(case.reading)
        if case.begun is not None or case.need.total <= most:
            return False
        given = self._caches.kept(prompt_keys(case.request)) if case.cached else 0
        if given == 0:
            return True
        held = self.sizes.per_sequence + self.sizes.per_row * given
        return self.sizes.of_request(case.request, given).total + held > most

    def _most(self, reading: Reading) -> int:
        """The most that could ever be had while other programs hold what they hold now."""
        given_back = max(0, reading.held - self._least)
        return min(self.limits.peak - self._least, reading.available + given_back - self.limits.floor)

    def _is_peak(self, reading: Reading, running: int = 0) -> bool:
        """Which of the two limits leaves less beside so many running requests."""
        return self.limits.peak - reading.held <= reading.available - self.limits.floor_beside(running)

    def _over(self, reading: Reading, running: Seq[Generation]) -> int:
        """Bytes over the ceiling, the running sequences not counted."""
        over = reading.held - self.limits.ceiling
        return over - sum(one.sequence.nbytes for one in running) if over > 0 else over

    def _room(self, reading: Reading, running: Seq[Generation]) -> int:
        """Bytes that can be had beside the running ones."""
        limits = self.limits
        free = reading.available - limits.floor_beside(len(running))
        return min(limits.peak - reading.held, free) + reading.reusable

    def _recent(self, now: float) -> Reading:
        if self._last is not None and now - self._last[0] < FRESH_S:
            return self._last[1]
        return self._fresh()

    def _fresh(self) -> Reading:
        reading = self._meter.read()
        self._last = self._clock(), reading
        self._least = min(self._least, reading.held - reading.reusable)
        return reading

    # ------------------------------------------------------------------------------------------------- telling

    @property
    def why_waits(self) -> str:
        """What the last one lacked that had to wait, for `/health`. Safe from any thread."""
        return self._why_waits

    def _wanting(self, case: _Case) -> str:
        """What a request that waits needs, and which limit keeps it back."""
        room = in_gib(max(0, self._room(case.reading, case.running)))
        return f"the next one needs {in_gib(case.need.total)} of memory, and {room} can be had {self._limit(case)}"

    def _refusal(self, case: _Case, room: int) -> str:
        limit = self._limit(case)
        advice = (
            "send less at once, or have that limit raised"
            if limit.startswith("below")
            else "try again when other programs have given memory back, or send less at once"
        )
        had = in_gib(max(0, room))
        return f"the request needs {in_gib(case.need.total)} of memory, and {had} can be had {limit}; {advice}"

    def _limit(self, case: _Case) -> str:
        """The limit that leaves the least room, in words."""
        limits, running = self.limits, len(case.running)
        if self._is_peak(case.reading, running):
            return f"below server.mem_peak_gib ({in_gib(limits.peak)})"
        floor = limits.floor_beside(running)
        return f"while {in_gib(floor)} stay free (server.{self._floor_name(running)})"

    def _floor_name(self, running: int) -> str:
        """Which of the two floors counts beside so many running requests."""
        return "mem_floor_gib" if self.limits.floor_beside(running) == self.limits.floor else "parallel_floor_gib"

    def _why(self, case: _Case) -> str:
        """What the gate had to do something for."""
        if case.limit == "ceiling":
            return f"more is held than server.mem_ceiling_gib ({in_gib(self.limits.ceiling)}) between requests"
        running = len(case.running)
        if case.limit == "peak":
            limit = f"server.mem_peak_gib ({in_gib(self.limits.peak)})"
        else:
            limit = f"server.{self._floor_name(running)} ({in_gib(self.limits.floor_beside(running))})"
        beside = f", and the {running} running will take {in_gib(case.others)} more" if running else ""
        return f"{in_gib(case.need.total)} are needed, which is more than {limit} leaves{beside}"

    def _note(self, outcome: str, case: _Case, waited: float, why: str | None = None) -> None:
        room = max(0, self._room(case.reading, case.running))
        event = Event(
            at=time.time(),
            outcome=outcome,
            limit=case.limit,
            why=why or self._why(case),
            prompt_tokens=len(case.request.prompt),
            need_bytes=case.need.total,
            others_bytes=case.others,
            room_bytes=room,
            running=len(case.running),
            waited_s=waited,
            shed=case.shed,
        )
        with self._lock:
            self._events.append(event)
            self._counts.waits += outcome == "waits"
            self._counts.refused += outcome == "refused"
        gave = ", ".join(f"{tier} gave back {in_gib(shed.freed)}" for tier, shed in case.shed.items()) or "nothing shed"
        log.log(
            logging.ERROR if outcome == "refused" else logging.INFO,
            "memory: a request that needs %s %s; %s can be had, %s are held; %s",
            in_gib(case.need.total),
            {"waits": "waits for the others", "refused": "is refused"}.get(outcome, "is opened"),
            in_gib(room),
            in_gib(case.reading.held),
            gave,
        )

    def report(self) -> dict[str, Any]:
        """For `/health` and `/metrics`. Safe from any thread."""
        reading = self._meter.read()
        with self._lock:
            events, counts = list(self._events), asdict(self._counts)
        return {
            **{f"{name}_bytes": size for name, size in asdict(reading).items()},
            "limits": {f"{name}_bytes": size for name, size in asdict(self.limits).items()},
            "counts": counts,
            "events": [asdict(event) for event in events],
        }


def _bytes(option: float | str) -> int | None:
    """An option in GiB; None = `auto`."""
    return None if isinstance(option, str) else int(option * GIB)
