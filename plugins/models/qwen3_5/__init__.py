"""Qwen3.5's hybrid models (Qwen3.8-27B among them), dense and sparse, from Hugging Face directories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tandem.core.plugin import ModelBuilder, hookimpl, option
from tandem.plugins.models._hybrid.options import OPTIONS as SHARED

if TYPE_CHECKING:
    from tandem.core.plugin import Checkpoint, Model, Options, Progress

TANDEM_API = ">=0.2,<0.3"

DOC = """\
Qwen3.5 and Qwen3.8-27B: Gated DeltaNet beside gated attention, dense or sparse, with pictures and a draft head.

A checkpoint is a directory with `config.json`, safetensors and `tokenizer.json`. Three layers of four keep a recurrent
state of fixed size instead of keys and values. Experts may be stored fused or one by one. Packed weights are read
through the quantizations that the manifest enables.

The checkpoint's own multi-token prediction (`mtp.*`) becomes the model's draft head, for drafters that use one; its
vision tower (`visual.*`) lets requests show pictures. Both are left out where the files lack them.
"""

OPTIONS = {
    **SHARED,
    "mtp_hidden": option(
        "string",
        "Which hidden rows multi-token prediction reads: those behind the last norm or before it. The wrong choice "
        "costs accepted drafts, never a token.",
        "post_norm",
        enum=["post_norm", "pre_norm"],
    ),
}


def build(checkpoint: Checkpoint | None, options: Options, progress: Progress) -> Model:
    """Load the checkpoint. Raises `ModelError` with what is wrong with it."""
    from tandem.plugins.models.qwen3_5.loading import load

    assert checkpoint is not None, "the qwen3_5 builder needs a checkpoint"
    return load(checkpoint, options, progress)


def describe(checkpoint: Checkpoint | None, options: Options) -> Mapping[str, Any]:
    """What `build` would load, from the files' headers alone."""
    from tandem.plugins.models.qwen3_5.loading import describe

    assert checkpoint is not None, "the qwen3_5 builder needs a checkpoint"
    return describe(checkpoint, options)


@hookimpl
def tandem_models() -> list[ModelBuilder]:
    return [
        ModelBuilder(
            name="qwen3_5",
            doc=DOC,
            options=OPTIONS,
            build=build,
            describe=describe,
            architectures=(
                "Qwen3_5ForConditionalGeneration",
                "Qwen3_5ForCausalLM",
                "Qwen3_5MoeForConditionalGeneration",
                "Qwen3_5MoeForCausalLM",
            ),
        )
    ]
