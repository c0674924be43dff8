"""A model without weights: it answers with the user's last message, one byte a token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tandem.core.plugin import (
    Anchor,
    Block,
    Caps,
    Checkpoint,
    ModelBuilder,
    Options,
    Progress,
    Tokenizer,
    hookimpl,
    option,
)

if TYPE_CHECKING:
    import torch

TANDEM_API = ">=0.2,<0.3"

# Ids 0 to 255 are the bytes. The marks stand around the messages.
MARKS = {"<|end|>": 256, "<|user|>": 257, "<|other|>": 258, "<|reply|>": 259}
END, USER, REPLY = MARKS["<|end|>"], MARKS["<|user|>"], MARKS["<|reply|>"]

TEMPLATE = """\
{%- for message in messages -%}
{{ '<|user|>' if message.role == 'user' else '<|other|>' }}
{%- if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content or [] -%}{{ part.text }}{%- endfor -%}
{%- endif -%}
{%- endfor -%}
<|reply|>"""


class Bytes:
    """The tokenizer: a token is a byte, or a mark that writes nothing."""

    vocab_size = 256 + len(MARKS)
    eos_ids = frozenset({END})

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        while text:
            mark = min((m for m in MARKS if m in text), key=text.index, default="")
            head, _, text = text.partition(mark) if mark else (text, "", "")
            ids += head.encode()
            ids += [MARKS[mark]] if mark else []
        return ids

    def token_bytes(self, token: int) -> bytes:
        if not 0 <= token < self.vocab_size:
            raise IndexError(f"no token {token} among {self.vocab_size}")
        return bytes([token]) if token < 256 else b""


class Tokens:
    """The state of one sequence is its tokens: those committed, and the last block's."""

    def __init__(self) -> None:
        self.committed: list[int] = []
        self.pending: list[int] = []

    @property
    def length(self) -> int:
        return len(self.committed)

    @property
    def nbytes(self) -> int:
        return 8 * len(self.committed)

    def commit(self, path: Sequence[int]) -> None:
        self.committed += [self.pending[row] for row in path]
        self.pending = []

    def anchor(self) -> Anchor:
        return Anchor(len(self.committed), 0)

    def trim(self, length: int, anchor: Anchor | None = None) -> None:
        if length > len(self.committed):
            raise ValueError(f"can't trim {len(self.committed)} rows to {length}")
        del self.committed[length:]

    def snapshot(self, anchor: Anchor | None = None) -> tuple[int, ...]:
        return tuple(self.committed[: None if anchor is None else anchor.length])

    def restore(self, snapshot: tuple[int, ...]) -> None:
        self.committed = list(snapshot)

    def close(self) -> None:
        self.committed, self.pending = [], []


class Model:
    """Says the last user message again."""

    name = "parrot"
    caps = Caps(max_len=65536)
    template: str | None = TEMPLATE
    template_vars: Mapping[str, Any] = {}
    facts: Mapping[str, Any] = {"parameters": 0}
    vision = None
    head = None
    fingerprint = None

    def __init__(self, shout: bool) -> None:
        self.tokenizer: Tokenizer = Bytes()
        self.shout = shout

    def new_sequence(self, max_len: int) -> Tokens:
        return Tokens()

    def forward(self, blocks: Sequence[Block]) -> list[torch.Tensor]:
        """Logits `[len(block.logits), vocab]` of each block: 30 nats for the one next token, 0 for the others."""
        import torch

        answers = []
        for block in blocks:
            block.sequence.pending = list(block.tokens)
            logits = torch.zeros(len(block.logits), self.tokenizer.vocab_size)
            for place, row in enumerate(block.logits):
                logits[place, self.next_token(block.sequence.committed + path_to(row, block))] = 30.0
            answers.append(logits)
        return answers

    def next_token(self, text: list[int]) -> int:
        """The byte of the last user message at the place where the reply is now; the end after its last one."""
        if REPLY not in text:
            return END
        reply = last(text, REPLY)
        user = last(text[:reply], USER)
        message = text[user + 1 : reply] if user >= 0 else []
        message = message[: next((i for i, token in enumerate(message) if token > 255), len(message))]
        said = len(text) - reply - 1
        if said >= len(message):
            return END
        byte = message[said]
        return byte - 32 if self.shout and 97 <= byte <= 122 else byte

    def drafter(self) -> None:
        return None

    def close(self) -> None:
        pass


def path_to(row: int, block: Block) -> list[int]:
    """The tokens of a row's ancestors in the block and its own, in the order of the text."""
    path = []
    while row >= 0:
        path.append(block.tokens[row])
        row = block.parents[row] if block.parents is not None else row - 1
    return path[::-1]


def last(tokens: list[int], token: int) -> int:
    """The index of the last `token`; -1 without one."""
    return next((i for i in range(len(tokens) - 1, -1, -1) if tokens[i] == token), -1)


def build(checkpoint: Checkpoint | None, options: Options, progress: Progress) -> Model:
    return Model(options["shout"])


@hookimpl
def tandem_models() -> list[ModelBuilder]:
    return [
        ModelBuilder(
            name="parrot",
            doc="Answers with what the user said last.",
            options={"shout": option("boolean", "Answer in capitals.", False)},
            needs_checkpoint=False,
            build=build,
        )
    ]
