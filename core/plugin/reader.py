"""A base for parsers of answers: a cursor over text that is still being written, and the calls that go out."""

from __future__ import annotations

from collections.abc import Generator, Sequence as Seq
from typing import TypeVar

from tandem.core.plugin.format import CallPart, TextPart
from tandem.core.plugin.tools import Tool, tool_named

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A piece of a parser: it yields where it needs more text than there is, and is gone on with when there is more."""

BLANKS = 64
"""So many blanks between two tags are looked past; more are no notation."""


class AnswerReader:
    """An `AnswerParser` written as one walk through the answer.

    A format writes `read`, a generator that goes from the answer's start to its end as if all of it were there, and
    asks for characters with `yield from`. Because `read` sees characters and never the pieces they came in, the joined
    result can't depend on how the answer was split. The cursor only moves forward, except back to a `mark`.

    Text goes out with `say`, a call with `begin`, `write` and `done`. Two rules are kept here for all formats: blanks
    beside a call are not sent when nothing else stands there, and a call that is exactly the one before it is
    dropped. So a call whose name repeats the previous one's is held until it is whole.
    """

    def __init__(self, tools: Seq[Tool]) -> None:
        self.tools = tools
        self.ended = False
        """No more text comes."""
        self.cut = False
        """The token limit ended the text."""
        self.text = ""
        self.at = 0
        """The cursor, an index into `text`. Both change whenever a step yields, offsets from the cursor don't."""
        self._mark: int | None = None
        self._behind: list[str] = []  # the text between the mark and `text`
        self._parts: list[TextPart | CallPart] = []
        self._blank: list[str] = []  # blanks that may turn out to stand beside a call only
        self._spoke = False  # something other than blanks was said since the last call
        self._index = 0
        self._name: str | None = None
        self._arguments: list[str] = []
        self._last: tuple[str, str] | None = None
        self._live = False  # the current call goes out while it is written
        self._walk = self.read()

    def read(self) -> Steps[None]:
        """The walk. What is left when it returns is dropped."""
        raise NotImplementedError

    def feed(self, text: str) -> list[TextPart | CallPart]:
        if self._mark is not None:
            self._behind.append(self.text[self._mark : self.at])
            self._mark = 0
        self.text, self.at = self.text[self.at :] + text, 0
        next(self._walk, None)
        return self._take_parts()

    def end(self, cut: bool) -> list[TextPart | CallPart]:
        self.ended, self.cut = True, cut
        next(self._walk, None)
        if self._index == 0 and not cut:
            self._add(TextPart("".join(self._blank)))
        return self._take_parts()

    @property
    def writing(self) -> str | None:
        """The function whose call is being written, whether it goes out at once or is held; None between calls."""
        return self._name

    # ---------------------------------------------------------------------------------------------- the cursor

    def more(self) -> Steps[bool]:
        """Wait for text; False when none comes any more."""
        if self.ended:
            return False
        yield
        return True

    def char(self, offset: int = 0) -> Steps[str]:
        """The character `offset` behind the cursor; empty when the text ends before it."""
        while self.at + offset >= len(self.text):
            if not (yield from self.more()):
                return ""
        return self.text[self.at + offset]

    def blanks(self, offset: int = 0) -> Steps[int]:
        """The offset of the first character from `offset` on that is no blank, or of the text's end."""
        last = offset + BLANKS
        while offset < last and (yield from self.char(offset)).isspace():
            offset += 1
        return offset

    def ahead(self, word: str, offset: int = 0) -> Steps[bool]:
        """Whether `word` stands `offset` behind the cursor. Waits only while it still can."""
        for place, char in enumerate(word, offset):
            if (yield from self.char(place)) != char:
                return False
        return True

    def take(self, length: int) -> str:
        """Move the cursor over so many characters and return them."""
        taken = self.text[self.at : self.at + length]
        self.at += len(taken)
        return taken

    @property
    def over(self) -> bool:
        """The cursor stands at the end of the answer."""
        return self.ended and self.at >= len(self.text)

    def mark(self) -> None:
        """Remember the cursor's place."""
        self._mark, self._behind = self.at, []

    def marked(self) -> str:
        """The text from the mark to the cursor."""
        assert self._mark is not None
        return "".join(self._behind) + self.text[self._mark : self.at]

    def rewind(self) -> None:
        """Back to the mark."""
        assert self._mark is not None
        if self._behind:
            self.text, self.at = "".join(self._behind) + self.text[self._mark :], 0
        else:
            self.at = self._mark
        self.unmark()

    def unmark(self) -> None:
        """There is no way back any more."""
        self._mark, self._behind = None, []

    # ------------------------------------------------------------------------------------------- what goes out

    def say(self, text: str) -> None:
        """Text for the reader."""
        if not self._spoke and not text.strip():
            self._blank.append(text)
            return
        self._add(TextPart("".join(self._blank) + text))
        self._blank, self._spoke = [], True

    def begin(self, written: str) -> Tool:
        """A call of the function that is `written` begins."""
        tool = tool_named(self.tools, written)
        self._name, self._arguments = tool.name, []
        self._live = self._last is None or self._last[0] != tool.name
        if self._live:
            self._quiet()
            self._add(CallPart(self._index, name=tool.name))
            self.unmark()  # what went out can't be taken back
        return tool

    def write(self, arguments: str) -> None:
        """More of the JSON text of the call's arguments."""
        self._arguments.append(arguments)
        if self._live and arguments:
            self._add(CallPart(self._index, arguments))

    def done(self) -> None:
        """The call is whole."""
        assert self._name is not None
        call = (self._name, "".join(self._arguments))
        self._quiet()
        if self._live:
            self._add(CallPart(self._index, done=True))
        elif call != self._last:
            self._add(CallPart(self._index, call[1], call[0], done=True))
        self._index += self._live or call != self._last
        self._last, self._name = call, None

    def leave(self) -> None:
        """The call is not going to be whole; what is known of it goes out."""
        assert self._name is not None
        if not self._live:
            self._quiet()
            self._add(CallPart(self._index, "".join(self._arguments), self._name))
        self._index += 1
        self._last, self._name = None, None

    def withdraw(self) -> bool:
        """Take the call back, if nothing of it went out."""
        if self._name is not None and self._live:
            return False
        self._name = None
        return True

    def _quiet(self) -> None:
        self._blank, self._spoke = [], False

    def _add(self, part: TextPart | CallPart) -> None:
        """Add a part, as one with the part before it where nothing is lost by that."""
        last = self._parts[-1] if self._parts else None
        if isinstance(part, TextPart):
            if isinstance(last, TextPart):
                self._parts[-1] = TextPart(last.text + part.text)
            elif part.text:
                self._parts.append(part)
        elif isinstance(last, CallPart) and last.index == part.index and part.name is None and last.name is None:
            self._parts[-1] = CallPart(part.index, last.arguments + part.arguments, None, part.done)
        else:
            self._parts.append(part)

    def _take_parts(self) -> list[TextPart | CallPart]:
        parts, self._parts = self._parts, []
        return parts
