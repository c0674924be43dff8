"""`reasoning_history`: quoting and editing are fine, going over it again and again is not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tandem.core.plugin import Action, ActionKind, BlockEvent
from tandem.plugins.rules._phrases import Phrases
from tandem.plugins.rules.reasoning_history import History, tandem_rules
from tandem.plugins.rules.reasoning_history.conversation import SLICE, Conversation, texts
from tandem.testing.rules import Stand, request

[RULE] = tandem_rules()
STRETCH = RULE.params["stretch"]["default"]


def prose(words: int, seed: int = 0) -> str:
    """Words that do not come again."""
    return " ".join(f"w{(place + seed * 9973) * 7919 % 1_000_003:x}" for place in range(words)) + ". "


SOURCE = prose(400)
FILE = {"role": "tool", "tool_call_id": "c1", "content": SOURCE}


def blocks(text: str, size: int = 24) -> Iterator[BlockEvent]:
    for start in range(0, len(text), size):
        yield BlockEvent(inside=True, new_reasoning=text[start : start + size], reasoning_tokens=start // 3)


def findings(stand: Stand, text: str) -> list[Action]:
    return [action for event in blocks(text) if (action := stand.check(event)) is not None]


def stand(*messages: dict[str, Any], **params: Any) -> Stand:
    return Stand(RULE, event=request(messages), **params)


def thought(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": "ok", "reasoning_content": text}


def test_quoting_a_file_is_fine_wherever_it_stands() -> None:
    system = {"role": "system", "content": SOURCE}
    assert findings(stand(system, FILE, FILE), SOURCE) == []


def test_quoting_a_file_and_writing_it_out_changed_is_fine() -> None:
    edited = " ".join("x" if place % 40 == 0 else word for place, word in enumerate(SOURCE.split()))
    assert findings(stand(FILE), f"{SOURCE} Now with the change: {edited}") == []


def test_the_third_pass_over_a_file_is_closed() -> None:
    text = SOURCE * 2
    assert findings(stand(FILE), text) == []
    [action] = findings(stand(FILE), text + SOURCE)
    assert action.kind is ActionKind.CLOSE_REASONING
    assert action.reason == f"history({action.detail['share']:.2f})"
    assert action.detail["arm"] == "history"
    assert action.detail["quoted"] > 0.9
    assert action.text == RULE.params["text"]["default"]


def test_a_fourth_pass_over_its_own_words_is_closed_without_a_conversation() -> None:
    assert findings(stand(), SOURCE * 3) == []
    [action] = findings(stand(), SOURCE * 4)
    assert action.detail["quoted"] == 0


def test_thoughts_of_three_earlier_turns_are_closed_and_of_two_are_not() -> None:
    assert findings(stand(thought(SOURCE), thought(SOURCE)), SOURCE) == []
    assert len(findings(stand(*[thought(SOURCE)] * 3), SOURCE)) == 1
    assert len(findings(stand(FILE, *[thought(SOURCE)] * 2), SOURCE)) == 1


def test_a_short_repeat_is_fine() -> None:
    short = prose(STRETCH // 4)
    assert findings(stand(*[thought(short)] * 4), f"{short} {prose(300, 1)} {short} {prose(300, 2)}") == []


def test_a_stretch_is_closed_once() -> None:
    found = stand(FILE)
    assert len(findings(found, SOURCE * 6)) == 1
    assert found.check(BlockEvent("answer", "answer")) is None
    assert len(findings(found, SOURCE * 6)) == 1


def test_short_reasonings_do_not_read_the_conversation() -> None:
    found = stand(FILE, after=1000)
    for tokens in (0, 500, 999):
        found.check(BlockEvent(inside=True, new_reasoning="hm ", reasoning_tokens=tokens))
    history: History = found.memo["history"]
    assert not history._conversation._said
    found.check(BlockEvent(inside=True, new_reasoning="hm ", reasoning_tokens=1000))
    assert history._conversation._said


def test_an_event_without_fields_passes() -> None:
    assert Stand(RULE).check(BlockEvent()) is None
    assert Stand(RULE, event=request([])).check(BlockEvent(inside=True)) is None


def test_messages_of_odd_shapes_are_read_as_far_as_they_go() -> None:
    odd: list[dict[str, Any]] = [
        {},
        {"role": "assistant", "content": None, "reasoning_content": 7, "tool_calls": [None, {}, {"function": "x"}]},
        {"role": "assistant", "content": [{"type": "text", "text": SOURCE}], "tool_calls": None},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
    ]
    conversation = Conversation(odd, 4, 100_000)
    while not conversation.complete:
        conversation.step()
    assert all(phrase in conversation for phrase in Phrases(4).feed(SOURCE))


def test_a_messages_texts_are_told_apart() -> None:
    arguments = {"path": "a.txt"}
    call = {"function": {"name": "read", "arguments": json.dumps(arguments)}}
    message = {"role": "assistant", "content": "<think>so</think>Yes.", "tool_calls": [call]}
    assert list(texts(message)) == [("<think>so", True), (json.dumps(arguments), False), ("Yes.", False)]
    assert list(texts({"role": "user", "content": "a</think>b"})) == [("a</think>b", False)]
    assert list(texts({"role": "assistant", "content": "b", "reasoning": "a"})) == [("a", True), ("b", False)]


def test_only_the_newest_part_of_a_long_conversation_is_read() -> None:
    old, new = prose(3000, 1), prose(3000, 2)
    messages = [{"role": "user", "content": old}, {"role": "user", "content": new}]
    conversation, steps = Conversation(messages, 4, len(new)), 0
    while not conversation.complete:
        conversation.step()
        steps += 1
    assert steps == -(-len(new) // SLICE) + 1
    assert all(phrase in conversation for phrase in Phrases(4).feed(new))
    assert not any(phrase in conversation for phrase in Phrases(4).feed(old))


# ------------------------------------------------------------------------------------------------ the naive twin


def naive_phrases(words: Sequence[str], order: int) -> list[tuple[str, ...]]:
    return [tuple(words[max(0, place - order + 1) : place + 1]) for place in range(len(words))]


word_lists = st.lists(st.sampled_from(["go", "on", "we", "so"]), max_size=25)


@given(st.lists(st.tuples(st.booleans(), word_lists), max_size=4), word_lists, st.integers(1, 3), st.integers(1, 3))
def test_the_share_is_what_counting_everything_gives(
    said: list[tuple[bool, list[str]]], reasoning: list[str], order: int, passes: int
) -> None:
    messages = [
        thought(" ".join(words)) | {"content": ""} if is_thought else {"role": "user", "content": " ".join(words)}
        for is_thought, words in said
    ]
    found = stand(*messages, order=order, passes=passes, stretch=32, after=0)
    history = History(found.request, {**found.params, "stretch": 10})
    for _ in range(2 * len(messages) + 2):
        history.read("", 0)
    for word in reasoning:
        history.read(f"{word} ", 0)

    phrases = naive_phrases(reasoning, order)
    old = []
    for place, phrase in enumerate(phrases):
        earlier = [phrase in naive_phrases(words, order) for _, words in said]
        thoughts = sum(there for there, (is_thought, _) in zip(earlier, said, strict=True) if is_thought)
        told = any(there for there, (is_thought, _) in zip(earlier, said, strict=True) if not is_thought)
        old.append(phrases[:place].count(phrase) + thoughts + told >= passes)
    expected = sum(old[-10:]) / 10 if len(old) >= 10 else 0.0
    assert history.share == pytest.approx(expected)
