"""The scripted model with weight: each row of a sequence holds 64 KiB of real memory, as a large model's rows do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from typing import Any

from tandem.core.plugin import Anchor, Checkpoint, ModelBuilder, Options, Progress, hookimpl
from tandem.plugins.models import scripted
from tandem.plugins.models.scripted import ScriptedModel, ScriptedSequence

ROW = 2**16
BLOCK = 16
"""Rows whose memory is taken at once."""


class WeightySequence(ScriptedSequence):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.ballast: list[bytearray] = []

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.ballast))

    def commit(self, path: Seq[int]) -> None:
        super().commit(path)
        self._fit()

    def trim(self, length: int, anchor: Anchor | None = None) -> None:
        super().trim(length, anchor)
        self._fit()

    def restore(self, snapshot: Any) -> None:
        super().restore(snapshot)
        self._fit()

    def close(self) -> None:
        super().close()
        self._fit()

    def _fit(self) -> None:
        wanted = -(-len(self.tokens) // BLOCK)
        del self.ballast[wanted:]
        while len(self.ballast) < wanted:
            self.ballast.append(bytearray(b"\x01") * (BLOCK * ROW))  # written, so that the machine has to give it


class WeightyModel(ScriptedModel):
    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.facts: Mapping[str, Any] = {**self.facts, "kv_bytes_per_token": ROW, "workspace_bytes_per_row": 1024}

    def new_sequence(self, max_len: int) -> WeightySequence:
        return WeightySequence(self.reply, max_len)


def build(checkpoint: Checkpoint | None, options: Options, progress: Progress) -> WeightyModel:
    return WeightyModel(options)


@hookimpl
def tandem_models() -> list[ModelBuilder]:
    (plain,) = scripted.tandem_models()
    return [ModelBuilder(name="weighty", build=build, needs_checkpoint=False, options=plain.options)]
