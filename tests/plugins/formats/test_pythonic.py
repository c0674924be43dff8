from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tandem.core.plugin import CallPart, TextPart, Tool
from tandem.plugins.formats.pythonic import Pythonic, tandem_formats

FORM = Pythonic()
WEATHER = Tool(
    "get-weather",
    "",
    {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "from": {"type": "string"}, "opts": {}}},
)
TOOLS = [WEATHER, Tool("now"), Tool("fs.read", "", {"properties": {"path": {"type": "string"}}})]


@pytest.mark.parametrize("sizes", [None, 1, 3])
def test_a_list_of_calls_is_read(take_apart, sizes) -> None:
    text = '[get_weather(city="Oslo [x]", days=3, opts={"a": (1, -2.5), \'b\': None}), now(), fs.read(path=\'a"b\\n\')]'
    read = take_apart(FORM, text, TOOLS, sizes)
    assert read.done == [
        ("get-weather", {"city": "Oslo [x]", "days": 3, "opts": {"a": [1, -2.5], "b": None}}),
        ("now", {}),
        ("fs.read", {"path": 'a"b\n'}),
    ]
    assert read.text == ""


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("days='3'", {"days": 3}),
        ("days=three", None),
        ("opts=[true, false, null, True]", {"opts": [True, False, None, True]}),
        ("from='Rome'", {"from": "Rome"}),
        ("city='class = x', from = 'a'", {"city": "class = x", "from": "a"}),
        ("**{'from': 'Rome'}, city='b'", {"from": "Rome", "city": "b"}),
        ("CITY='x'", {"city": "x"}),
        ('city="""two "quoted"\nlines"""', {"city": 'two "quoted"\nlines'}),
        ("city='it\\'s' ' one'", {"city": "it's one"}),
        ("opts=1e999", None),
        ("opts=1+2j", None),
        ("opts={1, 2}", None),
        ("opts={1: 2}", None),
        ("opts=b'x'", None),
        ("opts=f'{city}'", None),
        ("opts=open('x')", None),
        ("opts=[x for x in y]", None),
        ("**opts", None),
        ("*[1]", None),
        ("'Oslo'", None),
        ("city='a', city='b'", None),
        ("city='two\nlines'", None),
        ("opts=" + "[" * 5000 + "]" * 5000, None),
        ("opts=" + "9" * 5000, None),
    ],
)
def test_only_literals_by_name_are_arguments(take_apart, written: str, arguments: dict[str, Any] | None) -> None:
    text = f"[get_weather({written})]"
    read = take_apart(FORM, text, TOOLS, 4)
    if arguments is None:
        assert read.outcome == [text]
    else:
        assert read.done == [("get-weather", arguments)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello [now()]",
        "[1, 2, 3]",
        "[link](https://example.org)",
        "[rm(path='/')]",
        "[now(), rm(path='/')]",
        "[now]",
        "[now(), 5]",
        "[now()",
        "[now(]",
        "[now() # comment\n]",
        "[",
        " \n",
        "[now()] + 1".replace("now()", "now"),
        "[]",
    ],
)
@pytest.mark.parametrize("sizes", [None, 1])
def test_anything_else_is_text(take_apart, text: str, sizes) -> None:
    assert take_apart(FORM, text, TOOLS, sizes).outcome == ([text] if text else [])


def test_text_is_not_held_back_longer_than_it_may_be_a_list_of_calls() -> None:
    parser = FORM.parser(TOOLS)
    assert parser.feed("[no") == []
    assert parser.feed("w]") == [TextPart("[now]")]
    assert parser.feed(" and so on") == [TextPart(" and so on")]


def test_calls_go_out_when_the_list_is_whole_and_text_behind_it_is_text(take_apart) -> None:
    parser = FORM.parser(TOOLS)
    assert parser.feed("\n[now(), now(), fs.read(path='a')") == []
    parts = parser.feed("]")
    assert [part.name for part in parts if isinstance(part, CallPart) and part.name] == ["now", "fs.read"]
    assert parser.feed("\nThat is all.") == [TextPart("\nThat is all.")]
    assert parser.end(False) == []


def test_a_list_that_the_token_limit_cuts_is_dropped(take_apart) -> None:
    text = "[get_weather(city='Oslo', days=3), now()]"
    for end in range(1, len(text)):
        assert take_apart(FORM, text[:end], TOOLS, cut=True).outcome == []
    assert len(take_apart(FORM, text, TOOLS, cut=True).done) == 2
    assert take_apart(FORM, "[now(x=y)]", TOOLS, cut=True).outcome == ["[now(x=y)]"]
    assert take_apart(FORM, "[no, not", TOOLS, cut=True).outcome == ["[no, not"]


def test_the_template_tells_the_family() -> None:
    (part,) = tandem_formats()
    shows = "Answer with [name_one(param_one=value, param_two=value...), name_two(params)] and nothing else."
    assert part.fits(shows)
    assert not part.fits(shows + "<tool_call>")
    assert not part.fits("{%- set ns = [namespace(a=1), namespace(b=2)] %}{{ [f(x=1), g(y=2)] }}")
    assert not part.fits("")
    assert (FORM.thinking, FORM.grammar(TOOLS, True)) == (None, None)


FRAGMENTS = [
    "[", "]", "(", ")", "now", "get_weather", "city=", "days=", "from=", ", ", "'", '"', '"""', "\\", "\n", " ", "a",
    "7", "{", "}", ":", "None", "#", "[now()]", "get_weather(city='é😀', days=3)",
]  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=20), st.lists(st.integers(1, 9), min_size=1), st.booleans())
def test_how_the_text_is_split_changes_nothing(take_apart, texts, sizes, cut) -> None:
    text = "[" + "".join(texts)
    whole = take_apart(FORM, text, TOOLS, None, cut)
    assert take_apart(FORM, text, TOOLS, sizes, cut).outcome == whole.outcome
    assert take_apart(FORM, text, TOOLS, 1, cut).outcome == whole.outcome
    if not whole.calls and not cut:
        assert whole.text == text


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10)
    | st.sampled_from(["'\"", "\\", ")]", "\n"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
identifiers = st.from_regex(r"[a-z][a-z_]{0,6}", fullmatch=True) | st.sampled_from(["class", "from", "a-b", "x y", "é"])


@settings(deadline=None)
@given(st.dictionaries(identifiers, json_values, max_size=4), st.integers(1, 5))
def test_a_rendered_call_is_read_back(take_apart, arguments: dict[str, Any], size: int) -> None:
    tool = Tool("a.do-it", "", {"properties": {name: {} for name in arguments}})
    assert take_apart(FORM, FORM.render(tool.name, arguments), [tool], size).done == [(tool.name, arguments)]


def test_a_name_that_python_cannot_write_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="`7 up` can't be called"):
        FORM.render("7 up", {})


def test_a_long_list_takes_time_in_proportion_to_its_length() -> None:
    def seconds(length: int) -> float:
        text = f"[get_weather(city={'a [(text) and more ' * (length // 19)!r})]"
        parser = FORM.parser(TOOLS)
        start = time.perf_counter()
        for at in range(0, len(text), 4):
            parser.feed(text[at : at + 4])
        assert parser.end(False) == []
        return time.perf_counter() - start

    short = min(seconds(50_000) for _ in range(2))
    assert seconds(200_000) < 10 * max(short, 0.02)
