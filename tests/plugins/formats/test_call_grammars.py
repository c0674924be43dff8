"""Whatever the grammars let through, the parsers read as calls that fit the schemas."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
import torch

from tandem.core.engine.constraint import Constraint, Grammars
from tandem.core.plugin import AnswerFormat, Tool, typed
from tandem.plugins.formats.hermes_json import HermesJson
from tandem.plugins.formats.qwen_xml import QwenXml

END = 256
FORMS: dict[str, AnswerFormat] = {"qwen_xml": QwenXml(True), "hermes_json": HermesJson(True)}


class Bytes:
    """A vocabulary of single bytes and an end token."""

    vocab_size = 257
    eos_ids = frozenset({END})

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < END else b""


GRAMMARS = Grammars(Bytes())
ROW = torch.zeros(Bytes.vocab_size)
BURSTS = [
    "</parameter>", "</function>", "</tool_call>", "<tool_call>\n", "<function=now>", "\n<parameter=mode>", "\n", " ",
    "x", "é😀", '"', "\\", "\\n", "}", "]", ", ", "1", "-2", "null", "true", "{", "[", "write_file",
    "</parameter>\n</function>\n</tool_call>", "\n</parameter>\n", "</parameter></function></tool_call>\n",
]  # fmt: skip
ENDINGS = {
    "qwen_xml": ("\n</parameter>\n</function>\n</tool_call>", '"', "}", "]"),
    "hermes_json": ('"', "}", "]", "\n</tool_call>"),
}


def allowed(constraint: Constraint) -> list[int]:
    mask = constraint.mask(ROW)
    assert mask is not None
    return torch.nonzero(mask).flatten().tolist()


def push(constraint: Constraint, out: bytearray, text: bytes) -> bool:
    """Write as much of `text` as is allowed; True when something was."""
    start = len(out)
    for byte in text:
        if constraint.complete or byte not in allowed(constraint):
            break
        constraint.accept(byte)
        out.append(byte)
    return len(out) > start


def character(constraint: Constraint, out: bytearray, draw: random.Random) -> None:
    """Any allowed character."""
    while bytes_ := [byte for byte in allowed(constraint) if byte != END]:
        push(constraint, out, bytes([draw.choice(bytes_)]))
        try:
            out.decode()
        except UnicodeDecodeError:
            continue
        return


def walk(form: str, grammar: str, seed: int, wild: int = 40, calls: int = 3) -> str:
    """A random text of the grammar: some wild steps, then the ways to the end."""
    draw = random.Random(seed)
    constraint, out = GRAMMARS.single(grammar), bytearray()
    for step in range(1000):
        ends = constraint.complete or END in allowed(constraint)
        if constraint.complete or (ends and (out.count(b"<tool_call>\n") >= calls or draw.random() < 0.3)):
            return out.decode()
        if step < wild:
            if draw.random() < 0.3 or not push(constraint, out, draw.choice(BURSTS).encode()):
                character(constraint, out, draw)
        elif not any(push(constraint, out, ending.encode()) for ending in ENDINGS[form]):
            character(constraint, out, draw)
    raise AssertionError(f"no end in sight: {out.decode(errors='replace')!r}")


@pytest.fixture(scope="module")
def tools(write_file: Tool, odd_schemas: Tool, bare_tools: list[Tool]) -> list[Tool]:
    return [write_file, odd_schemas, *bare_tools, Tool('say "it"', "", {"type": "object", "properties": {"a": {}}})]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("parallel", [False, True])
def test_what_the_grammar_lets_through_is_read_as_calls_that_fit(take_apart, tools, form: str, parallel: bool) -> None:
    grammar = FORMS[form].grammar(tools, parallel)
    assert grammar is not None
    offered = {tool.name: tool for tool in tools}
    seen, several = set(), 0
    for seed in range(60):
        text = walk(form, grammar, seed)
        read = take_apart(FORMS[form], text, tools)
        assert read.text == "", text
        assert read.calls, text
        assert all(call.done for call in read.calls), text
        assert parallel or len(read.calls) == 1
        several += len(read.calls) > 1
        for name, arguments in read.done:
            seen.add(name)
            jsonschema.validate(arguments, dict(offered[name].parameters))
    assert len(seen) >= 5
    assert several > 0 or not parallel


def test_a_string_that_the_grammar_lets_through_is_read_as_it_was_written(take_apart, write_file) -> None:
    """The first line that is a closing tag alone ends a value, for the grammar and for the parser."""
    grammar = FORMS["qwen_xml"].grammar([write_file], False)
    assert grammar is not None
    for seed in range(60):
        text = walk("qwen_xml", grammar, seed)
        expected: dict[str, Any] = {}
        rest = text.partition("<function=write_file>\n")[2]
        while not rest.startswith("</function>"):
            name, _, rest = rest.removeprefix("<parameter=").partition(">\n")
            value, _, rest = rest.partition("\n</parameter>\n")
            expected[name] = typed(value, write_file.parameter(name), {})
        assert take_apart(FORMS["qwen_xml"], text, [write_file], 7).done == [("write_file", expected)]


def follows(grammar: str) -> Callable[[str], bool]:
    def accepts(text: str) -> bool:
        constraint, out = GRAMMARS.single(grammar), bytearray()
        push(constraint, out, text.encode())
        return out == text.encode() and (constraint.complete or END in allowed(constraint))

    return accepts


@pytest.mark.parametrize("form", FORMS)
def test_the_grammar_takes_what_the_family_writes(form: str, write_file, odd_schemas, bare_tools) -> None:
    made = FORMS[form]
    accepts = follows(made.grammar([write_file, odd_schemas, *bare_tools], True) or "")
    one = made.render("write_file", {"path": "a.py", "content": 'return "</parameter>"\n\tif a < b: <b>é</b>'})
    two = made.render(
        odd_schemas.name, {"at": {"x": 1, "next": {"x": 2}}, "level": 2, "colour": "dark red", "free": "7"}
    )
    assert accepts(one)
    assert accepts(two)
    assert accepts(made.render("now", {}))
    assert accepts(f"\n\n{one}\n{two}")
    assert not accepts(f"{one} {two}")
    assert not accepts(made.render("write_file", {"path": "a"}))
    assert not accepts(made.render("write_file", {"content": "b", "path": "a"}))
    assert not accepts(made.render("write_file", {"path": "a", "content": "b", "mode": "many"}))
    assert not accepts(made.render(odd_schemas.name, {"level": 4}))
    assert not accepts(made.render("rm", {}))
    assert not accepts("Well, " + one)
    alone = follows(made.grammar([write_file], False) or "")
    assert alone(one)
    assert not alone(f"{one}\n{one}")


def test_a_value_may_hold_every_closing_tag_that_does_not_stand_alone_on_a_line(write_file) -> None:
    accepts = follows(FORMS["qwen_xml"].grammar([write_file], False) or "")
    for value in ("x </parameter>", "  </parameter>\n", "</function></tool_call>", "<tool_call>", "</parameter> ends"):
        fields = f"<parameter=path>\na\n</parameter>\n<parameter=content>\n{value}\n</parameter>\n"
        assert accepts(f"<tool_call>\n<function=write_file>\n{fields}</function>\n</tool_call>"), value
    for value in ("<parameter=mode>", "<function=x>", "\n</parameter>\nmore"):
        fields = f"<parameter=path>\na\n</parameter>\n<parameter=content>\n{value}\n</parameter>\n"
        assert not accepts(f"<tool_call>\n<function=write_file>\n{fields}</function>\n</tool_call>"), value


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "properties": {"a": {"type": "integer", "not": {"const": 3}, "format": "odd"}}},
        {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"type": "integer"}}},
        {"$ref": "#/$defs/all", "$defs": {"all": {"type": "object", "properties": {"b": {"type": "integer"}}}}},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"type": "object", "properties": {'a"\\\n</parameter>': {"enum": ['"', "\n", "é"]}}},
        {},
    ],
)
def test_a_schema_of_any_kind_can_be_compiled(form: str, parameters: dict[str, Any]) -> None:
    grammar = FORMS[form].grammar([Tool("f", "", parameters)], False)
    assert grammar is not None
    text = walk(form, grammar, 1, wild=5)
    assert text.lstrip().startswith("<tool_call>")


@pytest.mark.parametrize("form", FORMS)
def test_without_tools_there_is_no_grammar(form: str) -> None:
    assert FORMS[form].grammar([], True) is None


def test_a_recursive_argument_fits_its_schema(take_apart, odd_schemas) -> None:
    value = {"x": 1, "next": {"x": 2, "next": {"x": 3}}}
    for form in FORMS.values():
        text = form.render(odd_schemas.name, {"at": value, "level": 1})
        assert follows(form.grammar([odd_schemas], False) or "")(text)
        assert take_apart(form, text, [odd_schemas]).done[0][1]["at"] == value
