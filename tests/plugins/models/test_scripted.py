from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tandem.core.engine.generation import Generation, Phase
from tandem.core.engine.prompt import Prompt
from tandem.core.engine.request import Finished, Generate, Piece, Sampling
from tandem.core.engine.round import run_round
from tandem.core.plugin import Block
from tandem.plugins.models.scripted import ScriptedModel
from tandem.plugins.models.scripted.script import find_told
from tandem.plugins.models.scripted.tokens import ASSISTANT, END, ByteTokenizer


def model(**options: Any) -> ScriptedModel:
    return ScriptedModel({"reply": "one two three", "tokens_per_s": 0, "prefill_per_s": 0, **options})


def blocks(m: ScriptedModel, content: str, max_tokens: int = 1000, **sampling: Any) -> tuple[list[str], Finished]:
    """The text of each accepted block, and the last event."""
    ids = Prompt(m).chat([{"role": "system", "content": "be brief"}, {"role": "user", "content": content}])
    generation = Generation(Generate(ids, max_tokens, Sampling(**sampling)), m)
    texts: list[str] = []
    last: Any = None
    while generation.phase is not Phase.DONE:
        run_round(m, [generation])
        events = generation.collect()
        pieces = [event.text for event in events if isinstance(event, Piece)]
        if pieces:
            texts.append("".join(pieces))
        last = events[-1] if events else last
    assert isinstance(last, Finished)
    return texts, last


def told(*entries: Any, **more: Any) -> str:
    return json.dumps({"script": list(entries), **more})


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=8), st.sampled_from([0.0, 1.0]))
def test_each_entry_is_one_block(entries: list[str], temperature: float) -> None:
    texts, last = blocks(model(), told(*entries), temperature=temperature, seed=3)
    if all(len(entry.encode()) <= 32 for entry in entries):
        assert texts == entries
    assert "".join(texts) == "".join(entries)
    assert (last.reason, last.detail) == ("stop", "eos")


def test_bytes_are_written_as_told_and_characters_come_whole() -> None:
    texts, _ = blocks(model(), told("a", {"hex": "f09f"}, {"hex": "9880"}, "b"))
    assert "".join(texts) == "a😀b"
    assert "".join(blocks(model(), told("x", {"hex": "ff"}, "y"))[0]) == "xy"


def test_without_a_script_it_writes_its_reply() -> None:
    for content in ["hello", "{not json", '{"other": 1}', "[1]"]:
        assert blocks(model(), content)[0] == ["one ", "two ", "three"]


def test_without_an_end_the_last_entry_goes_on_until_the_limit() -> None:
    texts, last = blocks(model(), told("start ", "row\n", end=False), max_tokens=17)
    assert "".join(texts) == "start row\nrow\nrow"
    assert last.reason == "length"


@pytest.mark.parametrize("script", ["text", 3, {"a": 1}])
def test_a_script_that_is_no_list_is_explained(script: Any) -> None:
    assert "script must be a list" in "".join(blocks(model(), json.dumps({"script": script}))[0])


@pytest.mark.parametrize("entry", [5, None, {"hex": "zz"}, {"hxe": "00"}])
def test_a_wrong_entry_is_named(entry: Any) -> None:
    assert "script[1]" in "".join(blocks(model(), told("a", entry))[0])


def test_a_pause_comes_before_its_entry_even_a_one_byte_entry() -> None:
    m = model()
    ids = Prompt(m).chat([{"role": "user", "content": told("now", {"sleep_ms": 80}, "x", {"sleep_ms": 80}, "later")}])
    generation = Generation(Generate(ids, 100), m)
    shown: list[tuple[str, float]] = []
    start = time.perf_counter()
    while generation.phase is not Phase.DONE:
        run_round(m, [generation])
        text = "".join(event.text for event in generation.collect() if isinstance(event, Piece))
        if text:
            shown.append((text, time.perf_counter() - start))
    assert [text for text, _ in shown] == ["now", "x", "later"]
    assert shown[1][1] - shown[0][1] >= 0.08
    assert shown[2][1] - shown[1][1] >= 0.08


def test_an_entry_that_is_repeated_pauses_each_time() -> None:
    start = time.perf_counter()
    assert "".join(blocks(model(), told({"sleep_ms": 30}, "ab ", end=False), max_tokens=12)[0]) == "ab " * 4
    assert time.perf_counter() - start >= 0.12


def test_the_options_set_its_speed() -> None:
    start = time.perf_counter()
    blocks(model(tokens_per_s=1000), told("x" * 30, "y" * 30))
    assert time.perf_counter() - start >= 0.055
    start = time.perf_counter()
    blocks(model(prefill_per_s=1000), told("x" * 40))
    assert time.perf_counter() - start >= 0.06


def test_the_last_user_message_is_the_script_also_after_other_turns() -> None:
    m = model()
    ids = Prompt(m).chat(
        [
            {"role": "user", "content": told("first")},
            {"role": "assistant", "content": "first"},
            {"role": "user", "content": told("second")},
        ]
    )
    generation = Generation(Generate(ids, 50), m)
    while generation.phase is not Phase.DONE:
        run_round(m, [generation])
    assert bytes(generation.output) == b"second"


def answer(messages: list[dict[str, Any]], **template: Any) -> str:
    m = model()
    generation = Generation(Generate(Prompt(m).chat(messages, **template), 1000), m)
    while generation.phase is not Phase.DONE:
        run_round(m, [generation])
    return bytes(generation.output).decode()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def result(text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "c", "content": text}


TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
PLAN = json.dumps({"turns": [["call one"], ["call ", "two"], {"script": ["done"]}], "aside": ["A title"]})


def test_each_answer_after_a_plan_takes_its_turn() -> None:
    history = [user("before"), assistant("hello"), user(PLAN)]
    for expected in ["call one", "call two", "done"]:
        assert answer(history, tools=TOOLS) == expected
        history += [assistant(expected), result("ok")]
    assert answer(history, tools=TOOLS) == "one two three"


def test_messages_that_tell_nothing_do_not_end_a_plan() -> None:
    history = [user(PLAN), assistant("call one"), result("ok"), user("[the answer was cut; go on]")]
    assert answer(history, tools=TOOLS) == "call two"


def test_a_later_script_and_a_later_plan_take_over() -> None:
    history = [user(PLAN), assistant("call one"), user(told("now"))]
    assert answer(history) == "now"
    assert answer([*history, assistant("now"), user("and?")]) == "one two three"
    assert answer([*history, assistant("now"), user(json.dumps({"turns": [["other"]]}))]) == "other"


def test_a_request_without_tools_is_an_aside() -> None:
    asked = [{"role": "system", "content": "Write a title."}, user("Write a title:"), user(f'"{PLAN}"')]
    assert answer(asked) == "A title"
    assert answer(asked, tools=TOOLS) == "call one"
    assert answer([user(told("text", aside=["A title"]))]) == "A title"
    assert answer([user(told("text", aside=["A title"]))], tools=TOOLS) == "text"


@pytest.mark.parametrize(
    "wrapped",
    ['"{}"', "Note: {{1, 2}} and {{}}.\n{}\n\n<system>be kind</system>", 'a {{"b": {{"script": ["no"]}}}} {}'],
)
def test_a_script_may_stand_inside_a_message(wrapped: str) -> None:
    assert answer([user(wrapped.format(told("found {it}")))]) == "found {it}"


def test_the_turns_of_a_plan_may_think_or_not() -> None:
    history = [user(json.dumps({"turns": [["hm", "</think>\n\n", "one"], ["two"]]}))]
    assert answer(history) == "hm</think>\n\none"
    assert answer([*history, assistant("one"), user("and?")], enable_thinking=True) == "</think>\n\ntwo"


def test_a_turn_without_an_end_goes_on_until_the_limit() -> None:
    assert answer([user(json.dumps({"turns": [{"script": ["row\n"], "end": False}]}))]) == "row\n" * 250


@pytest.mark.parametrize(
    ("turns", "named"),
    [("text", "turns must be a list"), ([[], "text"], "turns[1] must be a list"), ([[], ["a", 5]], "turns[1][1]")],
)
def test_a_wrong_plan_is_explained(turns: Any, named: str) -> None:
    assert named in answer([user(json.dumps({"turns": turns})), assistant(""), result("ok")])


@given(st.text(alphabet='{}[]":\\ scriptun,1', max_size=60))
def test_any_message_gets_some_answer(text: str) -> None:
    assert isinstance(find_told(text), dict | None)


def test_a_plain_prompt_may_be_the_script_itself() -> None:
    m = model()
    generation = Generation(Generate(m.tokenizer.encode(told("raw")), 50), m)
    while generation.phase is not Phase.DONE:
        run_round(m, [generation])
    assert bytes(generation.output) == b"raw"


def test_every_row_continues_its_own_path() -> None:
    m = model()
    sequence = m.new_sequence(1000)
    prompt = Prompt(m).chat([{"role": "user", "content": told("abc")}])
    (rows,) = m.forward([Block(sequence, prompt, logits=(len(prompt) - 1,))])
    sequence.commit(range(len(prompt)))
    assert int(rows[0].argmax()) == ord("a")
    tree = Block(sequence, [ord("a"), ord("b"), ord("x"), ord("c")], [-1, 0, 0, 1], range(4))
    (rows,) = m.forward([tree])
    assert rows.argmax(-1).tolist() == [ord("b"), ord("c"), ord("c"), END]
    sequence.commit([0, 1])
    assert sequence.tokens[-2:] == [ord("a"), ord("b")]


def test_a_snapshot_survives_what_happens_later() -> None:
    m = model()
    sequence = m.new_sequence(1000)
    prompt = m.tokenizer.encode("<|user|>hi<|end|><|assistant|>")
    m.forward([Block(sequence, prompt, logits=(len(prompt) - 1,))])
    sequence.commit(range(len(prompt)))
    kept = sequence.snapshot()
    m.forward([Block(sequence, [1, 2], logits=(1,))])
    sequence.commit([0, 1])
    other = m.new_sequence(1000)
    other.restore(kept)
    assert other.tokens == prompt
    sequence.restore(kept)
    assert sequence.tokens == prompt


@given(st.text())
def test_the_tokenizer_gives_back_every_text(text: str) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    specials_inside = any(token >= 256 for token in ids)
    if not specials_inside:
        assert b"".join(tokenizer.token_bytes(token) for token in ids).decode("utf-8", "surrogatepass") == text


def test_specials_are_one_token_and_write_nothing() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.encode("a<|end|>b") == [97, END, 98]
    assert tokenizer.token_bytes(END) == b""
    with pytest.raises(IndexError, match="261"):
        tokenizer.token_bytes(261)


def test_a_guess_of_another_turn_that_does_not_come_true_changes_nothing() -> None:
    """Drafts made of earlier prompts hold the marks of turns."""
    m = model()
    sequence: Any = m.new_sequence(1000)
    prompt = Prompt(m).chat([{"role": "user", "content": told("abcdef")}])
    m.forward([Block(sequence, prompt, logits=(len(prompt) - 1,))])
    sequence.commit(range(len(prompt)))
    guess = [ord("a"), END, ASSISTANT, ord("a")]
    m.forward([Block(sequence, guess, logits=(0, 1, 2, 3))])
    sequence.commit([0])
    (rows,) = m.forward([Block(sequence, [ord("b")], logits=(0,))])
    assert int(rows[0].argmax()) == ord("c")


def test_a_prompt_that_goes_on_behind_a_kept_one_is_answered_from_the_beginning() -> None:
    m = model()
    first, second = m.new_sequence(1000), m.new_sequence(1000)
    prompt = Prompt(m).chat([{"role": "user", "content": told("abc", end=False)}])
    m.forward([Block(first, prompt, logits=(len(prompt) - 1,))])
    first.commit(range(len(prompt)))
    second.restore(first.snapshot())
    more = list(b"<think>\n\n</think>\n\n")
    (rows,) = m.forward([Block(second, more, logits=(len(more) - 1,))])
    assert int(rows[0].argmax()) == ord("a")
