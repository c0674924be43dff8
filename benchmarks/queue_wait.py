"""What a waiting client is told, over how long it really waits.

    python benchmarks/queue_wait.py [--ledger FILE] [--between 10 60] [--live 60] [--threads 2] [--json FILE]

The estimate is the server's own (`tandem.core.engine.waits`), fed with what the engine would know at that moment. The
real wait is what the simulation, the recorded load or the running server did afterwards. A row tells the 10th
percentile, the median and the 90th percentile of estimate / real wait, over waits in the range `--between` (seconds).

* `made loads`: simulated servers with one, two and four places and a clock of their own. Requests arrive at random and
  queue; those that run beside each other are slower. Somebody looks at 10, 25, 50, 75 and 90 % of each hold, behind
  as many as wait then. Takes some seconds.
* `ledger`: the holds of a recorded load (`server.ledger`), one after the other, and somebody who waits for each place
  at the same moments. The ledger has `max_tokens` only of answers that it ended, so little caps these.
* `live`: a running server with one place and three waiting, who ask every few milliseconds: the scripted model at forty
  times the speed of the made loads, and SmolLM2 (`--live` requests, and a third of them; 0 leaves this out). The range
  is scaled as the table says.
"""

from __future__ import annotations

import argparse
import json
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.core.engine.ledger import LedgerError, read
from tandem.core.engine.request import Event, Failed, Finished, Generate
from tandem.core.engine.waits import Running, Waits
from tandem.testing.box import Box

MOMENTS = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Parts of a hold after which somebody looks."""
REQUESTS = 1000
"""Of each made load."""
PLACES = (1, 2, 4)
BUSY = (0.7, 1.2)
"""How much work arrives, over what the server can do."""
BESIDE = 0.4
"""n requests at once run at n ** -0.4 of the speed of one, each."""
MAX_QUEUE = 8
PER_S = 25.0
"""Tokens/s that one alone writes; it reads 32 times as many."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a load."""

    kind: str
    prompt: int
    answer: int
    max_tokens: int
    prefill_s: float
    """How long it reads and writes when it is alone."""
    decode_s: float


Guess = tuple[float, float, int]
"""Estimate and real wait in seconds, and how many waited before."""


# ----------------------------------------------------------------------------------------------------------- made loads

PARTS: dict[str, list[tuple[float, str, tuple[float, float], tuple[float, float]]]] = {
    # share, kind, prompt and answer: medians in tokens, and sigma of the logarithm
    "chats": [(1.0, "plain", (400, 0.8), (300, 0.6))],
    "mixed": [
        (0.4, "plain", (400, 0.9), (180, 0.8)),
        (0.3, "plain", (700, 1.0), (70, 0.7)),
        (0.3, "thinking", (1500, 1.0), (700, 0.7)),
    ],
    "agents": [(0.5, "thinking", (3000, 1.2), (120, 0.9)), (0.5, "plain", (3000, 1.2), (120, 0.9))],
    "few long ones": [(1.0, "plain", (400, 0.8), (150, 1.3))],
}


def made(name: str, count: int, seed: int = 1) -> list[Ask]:
    """The requests of a load, in the order of their arrival."""
    draw = random.Random(seed)
    asks = []
    for _ in range(count):
        shares = [part[0] for part in PARTS[name]]
        _, kind, prompt, answer = draw.choices(PARTS[name], shares)[0]
        read, wrote = (int(median * draw.lognormvariate(0, sigma)) + 1 for median, sigma in (prompt, answer))
        limit = draw.choices((8192, 512), (0.7, 0.3))[0]
        wrote = min(wrote, limit)
        speeds = [draw.lognormvariate(0, 0.1) for _ in range(2)]
        asks.append(Ask(kind, read, wrote, limit, read / (32 * PER_S * speeds[0]), wrote / (PER_S * speeds[1])))
    return asks


class Hold:
    """A simulated request in a place. Work is counted in seconds that it takes alone."""

    def __init__(self, ask: Ask, now: float) -> None:
        self.ask = ask
        self.began = now
        self.read_at: float | None = None
        self.done = 0.0

    @property
    def left(self) -> float:
        return self.ask.prefill_s + self.ask.decode_s - self.done

    def next_change(self) -> float:
        """Work up to the end of its prompt, or to its own end."""
        return self.left if self.read_at is not None else max(0.0, self.ask.prefill_s - self.done)

    def work(self, amount: float, now: float) -> None:
        self.done += amount
        if self.read_at is None and self.done >= self.ask.prefill_s - 1e-9:
            self.read_at = now

    def live(self, now: float) -> Running:
        """What the engine would know of it."""
        return seen(self.ask, now - self.began, self.done, None if self.read_at is None else self.read_at - self.began)


def seen(ask: Ask, held_s: float, done: float, read_s: float | None) -> Running:
    """A request that has held its place so long, and has done that much work; it took `read_s` to read its prompt."""
    if read_s is None:
        read = int(ask.prompt * done / ask.prefill_s) if ask.prefill_s else 0
        rate = read / held_s if read and held_s else None
        return Running(held_s, ask.kind, ask.prompt - read, 0, ask.max_tokens, rate, None)
    written = int(ask.answer * (done - ask.prefill_s) / ask.decode_s + 1e-6) if ask.decode_s else ask.answer
    writing = held_s - read_s
    return Running(
        held_s,
        ask.kind,
        0,
        written,
        ask.max_tokens,
        ask.prompt / read_s if read_s else None,
        written / writing if written > 1 and writing > 0 else None,
    )


Look = Callable[[float, list[Running], int, Waits], None]


def simulate(
    asks: Sequence[Ask], places: int, busy: float, looks: Iterable[float] = (), look: Look | None = None
) -> list[tuple[float, float]]:
    """Serve the load; `look(now, running, waiting, waits)` is called at the times `looks`, ascending, where all places
    are taken. Returns when each hold began and ended."""
    draw = random.Random(2)
    one = sum(ask.prefill_s + ask.decode_s for ask in asks) / len(asks)
    rate = busy * places ** (1 - BESIDE) / one
    arrivals, at = [], 0.0
    for ask in asks:
        at += draw.expovariate(rate)
        arrivals.append((at, ask))
    arrivals.reverse()
    moments = sorted(looks, reverse=True)
    waits, running, waiting = Waits(), list[Hold](), list[Ask]()
    holds: list[tuple[float, float]] = []
    now = 0.0
    while arrivals or running:
        speed = len(running) ** -BESIDE if running else 1.0
        times = [now + hold.next_change() / speed for hold in running]
        times += [arrivals[-1][0]] if arrivals else []
        times += [moments[-1]] if moments else []
        then = max(now, min(times))
        for hold in running:
            hold.work((then - now) * speed, then)
        now = then
        for hold in [hold for hold in running if hold.left <= 1e-9]:
            running.remove(hold)
            holds.append((hold.began, now))
            read_at, ask = hold.read_at or now, hold.ask
            waits.ended(ask.kind, now - hold.began, ask.prompt, read_at - hold.began, ask.answer, now - read_at)
            if waiting:
                running.append(Hold(waiting.pop(0), now))
        while arrivals and arrivals[-1][0] <= now:
            _, ask = arrivals.pop()
            if len(running) < places:
                running.append(Hold(ask, now))
            elif len(waiting) < MAX_QUEUE:
                waiting.append(ask)
        while moments and moments[-1] <= now:
            moments.pop()
            if look is not None and len(running) == places:
                look(now, [hold.live(now) for hold in running], len(waiting), waits)
    return holds


def guesses(asks: Sequence[Ask], places: int, busy: float) -> list[Guess]:
    """Serve the load twice: once to learn when each hold begins and ends, once to look in between."""
    holds = simulate(asks, places, busy)
    ends = sorted(end for _, end in holds)
    found: list[Guess] = []

    def look(now: float, running: list[Running], waiting: int, waits: Waits) -> None:
        estimate = waits.estimate(running, waiting)
        later = [end for end in ends if end > now + 1e-9]
        if estimate is not None and len(later) > waiting:
            found.append((estimate, later[waiting] - now, waiting))

    simulate(asks, places, busy, (begin + part * (end - begin) for begin, end in holds for part in MOMENTS), look)
    return found


def made_loads(between: tuple[float, float]) -> list[dict[str, Any]]:
    rows = []
    for name in PARTS:
        for places in PLACES:
            found = [guess for busy in BUSY for guess in guesses(made(name, REQUESTS), places, busy)]
            first = [guess for guess in found if not guess[2]]
            rows.append({"load": name, "places": places, "who": "the next one", **spread(first, between)})
            rows.append({"load": "", "places": "", "who": "all who wait", **spread(found, between)})
    return rows


# ------------------------------------------------------------------------------------------------------------- a ledger


def recorded(path: Path) -> list[Ask]:
    """The requests of a ledger that had a place of their own and ended."""
    return [
        Ask(
            "thinking" if row["reasoning_tokens"] else "plain",
            row["forwarded_tokens"],
            row["completion_tokens"],
            row["completion_tokens"] if row["reason"] == "length" else 1 << 30,
            row["prefill_ms"] / 1e3,
            row["decode_ms"] / 1e3,
        )
        for row in read(path)
        if row["reason"] in ("stop", "length", "tool_calls", "abandoned") and row["choices"] == 1 and not row["lane"]
    ]


def replayed(asks: Sequence[Ask]) -> Iterator[Guess]:
    """Somebody waits for each place in turn; what is known is what ended before."""
    waits = Waits()
    for ask in asks:
        held = ask.prefill_s + ask.decode_s
        for part in MOMENTS:
            at = part * held
            one = seen(ask, at, at, ask.prefill_s if at >= ask.prefill_s else None)
            if (estimate := waits.estimate([one], 0)) is not None:
                yield estimate, held - at, 0
        waits.ended(ask.kind, held, ask.prompt, ask.prefill_s, ask.answer, ask.decode_s)


# ----------------------------------------------------------------------------------------------------- a running server

WAITING = 3
SPEED = 40.0
"""How many times faster the scripted model is than the made loads."""
ASKED = ["Write a story about {}.", "What is {}?", "List three facts about {}.", "Tell me one word about {}.",
         "Explain to a child how {} came to be."]  # fmt: skip
ABOUT = ["the sea", "a mountain", "an old house", "winter", "a train", "bread", "the city", "a garden", "the moon",
         "a clock", "rain", "the violin"]  # fmt: skip


def served(box: Box, asks: Sequence[Generate], tick_s: float = 0.01) -> list[Guess]:
    """Ask all of them with one running and `WAITING` behind it; each of those asks again and again."""
    engine = box.engine
    queued: list[tuple[Any, list[tuple[float, float, int]]]] = []
    free = threading.Semaphore(WAITING + 1)

    def sink(events: list[Event]) -> None:
        if isinstance(events[-1], Finished | Failed):
            free.release()

    def look() -> None:
        for job, told in queued:
            if job.started is None and (outlook := engine.outlook(job)) is not None and outlook[1] is not None:
                told.append((time.perf_counter(), outlook[1], outlook[0] - 1))

    left = list(asks)[::-1]
    while left or not engine.idle:
        if left and free.acquire(blocking=False):
            queued.append((engine.submit(left.pop(), sink), []))
        look()
        time.sleep(tick_s)
    return [(estimate, job.started - at, ahead) for job, told in queued for at, estimate, ahead in told]


def scripted(count: int) -> list[Guess]:
    """The load `mixed`, forty times as fast: its waits of 10 to 60 s take a quarter of a second to one and a half."""
    model = {"plugin": "scripted", "tokens_per_s": PER_S * SPEED, "prefill_per_s": 32 * PER_S * SPEED}
    with Box(model=model, server={"parallel": 1, "side_lane": "off", "max_queue": 16}) as box:
        tokenizer = box.platform.model.tokenizer  # type: ignore[union-attr]
        asks = []
        for ask in made("mixed", count, seed=4):
            script = json.dumps({"script": ["word " * (ask.answer // 5 + 1)]})
            prompt = tokenizer.encode("." * max(0, ask.prompt - len(script)) + script)
            asks.append(Generate(prompt, ask.max_tokens, cache=False))
        return served(box, asks)


def smollm2(count: int, threads: int) -> list[Guess]:
    """Questions to the embedded model, greedy, up to 150 tokens each."""
    with Box(
        "default", server={"parallel": 1, "side_lane": "off", "max_queue": 16, "torch_threads": threads, "port": 0}
    ) as box:
        prompts = [ask.format(about) for about in ABOUT for ask in ASKED]
        random.Random(3).shuffle(prompts)
        model = box.platform.model
        assert model is not None
        text = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
        asks = [
            Generate(model.tokenizer.encode(text.format(prompts[place % len(prompts)])), 150, cache=False)
            for place in range(count)
        ]
        return served(box, asks)


# --------------------------------------------------------------------------------------------------------- what is told


def spread(found: Sequence[Guess], between: tuple[float, float]) -> dict[str, Any]:
    low, high = between
    ratios = sorted(estimate / real for estimate, real, _ in found if low <= real < high)
    if len(ratios) < 10:
        return {"waits": len(ratios), "p10": "", "median": "", "p90": ""}
    p10, median, p90 = (round(ratios[int(share * len(ratios))], 2) for share in (0.1, 0.5, 0.9))
    return {"waits": len(ratios), "p10": p10, "median": median, "p90": p90}


def show(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}")
    widths = {name: max(len(name), *(len(str(row[name])) for row in rows)) for name in rows[0]}
    for row in [{name: name for name in rows[0]}, *rows]:
        print("  ".join(f"{row[name]!s:>{width}}" for name, width in widths.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="replay this one alone")
    parser.add_argument("--between", type=float, nargs=2, default=(10.0, 60.0), metavar=("LOW", "HIGH"))
    parser.add_argument(
        "--live", type=int, default=60, help="requests to the scripted model; SmolLM2 gets a third of them"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there as well")
    args = parser.parse_args()
    low, high = args.between
    tables: dict[str, list[dict[str, Any]]] = {}
    if args.ledger is not None:
        try:
            found = list(replayed(recorded(args.ledger)))
        except LedgerError as error:
            parser.error(str(error))
        ranges = [(0.0, low), (low, high), (high, 1e9)]
        tables["ledger"] = [{"seconds": f"{a:g} to {b:g}", **spread(found, (a, b))} for a, b in ranges]
        show("a recorded load", tables["ledger"])
    else:
        tables["made loads"] = made_loads((low, high))
        show(f"made loads, waits of {low:g} to {high:g} s", tables["made loads"])
    if args.live and args.ledger is None:
        rows = []
        for name, scale, run in (
            ("scripted", SPEED, lambda: scripted(args.live)),
            ("SmolLM2", 20.0, lambda: smollm2(max(1, args.live // 3), args.threads)),
        ):
            found = run()
            scaled = low / scale, high / scale
            seconds = f"{scaled[0]:g} to {scaled[1]:g}"
            for who, some in (("the next one", [guess for guess in found if not guess[2]]), ("all who wait", found)):
                rows.append({"model": name, "seconds": seconds, "who": who, **spread(some, scaled)})
        tables["live"] = rows
        show("running servers", rows)
    if args.json:
        args.json.write_text(json.dumps(tables, indent=1) + "\n")


if __name__ == "__main__":
    main()
