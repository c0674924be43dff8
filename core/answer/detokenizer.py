"""Tokens to characters, byte-exact."""

from __future__ import annotations

import codecs

from tandem.core.plugin import Tokenizer


class Detokenizer:
    """Turns tokens into text as they come.

    A token may end in the middle of a character; its bytes are held until the character is complete, so no character
    is ever replaced or taken back. Bytes that can't be part of any UTF-8 character are left out rather than
    shown as U+FFFD. Holds back: at most three bytes.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._bytes_of = tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")

    def feed(self, token: int) -> str:
        """The characters that this token completed; often one piece, sometimes none."""
        return self._decoder.decode(self._bytes_of(token))

    @property
    def holding(self) -> bool:
        """Whether the text ends inside a character."""
        return bool(self._decoder.getstate()[0])
