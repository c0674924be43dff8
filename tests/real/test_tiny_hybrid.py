"""A real hybrid, small but trained: recurrent layers, attention and a prediction layer through the whole engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem.core.engine.exactness import Case, Outcome, default_cases, verify
from tandem.core.engine.prompt import Prompt
from tandem.core.plugin import Block, Checkpoint, DraftStart
from tandem.core.plugin.part import with_defaults
from tandem.plugins.drafters import mtp
from tandem.plugins.models import qwen3_5

CHECKPOINT = Path(__file__).parents[2] / "benchmarks" / "tiny_hybrid" / "checkpoint"
TEXT = """\
def read(self, size=-1):
    \"\"\"Read up to size bytes from the object and return them.\"\"\"
    if size < 0:
        return self.readall()
    data = bytearray(size)
    count = self.readinto(data)
    if count is None:
        return None
    del data[count:]
    return bytes(data)
"""
PROMPTS = [
    TEXT,
    '{"name": "Ada", "year": 1815, "town": "Cork"}\n{"name": "Kurt", "year": 1906, "town": "Lund"}\n{"name":',
    "If the object is not a string, the",
    "class Queue:\n    def __init__(self, maxsize=0):\n        self.maxsize = maxsize\n",
]
ROUNDING = 2e-3
"""Nats. In float32 more rows at once move a logit by less than this."""


def build(dtype: str) -> Any:
    (builder,) = qwen3_5.tandem_models()
    options = {**with_defaults(builder.options, {}), "dtype": dtype}
    return builder.build(Checkpoint(CHECKPOINT, str(CHECKPOINT)), options, lambda what, done, total: None)


def head_drafter(model: Any) -> Any:
    (part,) = mtp.tandem_drafters()
    return part.build(with_defaults(part.options, {}), model)


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    made = build("float32")
    yield made
    made.close()
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def logits(model: Any) -> torch.Tensor:
    """Of every row of the text."""
    tokens = model.tokenizer.encode(TEXT)
    sequence = model.new_sequence(len(tokens))
    with torch.inference_mode():
        (rows,) = model.forward([Block(sequence, tokens, logits=range(len(tokens)))])
        sequence.commit(range(len(tokens)))
    return rows


def test_the_checkpoint_is_a_small_hybrid_with_a_prediction_layer(model: Any) -> None:
    assert sum(file.stat().st_size for file in CHECKPOINT.iterdir()) < 6_000_000
    assert model.head is not None
    assert not model.caps.trim, "a recurrent state can't be cut back"
    assert model.tokenizer.encode("<|im_end|>")[0] in model.tokenizer.eos_ids


def test_its_logits_are_those_of_transformers(model: Any, logits: torch.Tensor) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.Qwen3_5ForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    with torch.inference_mode():
        expected = theirs(torch.tensor([model.tokenizer.encode(TEXT)])).logits[0]
    assert float((logits - expected).abs().max()) < 2e-3


def test_it_has_learned_to_write(model: Any, logits: torch.Tensor) -> None:
    """Knowing nothing costs log(1536) = 7.3 nats a token."""
    tokens = torch.tensor(model.tokenizer.encode(TEXT))
    assert float(torch.nn.functional.cross_entropy(logits[:-1], tokens[1:])) < 4.0


def test_it_answers_a_chat_in_its_template(model: Any) -> None:
    prompt = Prompt(model)
    rendered = prompt.render([{"role": "user", "content": "Hello."}])
    assert rendered == "<|im_start|>user\nHello.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert prompt.render([{"role": "user", "content": "Hello."}], enable_thinking=True).endswith("assistant\n<think>\n")


@pytest.fixture(scope="module")
def outcomes(model: Any) -> dict[tuple[str, str], Outcome]:
    prompts = [model.tokenizer.encode(text) for text in PROMPTS]
    found = verify(model, prompts, [("mtp", head_drafter(model))], max_tokens=12)
    return {(outcome.way, outcome.case): outcome for outcome in found}


def test_no_way_of_drafting_changes_a_token_or_a_probability(outcomes: dict[tuple[str, str], Outcome]) -> None:
    assert {way for way, _ in outcomes} >= {"no drafter", "always wrong", "half right", "mtp", "two at once"}
    for outcome in outcomes.values():
        assert outcome.passed(ROUNDING), outcome
        assert outcome.prompts


def test_all_default_cases_were_run(model: Any, outcomes: dict[tuple[str, str], Outcome]) -> None:
    assert {case for _, case in outcomes} == {case.name for case in default_cases(model.tokenizer)}


def test_its_prediction_layer_saves_passes(outcomes: dict[tuple[str, str], Outcome]) -> None:
    drafted = outcomes["mtp", "greedy"]
    assert drafted.tokens > 1.3 * drafted.rounds


def test_predictions_are_those_of_the_layer_that_was_trained(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The builder's head, asked about the text's next tokens, beside the recipe's own module."""
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(str(CHECKPOINT.parent))
    import train  # type: ignore[import-not-found]

    recipe = train.Hybrid(train.Qwen3_5TextConfig.from_pretrained(CHECKPOINT)).eval()
    train.load(recipe, CHECKPOINT)
    tokens = model.tokenizer.encode(TEXT)
    committed, root, next_ = tokens[:-2], tokens[-2], tokens[-1]
    with torch.inference_mode():
        ids = torch.tensor([tokens])
        embedded = recipe.trunk.embed_tokens(ids)
        hidden = recipe.trunk(inputs_embeds=embedded[:, :-2], use_cache=False).last_hidden_state
        places = torch.arange(1, hidden.shape[1] + 1).view(1, 1, -1).expand(3, 1, -1)
        ahead = recipe.mtp(hidden, embedded[:, 1:-1], recipe.trunk.rotary_emb(hidden, places))
        expected = torch.nn.functional.linear(ahead[0, -1], recipe.trunk.embed_tokens.weight)

        sequence = model.new_sequence(len(tokens))
        model.forward([Block(sequence, committed, logits=(len(committed) - 1,))])
        sequence.commit(range(len(committed)))
        model.head.start(sequence)
        first = model.head.extend(sequence, [root], [-1])
        second = model.head.extend(sequence, [next_], [0])
    assert float((first[0] - expected).abs().max()) < 2e-3
    assert torch.isfinite(second).all()


def test_the_drafter_reads_the_sequence_of_its_own_generation(model: Any) -> None:
    prompt = model.tokenizer.encode(TEXT)
    sequence = model.new_sequence(len(prompt) + 1)
    with torch.inference_mode():
        (rows,) = model.forward([Block(sequence, prompt, logits=(len(prompt) - 1,))])
        sequence.commit(range(len(prompt)))
        session = head_drafter(model)(DraftStart(sequence))
        session.extend(prompt)
        tree = session.propose(int(rows[0].argmax()), 7)
        session.close()
    assert tree is not None
    assert 0 < len(tree) <= 7


def test_bfloat16_differs_at_near_ties_only() -> None:
    made = build("bfloat16")
    prompts = [made.tokenizer.encode(text) for text in PROMPTS]
    for outcome in verify(made, prompts, max_tokens=12, cases=[Case("greedy")], only=["half right", "two at once"]):
        assert outcome.passed(0.25), outcome
    made.close()
