from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from tandem.api.readers import FieldError
from tandem.api.thinking import NUMBERS, WORDS, Wish, budget, read_wish


def put(path: str, value: Any, into: dict[str, Any] | None = None) -> dict[str, Any]:
    body = into if into is not None else {}
    *parents, last = path.split(".")
    node = body
    for word in parents:
        node = node.setdefault(word, {})
    node[last] = value
    return body


@pytest.mark.parametrize("path", NUMBERS)
def test_every_number_shape_is_a_cap(path: str) -> None:
    assert read_wish(put(path, 300)) == Wish(None, 300, None, path)
    assert read_wish(put(path, 0)) == Wish(None, None, None, path), "0 is no cap"


@pytest.mark.parametrize(
    ("word", "cap", "template"),
    [
        ("minimal", 1024, "low"),
        ("low", 1024, "low"),
        ("medium", 8192, "medium"),
        ("high", 16384, None),
        ("xhigh", None, "xhigh"),
        ("max", None, "xhigh"),
    ],
)
@pytest.mark.parametrize("path", WORDS)
def test_every_word_shape_is_a_cap_and_the_templates_own_word(path: str, word: str, cap: int, template: str) -> None:
    assert read_wish(put(path, word)) == Wish(None, cap, template, path)


@pytest.mark.parametrize(
    "body",
    [
        {"reasoning_effort": "none"},
        {"reasoning_effort": "off"},
        {"enable_thinking": False},
        {"reasoning": {"enabled": False}},
        {"reasoning": {"effort": "none"}},
        {"thinking": {"type": "disabled"}},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_every_off_form_turns_thinking_off(body: dict[str, Any]) -> None:
    assert read_wish(body).on is False


def test_the_templates_switch_beats_the_top_level_and_that_beats_every_off_form() -> None:
    assert read_wish({"chat_template_kwargs": {"enable_thinking": True}, "enable_thinking": False}).on is True
    assert read_wish({"enable_thinking": True, "reasoning_effort": "none"}).on is True
    assert read_wish({"thinking": {"type": "enabled"}}).on is True
    assert read_wish({}).on is None


@given(st.dictionaries(st.sampled_from(NUMBERS), st.integers(1, 9999), min_size=1), st.sampled_from(WORDS))
def test_the_first_number_counts_and_a_number_beats_a_word(numbers: dict[str, int], word: str) -> None:
    body: dict[str, Any] = put(word, "low")
    for path, value in numbers.items():
        put(path, value, body)
    first = next(path for path in NUMBERS if path in numbers)
    assert read_wish(body).cap == numbers[first]


def test_the_first_word_counts() -> None:
    body = {
        "chat_template_kwargs": {"reasoning_effort": "low"},
        "reasoning_effort": "high",
        "reasoning": {"effort": "max"},
    }
    assert read_wish(body).cap == 1024


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
        ({"reasoning": {"effort": 3}}, "reasoning.effort"),
        ({"max_reasoning_tokens": -1}, "max_reasoning_tokens"),
        ({"thinking": {"budget_tokens": -5}}, "thinking.budget_tokens"),
        ({"thinking_budget": "lots"}, "thinking_budget"),
        ({"thinking_budget": True}, "thinking_budget"),
        ({"reasoning_budget": -2}, "reasoning_budget"),
        ({"enable_thinking": "yes"}, "enable_thinking"),
        ({"thinking": {"type": "maybe"}}, "thinking.type"),
        ({"thinking": "on"}, "thinking"),
        ({"max_reasoning_tokens": 5, "thinking_budget": -3}, "thinking_budget"),
    ],
)
def test_what_cannot_be_meant_names_its_field(body: dict[str, Any], param: str) -> None:
    with pytest.raises(FieldError) as error:
        read_wish(body)
    assert error.value.param == param
    assert param in str(error.value)


def test_minus_one_is_no_limit_where_its_clients_send_it() -> None:
    assert read_wish({"reasoning_budget": -1}).cap is None


def test_the_reserve_leaves_room_for_the_answer() -> None:
    asked = Wish(cap=8192, asked="reasoning_effort")
    assert budget(asked, limit=1000, reserve=None, closing=20) == 1000 - 250 - 20
    assert budget(asked, limit=100_000, reserve=None, closing=20) == 8192
    assert budget(Wish(asked="thinking_budget"), limit=100_000, reserve=None, closing=20) == 100_000 - 2048 - 20
    assert budget(asked, limit=1000, reserve=0, closing=20) == 8192
    assert budget(asked, limit=10, reserve=None, closing=20) == 0
    assert budget(Wish(), limit=1000, reserve=None, closing=20) is None, "nothing asked, nothing changed"
    assert budget(Wish(), limit=1000, reserve=None, closing=20, wants_reserve=True) == 730
