from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, strategies as st

from tandem.core.answer.reasoning import ReasoningSplit
from tandem.core.engine.request import Channel, Piece

TAGS = ("<think>", "</think>")


def run(pieces: list[str], *, opened: bool = False, tags: tuple[str, str] | None = TAGS) -> tuple[list[Piece], int]:
    split = ReasoningSplit(tags, opened)
    out = [out for piece in pieces for out in split.feed(Piece(piece))] + split.end()
    return out, split.tokens


def texts(pieces: list[Piece]) -> dict[str, str]:
    """The text of each channel that has any."""
    joined = {c.value: "".join(p.text for p in pieces if p.channel is c) for c in Channel}
    return {channel: text for channel, text in joined.items() if text}


def split_at(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in itertools.pairwise(places)]


def naive(text: str, opened: bool) -> dict[str, str]:
    """The whole text taken apart at once."""
    out = {"open": "", "reasoning": "", "close": "", "content": ""}
    if opened:
        out["open"] = "<think>\n"
    else:
        match = re.match(r"\s{0,64}<think>", text)
        if match is None:
            return {"content": text} if text else {}
        out["open"], text = match.group(), text[match.end() :]
    out["reasoning"], found, rest = text.partition("</think>")
    content = rest.lstrip()
    out["close"] = found + rest[: len(rest) - len(content)]
    out["content"] = content
    return {part: value for part, value in out.items() if value}


WORDS = st.lists(
    st.sampled_from(["<think>", "</think>", "</thi", "nk>", "<", "think", "\n", " ", "a", "é😀", "<tool"]), max_size=12
)


@given(WORDS.map("".join), st.booleans(), st.lists(st.integers(0, 200)))
def test_any_split_gives_the_same_parts(text: str, opened: bool, cuts: list[int]) -> None:
    pieces, _ = run(split_at(text, cuts), opened=opened)
    got = {part: value for part, value in texts(pieces).items() if value}
    expected = naive(text, opened)
    if opened and not text:
        expected = {}
    assert got == expected


@given(WORDS.map("".join), st.lists(st.integers(0, 200)))
def test_without_tags_every_piece_is_content(text: str, cuts: list[int]) -> None:
    pieces = split_at(text, cuts)
    out, tokens = run(pieces, tags=None)
    assert [p.text for p in out] == pieces
    assert tokens == 0


def test_reasoning_tokens_count_through_the_closing_tag() -> None:
    _, tokens = run(["one ", "two ", "</th", "ink>", "\n\n", "answer", " more"], opened=True)
    assert tokens == 4


def test_reasoning_goes_out_while_it_is_written() -> None:
    split = ReasoningSplit(TAGS, opened=True)
    assert [p.text for p in split.feed(Piece("one "))] == ["<think>\n", "one "]
    assert [p.text for p in split.feed(Piece("two </thi"))] == ["two "]
    assert split.inside
    assert texts(split.feed(Piece("nk>\n\nhi"))) == {"close": "</think>\n\n", "content": "hi"}
    assert split.in_answer


@pytest.mark.parametrize("text", ["I say </think> here", "no <think> tags </think>", "<thinker>"])
def test_tags_inside_the_answer_are_text(text: str) -> None:
    pieces, tokens = run(list(text))
    assert texts(pieces) == {"content": text}
    assert tokens == 0


@pytest.mark.parametrize(("blanks", "channel"), [(64, "reasoning"), (65, "content")])
def test_the_opening_tag_is_looked_for_behind_so_many_blanks_and_no_more(blanks: int, channel: str) -> None:
    pieces, _ = run([*("\n" * blanks), "<think>", "hm"])
    assert "hm" in texts(pieces)[channel]


def test_an_answer_of_blanks_goes_out() -> None:
    split = ReasoningSplit(TAGS)
    sent = [len(split.feed(Piece(" "))) for _ in range(100)]
    assert sent == [0] * 64 + [65] + [1] * 35


def test_no_token_is_lost() -> None:
    pieces, _ = run(["<thi", "nk>", "a", "", "</think>", "\n", "", "b"])
    assert sum(p.tokens for p in pieces) == 8
