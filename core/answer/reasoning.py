"""Telling the reasoning from the answer."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from tandem.core.answer.held import Held, open_end
from tandem.core.engine.request import Channel, Piece

BLANKS = 64
"""So many blanks may stand before the opening tag; behind more the answer has begun."""


class _State(Enum):
    START = "start"  # nothing but blanks so far: the model may open the block itself
    INSIDE = "inside"
    BEHIND = "behind"  # the block is closed, only blanks since
    ANSWER = "answer"


class ReasoningSplit:
    """Marks each piece as reasoning, as one of its tags, or as content.

    `opened` says that the prompt has opened the block; otherwise the model may open it with its first word. Once the
    answer has begun, tags are text like any other. Holds back: while inside, an ending that may become the
    closing tag; before the first word, a beginning that may become the opening tag.

    `tokens` counts the reasoning tokens, through the closing tag.
    """

    def __init__(self, tags: tuple[str, str] | None, opened: bool = False) -> None:
        self._open, self._close = tags or ("", "")
        self._held = Held()
        self._state = _State.ANSWER if tags is None else _State.INSIDE if opened else _State.START
        self._announce = tags is not None and opened
        self.tokens = 0

    @property
    def inside(self) -> bool:
        """Whether the model is reasoning now."""
        return self._state is _State.INSIDE

    @property
    def in_answer(self) -> bool:
        """Whether what comes next is the answer: no block is open, and a closed one is behind."""
        return self._state in (_State.ANSWER, _State.BEHIND)

    def feed(self, piece: Piece) -> list[Piece]:
        if self._state is _State.ANSWER:
            return [piece]
        out: list[Piece] = []
        if self._announce:
            self._announce = False
            out.append(Piece(f"{self._open}\n", tokens=0, channel=Channel.OPEN))
        if self._state is _State.INSIDE:
            self.tokens += piece.tokens
        self._held.push(piece)
        while self._step(out):
            pass
        return out

    def end(self) -> list[Piece]:
        """What was held, now that no more text comes: the block was never closed, or the answer never began."""
        channel = {_State.INSIDE: Channel.REASONING, _State.BEHIND: Channel.CLOSE}.get(self._state, Channel.CONTENT)
        return _marked(self._held.take_all(), channel)

    def close(self) -> list[Piece]:
        """The reasoning ends here, by words that the client does not see: what was held, and the closing tag."""
        if self._state is not _State.INSIDE:
            return []
        out = _marked(self._held.take_all(), Channel.REASONING)
        self._state = _State.BEHIND
        return [*out, Piece(f"{self._close}\n\n", tokens=0, channel=Channel.CLOSE)]

    def _step(self, out: list[Piece]) -> bool:
        """Move on by one state if the held text allows; True when there may be more to do."""
        text = self._held.text
        if self._state is _State.START:
            word = text.lstrip()
            early = len(text) - len(word) <= BLANKS
            if early and self._open.startswith(word) and word != self._open:
                return False
            if not early or not word.startswith(self._open):
                return self._enter(_State.ANSWER, [], out)
            self.tokens += 1 if not self.tokens else 0
            opening = len(text) - len(word) + len(self._open)
            return self._enter(_State.INSIDE, _marked(self._held.take(opening), Channel.OPEN), out)
        if self._state is _State.INSIDE:
            at = text.find(self._close)
            if at < 0:
                out += _marked(self._held.take(len(text) - open_end(text, (self._close,))), Channel.REASONING)
                return False
            if at:
                out += _marked(self._held.take(at), Channel.REASONING)
            return self._enter(_State.BEHIND, _marked(self._held.take(len(self._close)), Channel.CLOSE), out)
        if self._state is _State.BEHIND:
            blanks = len(text) - len(text.lstrip())
            if blanks:
                out += _marked(self._held.take(blanks), Channel.CLOSE)
            return bool(self._held.text) and self._enter(_State.ANSWER, [], out)
        out += self._held.take_all()
        return False

    def _enter(self, state: _State, pieces: list[Piece], out: list[Piece]) -> bool:
        out += pieces
        self._state = state
        return True


def _marked(pieces: list[Piece], channel: Channel) -> list[Piece]:
    return [replace(piece, channel=channel) for piece in pieces]
