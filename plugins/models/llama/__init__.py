"""Llama-architecture models from Hugging Face directories and GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tandem.core.plugin import ModelBuilder, hookimpl, option

if TYPE_CHECKING:
    from tandem.core.plugin import Checkpoint, Model, Options, Progress

TANDEM_API = ">=0.2,<0.3"

DOC = """\
Plain Llama models (SmolLM2, Llama, Mistral without a sliding window, MiniCPM5) from Hugging Face or GGUF files.

A checkpoint is a directory with `config.json`, `model.safetensors` (or its shards) and `tokenizer.json`, or one GGUF
file of the architecture `llama`. Weights are held either as they are (`dense`) or packed into 8 or 4 bits, in the
layouts of torch's own CPU kernels. A packed model keeps a dense copy of its layers besides: reading a prompt is bound
by arithmetic and wants the dense weights, writing token by token is bound by memory and wants the packed ones.
"""

OPTIONS = {
    "dtype": option(
        "string",
        "The number type of dense weights: `auto` takes bfloat16 where the CPU computes in it, else float32.",
        "auto",
        enum=["auto", "float32", "bfloat16"],
    ),
    "weights": option(
        "string",
        "How the layers' matrices are held: `dense`, `int8` (one scale a row), `int4` (groups of 32), or `auto`: "
        "packed where the checkpoint is quantised already, dense where it isn't.",
        "auto",
        enum=["auto", "dense", "int8", "int4"],
    ),
    "dense_rows": option(
        "integer",
        "From how many rows on a pass takes the dense copy of packed weights; 0 keeps no copy, which saves memory "
        "and makes reading a prompt slow.",
        9,
        minimum=0,
    ),
}


def build(checkpoint: Checkpoint | None, options: Options, progress: Progress) -> Model:
    """Load the checkpoint. Raises `ModelError` with what is wrong with it."""
    from tandem.plugins.models.llama.model import load

    assert checkpoint is not None, "the llama builder needs a checkpoint"
    return load(checkpoint, options, progress)


def describe(checkpoint: Checkpoint | None, options: Options) -> Mapping[str, Any]:
    """What `build` would load, from the files' headers alone."""
    from tandem.plugins.models.llama.source import open_source
    from tandem.plugins.models.llama.storage import Storage

    assert checkpoint is not None, "the llama builder needs a checkpoint"
    source = open_source(checkpoint)
    return Storage.choose(source, options).facts()


@hookimpl
def tandem_models() -> list[ModelBuilder]:
    return [
        ModelBuilder(
            name="llama",
            doc=DOC,
            options=OPTIONS,
            build=build,
            describe=describe,
            architectures=("LlamaForCausalLM", "MistralForCausalLM", "llama"),
        )
    ]
