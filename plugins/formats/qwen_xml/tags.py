"""The notation's tags."""

from __future__ import annotations

import re
from collections.abc import Sequence as Seq
from dataclasses import dataclass

LONGEST_TAG = 256
TAG = re.compile(r"<(/?)(tool_call|function|parameter)((?:[ \t=][^<>\n]{0,200})?)>")
NAME = re.compile(r"""(?:[ \t]+name)?[ \t]*=[ \t]*(?:"([^"]+)"|'([^']+)'|([^"'\s](?:[^<>\n]*\S)?))[ \t]*""")
KINDS = ("parameter", "function", "tool_call")
"""From the inside out, as closing tags follow each other."""
OPENING = ("<tool_call", "<function")
CLOSING = ("</function", "</tool_call")
INSIDE = ("<parameter", "</function")
"""What may stand behind a function's opening tag."""
ANY = (*OPENING, *CLOSING, "<parameter", "</parameter")


@dataclass(frozen=True, slots=True)
class Tag:
    """`<function=read>`: kind `function`, name `read`."""

    kind: str
    closing: bool = False
    name: str = ""
    length: int = 0

    def opens(self, kind: str) -> bool:
        return self.kind == kind and not self.closing


ENDED = Tag("ended")
"""The answer ends inside what could have become a tag."""


def tag_of(found: re.Match[str]) -> Tag | None:
    """The tag that was found; None when something in it is wrong."""
    closing, kind, rest = found[1] == "/", found[2], found[3]
    length = found.end() - found.start()
    if closing or kind == "tool_call":
        return Tag(kind, closing, "", length) if not rest.strip() else None
    name = NAME.fullmatch(rest)
    return Tag(kind, False, name[1] or name[2] or name[3], length) if name else None


def may_become_tag(text: str, starts: Seq[str]) -> bool:
    """Whether `text`, which begins with `<`, is the beginning of a tag that starts like one of `starts`."""
    if len(text) > LONGEST_TAG or any(char in text[1:] for char in "<>\n"):
        return False
    return any(
        start.startswith(text) or (text.startswith(start) and text[len(start) :][:1] in ("", " ", "\t", "="))
        for start in starts
    )


@dataclass(frozen=True, slots=True)
class Run:
    """Closing tags that stand together, with nothing but blanks between them."""

    kinds: tuple[str, ...]
    length: int
    """From the first tag's beginning to the last one's end."""
    follow: str
    """What stands behind: `call`, `parameter`, `text`, or `end` where the answer ends."""
    head: Tag | None = None
    """The parameter's opening tag that follows."""
    head_at: int = 0
    """Its offset from the run's beginning."""

    @property
    def strong(self) -> bool:
        """Two or more closing tags: written by nobody by chance."""
        return len(self.kinds) > 1
