from __future__ import annotations

import json
import re
import time
from typing import Any

import jsonschema
import pytest
import torch
from hypothesis import given, settings, strategies as st

from tandem.core.engine.constraint import (
    BranchConstraint,
    Constraint,
    ConstraintError,
    Grammars,
    check_schema,
    choice_grammar,
    json_object_grammar,
    json_schema_grammar,
    regex_grammar,
)

END = 256


class Bytes:
    vocab_size = 259
    eos_ids = frozenset({END})

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else {END: b"", 257: b"", 258: b"<tool_call>"}[token]


GRAMMARS = Grammars(Bytes())


def write(constraint: Constraint, wish: str, seed: int = 0, limit: int = 3000) -> str:
    """What a model writes that wants `wish` and is masked: the wish where it is allowed, else a random allowed byte."""
    generator = torch.Generator().manual_seed(seed)
    out = bytearray()
    wanted = list(wish.encode())
    for at in range(limit):
        row = torch.rand(Bytes.vocab_size, generator=generator)
        row[wanted[at] if at < len(wanted) else END] = 5.0
        mask = constraint.mask(row)
        token = int(row.masked_fill(~mask, -torch.inf).argmax() if mask is not None else row.argmax())
        if token == END:
            break
        constraint.accept(token)
        out += Bytes().token_bytes(token)
        if constraint.complete:
            break
    return out.decode("utf-8", "replace")


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}},
    "required": ["n", "tags"],
    "additionalProperties": False,
}


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=30), st.integers(0, 100))
def test_whatever_the_model_wants_the_document_fits_the_schema(wish: str, seed: int) -> None:
    text = write(GRAMMARS.single(json_schema_grammar(SCHEMA)), wish, seed)
    jsonschema.validate(json.loads(text), SCHEMA)


def test_a_document_that_fits_is_written_as_wished() -> None:
    for wish in ['{"n": 3, "tags": ["a"]}', '{"n":3,"tags":[]}', '{\n  "n": 3,\n  "tags": [\n    "a"\n  ]\n}']:
        assert write(GRAMMARS.single(json_schema_grammar(SCHEMA)), wish) == wish


def test_white_space_is_bounded() -> None:
    text = write(GRAMMARS.single(json_schema_grammar(SCHEMA)), " " * 500 + '{"n":' + " " * 500)
    assert max(len(run) for run in re.findall(r"\s+", text)) <= 24


def test_any_object_and_only_an_object() -> None:
    assert isinstance(json.loads(write(GRAMMARS.single(json_object_grammar()), "[1, 2]")), dict)
    wish = '{"a": [1, {"b": null}], "c": "ü\\n"}'
    assert write(GRAMMARS.single(json_object_grammar()), wish) == wish


def test_a_regular_expression_matches_as_a_whole() -> None:
    date = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
    for wish in ["2024-01-31", "nonsense", ""]:
        assert re.fullmatch(date, write(GRAMMARS.single(regex_grammar(date)), wish))


def test_a_choice_is_one_of_the_texts() -> None:
    choices = ["yes", 'no "really"', "maybe\nlater"]
    for wish in [*choices, "perhaps"]:
        assert write(GRAMMARS.single(choice_grammar(choices)), wish) in choices
    assert write(GRAMMARS.single(choice_grammar(choices)), choices[1]) == choices[1]


@pytest.mark.parametrize(
    "grammar",
    [regex_grammar("(unclosed"), regex_grammar("(?=look)"), json_schema_grammar({"type": "strange"}), "start: nowhere"],
)
def test_what_cannot_be_compiled_is_refused_in_one_line(grammar: str) -> None:
    with pytest.raises(ConstraintError) as error:
        GRAMMARS.single(grammar)
    assert str(error.value)
    assert "\n" not in str(error.value)


def nested(levels: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def test_a_schema_nested_ten_thousand_levels_is_refused_at_once() -> None:
    start = time.perf_counter()
    with pytest.raises(ConstraintError, match="nested"):
        json_schema_grammar(nested(10_000))
    assert time.perf_counter() - start < 1.0


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"$ref": "#"}, "#"),
        (
            {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"},
            "#/$defs/a",
        ),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "#/$defs/none"),
        ({"$ref": "https://example.org/x"}, "https://example.org/x"),
    ],
)
def test_references_that_describe_no_value_are_refused_by_name(schema: Any, place: str) -> None:
    with pytest.raises(ConstraintError) as error:
        check_schema(schema)
    assert place in str(error.value)


def test_recursion_through_values_is_fine() -> None:
    tree = {
        "$defs": {
            "node": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}}}
        },
        "$ref": "#/$defs/node",
    }
    wish = '{"kids": [{"kids": []}]}'
    assert write(GRAMMARS.single(json_schema_grammar(tree)), wish) == wish


@pytest.mark.parametrize("name", ["int32", "double", "uri-reference", "password", "made-up"])
def test_a_format_that_nothing_can_enforce_is_an_annotation(name: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": name}}, "required": ["a"]}
    assert write(GRAMMARS.single(json_schema_grammar(schema)), '{"a": "x"}') == '{"a": "x"}'


def test_a_property_or_a_value_called_format_is_left_alone() -> None:
    schema = {
        "type": "object",
        "properties": {"format": {"enum": ["int32", {"format": "int32"}]}},
        "required": ["format"],
    }
    for wish in ('{"format": "int32"}', '{"format": {"format": "int32"}}'):
        jsonschema.validate(json.loads(write(GRAMMARS.single(json_schema_grammar(schema)), wish)), schema)


def test_too_large_a_schema_is_refused() -> None:
    with pytest.raises(ConstraintError, match="characters"):
        check_schema({"enum": ["x" * 300_000]})


CALLS = 'start: /[ \\t\\n]{0,8}/ "<tool_call>" /[a-z]+/ "</tool_call>"'


def branch() -> BranchConstraint:
    made = GRAMMARS.calls_or_document(CALLS, json_schema_grammar(SCHEMA), "<tool_call>")
    assert isinstance(made, BranchConstraint)
    return made


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        ("<tool_call>look</tool_call>", "calls"),
        ("\n\n<tool_call>look</tool_call>", "calls"),
        ('{"n": 1, "tags": []}', "document"),
        ("```json\n", "document"),
        ("I can just answer", "document"),
    ],
)
def test_the_models_own_first_token_picks_the_branch(wish: str, expected: str) -> None:
    constraint = branch()
    text = write(constraint, wish)
    assert constraint.branch == expected
    if expected == "calls":
        assert text == wish
    else:
        jsonschema.validate(json.loads(text), SCHEMA)


def test_the_call_marker_may_be_one_token() -> None:
    constraint = branch()
    row = torch.zeros(Bytes.vocab_size)
    row[258] = 5.0
    mask = constraint.mask(row)
    assert mask is not None
    assert mask[258]
    constraint.accept(258)
    assert constraint.branch == "calls"


def test_compiled_grammars_do_not_share_state() -> None:
    grammar = json_schema_grammar(SCHEMA)
    first = GRAMMARS.single(grammar)
    first.accept(ord("{"))
    assert write(GRAMMARS.single(grammar), '{"n":1,"tags":[]}') == '{"n":1,"tags":[]}'
