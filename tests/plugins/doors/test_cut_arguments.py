"""What is left of a call's arguments when the call was cut off."""

from __future__ import annotations

import json
from typing import Any

import jiter
import pytest
from hypothesis import given, strategies as st

from tandem.plugins.doors.messages.cut import whole_part

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("", {}),
        ("{", {}),
        ('{"a', {}),
        ('{"a": ', {}),
        ('{"a": "b', {}),
        ('{"a": "b"', {"a": "b"}),
        ('{"a": "b", "c', {"a": "b"}),
        ('{"a": 12', {}),
        ('{"a": 12,', {"a": 12}),
        ('{"a": [1, "}", {"b": "\\"', {"a": [1, "}", {}]}),
        ('{"a": "x\\', {}),
        ('{"a": {}}', {"a": {}}),
        ("[1]", {}),
        ("no JSON", {}),
        ("}{", {}),
    ],
)
def test_whole_values_stay_and_a_torn_one_goes(text: str, left: Any) -> None:
    assert whole_part(text) == left


@given(value=st.dictionaries(st.text(max_size=4), JSON, max_size=4))
def test_an_object_that_was_not_cut_is_itself(value: dict[str, Any]) -> None:
    assert whole_part(json.dumps(value)) == value


@given(value=st.dictionaries(st.text(max_size=4), JSON, max_size=4), cut=st.integers(0, 200))
def test_a_cut_object_is_what_the_sdk_shows_of_it(value: dict[str, Any], cut: int) -> None:
    """The oracle is the parser that Anthropic's SDK reads half an object with. The two differ in numbers and words
    alone, at the very end: it takes a torn number for a whole one."""
    text = json.dumps(value)[:cut]
    if not text or text[-1] not in '{}[]",: \n':
        return
    assert whole_part(text) == jiter.from_json(text.encode(), partial_mode=True)


@given(text=st.text('{}[]",:\\ 1a', max_size=30))
def test_anything_at_all_gives_an_object(text: str) -> None:
    assert isinstance(whole_part(text), dict)
