"""What secrets look like in the results of tools."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence as Seq
from dataclasses import dataclass
from typing import Any

REDACTED = "[redacted]"
LONGEST_TEXT = 1 << 18
"""Characters of a result that are read."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A run of characters that must not be repeated, and what stands in its place."""

    text: str
    shown: str
    kind: str


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of secret. The pattern's group `secret` is what is hidden, `prefix` (if any) what stays before it."""

    kind: str
    starts: tuple[str, ...]
    """What the pattern begins with, in lower case. Only these places are tried: looking for a plain text takes a
    hundredth of the time of looking for a pattern."""
    pattern: re.Pattern[str]
    accepts: Callable[[str], bool]


# ------------------------------------------------------------------------------------------------------- which values


def _lettered(value: str) -> bool:
    return any(char.isalpha() for char in value)


def _mixed(value: str) -> bool:
    """A letter and a digit: neither a word of prose or code nor a number."""
    return _lettered(value) and any(char.isdigit() for char in value)


def _header_value(value: str) -> bool:
    """Base64 of a user and a password, which need not have a digit; no plain word."""
    return _mixed(value) or value.endswith("=") or (value != value.lower() and value[1:] != value[1:].lower())


WORDS = r"passw(?:or)?d|passphrase|passcode|pwd|[_-]pass|secret|credentials?"
KEYS = r"token|(?:api|access|auth|private|secret|signing|encryption|account|master|storage)[_-]?key(?:_id)?"
"""What the name of a secret ends with: of one that a person thinks up, and of one that a program does."""

ORDINARY = re.compile(
    rf"""(?ix)
    (?:{WORDS} | {KEYS} | access | refresh | user | new | old | current | confirm | reset | csrf | auth | bearer
      | client | id | key | field | name | type | input | hash | string | text | value | required | optional | changeme
      | example | none | null | true | false | undefined | hidden | redacted | [\W_] )++ \d*
    | (?: your | placeholder | x{{3}} ) .*
    | u?int\d+ | float\d+ | [iuf]\d+ | utf-?\d+ | sha-?\d+ | base\d+ | md\d | v?\d+(?:\.\d+)+ | \#[0-9a-f]{{3,8}}
    """
)
"""Values that name, type or stand in for a secret: fields, placeholders, types, versions, colours."""
FIELD = re.compile(rf"[A-Za-z_.-]*(?:[_.-]|(?<=[a-z])(?=[A-Z]))(?i:{WORDS}|{KEYS})")
"""The name of a field, as in `password_field = "NewPassword"`."""
NAME_SIZE = 64
"""Longer values name nothing."""
TEMPLATE = re.compile(r"[$%<{(\[]|.*(?:\$\{|\{\{|\{\w*\}|%s|%\()")
"""Values that a program fills in."""
CODE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+|[./~].*|.*://.*")
"""Unquoted values that are a variable's attribute, a path or an address."""


def _thought_up(value: str) -> bool:
    if not _lettered(value) or TEMPLATE.match(value):
        return False
    return len(value) > NAME_SIZE or not (ORDINARY.fullmatch(value) or FIELD.fullmatch(value))


def _made(value: str) -> bool:
    return _mixed(value) and _thought_up(value)


def _unquoted(value: str) -> bool:
    return _made(value) and not CODE.fullmatch(value)


# ------------------------------------------------------------------------------------------------------------ shapes


def _shape(kind: str, starts: str, pattern: str, accepts: Callable[[str], bool]) -> Shape:
    return Shape(kind, tuple(starts.split()), re.compile(pattern), accepts)


WORD_STARTS = "passw passp passc pwd _pass -pass secret credential"
KEY_STARTS = "token api access auth private secret signing encryption account master storage"
SET = r"\d*[\"']?\]?(?:\s*:\s*[\w.|\[\] ]{2,30}=|\s*(?:={1,3}>?|:=?))\s*"
"""From a name to its value: `=`, `:`, `==`, `=>`, `:=`, or a type and `=`; a quote or a bracket may close the name."""
QUOTED = r"(?P<q>[\"'`])(?P<secret>[^\s\"'`\\]{6,500})(?P=q)"
PLAIN = r"(?P<secret>[^\s\"'`,;&|<>(){}\[\]\\]{5,500}[^\s\"'`,;&|<>(){}\[\]\\.:])[.:]?(?=[\s\"'`,;&|<>)}\]\\]|\Z)"

SHAPES = (
    _shape(
        "api_key",
        "sk- sk_ rk_ pk_ whsec_",
        r"(?<![A-Za-z0-9_])(?P<prefix>sk-|[srp]k_(?:live|test)_|whsec_)(?P<secret>[A-Za-z0-9_-]{5,300}[A-Za-z0-9])",
        _mixed,
    ),
    _shape(
        "service_token",
        "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- xox hf_ npm_ pypi- dop_v1_ sg. ya29. shpat_ shpca_ shppa_ shpss_ "
        "lin_api_ nvapi- gsk_ tvly- pplx- r8_ figd_ aiza",
        r"(?<![A-Za-z0-9_])(?P<prefix>gh[pousr]_|github_pat_|glpat-|xox[abeoprs]-|hf_|npm_|pypi-|dop_v1_|SG\.|ya29\."
        r"|shp(?:at|ca|pa|ss)_|lin_api_|nvapi-|gsk_|tvly-|pplx-|r8_|figd_|AIza)"
        r"(?P<secret>[A-Za-z0-9_.-]{15,500}[A-Za-z0-9_-])",
        _mixed,
    ),
    _shape("service_token", "akia asia", r"(?<!\w)(?P<prefix>AKIA|ASIA)(?P<secret>[A-Z0-9]{12,20})(?!\w)", _mixed),
    _shape("jwt", "eyj", r"(?<!\w)(?P<secret>eyJ[\w-]{8,4000}\.eyJ[\w-]{4,4000}\.[\w-]{8,2000})", _lettered),
    _shape("bearer", "bearer", r"(?i:\bbearer)[\s:]+(?P<secret>[\w.~+/-]{5,2000}[\w~+/-]=*)", _mixed),
    _shape(
        "basic",
        "authorization",
        r"(?i:authorization[\"']?\s*[:=]\s*[\"']?basic)\s+(?P<secret>[A-Za-z0-9+/]{7,2000}=*)",
        _header_value,
    ),
    _shape("url", "://", r"://[^\s/:@\"'<>]{0,100}:(?P<secret>[^\s/@\"'<>]{4,200})@", _thought_up),
    _shape("assigned", WORD_STARTS, rf"(?i:{WORDS}){SET}{QUOTED}", _thought_up),
    _shape("assigned", KEY_STARTS, rf"(?i:{KEYS}){SET}{QUOTED}", _made),
    _shape("assigned", f"{WORD_STARTS} {KEY_STARTS}", rf"(?i:{WORDS}|{KEYS}){SET}{PLAIN}", _unquoted),
    _shape(
        "pin",
        "pin",
        r"(?i:\bpin(?:[ _-]?(?:code|number))?)[\"']?\s*(?:(?:is|[:=])\s*)?[\"']?(?P<secret>\d{4,12})(?![\w-]|[.:]\d)",
        str.isdigit,
    ),
)

STARTS = dict.fromkeys(start for shape in SHAPES for start in shape.starts)
BY_START: Mapping[str, Seq[Shape]] = {start: [shape for shape in SHAPES if start in shape.starts] for start in STARTS}

KEY_HEAD = re.compile(r"(?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----")
KEY_BEGIN, KEY_END, KEY_SIZE = "-----BEGIN ", "-----", 20_000
KEY_LINE = re.compile(r"[A-Za-z0-9+/=]{12,}")


def secrets_in(text: str, until: float = math.inf) -> dict[str, Secret]:
    """The secrets of a tool's result, by their text. Of a private key each line is one, so that it is found however
    the answer wraps the block. At `until`, on the clock of `time.perf_counter`, reading ends where it is."""
    found: dict[str, Secret] = {}
    for part in _parts(text[:LONGEST_TEXT]):
        lower = part.replace("İ", "I").lower()  # the one letter that has two in lower case; the places stay the same
        for start, shapes in BY_START.items():
            for at in _places(lower, start):
                if time.perf_counter() > until:
                    return found
                for shape in shapes:
                    _keep(found, shape, shape.pattern.match(part, at))
        for line in _key_lines(part):
            found.setdefault(line, Secret(line, REDACTED, "private_key"))
    return found


def _key_lines(text: str) -> Iterator[str]:
    """The lines of every private key; one that the tool cut off ends with the text."""
    for at in _places(text, KEY_BEGIN):
        head = KEY_HEAD.match(text, at + len(KEY_BEGIN))
        if head is not None:
            body = text[head.end() : head.end() + KEY_SIZE]
            yield from KEY_LINE.findall(body.partition(KEY_END)[0])


def _places(text: str, word: str) -> Iterator[int]:
    at = text.find(word)
    while at >= 0:
        yield at
        at = text.find(word, at + 1)


def _keep(found: dict[str, Secret], shape: Shape, match: re.Match[str] | None) -> None:
    """Keep what a shape found; where two found the same, the earlier of SHAPES counts."""
    if match is not None and shape.accepts(match["secret"]):
        prefix = match.groupdict().get("prefix") or ""
        secret = Secret(prefix + match["secret"], prefix + REDACTED, shape.kind)
        found.setdefault(secret.text, secret)


def _parts(text: str) -> Iterator[str]:
    """The text, and when it is JSON with escapes what its strings say, each behind its key."""
    yield text
    if "\\" in text and text.lstrip()[:1] in ("{", "[", '"'):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return
        strings = list(_strings(value, ""))
        if strings:
            yield "\n".join(strings)


def _strings(value: Any, key: str) -> Iterator[str]:
    """Every string of a JSON value, read without recursion."""
    todo = [(value, key)]
    while todo:
        value, key = todo.pop()
        if isinstance(value, Mapping):
            todo += [(inner, str(name)) for name, inner in value.items()]
        elif isinstance(value, list):
            todo += [(inner, key) for inner in value]
        elif isinstance(value, str):
            yield value
            if key and '"' not in value:
                yield f'{key}: "{value}"'
