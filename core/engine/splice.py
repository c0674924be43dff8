"""A conversation in which earlier turns stand as the model wrote them, and all else as the template writes it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from tandem.core.engine.notes import Kept, Piece
from tandem.core.engine.prompt import Prompt, PromptError
from tandem.core.engine.replay import Written

Messages = Seq[Mapping[str, Any]]
Pieces = list[Piece]

EDGE = "\ufdd1"
"""Stands at both ends of a mark. Unicode reserves the character for use inside a program."""
PASSES = 3
"""So many renderings are tried before the conversation is left as it was sent."""

ASKED = {"role": "user", "content": "asked"}
OTHER = {"role": "user", "content": "#"}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "result"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "probe", "arguments": {"key": "value"}}}


@dataclass(frozen=True, slots=True)
class _Cut:
    """What the template made of a turn, behind the assistant's header."""

    start: int
    end: int
    turn: Written


class Splicer:
    """Puts turns of the model into the rendered conversation, ids for text. Thread-safe.

    A turn that is put in is rendered as two marks, one as its reasoning and one as its content. The header before them
    stays the template's, and so does what ends the turn; between them come the opening that the turn's own prompt had,
    and the tokens that the model wrote. So the prompt repeats, token by token, what the cache holds of that turn.

    The template has the last word. Where it writes no reasoning (many leave it out of turns before the last question),
    a turn with reasoning tags is rendered as it was sent; so is any turn around which the template writes something
    else than expected. What it does is found out at the start, by rendering small conversations; a template that
    fails there is never spliced.
    """

    def __init__(self, prompt: Prompt, tags: tuple[str, str] | None) -> None:
        """`tags` open and close the model's reasoning."""
        self._prompt = prompt
        self._tags = tags
        self._nonce = secrets.token_hex(8)
        self._marks = re.compile(f"{EDGE}{self._nonce}([cr])([0-9]+){EDGE}")
        self._field = True  # the template reads `reasoning_content`, else tags in the content
        self._tail = ""
        self.header = ""
        """What begins an assistant's turn, whether it is written or read; empty for a template that is not spliced."""
        self.takes_calls = False
        """Whether turns with tool calls can be spliced too."""
        self.takes_reasoning = False
        """Whether turns with reasoning tags can be: the template keeps reasoning in some turn at least."""
        try:
            self._probe()
        except PromptError:
            self.header = ""

    def opening(self, rendered: str) -> str | None:
        """What a conversation that ends where the model is to write has behind the assistant's header: at most tags
        and blanks. None when it does not end so."""
        at = rendered.rfind(self.header) if self.header else -1
        behind = rendered[at + len(self.header) :]
        return behind if at >= 0 and self._is_bare(behind) else None

    def render(
        self, messages: Messages, turns: Mapping[int, Written], tools: Messages | None = None, **kwargs: Any
    ) -> tuple[Pieces, int]:
        """The conversation as `Prompt.render` writes it, and how many turns were put in.

        The pieces are text and tokens in turn, beginning and ending with text. `turns` says what the model wrote in the
        messages with these indices. Raises PromptError when the conversation itself can't be rendered.
        """
        wanted = {index: turn for index, turn in turns.items() if self._may_splice(messages[index], turn)}
        for _ in range(PASSES):
            if not wanted:
                break
            marked = [self._marked(i, wanted[i]) if i in wanted else message for i, message in enumerate(messages)]
            try:
                text = self._prompt.render(marked, tools, **kwargs)
            except PromptError:
                break
            cuts = self._cuts(text, wanted)
            if len(cuts) == len(wanted):
                return _pieces(text, list(cuts.values())), len(cuts)
            wanted = {index: wanted[index] for index in cuts}
        return [self._prompt.render(messages, tools, **kwargs)], 0

    # ----------------------------------------------------------------------------------------------- one rendering

    def _may_splice(self, message: Mapping[str, Any], turn: Written) -> bool:
        calls_fit = self.takes_calls or not message.get("tool_calls")
        return bool(self.header) and calls_fit and (self.takes_reasoning or not turn.reasons)

    def _mark(self, kind: str, index: int) -> str:
        return f"{EDGE}{self._nonce}{kind}{index}{EDGE}"

    def _marked(self, index: int, turn: Written) -> dict[str, Any]:
        content, thoughts = self._mark("c", index), self._mark("r", index)
        return self._message(content, thoughts if turn.reasons else None)

    def _message(self, content: str, thoughts: str | None) -> dict[str, Any]:
        """An assistant's message, its reasoning where the template looks for it."""
        if thoughts is None or self._tags is None:
            return {"role": "assistant", "content": content}
        if self._field:
            return {"role": "assistant", "content": content, "reasoning_content": thoughts}
        opened, closed = self._tags
        return {"role": "assistant", "content": f"{opened}\n{thoughts}\n{closed}\n\n{content}"}

    def _cuts(self, text: str, wanted: Mapping[int, Written]) -> dict[int, _Cut]:
        """For each turn around which the template wrote what it should: where."""
        found: dict[tuple[str, int], list[re.Match[str]]] = {}
        for mark in self._marks.finditer(text):
            found.setdefault((mark[1], int(mark[2])), []).append(mark)
        cuts: dict[int, _Cut] = {}
        last = 0
        for index, turn in sorted(wanted.items()):
            marks = [*found.get(("r", index), ()), *found.get(("c", index), ())]
            cut = self._cut(text, last, marks, turn)
            if cut is not None:
                cuts[index] = cut
            last = max([last, *(mark.end() for mark in marks)])
        return cuts

    def _cut(self, text: str, last: int, marks: Seq[re.Match[str]], turn: Written) -> _Cut | None:
        """`last` is where the turn before ended; `marks` are its reasoning's and its content's."""
        kinds = [mark[1] for mark in marks]
        if kinds != (["r", "c"] if turn.reasons else ["c"]) or marks[-1].start() < marks[0].start():
            return None
        content = marks[-1]
        header = text.rfind(self.header, last, marks[0].start())
        start = header + len(self.header)
        between = self._marks.sub("", text[start : content.start()])
        if header < 0 or not self._is_bare(between) or not text.startswith(self._tail, content.end()):
            return None
        return _Cut(start, content.end(), turn)

    def _is_bare(self, text: str) -> bool:
        """Nothing but reasoning tags and blanks."""
        for tag in self._tags or ():
            text = text.replace(tag, "")
        return not text.strip()

    # ---------------------------------------------------------------------------------------------- what it can do

    def _probe(self) -> None:
        """Find the header, the tail, and where reasoning goes. Raises PromptError for a template that fails."""
        content = self._mark("c", 1)
        said = self._message(content, None)
        before = self._prompt.render([ASKED], add_generation_prompt=False)
        opened = self._prompt.render([ASKED])
        told = self._prompt.render([ASKED, said, ASKED])
        if not opened.startswith(before) or not told.startswith(before) or told.count(content) != 1:
            return
        head, _, tail = told[len(before) :].partition(content)
        header = _common(opened[len(before) :], head)
        if self._tags is not None and self._tags[0] in header:
            header = header[: header.index(self._tags[0])]
        self.header = header
        self._tail = _common(tail, self._prompt.render([ASKED, said, OTHER]).partition(content)[2])
        if self.opening(opened) is None or not self._is_bare(head[len(header) :]) or not self._is_safe(self._tail):
            self.header = ""
            return
        self.takes_calls = self._probe_calls(said, content)
        self.takes_reasoning = self._tags is not None and (self._keeps(field=True) or self._keeps(field=False))

    def _probe_calls(self, said: Mapping[str, Any], content: str) -> bool:
        """Whether a turn of calls ends as a turn of text does. The tail becomes what both kinds of turn have."""
        tail = self._tried([ASKED, said, RESULT]).partition(content)[2]
        called = self._tried([ASKED, {"role": "assistant", "content": "", "tool_calls": [CALL]}, RESULT])
        common = _common(self._tail, tail)
        if not called.endswith(tail) or not self._is_safe(common):
            return False
        self._tail = common
        return True

    def _keeps(self, *, field: bool) -> bool:
        """Whether the template shows reasoning in any turn, given so."""
        self._field = field
        thoughts = self._mark("r", 1)
        said = self._message(self._mark("c", 1), thoughts)
        return any(thoughts in self._tried([ASKED, said, *rest]) for rest in ([ASKED], [RESULT], []))

    def _tried(self, messages: Messages) -> str:
        """The rendered conversation; empty when the template refuses it."""
        try:
            return self._prompt.render(messages)
        except PromptError:
            return ""

    def _is_safe(self, tail: str) -> bool:
        """Whether text before the tail is encoded the same with and without it: the tail begins with a special
        token."""
        encode = self._prompt.encode
        return bool(tail) and all(
            encode(word + tail) == encode(word) + encode(tail) for word in ("a", "a\n", "a ", "}", ".")
        )


def _common(first: str, second: str) -> str:
    """What both begin with."""
    return "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _pieces(text: str, cuts: Seq[_Cut]) -> Pieces:
    pieces: Pieces = []
    begin = 0
    for cut in cuts:
        turn = cut.turn
        kept = Kept(turn.tokens, turn.hidden) if turn.hidden else turn.tokens
        pieces += [text[begin : cut.start] + turn.opening, kept]
        begin = cut.end
    return [*pieces, text[begin:]]
