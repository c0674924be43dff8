"""Words that the client must not read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from tandem.core.answer.held import Held
from tandem.core.engine.request import Piece


class SecretMask:
    """Puts another text in place of each of `words` (word -> text) where it stands as a whole word.

    A word stands whole where it is no part of a longer run of letters, digits and `_`. Where several fit at one place
    the longest counts, and what follows is looked at behind it; so the outcome does not depend on how the text was
    split into pieces. Holds back: an ending that may still become a word, and a word at the end, whose next character
    says whether it is whole. Where no word begins, pieces go out as they came.

    Log-probabilities name the text of their tokens, so a masked token has none.
    """

    def __init__(self, words: Mapping[str, str]) -> None:
        self._texts = {word: text for word, text in words.items() if word}
        self._by_first: dict[str, list[str]] = {}
        for word in sorted(self._texts, key=len, reverse=True):
            self._by_first.setdefault(word[0], []).append(word)
        self._beginning = re.compile(f"[{''.join(map(re.escape, self._by_first))}]" if self._texts else r"(?!)")
        self._held = Held()
        self._before = ""  # the character before the held text
        self.masked: Counter[str] = Counter()
        """How often each text was put in."""

    def feed(self, piece: Piece) -> list[Piece]:
        self._held.push(piece)
        return self._read(final=False)

    def end(self) -> list[Piece]:
        """What was held, now that no more text comes, or something else than text. More may be fed afterwards."""
        out = self._read(final=True)
        self._before = ""
        return out

    def _read(self, final: bool) -> list[Piece]:
        out: list[Piece] = []
        at = 0
        while (found := self._beginning.search(self._held.text, at)) is not None:
            at = found.start()
            if _wordlike(self._char(at - 1)) and _wordlike(found[0]):
                at += 1
                continue
            word = self._word(at, final)
            if word is None:
                break
            if not word:
                at += 1
                continue
            out += self._release(at)
            self._before = word[-1]
            out.append(self._held.substitute(len(word), self._texts[word]))
            self.masked[self._texts[word]] += 1
            at = 0
        out += self._release(len(self._held.text) if found is None else at)
        return out

    def _word(self, at: int, final: bool) -> str | None:
        """The word that stands at a place of the held text: empty when there is none, None when it is too early to
        say."""
        text = self._held.text
        for word in self._by_first[text[at]]:
            if text.startswith(word, at):
                end = at + len(word)
                if end == len(text) and not final and _wordlike(word[-1]):
                    return None
                if not (_wordlike(word[-1]) and _wordlike(self._char(end))):
                    return word
            elif not final and word.startswith(text[at:]):
                return None
        return ""

    def _char(self, at: int) -> str:
        text = self._held.text
        return self._before if at < 0 else text[at] if at < len(text) else ""

    def _release(self, length: int) -> list[Piece]:
        if length:
            self._before = self._held.text[length - 1]
        elif self._held.text:
            return []  # what is held has to stay, with the pieces without text before it
        return self._held.take(length) if length < len(self._held.text) else self._held.take_all()


def _wordlike(char: str) -> bool:
    return char.isalnum() or char == "_"
