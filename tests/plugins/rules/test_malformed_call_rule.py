"""A call that cannot run is repaired where that is certain, else written again with what is wrong."""

import json

import jsonschema
import pytest
from hypothesis import given, strategies as st

from tandem.core.plugin import Action, ActionKind, Tool, ToolCallEvent
from tandem.plugins.rules._schema import misfits, repaired
from tandem.plugins.rules.malformed_call import tandem_rules
from tandem.testing.rules import Stand, request, written

(RULE,) = tandem_rules()
READ = Tool(
    "read",
    "Reads a file.",
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "filePath": {"type": "string"},
            "limit": {"type": "integer", "minimum": 1, "maximum": 9007199254740991},
            "mode": {"type": "string", "enum": ["text", "binary"]},
            "lines": {"type": "array", "items": {"type": "integer"}},
            "id": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["filePath"],
        "additionalProperties": False,
    },
)
LOOSE = Tool("todo_write", "", {"type": "object", "properties": {"todos": {"type": "array"}}})


def judge(name: str, arguments: object, *, tools=(READ, LOOSE), **fields) -> Action | None:
    stand = Stand(RULE, event=request(tools=tools))
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return stand.check(written(stand.request, (name, text), **fields))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("read", {"filePath": "a", "limit": 1, "mode": "text", "lines": [1], "id": None}),
        ("read", {"filePath": "a", "limit": 2.0}),
        ("todo_write", {"anything": 1}),
        ("todo_write", {}),
    ],
)
def test_a_call_that_fits_passes(name, arguments):
    assert judge(name, arguments) is None


@pytest.mark.parametrize(
    ("arguments", "better"),
    [
        ({"filePath": "a", "limit": None}, {"filePath": "a"}),
        ({"filePath": "a", "mode": None}, {"filePath": "a"}),
        ({"filePath": "a", "limit": "null"}, {"filePath": "a"}),
        ({"filePath": "a", "lines": "null"}, {"filePath": "a"}),
        ({"filePath": "a", "limit": "5"}, {"filePath": "a", "limit": 5}),
        ({"filePath": "a", "mode": "TEXT"}, {"filePath": "a", "mode": "text"}),
        ({"filePath": 7}, {"filePath": "7"}),
        ({"filePath": "a", "lines": ["1", 2]}, {"filePath": "a", "lines": [1, 2]}),
        ({"filePath": "a", "lines": "[1, 2]"}, {"filePath": "a", "lines": [1, 2]}),
        ({"filePath": "a", "cwd": "", "env": {}}, {"filePath": "a"}),
        ({"filePath": "a", "limit": "5", "x": None}, {"filePath": "a", "limit": 5}),
        ('{"filePath": "a\tb\nc"}', {"filePath": "a\tb\nc"}),
        ('"{\\"filePath\\": \\"a\\"}"', {"filePath": "a"}),
        ('{"filePath": "a\nb", "limit": "5"}', {"filePath": "a\nb", "limit": 5}),
    ],
)
def test_what_has_one_cure_is_repaired(arguments, better):
    action = judge("read", arguments)
    assert action is not None
    assert action.kind is ActionKind.REPAIR_CALL
    assert action.detail["arguments"] == better


@pytest.mark.parametrize(
    ("arguments", "reason", "said"),
    [
        ({}, "schema(1)", "`filePath` is missing and must be given (type string)"),
        ({"file": "a"}, "schema(2)", "`file` is no parameter of `read`"),
        ({"filePath": "a", "cwd": "/x"}, "schema(1)", "which has `filePath`, `limit`, `mode`, `lines`, `id`"),
        ({"filePath": ["a"]}, "schema(1)", "`filePath` must be of type string, not array"),
        ({"filePath": None}, "schema(1)", "`filePath` must be of type string, not null"),
        ({"filePath": "a", "mode": "null"}, "schema(1)", '`mode` must be one of "text", "binary"'),
        ({"filePath": "a", "mode": "hex"}, "schema(1)", '`mode` must be one of "text", "binary"'),
        ({"filePath": "a", "limit": 0}, "schema(1)", "`limit` breaks `minimum: 1`"),
        ({"filePath": "a", "limit": "many"}, "schema(1)", "`limit` must be of type integer, not string"),
        ({"filePath": "a", "lines": [1, "x"]}, "schema(1)", "`lines[1]` must be of type integer, not string"),
        ({"filePath": 1.5, "limit": None}, "schema(2)", "`filePath` must be of type string"),
    ],
)
def test_what_has_none_is_written_again_with_what_is_wrong(arguments, reason, said):
    action = judge("read", arguments)
    assert action is not None
    assert (action.kind, action.reason) == (ActionKind.REGENERATE_CALL, reason)
    assert said in action.text
    assert action.detail["fallback"] == "give_up"


@pytest.mark.parametrize("text", ["[1]", "5", '{"filePath": ', "{'filePath': 'a'}", "null", '"a"', ""])
def test_arguments_that_are_no_object_are_written_again(text):
    action = judge("read", text)
    assert action is not None
    assert (action.kind, action.reason) == (ActionKind.REGENERATE_CALL, "no_object")
    assert "`read`" in action.text


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("raed", "Did you mean `read`?"),
        ("Read", "Did you mean `read`?"),
        ("TodoWrite", "Did you mean `todo_write`?"),
        ("browser", "The tools are `read`, `todo_write`."),
    ],
)
def test_an_unknown_tool_is_written_again_with_the_nearest_name(name, hint):
    action = judge(name, {})
    assert action is not None
    assert (action.kind, action.reason) == (ActionKind.REGENERATE_CALL, "unknown_tool")
    assert hint in action.text
    assert f"`{name}`" in action.text


def test_without_tools_nothing_is_known_to_be_wrong():
    assert judge("anything", {"a": 1}, tools=()) is None


def block(problem: str, **fields) -> Action | None:
    event = ToolCallEvent(None, None, "<tool_call>", 0, (), None, problem=problem, **fields)
    return Stand(RULE, event=request(tools=[READ])).check(event)


def test_a_block_that_cannot_be_read_is_written_again_or_given_up():
    action = block("unreadable")
    assert action is not None
    assert (action.kind, action.reason) == (ActionKind.REGENERATE_CALL, "unreadable")
    final = block("unreadable", final=True)
    assert final is not None
    assert final.kind is ActionKind.GIVE_UP
    assert final.text.startswith("[Tandem")


def test_a_block_that_the_limit_cut_gives_up_and_one_that_a_stop_string_cut_passes():
    limit, stop = block("cut_by_limit", final=True), block("cut_by_stop", final=True)
    assert limit is not None
    assert stop is not None
    assert (limit.kind, limit.reason) == (ActionKind.GIVE_UP, "cut_by_limit")
    assert "token limit" in limit.text
    assert (stop.kind, stop.reason) == (ActionKind.PASS, "cut_by_stop")


def test_a_broken_call_at_an_end_is_given_up():
    action = judge("read", {}, final=True)
    assert action is not None
    assert action.kind is ActionKind.GIVE_UP


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"properties": {"filePath": {"$ref": "https://example.com/schema.json"}}},
        {"properties": {"filePath": {"$ref": "#/nowhere"}}},
        {"properties": {"filePath": {"type": "string", "pattern": "^(?<name>\\p{L}+)$"}}},
        {"properties": {"filePath": {"type": "string", "pattern": "^b"}}},
        {"properties": {"filePath": {"type": "string", "format": "date"}}},
        {"additionalProperties": {"$ref": "#"}, "patternProperties": {"(": {}}},
        {},
    ],
)
def test_a_schema_that_nobody_can_be_sure_of_is_not_used(schema):
    assert judge("t", {"filePath": "a"}, tools=[Tool("t", "", schema)]) is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats(-2, 2) | st.sampled_from(["a", "5", "TEXT", "", "[1]"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["filePath", "limit", "mode", "lines", "id", "x"]), VALUES, max_size=5)


@given(ARGUMENTS)
def test_what_passes_or_is_repaired_fits_and_nothing_else_does(arguments):
    fits = jsonschema.Draft7Validator(READ.parameters).is_valid
    action = judge("read", arguments)
    if action is None:
        assert fits(arguments)
    elif action.kind is ActionKind.REPAIR_CALL:
        assert not fits(arguments)
        assert fits(action.detail["arguments"])
    else:
        assert not fits(arguments)
        assert action.kind is ActionKind.REGENERATE_CALL


@given(ARGUMENTS)
def test_a_repair_changes_only_what_is_wrong(arguments):
    better = repaired(READ, arguments)
    if better is not None:
        wrong = {path[0] for misfit in misfits(READ, arguments) if (path := list(misfit.absolute_path))}
        kept = {name: value for name, value in arguments.items() if name not in wrong and name != "x"}
        assert {name: better[name] for name in kept} == kept
