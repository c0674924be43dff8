"""Pieces that are held back because later text may still change what becomes of them."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from tandem.core.engine.request import Piece


class Held:
    """A line of pieces, released from the front by characters. `text` is all of them together."""

    def __init__(self) -> None:
        self._pieces: deque[Piece] = deque()
        self.text = ""

    def push(self, piece: Piece) -> None:
        self._pieces.append(piece)
        self.text += piece.text

    def take(self, length: int) -> list[Piece]:
        """The pieces of the first `length` characters.

        A piece that straddles the line is split; its tokens and log-probabilities stay with the part that is
        still held. A piece without text goes out with the text before it, or when nothing at all is held.
        """
        out: list[Piece] = []
        left, rest = length, len(self.text) > length
        while self._pieces:
            size = len(self._pieces[0].text)
            if size > left or (left == 0 and rest and (size or not out)):
                break
            out.append(self._pieces.popleft())
            left -= size
        if left > 0 and self._pieces:
            piece = self._pieces[0]
            out.append(replace(piece, text=piece.text[:left], tokens=0, logprobs=()))
            self._pieces[0] = replace(piece, text=piece.text[left:])
        self.text = self.text[length:]
        return out

    def substitute(self, length: int, text: str) -> Piece:
        """Take the first `length` characters, at least one, as one piece that says `text` instead.

        It has the tokens of the pieces that it covers. Log-probabilities name the tokens' text, so those of all pieces
        that are touched are dropped; a piece that straddles the line keeps its tokens for the rest.
        """
        first, tokens = self._pieces[0], 0
        self.text = self.text[length:]
        while length and length >= len(self._pieces[0].text):
            piece = self._pieces.popleft()
            length -= len(piece.text)
            tokens += piece.tokens
        if length:
            self._pieces[0] = replace(self._pieces[0], text=self._pieces[0].text[length:], logprobs=())
        return replace(first, text=text, tokens=tokens, logprobs=())

    def take_all(self) -> list[Piece]:
        """Everything, in order."""
        out = list(self._pieces)
        self._pieces.clear()
        self.text = ""
        return out


def open_end(text: str, words: tuple[str, ...]) -> int:
    """Length of the longest ending of `text` that is a proper beginning of one of `words`."""
    longest = max((len(word) for word in words), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        ending = text[-length:]
        if any(len(word) > length and word.startswith(ending) for word in words):
            return length
    return 0
