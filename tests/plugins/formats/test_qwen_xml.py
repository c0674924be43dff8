from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tandem.core.plugin import CallPart, TextPart, Tool
from tandem.plugins.formats.qwen_xml import QwenXml

FORM = QwenXml(thinking=True)


def call(*fields: tuple[str, str], name: str = "write_file") -> str:
    """The strict form."""
    written = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in fields)
    return f"<tool_call>\n<function={name}>\n{written}</function>\n</tool_call>"


def writing(content: str) -> str:
    return call(("path", "a.md"), ("content", content))


# ------------------------------------------------------------------------------------------------------ the cases


@pytest.mark.parametrize("content", ['{"a": 1}', "123", "true", "null", '"quoted"', "[1, 2]", "", " padded ", "\n\n"])
@pytest.mark.parametrize("sizes", [None, 1, 3])
def test_a_string_that_looks_like_json_stays_its_exact_text(take_apart, write_file, content, sizes) -> None:
    text = call(("path", "a.json"), ("content", content), ("mode", "420"))
    read = take_apart(FORM, text, [write_file], sizes)
    assert read.done == [("write_file", {"path": "a.json", "content": content, "mode": 420})]
    assert read.text == ""


def test_a_long_string_goes_out_while_it_is_written_and_an_integer_once(take_apart, write_file) -> None:
    content = ('say "hi" to Zoë\\ 😀 \t' * 100)[:2000]
    text = call(("content", content), ("mode", "420"))
    parser = FORM.parser([write_file])
    parts = [part for at in range(0, len(text), 5) for part in parser.feed(text[at : at + 5])]
    parts += parser.end(False)
    assert parts[0] == CallPart(0, name="write_file")
    deltas = [part.arguments for part in parts[1:]]
    assert len(deltas) > 300
    assert json.loads("".join(deltas)) == {"content": content, "mode": 420}
    assert [delta for delta in deltas if "mode" in delta or "420" in delta] == [', "mode": 420}']


def test_the_name_goes_out_as_soon_as_it_is_known(write_file) -> None:
    parser = FORM.parser([write_file])
    assert parser.feed("<tool_call>\n<function=write_file") == []
    assert parser.feed(">") == [CallPart(0, name="write_file")]


def test_the_whole_text_is_kept_when_a_later_closing_tag_is_the_real_one(take_apart, write_file) -> None:
    content = "ends with </parameter> here.\nand shows <tool_call> too"
    for sizes in (None, 1, 7):
        read = take_apart(FORM, call(("path", "notes.md"), ("content", content)), [write_file], sizes)
        assert read.done == [("write_file", {"path": "notes.md", "content": content})]
        assert read.text == ""


VALUES = [
    "A block ends with </tool_call> on its own.",
    "</parameter>",
    "</function>",
    "<tool_call>",
    "ends with the tag </parameter>",
    'return "</parameter>"\n',
    "a line\n</parameter>\nbetween",
    "</parameter>\n</function> y",
    "</parameter>\n</function>\n</tool_call>",
    "before\n</parameter>\n</function>\n</tool_call>\nand behind",
    "</function></tool_call> here",
    "</parameter>\n<parameter=path>\nwritten already",
    "name it\n<parameter=path>\nfoo\n</parameter>\nto pass it",
    "Use <function=foo> here",
    "Use\n<function=foo>\nhere",
    "An example:\n" + call(("path", "in")) + "\nThat is all.",
    "Two examples:\n" + call(("path", "1")) + "\n" + call(("path", "2")) + "\nThat is all.",
    "At the end:\n" + call(("path", "in")),
    call(),
    '<tool_call>\n{"name": "write_file", "arguments": {}}\n</tool_call>',
    "<div>\n<p>if a < b </p></div>",
]


@pytest.mark.parametrize("content", VALUES)
@pytest.mark.parametrize("others", [False, True])
def test_tags_inside_a_value_are_part_of_it(take_apart, write_file, content: str, others: bool) -> None:
    before, after = (writing("one") + "\n", "\n" + writing("three")) if others else ("", "")
    read = take_apart(FORM, before + writing(content) + after, [write_file])
    contents = [arguments["content"] for _, arguments in read.done]
    assert contents == (["one", content, "three"] if others else [content])
    assert read.text == ""


def test_two_calls_have_their_own_indices(take_apart, write_file) -> None:
    read = take_apart(FORM, f"{writing('1')}\n{call(('city', 'Oslo'), name='weather')}", [write_file, Tool("weather")])
    assert [one.name for one in read.calls] == ["write_file", "weather"]
    assert all(one.done for one in read.calls)


def test_a_call_that_the_token_limit_cuts_stays_open_and_nothing_of_it_is_text(take_apart, write_file) -> None:
    text = (
        "<tool_call>\n<function=write_file>\n<parameter=path>\na.txt\n</parameter>\n"
        "<parameter=content>\nvery long text that does not end"
    )
    read = take_apart(FORM, text, [write_file], 4, cut=True)
    (cut,) = read.calls
    assert not cut.done
    assert cut.json == '{"path": "a.txt", "content": "very long text that does not end'
    assert read.text == ""


@pytest.mark.parametrize("before", ["", "\n\n", "Let me look.\n"])
def test_wherever_the_limit_cuts_a_call_nothing_of_it_becomes_text(take_apart, write_file, before: str) -> None:
    text = call(("path", "a.txt"), ("mode", "7"), ("content", "some\ntext"))
    for end in range(1, len(text) + 1):
        read = take_apart(FORM, before + text[:end], [write_file], cut=True)
        assert read.text == before if before.strip() else read.text.strip() == ""
        assert [one.done for one in read.calls] in ([], [False], [True])
        if read.calls and read.calls[0].done:
            assert end >= text.index("</function>") + len("</function>")
            assert read.done == [("write_file", {"path": "a.txt", "mode": 7, "content": "some\ntext"})]


def test_odd_schemas_type_their_values(take_apart, odd_schemas, bare_tools) -> None:
    text = call(
        ("at", '{"x": 1, "next": {"x": 2}}'),
        ("note", "null"),
        ("level", "2"),
        ("colour", "dark red"),
        ("few.words-here", '["a"]'),
        ("n", "7"),
        ("ratio", "1.5"),
        ("yes", "True"),
        ("free", "7"),
        ("undeclared", "7"),
        name=odd_schemas.name,
    )
    ((name, arguments),) = take_apart(FORM, text, [odd_schemas, *bare_tools], 2).done
    assert name == odd_schemas.name
    assert arguments == {
        "at": {"x": 1, "next": {"x": 2}},
        "note": None,
        "level": 2,
        "colour": "dark red",
        "few.words-here": ["a"],
        "n": 7,
        "ratio": 1.5,
        "yes": True,
        "free": "7",
        "undeclared": "7",
    }
    for tool in bare_tools:
        assert take_apart(FORM, call(name=tool.name), bare_tools).done == [(tool.name, {})]


# ------------------------------------------------------------------------------------------------------- the forms

LENIENT = {
    "strict": call(("path", "a"), ("mode", "7")),
    "no newlines": "<tool_call><function=write_file><parameter=path>a</parameter><parameter=mode>7</parameter>"
    "</function></tool_call>",
    "no <tool_call>": "<function=write_file>\n<parameter=path>\na\n</parameter>\n<parameter=mode>\n7\n</parameter>\n"
    "</function>\n</tool_call>",
    "no tool_call tags": "<function=write_file>\n<parameter=path>\na\n</parameter>\n<parameter=mode>\n7\n</parameter>\n"
    "</function>",
    "no </tool_call>": call(("path", "a"), ("mode", "7")).removesuffix("\n</tool_call>"),
    "no </function>": call(("path", "a"), ("mode", "7")).replace("</function>\n", ""),
    "no closing tag but the last parameter's": call(("path", "a"), ("mode", "7")).partition("\n</function>")[0],
    "no </parameter> before a parameter": call(("path", "a"), ("mode", "7")).replace("</parameter>\n", "", 1),
    "no </parameter> at all": call(("path", "a"), ("mode", "7")).replace("</parameter>\n", ""),
    "neither newlines nor </parameter>": "<tool_call><function=write_file><parameter=path>a<parameter=mode>7</function>"
    "</tool_call>",
    "quoted names": '<tool_call>\n<function="write_file">\n<parameter="path">\na\n</parameter>\n'
    "<parameter='mode'>\n7\n</parameter>\n</function>\n</tool_call>",
    "named attributes": '<tool_call>\n<function name="write_file">\n<parameter name="path">\na\n</parameter>\n'
    '<parameter name="mode">7</parameter>\n</function>\n</tool_call>',
    "white space": "<tool_call>  \n\n  <function = write_file >\n\n   <parameter = path >\na\n</parameter >\n\n"
    "  <parameter =mode>  7  </parameter>\n  </function >\n\n</tool_call >",
    "names a little off": call(("Path", "a"), ("MODE", "7"), name="Write-File"),
    "a word between the tags": call(("path", "a"), ("mode", "7")).replace("file>\n", "file>\nwith:\n"),
    "a JSON object": '<tool_call>\n{"name": "write_file", "arguments": {"path": "a", "mode": 7}}\n</tool_call>',
    "a JSON object, a number as a text": '<tool_call>{"name": "write-file", "arguments": {"path": "a", "mode": "7"}}',
    "JSON arguments in the function": '<tool_call>\n<function=write_file>\n{"path": "a", "mode": "7"}\n</function>\n'
    "</tool_call>",
}


NEEDS_THE_END = "no closing tag but the last parameter's"
"""With words behind it, it would be a value that goes on."""


@pytest.mark.parametrize("form", LENIENT)
@pytest.mark.parametrize("around", [("", ""), ("Look:\n", "\n\nDone."), ("", "\n" + writing("more"))])
@pytest.mark.parametrize("sizes", [None, 1, 4])
def test_a_form_that_is_a_little_off_is_read_all_the_same(take_apart, write_file, form, around, sizes) -> None:
    before, after = around if form != NEEDS_THE_END else ("Look:\n", "\n\n")
    read = take_apart(FORM, before + LENIENT[form] + after, [write_file], sizes)
    assert read.done[0] == ("write_file", {"path": "a", "mode": 7})
    assert read.text == before + (after if after.endswith("Done.") else "")
    assert len(read.done) == 1 + ("more" in after)


@pytest.mark.parametrize(
    "text",
    [
        "a < b and <b>c</b> </tool_call>",
        "Write `<tool_call>` to call.",
        "<tool_call>\nhello\n</tool_call>",
        '<tool_call>\n{"name": "write_file", arguments: {}}\n</tool_call>',
        '<tool_call>\n{"name": 7, "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"arguments": {}}\n</tool_call>',
        '<tool_call>\n{"arguments": {"a": 1}',
        "<tool_call>\n<function>\n</function>\n</tool_call>",
        "<tool_call>\n<function=write_file",
        "<tool_call>\n",
        "<function=unknown>\n<parameter=a>\n1\n</parameter>\n</function>",
        "see <function=write_file>\n<parameter=a>",
        "<function=write_file> is how it begins",
        "</parameter>\n</function>\n</tool_call>",
        "<tool_call>" + "\n" * 100 + "<function=write_file>",
        " \n ",
    ],
)
@pytest.mark.parametrize("sizes", [None, 1])
def test_what_looked_like_a_call_and_is_none_is_given_back(take_apart, write_file, text: str, sizes) -> None:
    read = take_apart(FORM, text, [write_file], sizes)
    assert read.outcome == [text]


def test_only_an_ending_that_could_begin_a_call_is_held_back(write_file) -> None:
    parser = FORM.parser([write_file])
    for text, goes_out in [
        ("a <", "a "),
        ("b", "<b"),
        (" <tool", " "),
        ("s> ", "<tools> "),
        ("\n<func", "\n"),
        ("y\n", "<funcy\n"),
        ("x <function=", "x <function="),
        ("x></tool", "x></tool"),
    ]:
        assert parser.feed(text) == [TextPart(goes_out)]


# ------------------------------------------------------------------------------------------------- the other rules


def test_a_call_exactly_like_the_one_before_it_is_dropped(take_apart, write_file) -> None:
    same, other = writing("x"), writing("y")
    read = take_apart(FORM, "\n".join([same, same, same, other, same]), [write_file], 3)
    assert [arguments["content"] for _, arguments in read.done] == ["x", "y", "x"]
    assert read.text == ""


def test_a_call_whose_name_repeats_is_held_until_it_is_whole(write_file) -> None:
    parser = FORM.parser([write_file])
    parser.feed(writing("x") + "\n" + writing("a long text").removesuffix("\n</tool_call>"))
    (part,) = parser.end(False)
    assert isinstance(part, CallPart)
    assert (part.index, part.name, part.done) == (1, "write_file", True)
    assert json.loads(part.arguments)["content"] == "a long text"


def test_blanks_beside_a_call_are_not_sent_when_nothing_else_stands_there(take_apart, write_file) -> None:
    one, two = writing("1"), writing("2")
    assert take_apart(FORM, f"\n\n{one}\n\n{two}\n", [write_file]).text == ""
    assert take_apart(FORM, f"  Now:\n\n{one}\nand\n{two}\n ok \n", [write_file]).text == "  Now:\n\n\nand\n\n ok \n"


def test_a_call_that_is_never_closed_stays_open(take_apart, write_file) -> None:
    text = "<tool_call>\n<function=write_file>\n<parameter=content>\nhello"
    for held in ("", writing("x") + "\n"):
        read = take_apart(FORM, held + text, [write_file])
        assert not read.calls[-1].done
        assert read.calls[-1].json.startswith('{"content": "hello')
        assert read.text == ""


def test_a_parameter_written_twice_is_no_second_parameter(take_apart, write_file) -> None:
    text = call(("path", "a"), ("path", "b"), ("mode", "7"))
    assert take_apart(FORM, text, [write_file]).done == [
        ("write_file", {"path": "a\n</parameter>\n<parameter=path>\nb", "mode": 7})
    ]


def test_a_value_that_shows_an_open_parameter_inside_a_line_keeps_it(take_apart, write_file) -> None:
    shown = "set <parameter=mode> to it"
    read = take_apart(FORM, call(("path", "a"), ("content", shown)), [write_file])
    assert read.done == [("write_file", {"path": "a", "content": shown})]


def test_an_open_parameter_at_the_start_of_a_line_that_is_still_to_come_ends_the_value(take_apart, write_file) -> None:
    """The documented other side of reading calls without `</parameter>`."""
    read = take_apart(FORM, call(("path", "a"), ("content", "set\n<parameter=mode> to it")), [write_file])
    assert read.done == [("write_file", {"path": "a", "content": "set", "mode": " to it"})]


def test_a_function_that_is_not_offered_is_called_as_written(take_apart, write_file) -> None:
    assert take_apart(FORM, call(("a", "1"), name="rm"), [write_file]).done == [("rm", {"a": "1"})]
    assert take_apart(FORM, call(("a", "1"), name="rm"), []).done == [("rm", {"a": "1"})]


def test_the_template_tells_the_family() -> None:
    from tandem.plugins.formats.qwen_xml import tandem_formats

    (part,) = tandem_formats()
    assert part.fits("<tool_call>\n<function=example>\n")
    assert not part.fits("<tool_call>\n{...}\n</tool_call>")
    assert not part.fits("")
    assert part.build({"thinking": True}).thinking == ("<think>", "</think>")
    assert part.build({"thinking": False}).thinking is None
    assert FORM.opener == "<tool_call>"


# ------------------------------------------------------------------------------------------------------ properties

FRAGMENTS = [
    "<tool_call>", "</tool_call>", "<function=write_file>", "<function=other>", "<function=Write-File>", "</function>",
    "<parameter=path>", "<parameter=content>", "<parameter=mode>", "<parameter = 'MODE'>", "</parameter>", "\n", " ",
    "x", "420", '{"a": 1}', '{"name": "write_file", "arguments": {"path": "', '"}}', "}", '"', "\\n", "\\u00e9", "é😀",
    "<", "</", "true", writing("x"), writing("x")[12:], writing("x")[:60], writing("x")[60:],
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


TYPES: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(max_size=20) | st.lists(st.sampled_from([*FRAGMENTS, *VALUES]), max_size=4).map("".join),
    "integer": st.integers(),
    "number": st.floats(allow_nan=False, allow_infinity=False),
    "boolean": st.booleans(),
    "null": st.none(),
    "array": st.lists(st.integers() | st.text(max_size=5), max_size=3),
    "object": st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5), max_size=3),
}
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8) | st.sampled_from(["path", "a-b", "a_b", "x.y"])


@st.composite
def calls(draw: st.DrawFn) -> tuple[Tool, dict[str, Any]]:
    """A tool and arguments that fit it."""
    kinds = draw(st.dictionaries(names, st.sampled_from(sorted(TYPES)), max_size=4))
    tool = Tool(draw(names), "", {"properties": {name: {"type": kind} for name, kind in kinds.items()}})
    return tool, {name: draw(TYPES[kind]) for name, kind in kinds.items()}


@settings(deadline=None)
@given(calls(), st.integers(1, 5))
def test_a_rendered_call_is_read_back(take_apart, made: tuple[Tool, dict[str, Any]], size: int) -> None:
    tool, arguments = made
    read = take_apart(FORM, FORM.render(tool.name, arguments), [tool], size)
    assert read.done == [(tool.name, arguments)]
    assert read.text == ""


@pytest.mark.parametrize(
    "content",
    [
        "a line of text, <b> & so on\n",
        "</parameter>\n",
        "\n" + call(("path", "x")) + "\n",
    ],
)
def test_a_long_argument_takes_time_in_proportion_to_its_length(write_file, content: str) -> None:
    def seconds(length: int) -> float:
        text = writing(content * (length // len(content)))
        parser = FORM.parser([write_file])
        start = time.perf_counter()
        for at in range(0, len(text), 4):
            parser.feed(text[at : at + 4])
        assert parser.end(False)
        return time.perf_counter() - start

    short = min(seconds(50_000) for _ in range(2))
    assert seconds(200_000) < 10 * max(short, 0.02)
