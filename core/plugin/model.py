"""The model contract: rows of tokens in, rows of logits out, and a sequence that keeps what was committed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from tandem.core.plugin.part import Options, Part

if TYPE_CHECKING:
    import torch

    from tandem.core.plugin.cache import Store
    from tandem.core.plugin.drafter import DraftSession
    from tandem.core.plugin.quantization import Quantization
    from tandem.core.plugin.vision import ImageProcessor, Picture


@dataclass(frozen=True, slots=True)
class Caps:
    """What a model can do. The engine asks these, never the model's name."""

    max_len: int
    """The longest sequence, in rows."""
    trim: bool = True
    """`Sequence.trim` works at any length (a recurrent state can't be cut back)."""
    tree: bool = True
    """Blocks may branch. Without it the engine verifies chains only."""
    joint: bool = True
    """One `forward` takes blocks of several sequences."""
    anchor_grid: int = 1
    """A snapshot is useful at multiples of this many rows only; 1 = anywhere."""
    resume_rows: int = 1
    """A prompt that goes on from a snapshot reads at least this many rows anew. A pass of few rows may take another way
    through the arithmetic, and round otherwise, than the pass that would have read the whole prompt."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """What brings a sequence back to an earlier length where the rows alone can't: the recurrent state there.

    It is of use to the sequence it was taken from, as long as that keeps the rows below `length`, and to no other.
    """

    length: int
    nbytes: int
    """Bytes that it holds; 0 for a model whose sequences can be cut anywhere."""
    state: Any = None
    """The model's own."""


class Snapshot(Protocol):
    """A copy of a sequence's committed state that can leave the process."""

    @property
    def length(self) -> int:
        """Its rows."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        ...

    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Everything in it, by name: what `Model.snapshot_of` makes the same snapshot of."""
        ...


class Sequence(Protocol):
    """The state of one token sequence: what has been committed, plus the rows of the last block until `commit`."""

    @property
    def length(self) -> int:
        """Committed rows."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes this sequence holds, its spare room included."""
        ...

    def commit(self, path: Seq[int]) -> None:
        """Keep the rows `path` of the last block, in that order, and drop its other rows.

        `path` holds row indices, each row's parent just before it, the first one's parent -1. An empty path drops
        the whole block. Must be called once after each `forward`, before the next.
        """
        ...

    def anchor(self) -> Anchor:
        """What `trim` and `snapshot` need to come back to this length. Cheap beside a snapshot: no rows are copied."""
        ...

    def trim(self, length: int, anchor: Anchor | None = None) -> None:
        """Drop the rows from `length` on.

        Where `caps.trim`, any length will do. Elsewhere it needs the anchor that was taken at exactly this length.
        Raises ValueError, changing nothing, for a length that is too large or has no anchor.
        """
        ...

    def snapshot(self, anchor: Anchor | None = None) -> Any:
        """A copy of the committed state, independent of what happens to the sequence later.

        With an anchor it is the state at the anchor's length. A model with a `fingerprint` gives a `Snapshot`.
        """
        ...

    def restore(self, snapshot: Any) -> None:
        """Make this sequence's state the snapshot's. The snapshot stays usable."""
        ...

    def close(self) -> None:
        """Free what the sequence holds. Safe to call twice."""
        ...


@dataclass(frozen=True, slots=True)
class ImageRows:
    """Rows of a block that show a picture, or a part of one: a picture may be cut between two prefill chunks."""

    picture: Picture
    row: int
    """The first of these rows, in the block."""
    first: int
    """Which of the picture's rows that is."""
    count: int


@dataclass(slots=True)
class Block:
    """New rows of one sequence: a prefill chunk, one decode step, a chain of drafts or a tree are all this."""

    sequence: Any
    """The `Sequence` (made by the same model) that the rows extend."""
    tokens: Seq[int]
    """Token ids, `[n]`."""
    parents: Seq[int] | None = None
    """Row index of each row's parent, `[n]`, -1 = the last committed row. Parents come before their children.
    None = a chain: row i hangs on row i - 1."""
    logits: Seq[int] = ()
    """The rows whose logits are wanted, ascending."""
    images: Seq[ImageRows] = ()
    """The rows that show pictures, ascending; only in a chain. Their tokens are the model's placeholder, and what the
    rows are and where they stand (`Model.vision`) is the model's affair."""


class Tokenizer(Protocol):
    """Text to ids and ids to bytes."""

    @property
    def vocab_size(self) -> int:
        """Rows of the logits; every id is below it."""
        ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """The ids that end a generation."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of `text`. Special tokens written in the text become their ids; none is added."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes that the token writes. Control tokens write none; unknown ids raise IndexError."""
        ...


@dataclass(frozen=True, slots=True)
class Vision:
    """How a model reads pictures."""

    processor: ImageProcessor
    """Resizes pictures and lays them out as the tower reads them."""
    token: int
    """The placeholder's id. The chat template writes it once for each picture; in the prompt it stands once for each
    of the picture's rows."""
    store: Store | None = None
    """The rows that the tower keeps, by the pictures' content: listed, emptied, checked and asked to give way with the
    cache tiers. None = it keeps none."""


class DraftHead(Protocol):
    """A model's own multi-token prediction: guesses what follows a token before the model has read it.

    What the head keeps of committed text is part of the `Sequence`, snapshots included; it catches up by itself.
    """

    def start(self, sequence: Sequence) -> None:
        """Begin a new tree behind the committed rows; the rows of the tree before are dropped."""
        ...

    def extend(self, sequence: Sequence, tokens: Seq[int], parents: Seq[int]) -> torch.Tensor:
        """Read more rows of the tree; the logits `[n, vocab_size]` float32 of what follows each.

        `parents` counts all rows since `start`, those of this call included; -1 = the last committed row. So a tree
        begins with `extend(sequence, [root], [-1])`.
        """
        ...


class Model(Protocol):
    """A loaded model."""

    @property
    def name(self) -> str:
        """What the checkpoint calls itself, for people."""
        ...

    @property
    def caps(self) -> Caps: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def template(self) -> str | None:
        """The Jinja source of the chat template; None = the model has no chat format."""
        ...

    @property
    def template_vars(self) -> Mapping[str, Any]:
        """Names that the template may read besides the messages, such as `bos_token`."""
        ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """What there is to say about the loaded weights: parameters, bytes, dtype. Shown in `/v1/models` and logs.

        The memory gate reads these, in bytes; what is not told counts by rule or not at all:

        - held by each sequence: `kv_bytes_per_token`, `mtp_kv_bytes_per_token`, `state_bytes`, `conv_bytes`;
        - taken by a pass while it runs: `workspace_bytes_per_row` (for each of its rows), `workspace_bytes_per_token`
          (for each token of the text that they look back to) and `workspace_bytes` (in any case, the logits of a
          verified tree included). A model that tells the first is taken to tell all three;
        - pictures: `image_bytes_per_row` (kept by the tower), `image_kept_bytes` (the most that it keeps) and
          `image_workspace_bytes_per_row` (taken while it reads a picture, for each of the picture's rows).
        """
        ...

    @property
    def vision(self) -> Vision | None:
        """None = the model reads text only."""
        ...

    @property
    def head(self) -> DraftHead | None:
        """The multi-token prediction that the checkpoint brings, or None."""
        ...

    @property
    def fingerprint(self) -> str | None:
        """Changes with everything that makes a snapshot of one model useless to another: the weights, how they are
        held, the layout of the state. None = snapshots of this model can't leave the process."""
        ...

    def snapshot_of(self, tensors: Mapping[str, torch.Tensor]) -> Snapshot:
        """The snapshot that these tensors came from. Raises ValueError for tensors of another layout."""
        ...

    def new_sequence(self, max_len: int) -> Sequence:
        """An empty sequence that may grow to `max_len` rows. Room is taken as it grows, not at once."""
        ...

    def forward(self, blocks: Seq[Block]) -> list[torch.Tensor]:
        """Run all blocks in one pass. One float32 tensor `[len(block.logits), vocab_size]` for each block.

        The rows stay pending in their sequences until `commit`. Rows of one block see the committed rows and
        their own ancestors, never another block.
        """
        ...

    def drafter(self) -> DraftSession | None:
        """A fresh drafting session of the model's own, for one generation, or None when it has no such thing."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Checkpoint:
    """Where a model's weights are. `path` exists: a file or a directory."""

    path: Path
    spec: str
    """What the manifest said, for messages."""
    parts: Mapping[str, tuple[tuple[Part, Options], ...]] = field(default_factory=dict)
    """The parts that the manifest enables for builders (`Kind.for_builders`), by kind, in its order."""

    @property
    def quantizations(self) -> tuple[tuple[Quantization, Options], ...]:
        """The enabled quantizations with their options."""
        return cast("tuple[tuple[Quantization, Options], ...]", self.parts.get("quantizations", ()))


@runtime_checkable
class Progress(Protocol):
    """Told while long work runs: `done` of `total` units (bytes, tensors), and what is being done."""

    def __call__(self, what: str, done: int, total: int) -> None: ...


@dataclass(frozen=True, kw_only=True)
class ModelBuilder(Part):
    """Builds a model out of a checkpoint.

    `build(checkpoint, options, progress)` returns the loaded `Model`; `checkpoint` is None for a builder with
    `needs_checkpoint=False`. It raises `ModelError` with a sentence that names what is wrong.
    `describe(checkpoint, options)` says what would be loaded without loading it: for `tandem check`, and so that a
    model that can't fit is refused before it is read. These of its facts have a meaning, sizes in bytes: `weight_bytes`
    (held after loading), `kv_bytes_per_token` and `state_bytes` (held by each sequence), `device` (`cpu` where it is
    absent).
    """

    build: Callable[[Checkpoint | None, Options, Progress], Model]
    architectures: tuple[str, ...] = ()
    """The architecture names (`LlamaForCausalLM`, GGUF's `llama`) that this builder can load."""
    needs_checkpoint: bool = True
    describe: Callable[[Checkpoint | None, Options], Mapping[str, Any]] | None = None


class ModelError(Exception):
    """A checkpoint that can't be loaded. The message names the file, what is wrong and what would be right."""
