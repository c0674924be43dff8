from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given, strategies as st

from tandem.plugins.drafters.suffix.layout import (
    FIRST,
    HEADER,
    NO_TOKEN,
    WORD,
    Refused,
    check_log_header,
    document,
    documents,
    log_header,
    order_header,
    valid_words,
)

VOCABULARY = bytes(range(32))
TEXTS = [[5, 6, 7], [1], [NO_TOKEN - 1, 0, 3, 3, 3]]
HEAD = log_header(3, VOCABULARY)
LOG = HEAD + b"".join(map(document, TEXTS))


def test_the_bytes_are_those_of_the_table() -> None:
    assert HEAD[:8] == b"TNDMSFX\n"
    assert struct.unpack_from("<IIQ", HEAD, 8) == (1, HEADER, 3)
    assert HEAD[24:56] == VOCABULARY
    assert HEAD[60:] == bytes(4)
    before, length, _, behind = struct.unpack_from("<IIII", LOG, HEADER)
    assert (before, length, behind) == (0xFFFFFFFF, 3 | 0x80000000, 0xFFFFFFFF)
    assert struct.unpack_from("<III", LOG, HEADER + 16) == (5, 6, 7)


def test_the_bytes_of_an_order_are_those_of_the_table() -> None:
    places = struct.pack("<II", 21, 22)
    head = order_header(3, 40, 0xABCD, places)
    assert len(head) == HEADER
    assert head[:8] == b"TNDMORD\n"
    assert struct.unpack_from("<IIQQIII", head, 8) == (1, HEADER, 3, 40, 0xABCD, 2, zlib.crc32(places))
    assert struct.unpack_from("<I", head, 44)[0] == zlib.crc32(head[:44])
    assert head[48:] == bytes(16)


@given(st.lists(st.lists(st.integers(0, NO_TOKEN - 1), min_size=1, max_size=20), max_size=8))
def test_documents_come_back_as_they_were_written(texts: list[list[int]]) -> None:
    log = HEAD + b"".join(map(document, texts))
    assert documents(log) == texts
    assert valid_words(log) * WORD == len(log)


@pytest.mark.parametrize("text", [[], [-1], [NO_TOKEN], [0xFFFFFFFF]])
def test_what_is_no_document_is_not_written(text: list[int]) -> None:
    with pytest.raises(ValueError, match="each id is from 0"):
        document(text)


def test_a_log_cut_anywhere_keeps_its_whole_documents() -> None:
    ends = [HEADER]
    for text in TEXTS:
        ends.append(ends[-1] + len(document(text)))
    for size in range(HEADER, len(LOG) + 1):
        whole = sum(end <= size for end in ends) - 1
        assert documents(LOG[:size]) == TEXTS[:whole]
        assert valid_words(LOG[:size]) * WORD == ends[whole]


@pytest.mark.parametrize("change", [0x01, 0x80, 0xFF])
def test_a_byte_changed_anywhere_changes_no_document(change: int) -> None:
    for place in range(HEADER, len(LOG)):
        damaged = bytearray(LOG)
        damaged[place] ^= change
        found = documents(bytes(damaged))
        assert len(found) < len(TEXTS)
        assert found == TEXTS[: len(found)]


def test_a_header_with_any_byte_changed_is_refused() -> None:
    check_log_header(HEAD, 3, VOCABULARY)
    for place in range(HEADER):
        damaged = bytearray(HEAD)
        damaged[place] ^= 1
        with pytest.raises(Refused):
            check_log_header(bytes(damaged), 3, VOCABULARY)


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (log_header(3, bytes(32)), "another tokenizer"),
        (log_header(4, VOCABULARY), "says that it is number 4"),
        (b"#!/bin/sh".ljust(HEADER, b"\n"), "no log"),
        (HEAD[:40], "no log"),
        (b"", "no log"),
    ],
)
def test_a_foreign_header_is_refused_with_the_reason(head: bytes, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        check_log_header(head, 3, VOCABULARY)


def test_a_later_version_is_refused_with_its_number() -> None:
    later = bytearray(HEAD)
    struct.pack_into("<I", later, 8, 2)
    struct.pack_into("<I", later, 56, zlib.crc32(later[:56]))
    with pytest.raises(Refused, match="has version 2"):
        check_log_header(bytes(later), 3, VOCABULARY)


def test_the_first_document_begins_behind_the_header() -> None:
    assert FIRST * WORD == HEADER == len(HEAD)
    assert documents(HEAD) == []
