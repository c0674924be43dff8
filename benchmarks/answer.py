"""What taking an answer apart costs: microseconds a token for the whole chain of filters.

    python benchmarks/answer.py [--sizes 1000,10000,100000] [--case NAME] [--repeat 3] [--json FILE]

Every case feeds a made-up answer token by token, about four characters each. The last column is the longest answer's
cost over the shortest one's: near 1, the work of a token does not depend on how much was written before it.

* `text`: an answer alone. `reasoning`: three quarters of it are reasoning. `stops`: with four stop strings.
* `stray`: every line begins like a closing tag, some lines are one.
* `qwen_xml`, `hermes_json`: one tool call that writes a file, as each format writes it; `qwen_xml typed` the same where
  the argument is a list, which is held until it is whole; `calls` many short calls.
* `rules`: `text` with the whole answer looked at after every block of four tokens, as a rule does.
* `blanks`, `almost`, `long stop`, `backslashes`: the worst that a model or a client could think of.
"""

from __future__ import annotations

import argparse
import json
import platform as machine
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence as Seq
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tandem.core.answer import Answer
from tandem.core.engine.request import Calls, Thinking
from tandem.core.kernel import Registry
from tandem.core.plugin import AnswerFormat, Tool
from tandem.core.plugin.part import with_defaults

TAGS = ("<think>", "</think>")
SENTENCE = (
    "the of to and in is it for that with as on be at by this have from or had not are but what all were when we there "
    "can an your which their said if do will each about how up out them then she many some so these would other into"
)
WORDS = SENTENCE.split()
FILE = {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}}
LIST = {"type": "object", "properties": {"rows": {"type": "array", "items": {"type": "string"}}}}
BLOCK = 4


class Pieces:
    """A tokenizer of the texts that it has met."""

    eos_ids: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._bytes: list[bytes] = []

    @property
    def vocab_size(self) -> int:
        return len(self._bytes)

    def encode(self, text: str) -> list[int]:
        return [self.id_of(text)]

    def token_bytes(self, token: int) -> bytes:
        return self._bytes[token]

    def id_of(self, piece: str) -> int:
        if piece not in self._ids:
            self._ids[piece] = len(self._bytes)
            self._bytes.append(piece.encode())
        return self._ids[piece]


@dataclass(frozen=True)
class Case:
    """One kind of answer."""

    name: str
    write: Callable[[int], Iterator[str]]
    """The pieces of an answer of about so many tokens."""
    stops: tuple[str, ...] = ()
    thinking: Thinking | None = None
    calls: Calls | None = None
    looked_at: bool = False
    """The whole answer is read after every block."""


# ------------------------------------------------------------------------------------------------------ what is written


def prose(count: int, newline: str = "\n") -> Iterator[str]:
    """Words in lines of about twenty."""
    chance = random.Random(1)
    for number in range(count):
        if number % 20 == 19:
            yield newline
        else:
            yield f" {chance.choice(WORDS)}" + ("," if number % 11 == 10 else "")


def reasoned(count: int) -> Iterator[str]:
    yield from prose(count * 3 // 4)
    yield from ("</", "think", ">", "\n\n")
    yield from prose(count // 4)


def strayed(count: int) -> Iterator[str]:
    starts = ["</", "</thi", "</think>", " </think> and", "</think"]
    for number, piece in enumerate(prose(count * 9 // 10)):
        yield piece
        if piece == "\n":
            yield starts[number % len(starts)]
            if number % 3 == 0:
                yield "\n"


def xml_call(count: int) -> Iterator[str]:
    yield from ("<tool_call>", "\n", "<function=", "write", ">\n", "<parameter=", "path", ">\n", "a.py", "\n")
    yield from ("</parameter>", "\n", "<parameter=", "content", ">\n")
    yield from code(count)
    yield from ("\n", "</parameter>", "\n", "</function>", "\n", "</tool_call>")


def code(count: int) -> Iterator[str]:
    """What a file may hold: quotes, angle brackets, braces."""
    extra = ['"', "<", "{", "}", "</", "p>", "<div>"]
    for number, piece in enumerate(prose(count)):
        yield extra[number // 7 % len(extra)] if number % 7 == 6 else piece


def typed_call(count: int) -> Iterator[str]:
    yield from ("<tool_call>", "\n", "<function=", "rows", ">\n", "<parameter=", "rows", ">\n", "[")
    for number, piece in enumerate(prose(count // 2)):
        yield ('"' if not number else ', "') + piece.strip()
        yield '"'
    yield from ("]", "\n", "</parameter>", "\n", "</function>", "\n", "</tool_call>")


def json_call(count: int) -> Iterator[str]:
    yield from ("<tool_call>", "\n", '{"', "name", '":', ' "', "write", '",', ' "', "arguments", '":', ' {"')
    yield from ("path", '":', ' "', "a.py", '",', ' "', "content", '":', ' "')
    for piece in code(count):
        yield json.dumps(piece)[1:-1]
    yield from ('"}}', "\n", "</tool_call>")


def escaped(count: int) -> Iterator[str]:
    return (piece.replace(" ", "\\\\") for piece in json_call(count))


def many_calls(count: int) -> Iterator[str]:
    for number in range(count // 24 + 1):
        yield from ("<tool_call>", "\n", "<function=", "write", ">\n", "<parameter=", "path", ">\n", f"{number}.py")
        yield from ("\n", "</parameter>", "\n", "<parameter=", "content", ">\n", " one", " two", " three", "\n")
        yield from ("</parameter>", "\n", "</function>", "\n", "</tool_call>", "\n")


def repeated(*pieces: str) -> Callable[[int], Iterator[str]]:
    return lambda count: (pieces[number % len(pieces)] for number in range(count))


# ----------------------------------------------------------------------------------------------------------- measuring


def cases() -> list[Case]:
    qwen, hermes = format_named("qwen_xml"), format_named("hermes_json")
    opened, closed = Thinking(TAGS, opened=True), Thinking(TAGS, opened=False)
    write = Calls(lambda: qwen.parser([Tool("write", "", FILE)]))
    rows = Calls(lambda: qwen.parser([Tool("rows", "", LIST)]))
    in_json = Calls(lambda: hermes.parser([Tool("write", "", FILE)]))
    return [
        Case("text", prose),
        Case("reasoning", reasoned, thinking=opened),
        Case("stops", prose, stops=("\n\nUser:", "</s>", "### Instruction", " END OF ANSWER")),
        Case("stray", strayed, thinking=closed),
        Case("qwen_xml", xml_call, thinking=closed, calls=write),
        Case("qwen_xml typed", typed_call, thinking=closed, calls=rows),
        Case("calls", many_calls, thinking=closed, calls=write),
        Case("hermes_json", json_call, thinking=closed, calls=in_json),
        Case("rules", prose, looked_at=True),
        Case("blanks", repeated(" ", "\n", "\t"), thinking=closed, calls=write),
        Case("almost", repeated("<tool_call>", "</thin", "<"), thinking=closed, calls=write),
        Case("long stop", repeated(*["aaaa"] * 999, "aaac"), stops=("a" * 4000 + "b", "ab" * 2000 + "c")),
        Case("backslashes", escaped, thinking=closed, calls=in_json),
    ]


def format_named(name: str) -> AnswerFormat:
    part = Registry().load("formats", name)
    assert part is not None
    made: AnswerFormat = part.build(with_defaults(part.options, {}))
    return made


def seconds(case: Case, tokenizer: Pieces, tokens: Seq[int]) -> float:
    """The time to take this answer apart."""
    answer = Answer(tokenizer, case.stops, case.thinking, case.calls)
    began = time.perf_counter()
    if case.looked_at:
        for number, token in enumerate(tokens):
            answer.feed(token)
            if number % BLOCK == 0:
                answer.text  # noqa: B018
    else:
        for token in tokens:
            answer.feed(token)
    answer.end()
    return time.perf_counter() - began


@dataclass
class Row:
    """One case's microseconds a token, for each size."""

    case: str
    micros: dict[int, float] = field(default_factory=dict)

    @property
    def growth(self) -> float:
        """The longest answer's cost of a token over the shortest one's."""
        return self.micros[max(self.micros)] / self.micros[min(self.micros)]


def measured(case: Case, sizes: Seq[int], repeat: int) -> Row:
    row = Row(case.name)
    for size in sizes:
        tokenizer = Pieces()
        tokens = [tokenizer.id_of(piece) for piece in case.write(size)]
        best = min(seconds(case, tokenizer, tokens) for _ in range(repeat))
        row.micros[size] = best / len(tokens) * 1e6
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sizes", default="1000,10000,100000", help="tokens of the answers")
    parser.add_argument("--case", help="only the case of this name")
    parser.add_argument("--repeat", type=int, default=3, help="the fastest of so many runs counts")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.sizes.split(",")]
    chosen = [case for case in cases() if arguments.case in (None, case.name)]
    print(f"{'microseconds a token':22}" + "".join(f"{size:>10,}" for size in sizes) + f"{'growth':>9}")
    rows = []
    for case in chosen:
        rows.append(row := measured(case, sizes, arguments.repeat))
        shown = "".join(f"{row.micros[size]:10.2f}" for size in sizes)
        print(f"{row.case:22}{shown}{row.growth:9.2f}", flush=True)
    if arguments.json:
        where = {"python": sys.version.split()[0], "machine": machine.machine(), "processor": machine.processor()}
        told: Any = {"where": where, "rows": [{"case": row.case, "micros": row.micros} for row in rows]}
        arguments.json.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
