"""Notes: text that was put at the end of a message, hidden from the client, and stands there in later turns too."""

from __future__ import annotations

import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass
from typing import Any

from tandem.core.engine.prompt import Prompt, PromptError
from tandem.core.engine.request import PlacedPicture

EDGE = "\ufdd3"
"""Stands at both ends of a mark. Unicode reserves the character for use inside a program."""
GAP = "\n\n"
"""Between a message and its note."""
ROOM = 16 << 20
"""So many characters of notes are kept."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Tokens in the place of text; `hidden` are the places among them that the client did not send."""

    tokens: Seq[int]
    hidden: tuple[range, ...]


Piece = str | Seq[int] | Kept


class Notes:
    """The notes that were given, by what had been said up to their message. The oldest are forgotten. Thread-safe."""

    def __init__(self, prompt: Prompt) -> None:
        self._prompt = prompt
        self._nonce = secrets.token_hex(8)
        self._marks = re.compile(f"{EDGE}{self._nonce}n([0-9]+){EDGE}")
        self._texts: OrderedDict[bytes, str] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def keep(self, context: bytes, text: str) -> None:
        """`context` is a digest of the conversation through the message that carries the note."""
        with self._lock:
            self._size += len(text) - len(self._texts.pop(context, ""))
            self._texts[context] = text
            while self._size > ROOM:
                _, dropped = self._texts.popitem(last=False)
                self._size -= len(dropped)

    def find(self, contexts: Seq[bytes]) -> dict[int, str]:
        """The notes of a conversation: index of the message -> text."""
        with self._lock:
            found = {}
            for index, context in enumerate(contexts):
                if (text := self._texts.get(context)) is not None:
                    self._texts.move_to_end(context)
                    found[index] = text
            return found

    def clear(self) -> None:
        with self._lock:
            self._texts.clear()
            self._size = 0

    # -------------------------------------------------------------------------------------------- in a prompt

    def marked(self, messages: Seq[Mapping[str, Any]], notes: Mapping[int, str]) -> list[Mapping[str, Any]]:
        """The messages with a mark where each note is to stand."""
        return [
            _with_text(message, f"{EDGE}{self._nonce}n{index}{EDGE}") if index in notes else message
            for index, message in enumerate(messages)
        ]

    def filled(self, pieces: Seq[Piece], notes: Mapping[int, str]) -> list[Piece]:
        """The rendered pieces with the notes in the place of their marks."""
        out: list[Piece] = []
        for piece in pieces:
            if not isinstance(piece, str) or EDGE not in piece:
                out.append(piece)
                continue
            at = 0
            for mark in self._marks.finditer(piece):
                ids = self._prompt.encode(GAP + self._prompt.as_text(notes[int(mark[1])]))
                out += [piece[at : mark.start()], Kept(ids, (range(len(ids)),))]
                at = mark.end()
            out.append(piece[at:])
        return out

    def laid_out(self, pieces: Seq[Piece]) -> tuple[list[int], tuple[range, ...]]:
        """The prompt's ids, and which places of them are hidden. Raises PromptError when there is no token."""
        ids: list[int] = []
        hidden: list[range] = []
        for piece in pieces:
            if isinstance(piece, Kept):
                hidden += [range(len(ids) + places.start, len(ids) + places.stop) for places in piece.hidden]
                ids += piece.tokens
            else:
                ids += self._prompt.encode(piece) if isinstance(piece, str) else piece
        if not ids:
            raise PromptError("the prompt renders to no token")
        return ids, tuple(hidden)


def _with_text(message: Mapping[str, Any], text: str) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, str) or content is None:
        return {**message, "content": (content or "") + text}
    return {**message, "content": [*content, {"type": "text", "text": text}]}


def moved(places: Seq[range], images: Seq[PlacedPicture]) -> tuple[range, ...]:
    """Places of a prompt in which each picture was one placeholder, in the prompt that has all rows of the pictures."""
    return tuple(range(Prompt.reach(span.start, images), Prompt.reach(span.stop, images)) for span in places)
