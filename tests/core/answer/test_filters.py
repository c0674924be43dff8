from __future__ import annotations

import itertools

from hypothesis import given, strategies as st

from tandem.core.answer import Detokenizer, StopStrings
from tandem.core.engine.request import Piece


class Pieces:
    """A tokenizer whose token i writes the i-th of the given byte strings."""

    eos_ids: frozenset[int] = frozenset()

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces
        self.vocab_size = len(pieces)

    def encode(self, text: str) -> list[int]:
        raise AssertionError("not needed")

    def token_bytes(self, token: int) -> bytes:
        return self.pieces[token]


def split_at(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(places)]


@given(st.text(), st.lists(st.integers(0, 10_000)))
def test_text_survives_any_split_of_its_bytes(text: str, cuts: list[int]) -> None:
    pieces = split_at(text.encode(), cuts)
    detokenizer = Detokenizer(Pieces(pieces))
    assert "".join(detokenizer.feed(i) for i in range(len(pieces))) == text
    assert not detokenizer.holding


@given(st.binary(), st.lists(st.integers(0, 10_000)))
def test_broken_bytes_never_become_a_replacement_character(data: bytes, cuts: list[int]) -> None:
    pieces = split_at(data, cuts)
    detokenizer = Detokenizer(Pieces(pieces))
    text = "".join(detokenizer.feed(i) for i in range(len(pieces)))
    assert text == data.decode("utf-8", "ignore")
    assert "\ufffd" not in text.replace(b"\xef\xbf\xbd".decode(), "")


def test_a_character_is_held_until_it_is_whole() -> None:
    detokenizer = Detokenizer(Pieces([b"a\xf0\x9f", b"\x98", b"\x80b"]))
    assert [detokenizer.feed(i) for i in range(3)] == ["a", "", "😀b"]


def naive_stop(text: str, stops: list[str]) -> str:
    """Read a character at a time; the first completed stop string cuts, the longest if several end there."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))]
    return text


@given(
    st.text("ab c", max_size=40),
    st.lists(st.text("ab c", min_size=1, max_size=5), max_size=4),
    st.lists(st.integers(0, 100)),
)
def test_stop_strings_cut_alike_for_any_split(text: str, stops: list[str], cuts: list[int]) -> None:
    pieces = [part.decode() for part in split_at(text.encode(), cuts)]
    stopper = StopStrings(stops)
    out: list[Piece] = []
    for piece in pieces:
        out += stopper.feed(Piece(piece))
        sent = "".join(p.text for p in out)
        assert naive_stop(text, stops).startswith(sent), "a part of a stop string went out"
    out += stopper.end()
    assert "".join(piece.text for piece in out) == naive_stop(text, stops)


@given(st.text("ab", max_size=20), st.lists(st.integers(0, 100)))
def test_no_token_is_lost_without_a_match(text: str, cuts: list[int]) -> None:
    pieces = [part.decode() for part in split_at(text.encode(), cuts)]
    stopper = StopStrings(["abc", "aabbc"])
    out = [p for piece in pieces for p in stopper.feed(Piece(piece))] + stopper.end()
    assert sum(piece.tokens for piece in out) == len(pieces)


def test_only_what_could_still_grow_into_a_stop_string_is_held() -> None:
    stopper = StopStrings(["beta gamma"])
    shown = ["".join(p.text for p in stopper.feed(Piece(text))) for text in ["alpha", " beta", " gam", "bol", " delta"]]
    assert shown == ["alpha", " ", "", "beta gambol", " delta"]
