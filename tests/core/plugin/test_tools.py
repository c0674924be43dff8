from __future__ import annotations

import json
import time
from typing import Any

import jsonschema
import pytest
from hypothesis import given, strategies as st

from tandem.core.plugin import Tool, allowed_types, fitted, is_text, json_text, moved, tool_named, typed

EVERY = {"string", "integer", "number", "boolean", "object", "array", "null"}
ROOT: dict[str, Any] = {
    "$defs": {
        "n": {"type": "integer"},
        "again": {"$ref": "#/$defs/n"},
        "circle": {"$ref": "#/$defs/circle"},
        "tree": {"anyOf": [{"type": "object", "properties": {"kids": {"$ref": "#/$defs/tree"}}}, {"type": "null"}]},
        "a/b~c d": {"type": "boolean"},
    },
    "anyOf": [{"type": "string"}, {"type": "array"}],
}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        (None, EVERY),
        ({}, EVERY),
        (True, EVERY),
        ({"description": "anything"}, EVERY),
        ({"type": "string"}, {"string"}),
        ({"type": "number"}, {"number", "integer"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"type": "integer", "nullable": True}, {"integer", "null"}),
        ({"type": "whatever"}, EVERY),
        ({"enum": [1, 2]}, {"integer"}),
        ({"enum": ["a", None, 1.5]}, {"string", "null", "number"}),
        ({"const": {"a": 1}}, {"object"}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
        ({"oneOf": [{"type": "array"}, {"$ref": "#/$defs/n"}]}, {"array", "integer"}),
        ({"allOf": [{"type": ["string", "integer"]}, {"type": ["integer", "null"]}]}, {"integer"}),
        ({"type": "integer", "anyOf": [{"minimum": 3}, {"type": "number"}]}, {"integer"}),
        ({"$ref": "#/$defs/again"}, {"integer"}),
        ({"$ref": "#/$defs/tree"}, {"object", "null"}),
        ({"$ref": "#/$defs/a~1b~0c%20d"}, {"boolean"}),
        ({"$ref": "#/anyOf/1"}, {"array"}),
        ({"$ref": "#/$defs/circle"}, EVERY),
        ({"$ref": "#/nowhere"}, EVERY),
        ({"$ref": "https://example.org/schema"}, EVERY),
        ({"anyOf": 5, "allOf": "x", "enum": 1, "type": 7}, EVERY),
    ],
)
def test_the_types_that_a_schema_allows(schema: Any, types: set[str]) -> None:
    assert allowed_types(schema, ROOT) == types


def test_a_schema_whose_parts_refer_to_each_other_many_times_over_is_read_in_no_time() -> None:
    defs = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 4} for n in range(60)}
    root = {"$defs": {**defs, "d60": {"type": "integer"}}}
    start = time.perf_counter()
    assert allowed_types({"$ref": "#/$defs/d0"}, root) == {"integer"}
    assert time.perf_counter() - start < 1.0


def test_a_value_is_text_for_sure_where_only_strings_are_allowed_or_nothing_is_said() -> None:
    assert all(is_text(schema, ROOT) for schema in (None, {}, {"type": "string"}, {"enum": ["a", "b"]}))
    assert not any(is_text(s, ROOT) for s in ({"type": "integer"}, {"type": ["string", "null"]}, {"enum": ["a", 1]}))


STRING_OR_NULL = {"anyOf": [{"type": "string"}, {"type": "null"}]}


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        # only strings, or nothing said: the text itself, whatever it looks like
        *((text, {"type": "string"}, text) for text in ('{"a": 1}', "123", "true", "null", '"quoted"', " x\n")),
        *((text, None, text) for text in ("123", "true", "[1]")),
        ("123", {}, "123"),
        # one type
        ("420", {"type": "integer"}, 420),
        ("\n 420 ", {"type": "integer"}, 420),
        ("420.0", {"type": "integer"}, 420),
        ("1e3", {"type": "integer"}, 1000),
        ("3", {"type": "number"}, 3),
        ("3.0", {"type": "number"}, 3.0),
        ("true", {"type": "boolean"}, True),
        ("True", {"type": "boolean"}, True),
        ("None", {"type": ["null", "integer"]}, None),
        ('["a", 1]', {"type": "array"}, ["a", 1]),
        ('{"a": {}}', {"type": "object"}, {"a": {}}),
        ("2", {"enum": [1, 2]}, 2),
        # Python's notation, where no string is allowed
        ("['a', True, None]", {"type": "array"}, ["a", True, None]),
        ("{'a': (1, 2)}", {"type": "object"}, {"a": [1, 2]}),
        ("['a']", {"type": ["array", "string"]}, "['a']"),
        ("[open('x')]", {"type": "array"}, "[open('x')]"),
        ("{1, 2}", {"type": ["object", "array"]}, "{1, 2}"),
        # a union with string: what reads as another type is one, everything else stays as it was written
        ("null", STRING_OR_NULL, None),
        ("nothing", STRING_OR_NULL, "nothing"),
        ('"quoted"', STRING_OR_NULL, '"quoted"'),
        ("5", STRING_OR_NULL, "5"),
        ("5", {"type": ["string", "integer"]}, 5),
        ("5.5", {"type": ["string", "integer"]}, "5.5"),
        (" padded ", STRING_OR_NULL, " padded "),
        # what fits nothing stays a string
        ("abc", {"type": "integer"}, "abc"),
        ("1.5", {"type": "integer"}, "1.5"),
        ("[1", {"type": "array"}, "[1"),
        ("true", {"type": "integer"}, "true"),
        ("NaN", {"type": "number"}, "NaN"),
        ("-Infinity", {"type": "number"}, "-Infinity"),
        ("1e999", {"type": "number"}, "1e999"),
        ("9" * 5000, {"type": "integer"}, "9" * 5000),
        ("[" * 100_000, {"type": "array"}, "[" * 100_000),
    ],
)
def test_a_value_written_as_text_gets_the_type_of_its_schema(text: str, schema: Any, value: Any) -> None:
    got = typed(text, schema, ROOT)
    assert got == value
    assert type(got) is type(value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(json_values, st.sets(st.sampled_from(sorted(EVERY)), min_size=1))
def test_a_typed_value_fits_the_schema_or_is_the_text_itself(value: Any, types: set[str]) -> None:
    schema = {"type": sorted(types)}
    text = value if isinstance(value, str) else json.dumps(value)
    got, allowed = typed(text, schema, ROOT), jsonschema.Draft202012Validator(schema)
    if got != text:
        jsonschema.validate(got, schema)
    if not isinstance(value, str) and not is_text(schema, ROOT) and allowed.is_valid(value):
        assert got == value


def test_a_string_where_the_schema_allows_none_is_read_and_nothing_else_is_touched() -> None:
    assert fitted("7", {"type": "integer"}, ROOT) == 7
    assert fitted('["a"]', {"type": "array"}, ROOT) == ["a"]
    assert fitted("many", {"type": "integer"}, ROOT) == "many"
    assert fitted("7", {"type": ["integer", "string"]}, ROOT) == "7"
    assert fitted("7", None, ROOT) == "7"
    assert fitted(7, {"type": "string"}, ROOT) == 7


TOOL = Tool(
    "read-file",
    "",
    {"properties": {"file_path": {"type": "string"}, "limit": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"const": 1}}},
)


@pytest.mark.parametrize(
    ("written", "meant"),
    [("file_path", "file_path"), ("filePath", "file_path"), ("FILE-PATH", "file_path"), ("path", "path"), ("", "")],
)
def test_a_parameter_is_found_by_its_name_or_by_the_only_one_like_it(written: str, meant: str) -> None:
    assert TOOL.parameter_named(written) == meant


def test_of_two_parameters_that_are_alike_neither_is_guessed() -> None:
    tool = Tool("f", "", {"properties": {"a_b": {}, "a-b": {}}})
    assert [tool.parameter_named(name) for name in ("a_b", "a-b", "AB")] == ["a_b", "a-b", "AB"]


def test_a_function_is_found_by_the_same_rule() -> None:
    offered = [TOOL, Tool("stop", "", {"properties": {"now": {}}})]
    assert tool_named(offered, "read-file") is TOOL
    assert tool_named(offered, "Read_File") is TOOL
    assert tool_named(offered, "rm") == Tool("rm")
    assert tool_named([Tool("a_b"), Tool("a-b")], "aB") == Tool("aB")


def test_what_a_schema_says_about_a_parameter() -> None:
    assert TOOL.parameter("limit") == {"const": 1}
    assert TOOL.parameter("offset") is None
    assert list(TOOL.properties) == ["file_path", "limit"]
    by_reference = Tool("f", "", {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"x": {}}, "required": ["x", 1]}}})
    assert list(by_reference.properties) == ["x"]
    assert by_reference.required == {"x"}
    dictionary = Tool("f", "", {"additionalProperties": {"type": "integer"}})
    assert dictionary.parameter("anything") == {"type": "integer"}
    assert Tool("f", "", {"additionalProperties": False}).parameter("anything") is None
    assert Tool("f", "", {"properties": 5}).properties == {}


def test_a_schema_that_is_moved_refers_to_the_same_parts() -> None:
    root = {"$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n"}, "all": {"$ref": "#"}}}
    alone = {**moved(root["properties"]["a"], "#/$defs/0"), "$defs": {"0": moved(root, "#/$defs/0")}}
    jsonschema.validate(3, alone)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate("3", alone)
    whole = {**moved(root["properties"]["all"], "#/$defs/0"), "$defs": {"0": moved(root, "#/$defs/0")}}
    jsonschema.validate({"all": {"a": 3}}, whole)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"all": {"a": "3"}}, whole)


@given(json_values)
def test_json_text_gives_the_value_back_with_its_characters_as_they_are(value: Any) -> None:
    assert json.loads(json_text(value)) == value
    assert json_text("é😀") == '"é😀"'


def test_half_a_surrogate_pair_is_escaped_so_that_the_text_can_be_sent() -> None:
    text = json_text(["\ud83d", "é"])
    assert text.encode()
    assert json.loads(text) == ["\ud83d", "é"]
