"""Qwen4-Exp models (Qwen3.8-Flash-Next) from Hugging Face directories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tandem.core.plugin import ModelBuilder, hookimpl, option
from tandem.plugins.models._hybrid.options import OPTIONS as SHARED

if TYPE_CHECKING:
    from tandem.core.plugin import Checkpoint, Model, Options, Progress

TANDEM_API = ">=0.2,<0.3"

DOC = """\
Qwen3.8-Flash-Next: Gated DeltaNet beside attention that chooses its tokens, many experts, a table of n-grams.

A checkpoint is a directory with `config.json`, safetensors and `tokenizer.json`. Three layers of four keep a recurrent
state of fixed size instead of keys and values; the others attend to 2,048 tokens that an indexer chooses, so a step's
cost hardly grows with the text. The residual is several streams. The n-gram table (102 GB in bfloat16) is never loaded:
its rows are read from the files, 16 for each token, which wants them on a fast disk or in the page cache. Experts may
be stored fused or one by one. Packed weights are read through the quantizations that the manifest enables.

The checkpoint's own multi-token prediction (`mtp.*`) becomes the model's draft head, for drafters that use one; it is
written from the published description, since no reference of it can be run. Its vision tower (`visual.*`) lets requests
show pictures. Both are left out where the files lack them.
"""

OPTIONS = {
    **SHARED,
    "dtype": option(
        "string",
        "The number type of dense weights, of keys and of values: `auto` takes bfloat16 on a GPU and where the CPU "
        "computes in it, else float32. The recurrent state and the residual streams are float32 in any case.",
        "auto",
        enum=["auto", "float32", "bfloat16"],
    ),
}


def build(checkpoint: Checkpoint | None, options: Options, progress: Progress) -> Model:
    """Load the checkpoint. Raises `ModelError` with what is wrong with it."""
    from tandem.plugins.models.qwen4_exp.loading import load

    assert checkpoint is not None, "the qwen4_exp builder needs a checkpoint"
    return load(checkpoint, options, progress)


def describe(checkpoint: Checkpoint | None, options: Options) -> Mapping[str, Any]:
    """What `build` would load, from the files' headers alone."""
    from tandem.plugins.models.qwen4_exp.loading import describe

    assert checkpoint is not None, "the qwen4_exp builder needs a checkpoint"
    return describe(checkpoint, options)


@hookimpl
def tandem_models() -> list[ModelBuilder]:
    return [
        ModelBuilder(
            name="qwen4_exp",
            doc=DOC,
            options=OPTIONS,
            build=build,
            describe=describe,
            architectures=("Qwen4ExpForConditionalGeneration", "Qwen4ExpForCausalLM"),
        )
    ]
