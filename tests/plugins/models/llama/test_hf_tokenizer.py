"""Token ids: those of transformers and llama.cpp. Token bytes: those of the text."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tandem.plugins.models._hf.tokenizer import LONG, TextTokenizer, from_file, from_gguf_fields
from tandem.plugins.models.llama.gguf_file import GgufFile

SCRIPTS = {
    "latin": (0x41, 0x17F), "greek": (0x391, 0x3C9), "cyrillic": (0x410, 0x44F), "hebrew": (0x5D0, 0x5EA),
    "arabic": (0x620, 0x64A), "devanagari": (0x905, 0x939), "thai": (0xE01, 0xE3A), "hangul": (0xAC00, 0xD7A3),
    "kana": (0x3041, 0x30FE), "han": (0x4E00, 0x9FA5), "emoji": (0x1F300, 0x1F64F), "symbols": (0x2190, 0x22FF),
    "superscripts": (0x2070, 0x209C), "accents": (0x300, 0x36F),
}  # fmt: skip
PHRASES = [
    "for i in range(10):", "def f(x): return x**2 + 1", "{'key': [1, 2.5, None]}", "https://example.org/a?b=c&d=%20",
    "don't", "I'LL", "they've", "SELECT * FROM t WHERE a >= 3;", "#include <stdio.h>", "x_1 = foo->bar[0];",
    "1234567890", "3.14159", "2026-11-30T12:00:00Z", "$1,299.99", "0xDEADBEEF", "<|im_start|>", "<|im_end|>",
    "<|endoftext|>", "<repo_name>", "<|im_start|>user\nhello<|im_end|>\n", "👩‍👩‍👧", "🇩🇪", "e\u0301",
]  # fmt: skip
SPACES = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n", "\u00a0", "\u3000", "        ", ""]


def mixed_lines(count: int) -> list[str]:
    """Lines of everything: code, digits, scripts, emoji, runs of spaces and special tokens, the same ones each time."""
    rng = random.Random(7)
    words = ["the", "of", "Water", "tokenizer", "ing", "HTTP", "été", "naïve", "straße", "a", "I", "42", "7"]

    def piece() -> str:
        kind = rng.random()
        if kind < 0.4:
            return rng.choice(words)
        if kind < 0.65:
            return rng.choice(PHRASES)
        low, high = SCRIPTS[rng.choice(list(SCRIPTS))]
        return "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 6)))

    return ["".join(piece() + rng.choice(SPACES) for _ in range(rng.randint(1, 12))) for _ in range(count)]


@pytest.fixture(scope="module")
def tokenizer(smollm2_source: GgufFile) -> TextTokenizer:
    return smollm2_source.tokenizer()


def test_ids_equal_those_of_transformers(tokenizer: TextTokenizer, smollm2_gguf: Path) -> None:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(smollm2_gguf.parent), gguf_file=smollm2_gguf.name)
    # transformers' conversion knows one splitter for all GGUF files; SmolLM's own also parts every digit.
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), theirs.backend_tokenizer.pre_tokenizer]
    )
    for line in mixed_lines(1000):
        assert tokenizer.encode(line) == theirs.encode(line, add_special_tokens=False), repr(line)


@pytest.mark.parametrize("split", ["smollm", "gpt-2", "llama-bpe", "qwen2", "default", "llama3"])
def test_ids_equal_those_of_llama_cpp_for_every_splitter(split: str, smollm2_source: GgufFile, tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    import gguf

    fields = {**smollm2_source._fields, "tokenizer.ggml.pre": split}
    writer = gguf.GGUFWriter(tmp_path / "vocab.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(fields["tokenizer.ggml.tokens"])
    writer.add_token_types(fields["tokenizer.ggml.token_type"])
    writer.add_token_merges(fields["tokenizer.ggml.merges"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    theirs = llama_cpp.Llama(str(tmp_path / "vocab.gguf"), vocab_only=True, verbose=False)
    ours = from_gguf_fields(fields, 49152, tmp_path)
    for line in mixed_lines(300):
        if split == "qwen2" and ("e\u0301" in line or any(0x300 <= ord(c) <= 0x36F for c in line)):
            continue  # the Qwen family composes accents first, which llama.cpp leaves out
        if line:
            assert ours.encode(line) == theirs.tokenize(line.encode(), add_bos=False, special=True), repr(line)


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=40))
def test_the_bytes_of_the_ids_are_the_bytes_of_the_text(tiny: Any, text: str) -> None:
    assert b"".join(map(tiny.tokenizer.token_bytes, tiny.tokenizer.encode(text))) == text.encode()


def test_a_long_text_has_the_same_ids_and_stops_no_other_thread(tokenizer: TextTokenizer) -> None:
    text = "".join(line + "\n" for line in mixed_lines(4000))
    assert len(text) > 20 * LONG
    stop, naps = threading.Event(), list[float]()

    def nap() -> None:
        while not stop.is_set():
            start = time.perf_counter()
            time.sleep(0.001)
            naps.append(time.perf_counter() - start)

    thread = threading.Thread(target=nap)
    thread.start()
    start = time.perf_counter()
    ids = tokenizer.encode(text)
    taken = time.perf_counter() - start
    stop.set()
    thread.join()
    assert ids == tokenizer._tokenizer.encode(text, add_special_tokens=False).ids
    assert len(naps) > 5, f"the other thread moved {len(naps)} times"
    assert max(naps) < max(0.5 * taken, 0.05)


def test_the_bytes_of_smollm2s_ids_are_the_bytes_of_the_text(tokenizer: TextTokenizer) -> None:
    for line in mixed_lines(1000):
        ids = tokenizer.encode(line)
        if not {token for token in ids if token < 17}:  # control tokens write nothing
            assert b"".join(map(tokenizer.token_bytes, ids)) == line.encode()


def test_control_tokens_are_found_in_the_text_and_write_nothing(tokenizer: TextTokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>user\nhi<|im_end|>")
    assert (ids[0], ids[-1]) == (1, 2)
    assert tokenizer.token_bytes(1) == tokenizer.token_bytes(2) == b""
    assert tokenizer.eos_ids == {2}
    assert tokenizer.vocab_size == 49152
    assert tokenizer.encode("") == []


def test_nothing_is_added_to_the_text(make_tokenizer: Callable[[], Any], tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    theirs = make_tokenizer()
    theirs.post_processor = TemplateProcessing(single="<|start|> $A", special_tokens=[("<|start|>", 1)])
    theirs.enable_truncation(2)
    theirs.enable_padding(length=9)
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours = from_file(tmp_path / "tokenizer.json", 320, [2], None)
    assert b"".join(map(ours.token_bytes, ours.encode("the end"))) == b"the end"


def test_added_words_write_themselves_and_padding_rows_write_nothing(tiny: Any) -> None:
    tokenizer = tiny.tokenizer
    [think] = tokenizer.encode("<think>")
    assert tokenizer.token_bytes(think) == b"<think>"
    assert tokenizer.vocab_size == 320
    assert tokenizer.token_bytes(319) == b""
    for outside in (320, -1):
        with pytest.raises(IndexError):
            tokenizer.token_bytes(outside)


def test_a_piece_vocabulary_writes_its_spaces_and_bytes(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, normalizers

    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a", "é"]
    theirs = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [("▁", "a")], unk_token="<unk>", byte_fallback=True)
    )
    theirs.normalizer = normalizers.Replace(" ", "▁")
    theirs.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours = from_file(tmp_path / "tokenizer.json", len(pieces), [], None)
    text = "a aé 猫\n a"
    assert b"".join(map(ours.token_bytes, ours.encode(text))) == text.encode()
