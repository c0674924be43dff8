from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tandem.core.plugin import CallPart, TextPart, Tool
from tandem.plugins.formats.hermes_json import HermesJson, tandem_formats

FORM = HermesJson(thinking=True)


def call(arguments: str, name: str = "write_file") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


# ---------------------------------------------------------------------------------------------------- what is read


@pytest.mark.parametrize("content", ['{"a": 1}', "123", "true", "null", '"quoted"', "</tool_call>", "é😀\n\\"])
@pytest.mark.parametrize("sizes", [None, 1, 3])
def test_a_string_argument_stays_its_exact_text(take_apart, write_file, content: str, sizes) -> None:
    for ascii_only in (True, False):
        arguments = {"path": "a.json", "content": content, "mode": 420}
        text = call(json.dumps(arguments, ensure_ascii=ascii_only))
        read = take_apart(FORM, text, [write_file], sizes)
        assert read.done == [("write_file", arguments)]
        assert read.text == ""


def test_arguments_go_out_as_the_model_writes_them(take_apart, write_file) -> None:
    written = '{"path":"a",  "content": "' + "long text " * 100 + '", "other": [1, {"b" : null}, -1.5e3]}'
    read = take_apart(FORM, call(written), [write_file], 4)
    (one,) = read.calls
    assert one.json == written
    assert len(one.pieces) > 200


def test_the_name_goes_out_when_the_arguments_begin(write_file) -> None:
    parser = FORM.parser([write_file])
    assert parser.feed('Hm. <tool_call>\n{"name": "write_file", "argu') == [TextPart("Hm. ")]
    assert parser.feed('ments": {') == [CallPart(0, name="write_file"), CallPart(0, "{")]


FORMS = {
    "compact": '<tool_call>{"name":"write_file","arguments":{"path":"a","mode":7}}</tool_call>',
    "the arguments first": '<tool_call>\n{"arguments": {"path": "a", "mode": 7}, "name": "write_file"}\n</tool_call>',
    "arguments as a text": call(json.dumps('{"path": "a", "mode": 7}')),
    "parameters": '<tool_call>\n{"name": "write_file", "parameters": {"path": "a", "mode": 7}}\n</tool_call>',
    "other keys": '<tool_call>\n{"id": [1, {"a": "}"}], "name": "write_file", "arguments": {"path": "a", "mode": 7}, '
    '"type": "function"}\n</tool_call>',
    "a text for a number": call('{"path": "a", "mode": "7"}'),
    "a text for a number, arguments first": '<tool_call>{"arguments": {"path": "a", "mode": "7"}, "name": "write_file"}'
    "</tool_call>",
    "names a little off": call('{"PATH": "a", "Mode": 7}', name="Write-File"),
    "a brace missing": '<tool_call>\n{"name": "write_file", "arguments": {"path": "a", "mode": 7}\n</tool_call>',
    "a brace too many": call('{"path": "a", "mode": 7}').replace("}\n</", "}}\n</"),
    "no closing tag": call('{"path": "a", "mode": 7}').removesuffix("\n</tool_call>"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("around", [("", ""), ("Look:\n", "\nDone."), ("", "\n" + call('{"content": "more"}'))])
@pytest.mark.parametrize("sizes", [None, 1, 5])
def test_forms_of_a_call(take_apart, write_file, form: str, around: tuple[str, str], sizes) -> None:
    before, after = around
    read = take_apart(FORM, before + FORMS[form] + after, [write_file], sizes)
    assert read.done[0] == ("write_file", {"path": "a", "mode": 7})
    assert read.text == before + (after if after.endswith("Done.") else "")
    assert len(read.done) == 1 + ("more" in after)


@pytest.mark.parametrize(
    ("written", "read_as"),
    [
        ('{"at": "{\\"x\\": 1}"}', {"at": {"x": 1}}),
        ('{"level": "2"}', {"level": 2}),
        ('{"level": "two"}', {"level": "two"}),
        ('{"note": "null"}', {"note": "null"}),
        ('{"n": "null", "yes": "True"}', {"n": None, "yes": True}),
        ('{"yes": True, "n": None}', {"yes": True, "n": None}),
        ('{"few.words-here": "[\\"a\\"]"}', {"few.words-here": ["a"]}),
        ('{"free": "7"}', {"free": "7"}),
        ('{"colour": 7}', {"colour": 7}),
    ],
)
def test_a_string_where_the_schema_allows_none_becomes_what_it_holds(take_apart, odd_schemas, written, read_as) -> None:
    for text in (call(written, odd_schemas.name), call(json.dumps(written), odd_schemas.name)):
        if "True" in written.replace('"True"', "") and text == call(json.dumps(written), odd_schemas.name):
            continue  # a text of JSON has to be JSON
        assert take_apart(FORM, text, [odd_schemas], 3).done == [(odd_schemas.name, read_as)]


@pytest.mark.parametrize("arguments", ["{}", "null", '""', '"{}"', None])
def test_a_call_without_parameters_has_empty_arguments(take_apart, bare_tools, arguments: str | None) -> None:
    text = '<tool_call>\n{"name": "now"}\n</tool_call>' if arguments is None else call(arguments, "now")
    (one,) = take_apart(FORM, text, bare_tools).calls
    assert (one.name, one.json, one.done) == ("now", "{}", True)


def test_a_line_break_in_a_string_is_escaped(take_apart, write_file) -> None:
    read = take_apart(FORM, call('{"content": "two\nlines\tand a tab"}'), [write_file])
    assert read.done == [("write_file", {"content": "two\nlines\tand a tab"})]


# -------------------------------------------------------------------------------------------------- what is no call


@pytest.mark.parametrize(
    "text",
    [
        "a < b <tool_cal",
        "Write `<tool_call>` to call.",
        "<tool_call>\nhello\n</tool_call>",
        "<tool_call>",
        '<tool_call>\n{"name": "write_file", "arg',
        '<tool_call>\n{"name": "write_file", "arguments": "{broken"}\n</tool_call>',
        '<tool_call>\n{"name": "write_file", "arguments": [1]}\n</tool_call>',
        '<tool_call>\n{"name": "write_file" "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"arguments": {"a": 1}, "name": ""}\n</tool_call>',
        '<tool_call>\n{"arguments": {"a": 01}, "name": "f"}\n</tool_call>',
        '<tool_call>\n{"arguments": {"a": "\\x"}, "name": "f"}\n</tool_call>',
        '<tool_call>\n{"arguments": {"a": 1,}, "name": "f"}\n</tool_call>',
        '<tool_call>\n[{"name": "write_file", "arguments": {}}]\n</tool_call>',
    ],
)
@pytest.mark.parametrize("sizes", [None, 1])
def test_what_looked_like_a_call_and_is_none_is_given_back(take_apart, write_file, text: str, sizes) -> None:
    assert take_apart(FORM, text, [write_file], sizes).outcome == [text]


def test_a_call_that_breaks_after_it_went_out_stays_open_and_the_next_one_is_read(take_apart, write_file) -> None:
    for rest in (", oops}}\n</tool_call>\nSo.", ", oops\n" + call('{"content": "x"}') + "\nSo."):
        text = '<tool_call>\n{"name": "write_file", "arguments": {"path": "a"' + rest
        read = take_apart(FORM, text, [write_file], 3)
        assert (read.calls[0].json, read.calls[0].done) == ('{"path": "a", ', False)
        assert read.done == [("write_file", {"content": "x"})] * ("content" in rest)
        assert read.text == "\nSo."


def test_a_held_call_that_is_broken_is_given_back(take_apart, write_file) -> None:
    broken = '<tool_call>\n{"name": "write_file", "arguments": {"path": "a", oops}}\n</tool_call>'
    read = take_apart(FORM, call('{"path": "a"}') + broken, [write_file], 3)
    assert [item if isinstance(item, str) else item.done for item in read.items] == [True, broken]


@pytest.mark.parametrize("before", ["", "\n\n", "Let me look.\n"])
def test_wherever_the_limit_cuts_a_call_nothing_of_it_becomes_text(take_apart, write_file, before: str) -> None:
    for text in (call('{"path": "a.txt", "mode": "7"}'), FORMS["the arguments first"], FORMS["arguments as a text"]):
        for end in range(1, len(text) + 1):
            read = take_apart(FORM, before + text[:end], [write_file], cut=True)
            assert read.text == (before if before.strip() else "")
            assert [one.done for one in read.calls] in ([], [False], [True])


def test_a_call_exactly_like_the_one_before_it_is_dropped(take_apart, write_file) -> None:
    same, other = call('{"path": "a"}'), call('{"path": "b"}')
    read = take_apart(FORM, "\n".join([same, same, other, same]), [write_file], 3)
    assert [arguments["path"] for _, arguments in read.done] == ["a", "b", "a"]
    assert read.text == ""


def test_the_template_tells_the_family() -> None:
    (part,) = tandem_formats()
    assert part.fits("<tool_call>\n{{ tool_call }}\n</tool_call>")
    assert not part.fits("<tool_call>\n<function=example>\n")
    assert not part.fits("")
    assert part.build({"thinking": True}).thinking == ("<think>", "</think>")
    assert part.build({"thinking": False}).thinking is None


# ------------------------------------------------------------------------------------------------------ properties

FRAGMENTS = [
    "<tool_call>", "</tool_call>", "\n", " ", "x", '{"name": "write_file"', ', "arguments": ', '{"arguments": ', '"',
    "}", '{"path": "', '"mode": "7"', ", ", ": ", "[", "]", "{", "\\n", "\\u00e9", "\\ud83d", "\\ude00", "é😀", "1",
    "-0.5", "true", "None", "<", call('{"path": "a"}'), call('{"path": "a"}')[11:], call('{"path": "a"}')[:40],
]  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=25), st.lists(st.integers(1, 9), min_size=1), st.booleans())
def test_how_the_text_is_split_changes_nothing(take_apart, write_file, texts, sizes, cut) -> None:
    text = "".join(texts)
    whole = take_apart(FORM, text, [write_file], None, cut)
    assert take_apart(FORM, text, [write_file], sizes, cut).outcome == whole.outcome
    assert take_apart(FORM, text, [write_file], 1, cut).outcome == whole.outcome
    if not whole.calls and not cut:
        assert whole.text == text


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10)
    | st.sampled_from(["</tool_call>", "\n</tool_call>\n<tool_call>\n{", '"}}']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(
    st.text(min_size=1, max_size=10), st.dictionaries(st.text(max_size=8), json_values, max_size=4), st.integers(1, 5)
)
def test_a_rendered_call_is_read_back(take_apart, name: str, arguments: dict[str, Any], size: int) -> None:
    read = take_apart(FORM, FORM.render(name, arguments), [Tool(name)], size)
    assert read.done == [(name, arguments)]
    assert read.text == ""


@pytest.mark.parametrize(
    "form", ["{call}", '<tool_call>{{"arguments": {arguments}, "name": "write_file"}}</tool_call>']
)
def test_a_long_argument_takes_time_in_proportion_to_its_length(write_file, form: str) -> None:
    def seconds(length: int) -> float:
        arguments = json.dumps({"content": 'a line with "quotes"\n' * (length // 21)})
        text = form.format(call=call(arguments), arguments=arguments)
        parser = FORM.parser([write_file])
        start = time.thread_time()
        done = [part for at in range(0, len(text), 4) for part in parser.feed(text[at : at + 4])][-1]
        assert isinstance(done, CallPart)
        assert done.done
        return time.thread_time() - start

    short, long = (min(seconds(length) for _ in range(2)) for length in (50_000, 200_000))
    assert long < 10 * max(short, 0.02)
