"""A manifest is YAML 1.2: its words, its refusals and its lines."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from tandem.core.kernel.problems import ManifestError
from tandem.core.kernel.yaml12 import MOST_VALUES, Tree, parse, scalar


def read(text: str | bytes) -> Tree:
    return parse(text, "m.yaml", Path())


def refusal(text: str | bytes) -> str:
    with pytest.raises(ManifestError) as caught:
        read(text)
    assert len(caught.value.problems) == 1
    return str(caught.value)


OLD_WORDS = """
    on off yes no y n On OFF Yes NO tRue nul 1_000 0b11 12:30:45 2001-01-01 + . .e1 0x 0o8 0xg 1e 1.5.2 <<
"""


@pytest.mark.parametrize("word", OLD_WORDS.split())
def test_a_word_that_only_yaml_1_1_knows_stays_a_word(word: str) -> None:
    assert read(f"key: {word}").value == {"key": word}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True), ("True", True), ("FALSE", False), ("null", None), ("~", None), ("", None),
        ("0777", 777), ("0o17", 15), ("0x1F", 31), ("-12", -12), ("+3", 3),
        (".5", 0.5), ("1.", 1.0), ("1e3", 1000.0), ("-2.5E-1", -0.25), (".inf", math.inf), ("-.INF", -math.inf),
        ("'true'", "true"), ('"12"', "12"), ("!!str 12", "12"), ("!!int 12", 12), ("!!float 3", 3), ("!!null ~", None),
    ],
)  # fmt: skip
def test_the_words_of_the_core_schema(text: str, value: Any) -> None:
    found = read(f"key: {text}").value["key"]
    assert found == value
    assert type(found) is type(value)


def test_nan_is_a_number() -> None:
    assert math.isnan(read("key: .NaN").value["key"])


@given(st.integers() | st.floats(allow_nan=False))
def test_every_number_that_python_writes_is_that_number(number: float) -> None:
    text = repr(number).replace("inf", ".inf")
    assert scalar(text) == number


@given(st.text(alphabet="onfyestrualb0189xo_.:+-eE~", max_size=6))
def test_a_plain_word_is_text_or_means_what_the_core_schema_says(word: str) -> None:
    value = scalar(word)
    if isinstance(value, bool):
        assert word.lower() in ("true", "false")
    elif value is None:
        assert word in ("", "~", "null")
    elif isinstance(value, str):
        assert value == word
        assert not word.lstrip("+-").isdigit() or word[:2] in ("++", "--", "+-", "-+")
    else:
        assert not set(word) - set("0123456789abcdefxoE.+-ina")


printable = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Zl", "Zp"), exclude_characters="\x85"))
documents = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
    | printable,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(printable.filter(lambda k: len(k) < 100), inner),
    max_leaves=15,
)  # fmt: skip


@given(documents)
def test_every_json_document_is_read_as_itself(document: Any) -> None:
    assert read(json.dumps(document, ensure_ascii=False)).value == document


@given(st.recursive(printable, lambda inner: st.dictionaries(printable, inner, max_size=3), max_leaves=8))
def test_what_pyyaml_writes_is_read_as_itself(document: Any) -> None:
    assert read(yaml.safe_dump(document, allow_unicode=True, default_style='"')).value == document


def test_a_key_given_twice_is_refused_with_both_lines() -> None:
    text = "server:\n  port: 1\n  host: x\n  port: 2\n"
    assert refusal(text) == "m.yaml:4: server.port: the key is here twice; first on line 2"


def test_keys_are_text_whatever_they_look_like() -> None:
    assert read("{1: a, on: b, null: c, true: d}").value == {"1": "a", "on": "b", "null": "c", "true": "d"}


def test_an_alias_is_its_anchor_again() -> None:
    assert read("a: &x {k: [1]}\nb: *x\n").value == {"a": {"k": [1]}, "b": {"k": [1]}}


def test_aliases_that_multiply_are_refused_quickly() -> None:
    lines = ["l0: &l0 [a, a, a, a, a, a, a, a, a, a]"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 10)]
    start = time.monotonic()
    assert f"more than {MOST_VALUES} values" in refusal("\n".join(lines))
    assert time.monotonic() - start < 5


def test_an_alias_inside_its_own_anchor_is_refused() -> None:
    assert refusal("a: &x\n  b: *x\n") == "m.yaml:2: a.b: an alias of something that contains it"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: [1\nb: 2\n", 2, "not valid YAML"),
        ("a: 1\n b: 2\n", 2, "not valid YAML"),
        ("a: 1\n---\nb: 2\n", 2, "not valid YAML"),
        ("a: *missing\n", 1, "not valid YAML"),
        ("a:\n\tb: 1\n", 2, "not valid YAML"),
        ("a: !thing 1\n", 1, "a: `1` is not what the tag `!thing` says"),
        ("a:\n  b: !!int x\n", 2, "a.b: `x` is not what the tag"),
        ("a: !!python/name:os.system\n", 1, "is not what the tag"),
        ("a: !!set {x}\n", 1, "means nothing here"),
        ("a: 1\n? [b]\n: 2\n", 2, "a key must be a word"),
        (f"a: {'9' * 5000}\n", 1, "a number too long to read"),
    ],
)
def test_what_cannot_be_read_is_refused_at_its_line(text: str, line: int, words: str) -> None:
    message = refusal(text)
    assert message.startswith(f"m.yaml:{line}: ")
    assert words in message


def test_an_empty_file_and_bytes_that_are_no_text_are_refused() -> None:
    assert refusal("# nothing\n") == "m.yaml: the file is empty"
    assert refusal(b"a: \xff\xfe\n").startswith("m.yaml: not valid YAML: ")


@pytest.mark.parametrize("escape", [r"\UFFFFFFFF", r"\U00110000"])
def test_an_escape_beyond_the_last_character_is_refused(escape: str) -> None:
    assert refusal(f'a: "{escape}"') == "m.yaml: not valid YAML: an escape that is no character"


@given(st.text("ab:- \n\t[]{},&*!%@`'\"|>?#\\Uux0F~.<=\x85\u2028\ufeff") | st.binary(max_size=40) | st.text())
def test_any_text_is_read_or_refused(text: str | bytes) -> None:
    problems = None
    try:
        tree = read(text)
        assert () in tree.marks
    except ManifestError as error:
        problems = error.problems
    assert problems is None or len(problems) == 1


def test_nesting_without_end_is_refused() -> None:
    assert refusal("[" * 5000) == "m.yaml: nested too deeply"


def test_every_path_has_its_line() -> None:
    tree = read("tandem: 1\nserver:\n  port: 1\n  list:\n    - x\n    - k: v\nflow: {a: 1,\n  b: 2}\n")
    lines = {".".join(keys): mark.line for keys, mark in tree.marks.items()}
    assert lines == {
        "": 1, "tandem": 1, "server": 2, "server.port": 3, "server.list": 4, "server.list.0": 5, "server.list.1": 6,
        "server.list.1.k": 6, "flow": 7, "flow.a": 7, "flow.b": 8,
    }  # fmt: skip
    assert tree.mark(("server", "nothing", "here")).line == 2
