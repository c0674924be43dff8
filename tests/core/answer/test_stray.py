from __future__ import annotations

import itertools

from hypothesis import given, strategies as st

from tandem.core.answer import StrayClose
from tandem.core.engine.request import Piece

TAGS = ("<think>", "</think>")


def naive(text: str) -> str:
    """The rule, a line at a time over the whole text."""
    out, fenced, opened = "", False, 0
    for line in text.splitlines(keepends=True) if "\r" not in text else []:
        bare = line.strip(" \t\n")
        if bare == "</think>" and not fenced and not opened:
            continue
        if bare.startswith(("```", "~~~")):
            if line.endswith("\n"):
                fenced = not fenced
        elif not fenced and bare == "<think>":
            opened += line.endswith("\n")
        elif not fenced and bare == "</think>" and opened:
            opened -= line.endswith("\n")
        out += line
    return out


WORDS = ["</think>", "<think>", "\n", " ", "\t", "```", "~~~", "a", "</thi", "nk>", "```py", "x </think>"]


@given(st.lists(st.sampled_from(WORDS), max_size=14).map("".join), st.lists(st.integers(0, 200)))
def test_a_lone_close_tag_is_left_out_for_any_split(text: str, cuts: list[int]) -> None:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    stray = StrayClose(TAGS)
    out = [p for a, b in itertools.pairwise(places) for p in stray.feed(Piece(text[a:b]))] + stray.end()
    assert "".join(piece.text for piece in out) == naive(text)


def test_text_goes_out_as_it_comes() -> None:
    stray = StrayClose(TAGS)
    shown = ["".join(p.text for p in stray.feed(Piece(text))) for text in ["Hello ", "<", "/b", " </", "x\n", "  </th"]]
    assert shown == ["Hello ", "<", "/b", " </", "x\n", ""]
    assert "".join(p.text for p in stray.feed(Piece("rone>"))) == "  </throne>"


def test_removed_tags_are_counted() -> None:
    stray = StrayClose(TAGS)
    stray.feed(Piece("a\n</think>\nb\n</think>"))
    stray.end()
    assert stray.removed == 2
