"""`reasoning_length`: the backstop, and the client's own word."""

from __future__ import annotations

import pytest

from tandem.core.plugin import Action, ActionKind, BlockEvent
from tandem.plugins.rules.reasoning_length import tandem_rules
from tandem.testing.rules import Stand, only, request

[RULE] = tandem_rules()


def at(tokens: int, inside: bool = True) -> BlockEvent:
    return BlockEvent(tokens=tokens, reasoning_tokens=tokens, inside=inside)


def test_the_reasoning_is_closed_behind_its_last_token() -> None:
    stand = Stand(RULE, tokens=100)
    assert stand.check(at(100)) is None
    action = only(stand.check(at(104)))
    assert action.kind is ActionKind.CLOSE_REASONING
    assert (action.reason, action.detail) == ("length(104)", {"tokens": 104, "limit": 100})
    assert action.text == stand.params["text"]


def test_it_stands_behind_the_caps_of_all_effort_words() -> None:
    assert RULE.params["tokens"]["default"] > 16384
    assert Stand(RULE).check(at(16385)) is None


@pytest.mark.parametrize(("budget", "limit"), [(None, 100), (0, 100), (50, 100), (300, 300)])
def test_a_clients_own_larger_budget_counts(budget: int | None, limit: int) -> None:
    stand = Stand(RULE, event=request(budget=budget), tokens=100)
    assert stand.check(at(limit)) is None
    assert isinstance(stand.check(at(limit + 1)), Action)


def test_a_stretch_is_closed_once_and_one_that_is_opened_again_is_closed_again() -> None:
    stand = Stand(RULE, tokens=100)
    found = [stand.check(at(tokens)) for tokens in (101, 102, 103)]
    assert [action is not None for action in found] == [True, False, False]
    assert stand.check(at(103, inside=False)) is None
    assert stand.check(at(104)) is not None


def test_an_answer_may_be_as_long_as_it_likes() -> None:
    assert Stand(RULE, tokens=100).check(BlockEvent("text", tokens=9000, reasoning_tokens=200)) is None
