"""The bytes of a store's files: documents of token ids, one after another, and the order of their places.

Everything is little-endian. docs/suffix-store.md shows these bytes as tables.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Sequence as Seq
from typing import Protocol

WORD = 4
"""Bytes of a token id."""
HEADER = 64
"""Bytes before a log's first document, and before an order's first place."""
FIRST = HEADER // WORD
"""The word at which a log's first document begins."""
SEPARATOR = 0xFFFFFFFF
"""Stands before and behind the length and the checksum of a document, so that no reader of its text gets there."""
NO_TOKEN = 0x80000000
"""Ids are below this. A document's length stands in its log with this bit set, so it passes for no token."""
FRAME = 4
"""Words before a document's text: separator, length, checksum, separator."""
VERSION = 1

_LOG = struct.Struct("<8sIIQ32sI")
_LOG_MAGIC = b"TNDMSFX\n"
_ORDER = struct.Struct("<8sIIQQIII")
_ORDER_MAGIC = b"TNDMORD\n"
_FRAME = struct.Struct("<IIII")


class Readable(Protocol):
    """What bytes are read from: a mapped file, or bytes."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: slice, /) -> bytes: ...


class Refused(Exception):
    """A file that is not what its name says. The message is the sentence to report."""


def log_header(number: int, vocabulary: bytes) -> bytes:
    """The first bytes of log `number` (counted from 1), for the tokenizer with this sha256."""
    head = _LOG.pack(_LOG_MAGIC, VERSION, HEADER, number, vocabulary, 0)[:-WORD]
    return (head + struct.pack("<I", zlib.crc32(head))).ljust(HEADER, b"\0")


def check_log_header(head: bytes, number: int, vocabulary: bytes) -> None:
    """Raises Refused unless these are the first bytes of such a log."""
    if head == log_header(number, vocabulary):
        return
    if len(head) < HEADER or head[:8] != _LOG_MAGIC:
        raise Refused("is no log of a suffix store")
    _, version, _, found, hashed, checksum = _LOG.unpack_from(head)
    if zlib.crc32(head[: _LOG.size - WORD]) != checksum:
        raise Refused("has a damaged header")
    if version != VERSION:
        raise Refused(f"has version {version} of the format, and only {VERSION} is read")
    if hashed != vocabulary:
        raise Refused("was written for another tokenizer")
    raise Refused(f"says that it is number {found}" if found != number else "has a damaged header")


def document(tokens: Seq[int]) -> bytes:
    """A document as it stands in a log: its frame, then its ids. Raises ValueError for what is no id."""
    if not tokens or not 0 <= min(tokens) <= max(tokens) < NO_TOKEN:
        raise ValueError(f"a document has at least one token, and each id is from 0 to {NO_TOKEN - 1}")
    data = array("I", tokens).tobytes()
    length = len(tokens) | NO_TOKEN
    return _FRAME.pack(SEPARATOR, length, _checksum(length, data), SEPARATOR) + data


def valid_words(log: Readable) -> int:
    """Words up to the end of the last whole document; what follows is torn or damaged.

    A document counts when its frame and its checksum are right and so are all before it.
    """
    at, size = HEADER, len(log)
    while at + FRAME * WORD <= size:
        before, length, checksum, behind = _FRAME.unpack(log[at : at + FRAME * WORD])
        start = at + FRAME * WORD
        end = start + (length ^ NO_TOKEN) * WORD
        if before != SEPARATOR or behind != SEPARATOR or not start < end <= size:
            break
        if _checksum(length, log[start:end]) != checksum:
            break
        at = end
    return at // WORD


def documents(log: Readable) -> list[list[int]]:
    """The whole documents of a log, oldest first."""
    found: list[list[int]] = []
    at, end = FIRST, valid_words(log)
    while at < end:
        (length,) = struct.unpack("<I", log[(at + 1) * WORD : (at + 2) * WORD])
        start, at = at + FRAME, at + FRAME + (length ^ NO_TOKEN)
        found.append(array("I", log[start * WORD : at * WORD]).tolist())
    return found


def order_header(number: int, words: int, log_checksum: int, places: bytes) -> bytes:
    """The first bytes of the order that belongs to `words` words of log `number`, with `log_checksum` over them."""
    head = _ORDER.pack(
        _ORDER_MAGIC, VERSION, HEADER, number, words, log_checksum, len(places) // WORD, zlib.crc32(places)
    )
    return (head + struct.pack("<I", zlib.crc32(head))).ljust(HEADER, b"\0")


def _checksum(length: int, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(length.to_bytes(WORD, "little")))
