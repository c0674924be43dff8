"""What the scripted model is told to write, read out of a prompt."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tandem.plugins.models.scripted.tokens import ASSISTANT, CLOSE, END, OPEN, ROLES, SYSTEM, TOOLS_HEAD, USER

if TYPE_CHECKING:
    from tandem.core.plugin.vision import Picture

TOLD = ("script", "turns")
ENTRIES = ("strings", '{"hex": ...}', '{"sleep_ms": ...}', '{"picture": ...}')
OBJECT = re.compile(r'\{\s*"')
JSON = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Entry:
    """One block of the script: its bytes, and how long it makes the reader wait before it."""

    data: bytes
    pause_s: float = 0.0
    seen: bool = False
    """It tells about a picture, which the model alone has seen."""


@dataclass(frozen=True, slots=True)
class Script:
    """What one answer will be. `starts[i]` is the offset of entry i; without `end` the last entry repeats for ever,
    each time after its pause."""

    entries: tuple[Entry, ...]
    end: bool = True
    data: bytes = b""
    starts: tuple[int, ...] = ()
    known: int | None = None
    """Where the first entry about a picture begins: drafts end there. None = there is none."""

    @classmethod
    def of(cls, entries: Seq[Entry], end: bool = True) -> Script:
        starts, at, known = [], 0, None
        for entry in entries:
            starts.append(at)
            if entry.seen and known is None:
                known = at
            at += len(entry.data)
        return cls(tuple(entries), end, b"".join(entry.data for entry in entries), tuple(starts), known)

    def token(self, offset: int) -> int:
        """The token at `offset` of the answer."""
        if offset < len(self.data):
            return self.data[offset]
        if self.end or not self.entries or not self.entries[-1].data:
            return END
        last = self.entries[-1].data
        return last[(offset - len(self.data)) % len(last)]

    def entry_at(self, offset: int) -> tuple[int, float]:
        """`(bytes left in the entry, pause before it)`; the pause only at the entry's first byte."""
        if offset < len(self.data):
            index = bisect_right(self.starts, offset) - 1
            start, entry = self.starts[index], self.entries[index]
            return start + len(entry.data) - offset, entry.pause_s if start == offset else 0.0
        if not self.end and self.entries and self.entries[-1].data:
            last = self.entries[-1]
            begun = (offset - len(self.data)) % len(last.data)
            return len(last.data) - begun, 0.0 if begun else last.pause_s
        return 0, 0.0


def find_told(text: str) -> dict[str, Any] | None:
    """The first JSON object in a message that has the key `script` or `turns`. Clients put what a person wrote between
    quotes or behind notes of their own, so it may stand anywhere."""
    if not any(f'"{key}"' in text for key in TOLD):
        return None
    at = 0
    while brace := OBJECT.search(text, at):
        try:
            value, at = JSON.raw_decode(text, brace.start())
        except (ValueError, RecursionError):
            at = brace.end()
            continue
        if isinstance(value, dict) and any(key in value for key in TOLD):
            return value
    return None


def read_script(told: Any, name: str = "script", end: bool = True, pictures: Seq[Picture] = ()) -> Script:
    """The script that a value holds, or an answer that says what is wrong with it. `name` is what the message calls it:
    a list of entries, or an object with the keys `script` and `end`."""
    if isinstance(told, dict) and "script" in told:
        told, name, end = told["script"], f"{name}.script", told.get("end", True) is not False
    if not isinstance(told, list):
        return spoken(f"{name} must be a list of {', '.join(ENTRIES)}.")
    entries: list[Entry] = []
    pause = 0.0
    for index, item in enumerate(told):
        if isinstance(item, dict) and isinstance(item.get("sleep_ms"), int | float):
            pause += item["sleep_ms"] / 1e3
            continue
        data = _entry_bytes(item, pictures)
        if data is None:
            return spoken(f"{name}[{index}] is none of {', '.join(ENTRIES)}.")
        if data:
            entries.append(Entry(data, pause, isinstance(item, dict) and "picture" in item))
            pause = 0.0
    return Script.of(entries, end)


def _entry_bytes(item: Any, pictures: Seq[Picture]) -> bytes | None:
    if isinstance(item, str):
        return item.encode("utf-8", "surrogatepass")
    if isinstance(item, dict) and isinstance(item.get("hex"), str):
        try:
            return bytes.fromhex(item["hex"])
        except ValueError:
            return None
    if isinstance(item, dict) and type(item.get("picture")) is int:
        return described(pictures, item["picture"]).encode()
    return None


def described(pictures: Seq[Picture], index: int) -> str:
    """What the model saw of the prompt's picture `index`: its own size, its rows, and the mean colour of what was
    read."""
    if not 0 <= index < len(pictures):
        return f"there is no picture {index}: the prompt shows {len(pictures)}"
    picture = pictures[index]
    width, height = picture.size
    red, green, blue = (round(float(mean)) for mean in picture.pixels.mean(axis=(0, 1)))
    return f"{width}x{height}, {picture.rows} rows, #{red:02x}{green:02x}{blue:02x}"


def spoken(text: str) -> Script:
    """A plain answer, one entry a word."""
    return Script.of([Entry(word.encode()) for word in re.findall(r"\S+\s*|\s+", text)])


def script_for(prompt: Seq[int], reply: Script, pictures: Seq[Picture] = ()) -> Script:
    """What answers this prompt: the script of its last user message, what an earlier one planned, or `reply`.

    Reasoning that the prompt has opened is a script's own matter. Anything else closes it first, unless it does so
    later.
    """
    turns = read_turns(prompt)
    users = [place for place, turn in enumerate(turns) if turn.role == USER]
    told: Mapping[str, Any] = {}
    place = -1
    for place in reversed(users):
        if found := find_told(turns[place].text):
            told = found
            break
    last = bool(told) and place == users[-1]
    offers_tools = turns[0].role == SYSTEM and turns[0].text.startswith(TOOLS_HEAD)
    if last and "aside" in told and not offers_tools:
        script = read_script(told["aside"], "aside", pictures=pictures)
    elif last and "script" in told:
        return read_script(told["script"], end=told.get("end", True) is not False, pictures=pictures)
    elif "turns" in told:
        answered = sum(turn.role == ASSISTANT and turn.closed for turn in turns[place:])
        script = planned(told["turns"], answered, pictures) or reply
    else:
        script = reply
    inside = bytes(token for token in prompt[-16:] if token < 256).rstrip().endswith(OPEN.encode())
    if inside and CLOSE.encode() not in script.data:
        return Script.of([Entry(f"{CLOSE}\n\n".encode()), *script.entries], script.end)
    return script


def planned(scripts: Any, answered: int, pictures: Seq[Picture] = ()) -> Script | None:
    """The script of the next answer; None behind the last one."""
    if not isinstance(scripts, list):
        return spoken("turns must be a list of scripts.")
    if answered >= len(scripts):
        return None
    return read_script(scripts[answered], f"turns[{answered}]", pictures=pictures)


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the conversation in a prompt."""

    role: int
    """The special that opened it."""
    text: str
    closed: bool
    """The end token stands behind it; the turn that is being written has none."""


def read_turns(prompt: Seq[int]) -> list[Turn]:
    """The prompt's turns in order. A prompt without any is one user turn."""
    starts = [at for at, token in enumerate(prompt) if token in ROLES]
    if not starts:
        return [Turn(USER, _text(prompt), False)]
    turns: list[Turn] = []
    for start, stop in pairwise([*starts, len(prompt)]):
        inside = list(prompt[start + 1 : stop])
        closed = END in inside
        turns.append(Turn(prompt[start], _text(inside[: inside.index(END)] if closed else inside), closed))
    return turns


def path_bytes(tokens: Seq[int]) -> bytes:
    """What the tokens are as bytes; specials are none."""
    return bytes(token for token in tokens if token < 256)


def _text(tokens: Seq[int]) -> str:
    return path_bytes(tokens).decode("utf-8", "replace")
