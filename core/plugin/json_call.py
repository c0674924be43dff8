"""Reads a call that is written as a JSON object, `{"name": "f", "arguments": {...}}`, while it is being written."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

from tandem.core.plugin.reader import AnswerReader, Steps
from tandem.core.plugin.tools import PYTHON_WORDS, Tool, allowed_types, fitted, json_text, read_json

PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})')
SCALAR = re.compile(r"[-+.\w]+")
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")

Sink = Callable[[str], None]


class JsonCall(Enum):
    """What became of a JSON object."""

    WHOLE = "whole"
    """A call; the cursor stands behind it."""
    OPEN = "open"
    """A call whose JSON broke off or is broken after its beginning went out."""
    NONE = "none"
    """No call; the cursor stands where it was."""


class Broken(Exception):
    """The text is no JSON, or no call."""


def json_call(reader: AnswerReader, offset: int) -> Steps[JsonCall]:
    """The JSON object whose brace is `offset` behind the cursor.

    The arguments (`arguments` or `parameters`, an object or the JSON text of one; none means none) go out as they are
    written once the name is known; arguments that come before the name, or as a text, are held until they are whole.
    Changed on the way: a parameter's name becomes the declared one that it means, a string where the schema allows none
    becomes the value that it holds (`fitted`; held until whole), a control character in a string is escaped.
    The object's own last brace may be missing when the arguments are whole.
    """
    reader.mark()
    reader.take(offset)
    try:
        yield from _call(reader)
    except Broken:
        if not reader.withdraw():
            reader.leave()
            return JsonCall.OPEN
        if reader.over and reader.cut:
            reader.unmark()
            return JsonCall.OPEN
        reader.rewind()
        return JsonCall.NONE
    reader.unmark()
    return JsonCall.WHOLE


def json_arguments(reader: AnswerReader, tool: Tool) -> Steps[bool]:
    """The arguments object at the cursor, for the call that has begun; False when its JSON is broken or broke off."""
    try:
        yield from _arguments(reader, tool)
    except Broken:
        return False
    return True


def _call(reader: AnswerReader) -> Steps[None]:
    name, early, whole = "", "", False
    reader.take(1)
    first = True
    while (key := (yield from _key(reader, first, _drop, whole))) is not None:
        first = False
        if key == "name":
            name = yield from _text(reader)
        elif key not in ("arguments", "parameters") or whole:
            yield from _value(reader, _drop)
        elif name and (yield from reader.char()) == "{":
            tool = reader.begin(name)
            yield from _arguments(reader, tool)
            whole = True
        else:
            early = yield from _collected(reader)
    if not name:
        raise Broken
    if not whole:
        arguments = _object(early)
        tool = reader.begin(name)
        named = {tool.parameter_named(key): value for key, value in arguments.items()}
        root = tool.parameters
        reader.write(json_text({key: fitted(value, tool.parameter(key), root) for key, value in named.items()}))
    reader.done()


def _object(text: str) -> dict[str, object]:
    """Arguments that were collected: an object, the JSON text of one, or nothing."""
    try:
        value = read_json(text or "{}")
        value = read_json(value or "{}") if isinstance(value, str) else value
    except ValueError:
        raise Broken from None
    if value is not None and not isinstance(value, dict):
        raise Broken
    return value or {}


def _arguments(reader: AnswerReader, tool: Tool) -> Steps[None]:
    root, seen = tool.parameters, set[str]()

    def named(written: str) -> str:
        name = tool.parameter_named(written)
        return written if name in seen else name

    reader.write(reader.take(1))
    first = True
    while (name := (yield from _key(reader, first, reader.write, rename=named))) is not None:
        first = False
        seen.add(name)
        schema = tool.parameter(name)
        text = (yield from reader.char()) == '"'
        if text and schema is not None and "string" not in allowed_types(schema, root):
            reader.write(json_text(fitted((yield from _text(reader)), schema, root)))
        else:
            yield from _value(reader, reader.write)


# ---------------------------------------------------------------------------------------------------- JSON's parts


def _drop(text: str) -> None:
    pass


def _key(
    reader: AnswerReader, first: bool, sink: Sink, may_end: bool = False, rename: Callable[[str], str] = str
) -> Steps[str | None]:
    """The next member's key; the cursor then stands at its value. None when the object has ended.

    `may_end`: the object may also end without its brace, before a tag or where the answer ends by itself.
    """
    char = yield from _blanks(reader, sink)
    if may_end and (char == "<" or (reader.over and not reader.cut)):
        return None
    if char == "}":
        sink(reader.take(1))
        return None
    if not first:
        yield from _punctuation(reader, ",", sink)
        yield from _blanks(reader, sink)
    name = rename((yield from _text(reader)))
    sink(json_text(name))
    yield from _blanks(reader, sink)
    yield from _punctuation(reader, ":", sink)
    yield from _blanks(reader, sink)
    return name


def _value(reader: AnswerReader, sink: Sink) -> Steps[None]:
    """One value of any kind, passed on as it is written."""
    closers: list[str] = []
    while True:
        char = yield from _blanks(reader, sink)
        if char and char in "{[":
            sink(reader.take(1))
            closer = "}" if char == "{" else "]"
            if (yield from _blanks(reader, sink)) != closer:
                closers.append(closer)
                if closer == "}":
                    yield from _key(reader, True, sink)
                continue
            sink(reader.take(1))
        elif char == '"':
            yield from _string(reader, sink)
        else:
            yield from _scalar(reader, sink)
        while closers:  # a value is whole: what it ends
            if (yield from _blanks(reader, sink)) == closers[-1]:
                closers.pop()
                sink(reader.take(1))
                continue
            if closers[-1] == "}":
                yield from _key(reader, False, sink)
            else:
                yield from _punctuation(reader, ",", sink)
            break
        else:
            return


def _string(reader: AnswerReader, sink: Sink) -> Steps[None]:
    sink(reader.take(1))
    while True:
        char = yield from reader.char()
        if plain := PLAIN.match(reader.text, reader.at):
            sink(reader.take(plain.end() - plain.start()))
        elif char == '"':
            sink(reader.take(1))
            return
        elif char == "\\":
            length = 6 if (yield from reader.char(1)) == "u" else 2
            yield from reader.char(length - 1)
            escape = reader.take(length)
            if not ESCAPE.fullmatch(escape):
                raise Broken
            sink(escape)
        elif char:
            sink(json_text(reader.take(1))[1:-1])
        else:
            raise Broken


def _scalar(reader: AnswerReader, sink: Sink) -> Steps[None]:
    pieces: list[str] = []
    while (yield from reader.char()) and (found := SCALAR.match(reader.text, reader.at)):
        pieces.append(reader.take(found.end() - found.start()))
    word = "".join(pieces)
    word = PYTHON_WORDS.get(word, word)
    if word not in ("true", "false", "null") and not NUMBER.fullmatch(word):
        raise Broken
    sink(word)


def _text(reader: AnswerReader) -> Steps[str]:
    """A string's value."""
    if (yield from reader.char()) != '"':
        raise Broken
    pieces: list[str] = []
    yield from _string(reader, pieces.append)
    return str(read_json("".join(pieces)))


def _collected(reader: AnswerReader) -> Steps[str]:
    """A value's JSON text."""
    pieces: list[str] = []
    yield from _value(reader, pieces.append)
    return "".join(pieces)


def _blanks(reader: AnswerReader, sink: Sink) -> Steps[str]:
    """Pass blanks on; the character behind them."""
    while (char := (yield from reader.char())) and char in " \t\r\n":
        sink(reader.take(1))
    return char


def _punctuation(reader: AnswerReader, mark: str, sink: Sink) -> Steps[None]:
    if (yield from reader.char()) != mark:
        raise Broken
    sink(reader.take(1))
