"""A model that writes what it is told, for tests, demonstrations and load work. It needs no weights."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tandem.core.plugin import (
    Anchor,
    Block,
    Caps,
    Checkpoint,
    DraftHead,
    DraftTree,
    ImageRows,
    ModelBuilder,
    Options,
    Progress,
    Vision,
    hookimpl,
    option,
)
from tandem.plugins.models.scripted.script import Script, path_bytes, script_for, spoken
from tandem.plugins.models.scripted.tokens import (
    ASSISTANT,
    CLOSE_BYTES,
    IMAGE,
    TEMPLATE,
    TOOL,
    VOCAB,
    ByteTokenizer,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tandem.core.plugin.vision import Picture

TANDEM_API = ">=0.2,<0.3"

MIN_PIXELS, MAX_PIXELS = 65_536, 16_777_216
MAX_LEN = 262_144


@dataclass(slots=True, weakref_slot=True)
class ScriptedSequence:
    """The tokens so far. The answer starts where the first logits were asked for."""

    reply: Script
    max_len: int
    tokens: list[int] = field(default_factory=list)
    pictures: tuple[tuple[int, Picture], ...] = ()
    """The pictures so far, each with the place of its first row."""
    pending: Block | None = None
    answer_at: int | None = None
    script: Script | None = None
    begun: dict[int, tuple[int, Script]] = field(default_factory=dict)
    """Row of the pending block -> the answer that begins behind it, if that row is committed."""

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def nbytes(self) -> int:
        return 8 * len(self.tokens)

    def commit(self, path: Seq[int]) -> None:
        if self.pending is None:
            raise ValueError("commit without a forward pass before it")
        block, self.pending = self.pending, None
        before = -1
        self.pictures += begun(block, len(self.tokens), len(path))
        for row in path:
            parent = row - 1 if block.parents is None else block.parents[row]
            if parent != before:
                raise ValueError(f"row {row} hangs on row {parent}, not on {before}: not a path")
            self.tokens.append(block.tokens[row])
            before = row
            if row in self.begun:
                self.answer_at, self.script = self.begun[row]
        self.begun = {}

    def anchor(self) -> Anchor:
        return Anchor(len(self.tokens), 0)

    def trim(self, length: int, anchor: Anchor | None = None) -> None:
        if not 0 <= length <= len(self.tokens):
            raise ValueError(f"can't trim {len(self.tokens)} rows to {length}")
        del self.tokens[length:]
        self.pictures = self._pictures_before(length)
        self.answer_at = self.script = None

    def snapshot(self, anchor: Anchor | None = None) -> Any:
        if anchor is not None and anchor.length < len(self.tokens):
            return self.tokens[: anchor.length], self._pictures_before(anchor.length), None, None
        return list(self.tokens), self.pictures, self.answer_at, self.script

    def _pictures_before(self, length: int) -> tuple[tuple[int, Picture], ...]:
        return tuple((at, picture) for at, picture in self.pictures if at < length)

    def restore(self, snapshot: Any) -> None:
        tokens, self.pictures, self.answer_at, self.script = snapshot
        self.tokens = list(tokens)
        self.pending = None
        self.begun = {}

    def close(self) -> None:
        self.tokens = []
        self.pending = None

    def path_to(self, block: Block, row: int) -> list[int]:
        """The block's tokens from the last committed one down to `row`."""
        path: list[int] = []
        while row >= 0:
            path.append(block.tokens[row])
            row = row - 1 if block.parents is None else block.parents[row]
        return path[::-1]

    def closed_by(self, path: Seq[int]) -> int | None:
        """Where the answer would have to begin so that it goes on behind its own reasoning, when these tokens close the
        reasoning that the script had not closed yet; None when they don't."""
        assert self.script is not None
        assert self.answer_at is not None
        written = len(self.tokens) - self.answer_at
        ends = self.script.data.find(CLOSE_BYTES)
        if written > ends or path_bytes(path) == self.script.data[written : written + len(path)]:
            return None
        text = path_bytes((*self.tokens[self.answer_at :][-len(CLOSE_BYTES) :], *path))
        if CLOSE_BYTES not in text:
            return None
        rest = self.script.data[ends + len(CLOSE_BYTES) :]
        behind = len(self.script.data) - len(rest.lstrip(b"\n"))
        return len(self.tokens) + len(path) - behind

    def answer_to(self, prompt: Seq[int]) -> tuple[int, Script]:
        """Where the answer to this prompt begins, which is its end, and the script that the prompt holds."""
        seen = self.pictures
        if self.pending is not None:
            seen += begun(self.pending, len(self.tokens), len(prompt) - len(self.tokens))
        return len(prompt), script_for(prompt, self.reply, [picture for _, picture in seen])


def begun(block: Block, start: int, count: int) -> tuple[tuple[int, Picture], ...]:
    """The pictures that begin in the first `count` rows of a block that stands at `start`."""
    return tuple((start + rows.row, rows.picture) for rows in block.images if rows.first == 0 and rows.row < count)


class ScriptDraft:
    """Drafts the rest of the entry that has begun, so that one entry is accepted as one block."""

    def __init__(self, model: ScriptedModel) -> None:
        self._model = model
        self._prompt: int | None = None
        self._script: Script | None = None
        self._written = 0

    def extend(self, tokens: Seq[int]) -> None:
        if self._script is None:
            self._script = script_for(tokens, self._model.reply)
        else:
            self._written += len(tokens)

    def close(self) -> None:
        return

    def propose(self, root: int, limit: int) -> DraftTree | None:
        script = self._script
        if script is None or root != script.token(self._written):
            return None
        if script.known is not None and self._written >= script.known:
            return None
        left, pause = script.entry_at(self._written)
        tree = DraftTree(source="script")
        for offset in range(self._written + 1, self._written + min(left, limit + 1)):
            tree.add(script.token(offset), len(tree) - 1, 1.0)
        if not len(tree) and pause:
            # A lone byte would be shown before the pass that waits; a guess that can't come true holds it back.
            tree.add(TOOL, -1, 0.0)
        return tree if len(tree) else None


class ScriptedModel:
    """Writes the script that a user message holds, or a fixed reply."""

    def __init__(self, options: Options) -> None:
        import torch

        vision = bool(options.get("vision"))
        self.name = "scripted"
        self.caps = Caps(max_len=MAX_LEN)
        self.tokenizer = ByteTokenizer(vision)
        self.vision = _vision() if vision else None
        self.head: DraftHead | None = None
        self.fingerprint: str | None = None
        self.template: str | None = TEMPLATE
        self.template_vars: Mapping[str, Any] = {}
        self.facts: Mapping[str, Any] = _facts(options)
        self.reply = spoken(options["reply"])
        self._tokens_per_s = options["tokens_per_s"]
        self._prefill_per_s = options["prefill_per_s"]
        # Every id gets some logit, so that a mask that forbids the script's token still leaves an order. What ends a
        # value comes first: a document that is masked out of a script comes to an end.
        base = [-10.0 - (id * 37 % 101) / 10 for id in range(256)] + [-40.0] * (self.tokenizer.vocab_size - 256)
        for place, closer in enumerate(b'}]",\n'):
            base[closer] = -5.0 - place
        self._base = torch.tensor(base)

    def snapshot_of(self, tensors: Mapping[str, Tensor]) -> Any:
        raise ValueError("a scripted sequence does not leave the process")

    def new_sequence(self, max_len: int) -> ScriptedSequence:
        return ScriptedSequence(self.reply, max_len)

    def drafter(self) -> ScriptDraft:
        return ScriptDraft(self)

    def forward(self, blocks: Seq[Block]) -> list[torch.Tensor]:
        delays = [0.0]
        rows = [self._rows(block, delays) for block in blocks]
        if max(delays) > 0:
            time.sleep(max(delays))  # blocks of one pass run side by side
        return rows

    def _rows(self, block: Block, delays: list[float]) -> Tensor:
        sequence: ScriptedSequence = block.sequence
        count = len(block.tokens)
        if sequence.pending is not None:
            raise ValueError("a block is still waiting for its commit")
        if sequence.length + count > sequence.max_len:
            raise ValueError(f"{sequence.length} + {count} rows pass the sequence's limit of {sequence.max_len}")
        for rows in block.images:
            self._check_picture(rows, block.tokens)
        sequence.pending = block
        if sequence.answer_at == sequence.length and len(block.logits) < count:
            # Nothing was written yet, and this is read: the prompt goes on behind one that a cache knew.
            sequence.answer_at = sequence.script = None
        if sequence.answer_at is not None and sequence.script is not None:
            first = block.tokens[0]
            offset = sequence.length - sequence.answer_at
            if first == sequence.script.token(offset):
                delays.append(sequence.script.entry_at(offset)[1])
            if self._tokens_per_s:
                delays.append(count / self._tokens_per_s)
        elif self._prefill_per_s:
            delays.append(count / self._prefill_per_s)
        out = self._base.repeat(len(block.logits), 1)
        for index, row in enumerate(block.logits):
            path = sequence.path_to(block, row)
            start, script = sequence.answer_at, sequence.script
            if start is None or script is None:
                start, script = sequence.answer_at, sequence.script = sequence.answer_to([*sequence.tokens, *path])
            elif ASSISTANT in path:  # another turn; or a draft's guess of one, which counts only if it is committed
                start, script = sequence.begun[row] = sequence.answer_to([*sequence.tokens, *path])
            elif (behind := sequence.closed_by(path)) is not None:
                start = behind
                sequence.begun[row] = start, script
            out[index, script.token(sequence.length + len(path) - start)] = 40.0
        return out

    def _check_picture(self, rows: ImageRows, tokens: Seq[int]) -> None:
        """Raises ValueError for rows of a picture that are not there, or whose token is not the placeholder."""
        last = rows.first + rows.count
        if self.vision is None or last > rows.picture.rows:
            raise ValueError(f"rows {rows.first} to {last} are not of a picture that this model reads")
        if set(tokens[rows.row : rows.row + rows.count]) != {self.vision.token}:
            raise ValueError(f"a picture stands at row {rows.row}, where the tokens are not its placeholder")

    def close(self) -> None:
        return


def _vision() -> Vision:
    from tandem.core.plugin.vision import ImageProcessor

    return Vision(ImageProcessor(min_pixels=MIN_PIXELS, max_pixels=MAX_PIXELS), IMAGE)


def _build(checkpoint: Checkpoint | None, options: Options, progress: Progress) -> ScriptedModel:
    return ScriptedModel(options)


def _describe(checkpoint: Checkpoint | None, options: Options) -> Mapping[str, Any]:
    return _facts(options)


def _facts(options: Options) -> Mapping[str, Any]:
    vocabulary = VOCAB + bool(options.get("vision"))
    return {"architecture": "scripted", "vocabulary": vocabulary, "context_length": MAX_LEN}


@hookimpl
def tandem_models() -> list[ModelBuilder]:
    return [
        ModelBuilder(
            name="scripted",
            doc=__doc__ + "\n\n"
            "When the last user message holds a JSON object with the key `script`, exactly that is written: "
            'a list of strings, `{"hex": "f09f"}` for raw bytes, `{"sleep_ms": 50}` for pauses and `{"picture": 0}` '
            "for what the model saw of a picture, each entry accepted as one block, then the end token unless "
            '`"end": false` is given (the last entry is then repeated for ever). A script that holds `</think>` starts '
            "inside the reasoning.\n\nA user message with the key `turns`, a list of scripts, plans the answers that "
            "follow it, tool results and later messages between them. The key `aside` is the script for a request with "
            "the same message that offers no tools, as clients send it for a title.\n\nAnything else is answered with "
            "the option `reply`.",
            build=_build,
            describe=_describe,
            architectures=("scripted",),
            needs_checkpoint=False,
            options={
                "reply": option(
                    "string",
                    "What the model answers when the user message holds no script.",
                    "Hello from the scripted model. Send a JSON object with a script and I will write exactly that.",
                ),
                "tokens_per_s": option(
                    "number", "Decode speed in tokens (bytes) a second; 0 is as fast as it goes.", 0, minimum=0
                ),
                "prefill_per_s": option(
                    "number", "Prefill speed in tokens (bytes) a second; 0 is as fast as it goes.", 0, minimum=0
                ),
                "vision": option("boolean", "Whether the model reads pictures.", False),
            },
        )
    ]
