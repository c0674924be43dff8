"""Which tokenizer a store's ids belong to."""

from __future__ import annotations

import hashlib
import struct

from tandem.core.plugin import Tokenizer


def vocabulary_hash(tokenizer: Tokenizer) -> bytes:
    """sha256 over the number of ids and each id's bytes, in order. Ids that write nothing count by their place."""
    digest = hashlib.sha256(struct.pack("<I", tokenizer.vocab_size))
    for token in range(tokenizer.vocab_size):
        try:
            written = tokenizer.token_bytes(token)
        except IndexError:  # the logits have rows for more ids than the tokenizer knows
            digest.update(b"\xff\xff\xff\xff")
            continue
        digest.update(struct.pack("<I", len(written)) + written)
    return digest.digest()
