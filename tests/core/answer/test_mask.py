from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import example, given, strategies as st

from tandem.core.answer import SecretMask
from tandem.core.engine.request import Channel, Piece, TokenLogprob

ALPHABET = "ab-_.é1 "


def naive(text: str, words: dict[str, str]) -> str:
    """One regular expression over the whole text: at each place the longest word that stands whole."""
    if not words:
        return text
    choices = [
        (r"(?<!\w)" if re.match(r"\w", word[0]) else "")
        + re.escape(word)
        + (r"(?!\w)" if re.match(r"\w", word[-1]) else "")
        for word in sorted(words, key=len, reverse=True)
    ]
    return re.sub("|".join(choices), lambda found: words[found[0]], text)


def split(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in itertools.pairwise(places)]


def shown(parts: list[str], words: dict[str, str]) -> list[str]:
    """What goes out after each part, and at the end."""
    mask = SecretMask(words)
    out = ["".join(piece.text for piece in mask.feed(Piece(part))) for part in parts]
    return [*out, "".join(piece.text for piece in mask.end())]


words = st.lists(st.text(ALPHABET, min_size=1, max_size=6), max_size=4).map(
    lambda chosen: {word: f"[{number}]" for number, word in enumerate(dict.fromkeys(chosen))}
)


@given(st.text(ALPHABET, max_size=40), words, st.lists(st.integers(0, 100)))
@example("aab ab", {"ab": "[0]", "ab ": "[1]"}, [1, 2, 3, 4, 5])
@example("a-b-a", {"a-b-a-b": "[0]", "a": "[1]", "b-a": "[2]"}, [3])
def test_any_split_is_masked_as_the_whole_text(text: str, words: dict[str, str], cuts: list[int]) -> None:
    assert "".join(shown(split(text, cuts), words)) == naive(text, words)


@given(st.data())
def test_words_that_are_in_the_text_are_masked_in_any_split(data: st.DataObject) -> None:
    word = data.draw(st.text("abc1-", min_size=2, max_size=12))
    parts = st.lists(st.sampled_from([word, word[:-1], word[1:], " ", "x", ".", word[:1]]), max_size=12)
    text = "".join(data.draw(parts))
    cuts = data.draw(st.lists(st.integers(0, 200)))
    assert "".join(shown(split(text, cuts), {word: "*"})) == naive(text, {word: "*"})


@given(st.text(ALPHABET, max_size=40), words, st.lists(st.integers(0, 100)))
def test_every_token_is_accounted_for(text: str, words: dict[str, str], cuts: list[int]) -> None:
    parts = ["", *split(text, cuts), ""]
    mask = SecretMask(words)
    out = [piece for part in parts for piece in mask.feed(Piece(part))] + mask.end()
    assert sum(piece.tokens for piece in out) == len(parts)


@given(st.text(ALPHABET, max_size=40), st.lists(st.integers(0, 100)))
def test_where_nothing_is_repeated_the_pieces_are_those_that_came(text: str, cuts: list[int]) -> None:
    parts = [Piece(part, logprobs=(logprob(part),)) for part in split(text, cuts)]
    mask = SecretMask({"Zq1": "*"})
    assert [piece for part in parts for piece in mask.feed(part)] + mask.end() == parts


def logprob(text: str) -> TokenLogprob:
    return TokenLogprob(len(text), -0.5, ())


def test_a_word_at_the_end_waits_for_one_character() -> None:
    words = {"hunter2": "[redacted]"}
    assert shown(["It is ", "hunt", "er2", ".", " So"], words) == ["It is ", "", "", "[redacted].", " So", ""]
    assert shown(["It is ", "hunter2", "3", " no"], words) == ["It is ", "", "hunter23", " no", ""]
    assert shown(["It is ", "hunter2"], words) == ["It is ", "", "[redacted]"]


def test_only_an_ending_that_may_become_a_word_is_held() -> None:
    assert shown(["to hum", " a", " hu", "ge hunt"], {"hunter2": "*"}) == ["to hum", " a", " ", "huge ", "hunt"]


def test_a_word_in_a_longer_one_stays() -> None:
    assert shown(["xhunter2 hunter2x hunter2_ hunter2"], {"hunter2": "*"})[-2:] == ["xhunter2 hunter2x hunter2_ ", "*"]


@pytest.mark.parametrize("text", ["sk-abc123", "(sk-abc123)", "'sk-abc123',", "key=sk-abc123\n"])
def test_signs_around_a_word_are_its_boundary(text: str) -> None:
    masked = "".join(shown([text], {"sk-abc123": "sk-[redacted]"}))
    assert masked == text.replace("abc123", "[redacted]")


def test_nothing_more_follows_a_flush_and_more_may_come_after_it() -> None:
    mask = SecretMask({"hunter2": "*"})
    assert mask.feed(Piece("hunter2")) == []
    assert [piece.text for piece in mask.end()] == ["*"]
    assert [piece.text for piece in mask.feed(Piece("hunter2 "))] == ["*", " "]
    assert mask.masked == {"*": 2}


def test_a_masked_word_has_its_tokens_and_no_logprobs() -> None:
    mask = SecretMask({"hunter2": "*"})
    parts = ["is hun", "ter", "2 and", " more"]
    out = [
        piece
        for part in parts
        for piece in mask.feed(Piece(part, logprobs=(logprob(part),), channel=Channel.REASONING))
    ]
    assert [(piece.text, piece.tokens) for piece in out] == [("is ", 0), ("*", 2), (" and", 1), (" more", 1)]
    assert [token for piece in out for token in piece.logprobs] == [logprob(" more")]
    assert {piece.channel for piece in out} == {Channel.REASONING}


def test_without_words_everything_passes() -> None:
    piece = Piece("text", logprobs=(logprob("text"),))
    assert SecretMask({}).feed(piece) == [piece]
    assert SecretMask({"": "*"}).feed(piece) == [piece]
