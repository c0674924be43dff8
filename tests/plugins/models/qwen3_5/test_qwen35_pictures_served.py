"""A chat with pictures, from HTTP to the vision tower and back, against transformers' own greedy text."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from qwen35_tiny import IMAGE, PREPROCESSOR, Tiny, tokenizer

from tandem.core.plugin.vision import ImageProcessor
from tandem.plugins.models import qwen3_5
from tandem.testing.box import Box

TEMPLATE = """\
{%- for message in messages -%}
<|start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else -%}
{%- for part in message.content %}{{ "<|image_pad|>" if part.type == "image" else part.text }}{% endfor -%}
{%- endif -%}
<|stop|>
{%- endfor -%}
{%- if add_generation_prompt %}<|start|>assistant
{% endif -%}
"""
ANSWER = 12
PROCESSOR = ImageProcessor.from_config(PREPROCESSOR)


def noise(width: int, height: int, seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


PICTURES = [noise(96, 64, 1), noise(40, 200, 2)]


def part(picture: Image.Image) -> dict[str, Any]:
    file = BytesIO()
    picture.save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


TALK = [
    {"role": "user", "content": [words("See "), part(PICTURES[0]), words("!")]},
    {"role": "assistant", "content": "Seen."},
    {"role": "user", "content": [part(PICTURES[1]), words(" And <|image_pad|>?")]},
]
PROMPT = (
    "<|start|>user\nSee <|image_pad|>!<|stop|><|start|>assistant\nSeen.<|stop|>"
    "<|start|>user\n<|image_pad|> And #?<|stop|><|start|>assistant\n"
)
"""What the template makes of it; `#` stands for the placeholder that the user wrote as text."""


@pytest.fixture(scope="module")
def model(tiny_of: Callable[..., Tiny], tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """The manifest's model: the tiny checkpoint, with a template."""
    path = tmp_path_factory.mktemp("served") / "model"
    shutil.copytree(tiny_of("picture").path, path)
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return {"plugin": "qwen3_5", "checkpoint": str(path), "dtype": "float32", "device": "cpu"}


@pytest.fixture(scope="module")
def box(model: Mapping[str, Any]) -> Iterator[Box]:
    """It is served; the prompt's chunks are short, so that they cut the pictures."""
    with Box(plugins=[qwen3_5], model=model, server={"prefill_chunk": 10, "torch_threads": 1}) as running:
        yield running


def expected(reference: Any) -> tuple[int, list[int], torch.Tensor]:
    """transformers' answer: prompt tokens, the answer's, and their log-probabilities `[n]`."""
    ids: list[int] = []
    pictures = [PROCESSOR.picture(picture) for picture in PICTURES]
    left = iter(pictures)
    encode = tokenizer().encode
    for piece in PROMPT.replace("#", "<|image_\0pad|>").split("\0"):
        for token in encode(piece).ids:
            ids += [IMAGE] * next(left).rows if token == IMAGE else [token]
    prompt = torch.tensor([ids])
    made = reference.generate(
        input_ids=prompt,
        pixel_values=torch.from_numpy(np.concatenate([PROCESSOR.pixel_values(picture) for picture in pictures])),
        image_grid_thw=torch.tensor([picture.grid for picture in pictures]),
        mm_token_type_ids=(prompt == IMAGE).int(),
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=ANSWER,
        eos_token_id=2,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    answer = made.sequences[0, len(ids) :].tolist()
    rows = torch.cat(made.logits).float().log_softmax(-1)
    return len(ids), answer, rows[torch.arange(len(answer)), answer]


def test_a_chat_with_pictures_is_answered_as_transformers_does(box: Box, tiny_of: Callable[..., Tiny]) -> None:
    tokens, answer, logprobs = expected(tiny_of("picture").reference)
    got = box.chat(TALK, max_tokens=ANSWER, logprobs=True, temperature=0).assert_status(200)
    rows = sum(PROCESSOR.rows(*picture.size) for picture in PICTURES)
    assert got.usage["prompt_tokens"] == tokens
    assert got.usage["prompt_tokens_details"]["image_tokens"] == rows
    told = got.body["choices"][0]["logprobs"]["content"]
    assert box.platform.model is not None
    token_bytes = box.platform.model.tokenizer.token_bytes
    written = [list(token_bytes(token)) for token in answer if token != 2]
    assert [entry["bytes"] or [] for entry in told] == written
    torch.testing.assert_close(torch.tensor([e["logprob"] for e in told]), logprobs[: len(told)], rtol=1e-3, atol=1e-3)


def test_a_stream_says_the_same(box: Box) -> None:
    first = box.chat(TALK, max_tokens=ANSWER, logprobs=True).assert_status(200)
    again = box.stream(TALK, max_tokens=ANSWER, cache_prompt=False).assert_status(200)
    assert again.text == first.text


def test_another_picture_is_another_answer(box: Box) -> None:
    def asked(picture: Image.Image) -> list[float]:
        parts = [words("See "), part(picture)]
        answer = box.chat([{"role": "user", "content": parts}], max_tokens=1, logprobs=True, top_logprobs=3)
        (first,) = answer.assert_status(200).body["choices"][0]["logprobs"]["content"]
        return [entry["logprob"] for entry in first["top_logprobs"]]

    assert asked(noise(96, 64, 1)) == asked(noise(96, 64, 1))
    assert asked(noise(96, 64, 1)) != asked(noise(96, 64, 3))


def test_a_model_that_is_told_to_leave_its_tower_out_refuses_pictures(model: Mapping[str, Any]) -> None:
    with Box(plugins=[qwen3_5], model={**model, "vision": "off"}) as blind:
        assert "text only" in str(blind.chat(TALK).assert_status(400).error)
        assert blind.get("/v1/models").json()["data"][0]["input_modalities"] == ["text"]


def test_the_pictures_rows_are_listed_and_emptied_with_the_caches(box: Box) -> None:
    box.post("/v1/cache/clear")
    ask = {"messages": [{"role": "user", "content": [part(PICTURES[0])]}], "max_tokens": 2, "cache_prompt": False}
    before = box.get("/v1/cache/stats").json()["tiers"]["image_rows"]
    assert (before["bytes"], before["entries"]) == (0, 0)
    for _ in range(2):
        assert box.post("/v1/chat/completions", ask).status_code == 200
    told = box.get("/v1/cache/stats").json()["tiers"]["image_rows"]
    assert told["entries"] == 1, "the same picture again, sent in another request"
    assert told["bytes"] == PROCESSOR.rows(*PICTURES[0].size) * 48 * 4
    assert told["misses"] == before["misses"] + 1
    assert told["hits"] > before["hits"]
    assert box.post("/v1/cache/clear").json()["before"]["image_rows"] == told
    assert box.get("/v1/cache/stats").json()["tiers"]["image_rows"]["bytes"] == 0
    assert box.get("/health").json()["cache_events"] == []
