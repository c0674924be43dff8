"""The text that the tiny hybrid learns: this Python's own standard library, its documentation, and made-up records.

All of it comes from the running interpreter (PSF licence) or is made here, so the recipe needs no download. Five kinds,
the same as in `benchmarks/speculation.py`: code, prose, JSON, chat, and chat that copies or edits what it was given.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import random
import re
import sysconfig
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

END = "<|endoftext|>"
KINDS = ("code", "prose", "json", "chat", "copy-edit")
SHARES = {"code": 0.38, "prose": 0.17, "json": 0.10, "chat": 0.15, "copy-edit": 0.20}
"""How much of the training text is of each kind, in characters."""
PACKAGES = ("asyncio", "collections", "concurrent", "email", "html", "http", "importlib", "json", "logging")
PACKAGES += ("multiprocessing", "tomllib", "unittest", "urllib", "wsgiref", "xml", "zoneinfo")
"""Packages read besides the top-level modules."""
NAMES = "Ada Alan Barbara Carl Dana Edsger Emmy Frances Grace Hedy Ivan Jean John Kurt Leslie Maria Niklaus Rosa Tim"
TOWNS = "Aachen Bergen Cork Delft Evora Gdansk Hobart Izmir Kyoto Lima Lund Oslo Porto Quito Riga Turku Utrecht Vilnius"
WARES = "apple basket candle drum envelope flute glove hammer kettle lamp mirror needle pencil rope saddle table wheel"
COLOURS = "amber black blue brown green grey orange purple red white yellow"
WORDS = "first item total left right other value current result entry source target number letter branch window"


@dataclass(frozen=True, slots=True)
class Document:
    """One text of one kind."""

    kind: str
    origin: str
    """The module, topic or record that it was made of."""
    text: str

    @property
    def held_out(self) -> bool:
        """Never trained on: about one origin in thirty, with all that was made of it."""
        return crc32(self.origin.encode()) % 30 == 0


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the standard library."""

    module: str
    name: str
    source: str
    doc: str
    arguments: tuple[str, ...]


def documents(seed: int = 0) -> list[Document]:
    """Everything, in a fixed order: the same on every machine with the same Python."""
    chance = random.Random(seed)
    functions = list(_functions())
    return [
        *(Document("code", path.stem, text[:40_000]) for path, text in _sources()),
        *_prose(),
        *_records(chance, 1500),
        *_chats(functions, chance),
    ]


def chat(user: str, answer: str, *, thought: str = "", system: str = "") -> str:
    """A conversation of one question, as the chat template writes it."""
    head = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    thinking = f"<think>\n{thought}\n</think>\n\n" if thought else "<think>\n\n</think>\n\n"
    return f"{head}<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n{thinking}{answer}<|im_end|>\n"


def pick(texts: list[Document], share: Callable[[str], float], characters: int, seed: int) -> Iterator[Document]:
    """Documents in random order, each kind's whole stock before one comes again, by the shares of their kinds."""
    chance = random.Random(seed)
    stock: dict[str, list[Document]] = {kind: [] for kind in KINDS}
    written = dict.fromkeys(KINDS, 0)
    while sum(written.values()) < characters:
        kind = min(KINDS, key=lambda kind: written[kind] / share(kind))
        if not stock[kind]:
            stock[kind] = [text for text in texts if text.kind == kind]
            chance.shuffle(stock[kind])
        document = stock[kind].pop()
        written[kind] += len(document.text)
        yield document


# ----------------------------------------------------------------------------------------------- the standard library


def _sources() -> Iterator[tuple[Path, str]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = [*root.glob("*.py"), *(path for package in PACKAGES for path in (root / package).rglob("*.py"))]
    for path in sorted(paths):
        text = path.read_text(encoding="utf-8", errors="replace")
        if path.name.startswith("_sysconfigdata") or "test" in path.parts or not text.isascii():
            continue
        if len(text) > 200:
            yield path, text


def _functions() -> Iterator[Function]:
    for path, text in _sources():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                source = textwrap.dedent("\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno]))
                if 90 <= len(source) <= 640 and not node.decorator_list:
                    doc = (ast.get_docstring(node) or "").strip()
                    arguments = tuple(argument.arg for argument in node.args.args if len(argument.arg) > 2)
                    yield Function(path.stem, node.name, source, doc, arguments)


def _prose() -> Iterator[Document]:
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    for name, text in sorted(topics.items()):
        yield Document("prose", f"topic {name}", text)
    for path, text in _sources():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                doc = ast.get_docstring(node)
                if doc and len(doc) > 300:
                    yield Document("prose", path.stem, inspect.cleandoc(doc) + "\n")
    licence = Path(sysconfig.get_paths()["stdlib"]) / "LICENSE.txt"
    if licence.is_file():
        yield Document("prose", "licence", licence.read_text(encoding="utf-8"))


# ------------------------------------------------------------------------------------------------------- made-up text


def _record(chance: random.Random, shape: int) -> dict[str, object]:
    def one(words: str) -> str:
        return chance.choice(words.split())

    if shape == 0:
        return {"name": one(NAMES), "year": chance.randrange(1800, 2000), "town": one(TOWNS)}
    if shape == 1:
        item, colour, count = one(WARES), one(COLOURS), chance.randrange(1, 40)
        return {"item": item, "colour": colour, "count": count, "sold": chance.random() < 0.5}
    if shape == 2:
        lines = [{"item": one(WARES), "count": chance.randrange(1, 9)} for _ in range(chance.randrange(1, 4))]
        number = chance.randrange(100, 999)
        return {"order": number, "customer": {"name": one(NAMES), "town": one(TOWNS)}, "lines": lines}
    tags = [one(COLOURS) for _ in range(chance.randrange(1, 4))]
    return {"id": chance.randrange(1, 99), "tags": tags, "owner": one(NAMES)}


def _records(chance: random.Random, count: int) -> Iterator[Document]:
    for number in range(count):
        shape = chance.randrange(4)
        records = [_record(chance, shape) for _ in range(chance.randrange(3, 9))]
        if number % 3 == 0:
            text = json.dumps(records, indent=2)
        else:
            text = "\n".join(json.dumps(record) for record in records)
        yield Document("json", f"records {number}", text + "\n")


def _chats(functions: list[Function], chance: random.Random) -> Iterator[Document]:
    for place, function in enumerate(functions):
        fence = f"```python\n{function.source}\n```"
        repeat = chance.choice(("Repeat this code:", "Copy this code as it is:", "Print this function again:"))
        yield Document("copy-edit", function.module, chat(f"{repeat}\n\n{fence}", fence))
        if function.arguments:
            old, new = chance.choice(function.arguments), chance.choice(WORDS.split())
            changed = re.sub(rf"\b{re.escape(old)}\b", new, fence)
            wish = f"Rename `{old}` to `{new}` in this code:\n\n{fence}"
            yield Document("copy-edit", function.module, chat(wish, changed))
        if len(function.doc) > 60:
            head = function.source.splitlines()[0]
            thought = f"The function `{function.name}` is in the module `{function.module}`."
            yield Document(
                "chat",
                function.module,
                chat(f"What does `{function.name}` do?\n\n{head}", function.doc, thought=thought if place % 2 else ""),
            )
    for number in range(1500):
        shape = chance.randrange(4)
        record = _record(chance, shape)
        facts = ", ".join(f"{key} {json.dumps(value)}" for key, value in record.items())
        spaced = json.dumps(record, indent=2 if number % 2 else None)
        system = "You answer in JSON." if number % 3 == 0 else ""
        thought = f"The keys are {', '.join(record)}." if number % 5 == 0 else ""
        yield Document(
            "chat",
            f"record {number}",
            chat(f"Write this as JSON: {facts}", f"```json\n{spaced}\n```", system=system, thought=thought),
        )
