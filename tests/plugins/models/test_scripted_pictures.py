"""The scripted model with its eyes open."""

from __future__ import annotations

import json
from typing import Any

import pytest
from PIL import Image

from tandem.core.plugin import Block, ImageRows
from tandem.core.plugin.vision import Picture
from tandem.plugins.models.scripted import ScriptedModel
from tandem.plugins.models.scripted.tokens import IMAGE, ByteTokenizer


def model(**options: Any) -> ScriptedModel:
    return ScriptedModel({"reply": "one", "tokens_per_s": 0, "prefill_per_s": 0, "vision": True, **options})


def picture(seeing: ScriptedModel, colour: str = "#0000ff") -> Picture:
    assert seeing.vision is not None
    return seeing.vision.processor.picture(Image.new("RGB", (256, 256), colour))


def asked(*entries: Any) -> list[int]:
    return ByteTokenizer().encode(f"<|user|>{json.dumps({'script': entries})}<|end|><|assistant|>")


def answer(seeing: ScriptedModel, sequence: Any, prompt: list[int], count: int = 24) -> str:
    """The first bytes that follow the prompt, read and written one token after another."""
    (rows,) = seeing.forward([Block(sequence, prompt, logits=(len(prompt) - 1,))])
    sequence.commit(range(len(prompt)))
    out = b""
    while len(out) < count and (token := int(rows[0].argmax())) < 256:
        out += bytes((token,))
        (rows,) = seeing.forward([Block(sequence, (token,), logits=(0,))])
        sequence.commit((0,))
    return out.decode()


def test_the_placeholder_is_one_id_more() -> None:
    assert model().tokenizer.encode("a<|image|>") == [97, IMAGE]
    assert model(vision=False).tokenizer.encode("<|image|>") == list(b"<|image|>")
    assert model().tokenizer.vocab_size == model(vision=False).tokenizer.vocab_size + 1 == 262
    assert model().tokenizer.token_bytes(IMAGE) == b""
    with pytest.raises(IndexError, match="261"):
        model(vision=False).tokenizer.token_bytes(IMAGE)


def test_a_picture_in_two_blocks_is_one() -> None:
    seeing = model()
    shown, sequence = picture(seeing), seeing.new_sequence(1000)
    for first, count in ((0, 40), (40, 24)):
        seeing.forward([Block(sequence, [IMAGE] * count, images=(ImageRows(shown, 0, first, count),))])
        sequence.commit(range(count))
    assert answer(seeing, sequence, asked({"picture": 0}, "|")) == "256x256, 64 rows, #0000f"
    assert len(sequence.pictures) == 1


def test_snapshots_and_cuts_know_which_pictures_are_before_them() -> None:
    seeing = model()
    sequence, other = seeing.new_sequence(1000), seeing.new_sequence(1000)
    for colour in ("#ff0000", "#00ff00"):
        seeing.forward([Block(sequence, [IMAGE] * 64, images=(ImageRows(picture(seeing, colour), 0, 0, 64),))])
        sequence.commit(range(64))
    other.restore(sequence.snapshot())
    other.trim(64)
    assert [len(sequence.pictures), len(other.pictures)] == [2, 1]
    assert answer(seeing, other, asked({"picture": 1})) == "there is no picture 1: the prompt shows 1"[:24]
    assert answer(seeing, sequence, asked({"picture": 1})) == "256x256, 64 rows, #00ff00"[:24]


def test_a_script_about_pictures_is_drafted_up_to_the_first() -> None:
    seeing = model()
    draft = seeing.drafter()
    draft.extend(asked("abc", {"picture": 0}, "def"))
    tree = draft.propose(ord("a"), 31)
    assert tree is not None
    assert bytes(tree.tokens) == b"bc"
    draft.extend(b"abc")
    assert draft.propose(ord("2"), 31) is None


@pytest.mark.parametrize(
    ("vision", "tokens", "rows", "words"),
    [
        (False, [IMAGE] * 64, 64, "not of a picture that this model reads"),
        (True, [IMAGE] * 65, 65, "rows 0 to 65"),
        (True, [IMAGE] * 63 + [97], 64, "not its placeholder"),
    ],
)
def test_rows_that_show_no_picture_are_refused(vision: bool, tokens: list[int], rows: int, words: str) -> None:
    shown, seeing = picture(model()), model(vision=vision)
    with pytest.raises(ValueError, match=words):
        seeing.forward([Block(seeing.new_sequence(100), tokens, images=(ImageRows(shown, 0, 0, rows),))])


def test_an_entry_that_is_none_is_answered_with_the_kinds_there_are() -> None:
    seeing = model(vision=False)
    told = answer(seeing, seeing.new_sequence(1000), asked({"pictures": 0}), count=200)
    assert told.startswith("script[0] is none of strings, ")
    assert '{"picture": ...}' in told
