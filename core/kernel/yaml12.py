"""YAML as a manifest is read: the words of YAML 1.2's core schema, and the line of every value.

YAML 1.1, which PyYAML speaks by itself, reads `on`, `off`, `yes` and `no` as booleans and `1_0` as a number. Here
they are the words that were written; only `true`, `false`, `null`, numbers and `~` mean anything else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import yaml

from tandem.core.kernel.problems import ManifestError, Problem

Keys = tuple[str, ...]
"""A path inside a manifest. Places in a list are their number, as text."""

MOST_VALUES = 20_000
"""More values than this are refused: a few lines of nested aliases can stand for billions."""

_NULL = re.compile(r"~|null|Null|NULL|")
_TRUE = re.compile(r"true|True|TRUE")
_FALSE = re.compile(r"false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_TAG = "tag:yaml.org,2002:"
_TAGGED: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "null": (type(None),)}


class Mark(NamedTuple):
    """Where a value was written."""

    file: str
    line: int
    base: Path
    """The directory that relative paths in this file start from."""


@dataclass(slots=True)
class Tree:
    """Plain values (mappings with text keys, lists, scalars) and the mark of every path among them."""

    value: Any
    marks: dict[Keys, Mark] = field(default_factory=dict)

    def mark(self, keys: Keys) -> Mark:
        """The mark of `keys`, or of the nearest path above that has one."""
        while keys and keys not in self.marks:
            keys = keys[:-1]
        return self.marks.get(keys, Mark("", 0, Path()))


def parse(text: str | bytes, file: str, base: Path) -> Tree:
    """Read one YAML document. Raises `ManifestError` with the line of what can't be read."""
    try:
        reader = _Reader(text)
        try:
            return _Builder(file, base).tree(reader.get_single_node())
        finally:
            reader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = f"not valid YAML: {error.problem or error.context}"
        raise ManifestError([Problem(file, mark.line + 1 if mark else 0, "", message)]) from None
    except yaml.YAMLError as error:
        raise ManifestError([Problem(file, 0, "", f"not valid YAML: {' '.join(str(error).split())}")]) from None
    except (ValueError, OverflowError):  # PyYAML turns `\U` escapes into characters without looking
        raise ManifestError([Problem(file, 0, "", "not valid YAML: an escape that is no character")]) from None
    except RecursionError:
        raise ManifestError([Problem(file, 0, "", "nested too deeply")]) from None


def scalar(text: str) -> Any:
    """The value of a plain word by YAML 1.2's core schema."""
    if _NULL.fullmatch(text):
        return None
    if _TRUE.fullmatch(text) or _FALSE.fullmatch(text):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        base = {"0o": 8, "0x": 16}.get(text[:2], 10)
        return int(text[2:] if base != 10 else text, base)
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


class _Reader(yaml.SafeLoader):
    """PyYAML's parser; what a word means is left to `_Builder`."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        if kind is yaml.ScalarNode:
            return f"{_TAG}plain" if implicit[0] else f"{_TAG}str"
        return f"{_TAG}seq" if kind is yaml.SequenceNode else f"{_TAG}map"


class _Builder:
    """Turns PyYAML's nodes into a `Tree`."""

    def __init__(self, file: str, base: Path) -> None:
        self.file = file
        self.base = base
        self.marks: dict[Keys, Mark] = {}
        self.left = MOST_VALUES
        self.open: set[int] = set()

    def tree(self, node: yaml.Node | None) -> Tree:
        if node is None:
            raise ManifestError([Problem(self.file, 0, "", "the file is empty")])
        return Tree(self.build(node, (), node), self.marks)

    def build(self, node: yaml.Node, keys: Keys, at: yaml.Node) -> Any:
        """The value of `node`, whose path is `keys` and whose line is that of `at`."""
        self.left -= 1
        if self.left < 0:
            self.refuse(at, keys, f"more than {MOST_VALUES} values, aliases counted each time")
        if id(node) in self.open:
            self.refuse(at, keys, "an alias of something that contains it")
        self.marks[keys] = Mark(self.file, at.start_mark.line + 1, self.base)
        self.open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
                return self.mapping(node, keys)
            if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
                return [self.build(item, (*keys, str(index)), item) for index, item in enumerate(node.value)]
            if isinstance(node, yaml.ScalarNode):
                return self.scalar(node, keys)
            self.refuse(node, keys, f"the tag `{node.tag}` means nothing here")
        finally:
            self.open.discard(id(node))

    def mapping(self, node: yaml.MappingNode, keys: Keys) -> dict[str, Any]:
        built: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.refuse(key_node, keys, "a key must be a word")
            key = key_node.value
            if key in built:
                first = self.marks[*keys, key].line
                self.refuse(key_node, (*keys, key), f"the key is here twice; first on line {first}")
            built[key] = self.build(value_node, (*keys, key), key_node)
        return built

    def scalar(self, node: yaml.ScalarNode, keys: Keys) -> Any:
        if node.tag == f"{_TAG}str":
            return node.value
        try:
            value = scalar(node.value)
        except ValueError:
            self.refuse(node, keys, "a number too long to read")
        word = node.tag.removeprefix(_TAG)
        if word != "plain" and type(value) not in _TAGGED.get(word, ()):
            self.refuse(node, keys, f"`{node.value}` is not what the tag `{node.tag}` says")
        return value

    def refuse(self, node: yaml.Node, keys: Keys, message: str) -> NoReturn:
        raise ManifestError([Problem(self.file, node.start_mark.line + 1, ".".join(keys), message)])
