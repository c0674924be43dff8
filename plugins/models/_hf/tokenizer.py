"""Text to ids and ids to bytes, over the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tandem.core.plugin import ModelError

# Token types in GGUF metadata.
CONTROL, USER_DEFINED = 3, 4

# How a byte-level vocabulary's text is cut into words before merging, by the name in `tokenizer.ggml.pre`. The
# patterns are the published ones of each family; a cut in another place gives other tokens.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
SPLITS: Mapping[str, tuple[str, ...]] = {
    "gpt-2": (),
    "smollm": (),
    "llama-bpe": (rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}",),
    "qwen2": (rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}",),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
}
SAME_SPLIT = {"llama3": "llama-bpe", "llama-v3": "llama-bpe"}


LONG = 4096
"""Texts of so many characters are encoded as a batch of one. `encode` keeps the interpreter's lock until it is done, a
tenth of a second for 64,000 tokens in which no other thread moves, an answer's next token included; a batch gives the
lock away. For a text that takes less than a millisecond that is not worth waiting for it again."""


class TextTokenizer:
    """The contract's `Tokenizer`. Ids above the tokenizer's own (padding rows of the embedding) write nothing."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Iterable[int]) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self._bytes = _bytes_of_tokens(tokenizer, vocab_size)
        self._eos_ids = frozenset(token for token in eos_ids if 0 <= token < vocab_size)

    @property
    def vocab_size(self) -> int:
        return len(self._bytes)

    @property
    def eos_ids(self) -> frozenset[int]:
        return self._eos_ids

    def encode(self, text: str) -> list[int]:
        if len(text) < LONG:
            short: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
            return short
        [encoded] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoded.ids
        return ids

    def token_bytes(self, token: int) -> bytes:
        if token < 0:
            raise IndexError(f"token {token} is below 0; the ids are 0 to {len(self._bytes) - 1}")
        return self._bytes[token]


def from_file(path: Path, vocab_size: int, eos_ids: Iterable[int], eos_token: str | None) -> TextTokenizer:
    """A `tokenizer.json`. `eos_token` ends a generation besides `eos_ids`."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises a bare Exception for whatever is wrong in the file
        raise ModelError(f"{path}: this is no readable tokenizer.json ({error})") from error
    _fits(tokenizer, vocab_size, path)
    ends = list(eos_ids)
    if eos_token is not None and (token := tokenizer.token_to_id(eos_token)) is not None:
        ends.append(token)
    return TextTokenizer(tokenizer, vocab_size, ends)


def from_gguf_fields(fields: Mapping[str, Any], vocab_size: int, path: Path) -> TextTokenizer:
    """The tokenizer in a GGUF's metadata: a byte-level BPE of GPT-2's kind."""
    kind = fields.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ModelError(
            f"{path}: the tokenizer is of the kind {kind or 'none'!r}; supported is 'gpt2' (byte-level BPE)"
        )
    tokens, merges = fields.get("tokenizer.ggml.tokens"), fields.get("tokenizer.ggml.merges")
    if not tokens or merges is None:
        raise ModelError(f"{path}: the metadata lacks the tokenizer's tokens or merges")
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: number for number, token in enumerate(tokens)},
            merges=[_pair(merge, path) for merge in merges],
            ignore_merges=_split_name(fields, path) == "llama-bpe",
        )
    )
    _set_split(tokenizer, _split_name(fields, path))
    tokenizer.decoder = decoders.ByteLevel()
    types = fields.get("tokenizer.ggml.token_type") or []
    added = [(token, kind) for token, kind in zip(tokens, types, strict=False) if kind in (CONTROL, USER_DEFINED)]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token, kind in added if kind == CONTROL])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token, kind in added if kind == USER_DEFINED])
    _fits(tokenizer, vocab_size, path)
    ends = (fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    return TextTokenizer(tokenizer, vocab_size, [token for token in ends if isinstance(token, int)])


def _split_name(fields: Mapping[str, Any], path: Path) -> str:
    name = fields.get("tokenizer.ggml.pre", "default")
    name = SAME_SPLIT.get(name, name)
    if name not in SPLITS:
        known = ", ".join([*SPLITS, *SAME_SPLIT])
        raise ModelError(f"{path}: the tokenizer splits words as {name!r}; supported are {known}")
    return str(name)


def _set_split(tokenizer: Tokenizer, name: str) -> None:
    """The word splitter `name`, followed by the byte alphabet."""
    steps: list[Any] = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False) for pattern in SPLITS[name]
    ]
    if name == "smollm":
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not SPLITS[name]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)


def _pair(merge: str, path: Path) -> tuple[str, str]:
    left, gap, right = merge.partition(" ")
    if not gap:
        raise ModelError(f"{path}: the tokenizer's merge {merge!r} is not two tokens with a space between")
    return left, right


def _fits(tokenizer: Tokenizer, vocab_size: int, path: Path) -> None:
    highest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if highest >= vocab_size:
        raise ModelError(
            f"{path}: the tokenizer has ids up to {highest}, but the model has logits for {vocab_size} tokens; "
            "they are not of one checkpoint"
        )


# --------------------------------------------------------------------------------------------------- bytes of a token


def _bytes_of_tokens(tokenizer: Tokenizer, vocab_size: int) -> list[bytes]:
    """What each id writes, `[vocab_size]`: b"" for control tokens and for ids without a token."""
    added = tokenizer.get_added_tokens_decoder()
    write = _from_byte_alphabet if _is_byte_level(tokenizer) else _from_pieces
    found = [b""] * vocab_size
    for text, token in tokenizer.get_vocab(with_added_tokens=True).items():
        if token not in added:
            found[token] = write(text)
        elif not added[token].special:
            found[token] = added[token].content.encode()
    return found


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    return tokenizer.decoder is not None and b'"ByteLevel"' in tokenizer.decoder.__getstate__()


def _from_byte_alphabet(text: str) -> bytes:
    """A byte-level vocabulary writes every byte as one printable character."""
    alphabet = byte_alphabet()
    if all(character in alphabet for character in text):
        return bytes(alphabet[character] for character in text)
    return text.encode()


def _from_pieces(text: str) -> bytes:
    """A piece vocabulary: `▁` is a space, `<0x41>` is the byte 0x41."""
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        return bytes([int(text[3:5], 16)])
    return text.replace("▁", " ").encode()


@cache
def byte_alphabet() -> Mapping[str, int]:
    """GPT-2's character for each byte: itself where it prints in Latin-1, else the next one from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {
        **{chr(byte): byte for byte in printable},
        **{chr(0x100 + place): byte for place, byte in enumerate(others)},
    }
