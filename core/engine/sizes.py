"""What a request will take of the memory, made of the numbers that the model tells about itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any, Self

from tandem.core.engine.generation import Generation, Phase
from tandem.core.engine.placing import JOINT_ROWS
from tandem.core.engine.request import Generate

ROW_SLACK = 2
"""Sequences double their buffers, so a row may come with the room for another one."""
ANSWER_SHARE = 4
"""Of `max_tokens` a quarter counts: clients ask for far more than they get."""
LEAST_ANSWER = 256
"""That quarter counts up to the prompt's own rows, and at least up to so many."""
WORKSPACE_KV = 8
"""A row that is being read takes as much as this many rows of keys and values, where the model does not say."""
LEAST_WORKSPACE = 2**16
"""Bytes; the least that a row takes by that rule."""
LOGIT = 8
"""Bytes that a logit of a verified tree takes, where the model does not say."""
DRAWING = 64
"""Bytes for each token of the vocabulary while one is drawn: the filtered row, and the noise in 64 bits."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a request will take, in bytes."""

    sequence: int = 0
    """What its sequence comes to hold."""
    pictures: int = 0
    """The rows of its pictures, as far as the tower keeps them."""
    shared: int = 0
    """The copy of the prompt's state that its other choices go on from."""
    rows: int = 0
    """What the rows of one pass take while it runs: a chunk of the prompt, or a verified tree."""
    look: int = 0
    """What a pass takes besides, whatever its rows. Blocks look back one after another, so of several only the largest
    counts."""

    @property
    def kept(self) -> int:
        return self.sequence + self.pictures + self.shared

    @property
    def workspace(self) -> int:
        return self.rows + self.look

    @property
    def total(self) -> int:
        return self.kept + self.workspace


@dataclass(frozen=True, slots=True)
class Sizes:
    """The model's own numbers, in bytes."""

    per_sequence: int
    per_row: int
    workspace_per_row: int
    chunk: int
    """Rows of a prefill chunk."""
    workspace_per_token: int = 0
    workspace: int = 0
    image_row: int = 0
    image_kept: int = 0
    image_workspace_per_row: int = 0

    @classmethod
    def of(cls, facts: Mapping[str, Any], chunk: int, vocab: int = 0) -> Self:
        """Read off `Model.facts`; what a model does not tell counts nothing, but for the workspace.

        `vocab` is the size of the vocabulary.
        """
        row = _size(facts, "kv_bytes_per_token") + _size(facts, "mtp_kv_bytes_per_token")
        told = _size(facts, "workspace_bytes_per_row")
        if told:
            per_token, fixed = _size(facts, "workspace_bytes_per_token"), _size(facts, "workspace_bytes")
        else:  # a buffer that grows stands beside the one that it grows out of
            per_token, fixed = row, LOGIT * JOINT_ROWS * vocab
        return cls(
            per_sequence=_size(facts, "state_bytes") + _size(facts, "conv_bytes"),
            per_row=row,
            workspace_per_row=told or max(LEAST_WORKSPACE, WORKSPACE_KV * row),
            chunk=chunk,
            workspace_per_token=per_token,
            workspace=fixed + DRAWING * vocab,
            image_row=_size(facts, "image_bytes_per_row"),
            image_kept=_size(facts, "image_kept_bytes"),
            image_workspace_per_row=_size(facts, "image_workspace_bytes_per_row"),
        )

    def need(self, prompt: int, max_tokens: int, given: int = 0, pictures: Seq[int] = (), shared: bool = False) -> Need:
        """Of a prompt with so many rows, of which a tier gives `given` away with the sequence that holds them.

        `pictures` holds the rows of each one that is to be read; with `shared` the prompt's state is copied.
        """
        answer = min(-(-max_tokens // ANSWER_SHARE), max(prompt, LEAST_ANSWER))
        new = max(0, prompt + answer - given)
        largest = max(pictures, default=0)
        rows = max(min(self.chunk, prompt - given), min(JOINT_ROWS, answer))
        in_pass = self.workspace_per_row * rows
        look = self.workspace + self.workspace_per_token * (prompt + answer)
        # The tower reads a picture before the rows of its chunk go through the layers, so the larger one counts.
        tower = self.image_workspace_per_row * largest
        return Need(
            sequence=ROW_SLACK * self.per_row * new + (0 if given else self.per_sequence),
            pictures=min(self.image_row * sum(pictures), max(self.image_kept, self.image_row * largest)),
            shared=self.per_sequence + self.per_row * prompt if shared else 0,
            rows=max(in_pass, tower - look),
            look=look,
        )

    def of_request(self, request: Generate, given: int = 0) -> Need:
        """What the request will take from its start on, when a tier gives the first `given` rows away."""
        pictures = [one.picture.rows for one in request.images if one.start + one.picture.rows > given]
        shared = request.shared is not None and request.shared.state is None
        return self.need(len(request.prompt), request.max_tokens, given, pictures, shared)

    def left(self, generation: Generation) -> Need:
        """What a request that has begun will still take."""
        if generation.phase is Phase.DONE:
            return Need()
        need = self.of_request(generation.request)
        sequence = max(0, need.sequence - generation.sequence.nbytes)
        if generation.phase is Phase.PREFILL:
            return replace(need, sequence=sequence)
        return Need(sequence=sequence, look=need.look)

    def beside(self, need: Need, running: Seq[Generation]) -> int:
        """What the running requests will still take beside one with this need."""
        left = [self.left(one) for one in running]
        look = max((one.look for one in left), default=0)
        return sum(one.kept + one.rows for one in left) + max(0, look - need.look)


def _size(facts: Mapping[str, Any], name: str) -> int:
    value = facts.get(name)
    return max(0, int(value)) if isinstance(value, int | float) else 0
