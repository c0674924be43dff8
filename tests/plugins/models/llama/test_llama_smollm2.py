"""The real model: SmolLM2-135M out of its GGUF file. Skipped where the package with its weights is not installed."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from tandem.core.engine.generation import Generation, Phase
from tandem.core.engine.request import Generate
from tandem.core.engine.round import run_round
from tandem.core.engine.sizes import Sizes
from tandem.core.plugin import Block, Checkpoint
from tandem.core.plugin.part import with_defaults
from tandem.plugins.models.llama import OPTIONS, describe
from tandem.plugins.models.llama.gguf_file import GgufFile
from tandem.plugins.models.llama.model import from_source
from tandem.testing.measure import peak_bytes


def perplexity(logits: torch.Tensor, ids: list[int]) -> float:
    logprobs = logits[:-1].double().log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])
    return math.exp(-logprobs.mean().item())


def divergence(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Mean Kullback-Leibler divergence of the rows, nats."""
    p, q = expected.double().log_softmax(-1), found.double().log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())


@pytest.fixture(scope="module")
def ids(smollm2: Any, english: str) -> list[int]:
    found: list[int] = smollm2.tokenizer.encode(english)
    assert 500 < len(found) < 600
    return found


@pytest.fixture(scope="module")
def exact(smollm2: Any, ids: list[int], logits_of: Any) -> torch.Tensor:
    found: torch.Tensor = logits_of(smollm2, ids)
    return found


@pytest.fixture(scope="module")
def reference(smollm2_gguf: Path, ids: list[int]) -> torch.Tensor:
    """transformers' logits, its model filled straight from the file."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    )  # fmt: skip
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.to_empty(device="cpu")
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    model.tie_weights()
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 30)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(smollm2_gguf).tensors}
    with torch.inference_mode():
        for name, value in model.named_parameters():
            tensor = stored[names.get_name(name, (".weight",))]
            array = gguf.dequantize(tensor.data, tensor.tensor_type)
            if "q_proj" in name or "k_proj" in name:  # from interleaved pairs to the two halves of each head
                array = array.reshape(-1, 32, 2, 576).swapaxes(1, 2).reshape(array.shape)
            value.copy_(torch.from_numpy(array.copy()))
        logits: torch.Tensor = model.eval()(torch.tensor([ids])).logits[0]
    return logits


def test_perplexity_and_logits_are_those_of_transformers(
    exact: torch.Tensor, reference: torch.Tensor, ids: list[int]
) -> None:
    ours, theirs = perplexity(exact, ids), perplexity(reference, ids)
    assert 5 < theirs < 8
    assert abs(ours - theirs) < 0.02 * theirs
    assert (exact - reference).abs().max() < 2e-3


def order_of_halves(source: GgufFile, *projections: str) -> Any:
    """The source with the rows of some projections in another order than the model turns them in."""

    def tensor(name: str) -> torch.Tensor:
        value = GgufFile.tensor(source, name)
        if any(f".{projection}." in name for projection in projections):
            return value.reshape(-1, 32, 2, 576).transpose(1, 2).reshape(value.shape)
        return value

    changed = copy.copy(source)
    changed.tensor = tensor  # type: ignore[method-assign]
    return changed


@pytest.mark.parametrize("projections", [("k_proj",), ("q_proj", "k_proj")])
def test_rotary_pairs_in_the_wrong_order_would_be_far_off(
    projections: tuple[str, ...], smollm2_source: GgufFile, ids: list[int], logits_of: Any
) -> None:
    source = order_of_halves(smollm2_source, *projections)
    wrong = from_source(source, with_defaults(OPTIONS, {"dtype": "float32"}), lambda what, done, total: None)
    assert perplexity(logits_of(wrong, ids[:256]), ids[:256]) > 50


@pytest.mark.parametrize(
    ("options", "worst"),
    [
        ({"dtype": "bfloat16", "weights": "dense"}, 0.002),
        ({"dtype": "bfloat16", "weights": "int4"}, 0.005),
        ({"dtype": "bfloat16", "weights": "int8"}, 0.015),
    ],
)
def test_rounded_weights_change_little(
    options: dict[str, Any], worst: float, load_smollm2: Any, logits_of: Any, exact: torch.Tensor, ids: list[int]
) -> None:
    model = load_smollm2(**options)
    for rows, chunk in ((160, 160), (80, 4)):  # the dense matrices, then the packed ones
        found = logits_of(model, ids[:rows], chunk)
        assert divergence(found, exact[:rows]) < worst
        assert abs(perplexity(found, ids[:rows]) / perplexity(exact[:rows], ids[:rows]) - 1) < 0.03


def test_four_bits_of_our_own_choosing_stay_usable(
    smollm2_source: GgufFile, logits_of: Any, exact: torch.Tensor, ids: list[int]
) -> None:
    source = copy.copy(smollm2_source)
    source.groups = lambda name: None  # type: ignore[method-assign]  # as if the matrices were stored as floats
    options = with_defaults(OPTIONS, {"weights": "int4", "dense_rows": 0})
    model = from_source(source, options, lambda what, done, total: None)
    found = logits_of(model, ids[:100], 4)
    assert abs(perplexity(found, ids[:100]) / perplexity(exact[:100], ids[:100]) - 1) < 0.05


def test_it_answers(smollm2: Any) -> None:
    sequence = smollm2.new_sequence(64)
    tokens = smollm2.tokenizer.encode(
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France? Answer in one sentence.<|im_end|>\n<|im_start|>assistant\n"
    )
    said: list[int] = []
    while not said or said[-1] not in smollm2.tokenizer.eos_ids:
        [logits] = smollm2.forward([Block(sequence, tokens, None, [len(tokens) - 1])])
        sequence.commit(range(len(tokens)))
        said.append(int(logits[0].argmax()))
        tokens = said[-1:]
    text = b"".join(map(smollm2.tokenizer.token_bytes, said)).decode()
    assert text == "The capital of France is Paris."


def test_describe_and_facts_say_what_it_is(smollm2: Any, smollm2_gguf: Path) -> None:
    described = describe(Checkpoint(smollm2_gguf, "x"), with_defaults(OPTIONS, {"dtype": "float32"}))
    assert described == smollm2.facts
    assert described["parameters"] == 134_515_008
    assert described["context_length"] == smollm2.caps.max_len == 8192
    assert described["kv_bytes_per_token"] == 30 * 2 * 192 * 4
    assert smollm2.name == "Smollm2 135M 8k Lc100K Mix1 Ep2"
    assert "<|im_start|>" in smollm2.template
    assert smollm2.template_vars["bos_token"] == "<|im_start|>"
    assert smollm2.template_vars["eos_token"] == "<|im_end|>"


def test_a_request_takes_no_more_memory_than_the_gate_counts_by_rule(smollm2: Any, ids: list[int]) -> None:
    """The model does not tell its workspace, and its buffer of all layers stands beside the one it grows out of."""
    request = Generate(ids * 2, 4)

    def work() -> None:
        generation = Generation(request, smollm2)
        while generation.phase is not Phase.DONE:
            run_round(smollm2, [generation])

    counted = Sizes.of(smollm2.facts, 512, smollm2.tokenizer.vocab_size).of_request(request).total
    taken = peak_bytes(work)
    assert taken <= counted < 5 * taken
