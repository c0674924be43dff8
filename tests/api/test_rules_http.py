"""What each action of a rule does to a served answer."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tandem.core.plugin import Action, BlockEvent, FinishEvent, RequestEvent, Rule, SafePoint, ToolCallEvent, hookimpl
from tandem.testing.answer import Answer
from tandem.testing.box import Box

SP1, SP2, SP3, SP4 = SafePoint.SP1, SafePoint.SP2, SafePoint.SP3, SafePoint.SP4
TOOL = {"type": "function", "function": {"name": "run", "parameters": {"type": "object", "properties": {"x": {}}}}}
Say = Callable[..., Answer]


def plugin(rule: Rule) -> Any:
    class Plugin:
        TANDEM_API = ">=0.2,<0.3"

        @staticmethod
        @hookimpl
        def tandem_rules() -> list[Rule]:
            return [rule]

    return Plugin()


@contextmanager
def host(check: Callable[..., Any], at: Any, mode: str = "act", **more: Any) -> Iterator[Box]:
    rule = Rule("r", at=at, check=check, **more)
    with Box(plugins=[plugin(rule)], rules={"r": {"mode": mode}}, formats=["qwen_xml"]) as box:
        yield box


def call(**arguments: Any) -> str:
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function=run>\n{values}</function>\n</tool_call>"


def turns(*answers: list[str]) -> str:
    return json.dumps({"turns": list(answers)})


def once(action: Any) -> Callable[..., Any]:
    """The action, the first time in a request."""

    def check(event: Any, task: Any, sup: Any) -> Any:
        if sup.memo.get("done"):
            return None
        sup.memo["done"] = True
        return action

    return check


def both(box: Box) -> list[Say]:
    """Asking whole and streamed."""
    return [box.chat, box.stream]


# ----------------------------------------------------------------------------------------------- CLOSE_REASONING


def close_after(count: int, text: str = "Enough.") -> Callable[..., Any]:
    def check(event: BlockEvent, task: Any, sup: Any) -> Action | None:
        long = event.inside and event.reasoning_tokens >= count
        return Action.close_reasoning(text, f"long({event.reasoning_tokens})") if long else None

    return check


THOUGHTS = ["One. ", "Two. ", "Three. ", "Four. ", "</think>\n\n", "The ", "answer."]


def test_a_hidden_close_shows_the_thoughts_so_far_and_the_answer_and_none_of_its_words() -> None:
    with host(close_after(9), SP1) as box:
        for say in both(box):
            told = say(script=THOUGHTS)
            assert told.reasoning.strip() == "One. Two."
            assert told.text == "The answer."
            assert told.finish_reason == "stop"
            shown = say(script=THOUGHTS, reasoning_format="tags")
            assert shown.text == "<think>\nOne. Two. </think>\n\nThe answer."
        entry = box.events[0]
        assert (entry["action"], entry["done"], entry["hidden"]) == ("close_reasoning", True, "Enough.")
        assert entry["hidden_tokens"] == len("Enough.\n</think>\n\n")


def test_hidden_tokens_are_in_no_count_of_the_answer() -> None:
    with host(close_after(9), SP1) as box:
        usage = box.chat(script=THOUGHTS).body["usage"]
    assert usage["completion_tokens"] == len("One. Two. ") + len("The answer.")
    assert usage["completion_tokens_details"]["reasoning_tokens"] == len("One. Two. ")


@pytest.mark.parametrize(("mode", "header"), [("shadow", None), ("act", "shadow"), ("off", None), ("act", "raw")])
def test_in_shadow_raw_and_off_the_client_reads_every_byte_of_the_engine(mode: str, header: str | None) -> None:
    headers = {"X-Tandem": header} if header else {}
    with Box(formats=["qwen_xml"]) as plain, host(close_after(9), SP1, mode) as box:
        for say, raw in zip(both(box), both(plain), strict=True):
            told, expected = say(script=THOUGHTS, headers=headers), raw(script=THOUGHTS)
            assert (told.reasoning, told.text) == (expected.reasoning, expected.text)
            assert told.usage == expected.usage
        shadow = "shadow" in (mode, header)
        assert [(entry["action"], entry["done"]) for entry in box.events[:1]] == (
            [("close_reasoning", False)] if shadow else []
        )


def test_shadow_journals_what_act_does() -> None:
    rows = {}
    for mode in ("act", "shadow"):
        with host(once(Action.close_reasoning("Enough.", "long", score=None)), SP1, mode) as box:
            box.chat(script=THOUGHTS)
            rows[mode] = [(e["action"], e["reason"], e["position"], e["task"]) for e in box.events]
    assert rows["act"] == rows["shadow"]


def test_the_mode_header_tells_and_a_wrong_word_is_refused() -> None:
    with host(close_after(9), SP1) as box:
        assert box.chat(script=THOUGHTS).headers["x-tandem"] == "on"
        assert box.stream(script=THOUGHTS, headers={"X-Tandem": "shadow"}).headers["x-tandem"] == "shadow"
        refused = box.chat(script=THOUGHTS, headers={"X-Tandem": "loud"})
        assert refused.status == 400
        assert refused.body["error"]["param"] == "X-Tandem"
    with host(close_after(9), SP1) as box, Box() as plain:
        assert box.chat(script=THOUGHTS, n=2).headers["x-tandem"] == "shadow"
        assert plain.chat("hi").headers["x-tandem"] == "raw"


def test_the_server_lowers_every_request() -> None:
    rule = Rule("r", at=SP1, check=close_after(9))
    with Box(plugins=[plugin(rule)], rules=["r"], formats=["qwen_xml"], conductor={"mode": "shadow"}) as box:
        told = box.chat(script=THOUGHTS, headers={"X-Tandem": "on"})
        assert (told.headers["x-tandem"], told.reasoning.strip()) == ("shadow", "One. Two. Three. Four.")


# ------------------------------------------------------------------------------------------------------ CONTINUE


def test_an_empty_answer_goes_on_in_the_same_response() -> None:
    def check(event: FinishEvent, task: Any, sup: Any) -> Action | None:
        return None if event.answer.strip() else Action.go_on("Please answer.", "empty")

    with host(check, SP2) as box:
        for say in both(box):
            told = say(turns(["Thinking.", "</think>\n\n"], ["Here it is."]))
            assert (told.text, told.finish_reason) == ("Here it is.", "stop")
        assert box.events[0]["hidden"] == "Please answer."


def test_an_answer_that_ended_inside_the_reasoning_is_closed_and_written() -> None:
    def check(event: FinishEvent, task: Any, sup: Any) -> Action | None:
        return Action.go_on("I answer now.", "unclosed") if event.inside else None

    with host(check, SP2) as box:
        for say in both(box):
            told = (
                say("think", script=None, messages=None)
                if False
                else say(json.dumps({"script": ["Hm. ", "Hm.", "</think>\n\n", "Yes."]}), max_tokens=200)
            )
            assert told.text == "Yes."  # closed by itself: nothing to do
        assert box.events == []


def test_what_the_model_is_made_to_write_is_read_by_the_client() -> None:
    def check(event: FinishEvent, task: Any, sup: Any) -> Action | None:
        if event.calls:
            return None
        return Action.go_on("", "inside", then=call(x="1"))

    with host(check, SP2) as box:
        for say in both(box):
            told = say(turns(["Let me run it."], [""]), tools=[TOOL])
            assert told.text == "Let me run it."
            assert [name for name, _ in told.calls] == ["run"]
            assert told.calls == [("run", {"x": "1"})]
            assert told.finish_reason == "tool_calls"


@pytest.mark.parametrize("fields", [{"stop": ["STOP"]}, {"max_tokens": 4}])
def test_what_did_not_end_by_itself_does_not_go_on(fields: dict[str, Any]) -> None:
    with host(once(Action.go_on("More.", "more")), SP2) as box:
        told = box.chat(script=["a b c STOP d"], **fields)
        assert not box.events[0]["done"]
        assert box.events[0]["detail"]["not_done"] == "ended"
    with Box() as plain:
        assert told.text == plain.chat(script=["a b c STOP d"], **fields).text


def test_the_same_nudge_twice_ends_with_a_sentence() -> None:
    def check(event: FinishEvent, task: Any, sup: Any) -> Action:
        return Action.go_on("Again.", "same")

    with host(check, SP2) as box:
        told = box.chat(turns(["One."], ["Two."], ["Three."]))
    assert told.text.startswith("One.Two.[Tandem ")
    assert told.finish_reason == "stop"


# ----------------------------------------------------------------------------------------------------- the gate


def test_calls_are_written_again_and_the_client_reads_the_new_ones_alone() -> None:
    def check(event: ToolCallEvent, task: Any, sup: Any) -> Action | None:
        return Action.regenerate_call("x must be 2", "bad") if event.arguments == {"x": "1"} else None

    with host(check, SP3) as box:
        for say in both(box):
            told = say(turns(["I run it. ", call(x="1")], [call(x="2"), call(x="3")]), tools=[TOOL])
            assert told.text.strip() == "I run it."
            assert [arguments for _, arguments in told.calls] == [{"x": "2"}, {"x": "3"}]
            assert told.finish_reason == "tool_calls"


def wrong_x(event: ToolCallEvent, task: Any, sup: Any) -> Action | None:
    return Action.regenerate_call("x must be 2", "bad") if event.arguments == {"x": "1"} else None


def test_calls_that_were_written_again_are_in_no_count_and_in_no_log_probability() -> None:
    with host(wrong_x, SP3) as box:
        for say in both(box):
            told = say(turns(["Text. ", call(x="1")], ["More. ", call(x="2")]), tools=[TOOL], logprobs=True)
            assert told.usage["completion_tokens"] == len("Text. More. " + call(x="2"))
            choices = [choice for chunk in told.chunks or [told.body] for choice in chunk["choices"]]
            named = [one["token"] for choice in choices for one in (choice["logprobs"] or {}).get("content") or []]
            assert "".join(named) == "Text. More. " + call(x="2")
        ended = box.chat(turns(["Text. ", call(x="1")], [call(x="1")]), tools=[TOOL])
        assert ended.text.startswith("Text. [Tandem ")
        assert ended.usage["completion_tokens"] == len("Text. ")


def test_calls_that_were_written_again_leave_the_limit_to_those_that_go_out() -> None:
    said = turns(["Text. ", call(x="1")], [call(x="2")])
    with host(wrong_x, SP3) as box:
        for say in both(box):
            told = say(said, tools=[TOOL], max_tokens=len("Text. " + call(x="1")) + 1)
            assert (told.calls, told.finish_reason) == ([("run", {"x": "2"})], "tool_calls")


def test_the_turn_behind_calls_that_were_written_again_reads_only_what_is_new() -> None:
    plan = turns(["Text. ", call(x="1")], ["More. ", call(x="2")], ["Done."])
    rule = Rule("r", at=SP3, check=wrong_x)
    sections: dict[str, Any] = {"formats": ["qwen_xml"], "caches": ["resident"]}
    with Box(plugins=[plugin(rule)], rules=["r"], **sections) as box, Box(**sections) as plain:
        # with one call at most, the calls that were dropped must not look like more than the client has
        fields: dict[str, Any] = {"tools": [TOOL], "parallel_tool_calls": False}
        first = [{"role": "user", "content": plan}]
        told = box.chat(first, **fields)
        message = told.body["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "ok"}
        again, raw = box.chat([*first, message, result], **fields), plain.chat([*first, message, result], **fields)
    assert again.text == "Done."
    assert again.usage["prompt_tokens"] == raw.usage["prompt_tokens"]
    known = told.usage["prompt_tokens"] + told.usage["completion_tokens"]
    assert again.usage["prompt_tokens_details"]["cached_tokens"] >= known
    assert again.usage["prompt_tokens_details"]["hidden_tokens"] > len(call(x="1"))


def test_a_repaired_call_goes_out_with_its_new_arguments() -> None:
    def check(event: ToolCallEvent, task: Any, sup: Any) -> Action | None:
        return Action.repair_call({"x": 7}, "fixed") if event.index == 1 else None

    with host(check, SP3) as box:
        for say in both(box):
            told = say(turns([call(x="1"), call(x="2")]), tools=[TOOL])
            assert [arguments for _, arguments in told.calls] == [{"x": "1"}, {"x": 7}]


def test_calls_that_are_given_up_go_nowhere() -> None:
    with host(once(Action.give_up("[Stopped.]", "bad")), SP3) as box:
        for say in both(box):
            told = say(turns(["Now: ", call(x="1")]), tools=[TOOL])
            assert (told.calls, told.finish_reason) == ([], "stop")
            assert told.text.endswith("[Stopped.]")


def test_held_calls_that_pass_are_the_ones_that_were_written() -> None:
    seen: list[ToolCallEvent] = []

    def check(event: ToolCallEvent, task: Any, sup: Any) -> None:
        seen.append(event)

    said = turns(["Text. ", call(x="1"), call(x="2")])
    with host(check, SP3) as box, Box(formats=["qwen_xml"]) as plain:
        for say, raw in zip(both(box), both(plain), strict=True):
            held, live = say(said, tools=[TOOL]), raw(said, tools=[TOOL])
            assert held.calls == live.calls
            assert (held.text, held.finish_reason) == (live.text, live.finish_reason)
    assert [(event.name, event.index, len(event.calls)) for event in seen[:2]] == [("run", 0, 2), ("run", 1, 2)]
    assert seen[0].tool is not None


def test_a_block_that_can_not_be_read_is_held_and_let_out_as_text_when_it_passes() -> None:
    seen: list[ToolCallEvent] = []

    def check(event: ToolCallEvent, task: Any, sup: Any) -> None:
        seen.append(event)

    with host(check, SP3) as box, Box(formats=["qwen_xml"]) as plain:
        said = turns(["Hm <tool_call>nonsense</tool_call> so."])
        told = box.stream(said, tools=[TOOL])
        assert told.text == plain.stream(said, tools=[TOOL]).text
    assert [(event.name, event.problem) for event in seen] == [(None, "unreadable")]


def test_a_constrained_request_holds_nothing() -> None:
    with host(once(Action.give_up("[No.]", "bad")), SP3) as box:
        told = box.chat(turns([call(x="1")]), tools=[TOOL], tool_choice="required")
        assert [name for name, _ in told.calls] == ["run"]
        assert box.events == []


# ----------------------------------------------------------------------------------------------------------- SP4


def note_when(word: str, text: str) -> Callable[..., Any]:
    def check(event: RequestEvent, task: Any, sup: Any) -> Action | None:
        return Action.tail_note(text, "note") if word in str(event.messages[-1]["content"]) else None

    return check


def test_a_note_is_read_by_the_model_counted_apart_and_stays_for_later_turns() -> None:
    with (
        Box(plugins=[plugin(Rule("r", at=SP4, check=note_when("first", "Be brief, please.")))], rules=["r"]) as box,
        Box() as plain,
    ):
        first = [{"role": "user", "content": "the first message"}]
        told, raw = box.chat(first), plain.chat(first)
        hidden = told.usage["prompt_tokens_details"]["hidden_tokens"]
        assert hidden == len("\n\nBe brief, please.")
        assert told.usage["prompt_tokens"] == raw.usage["prompt_tokens"]
        later = [*first, {"role": "assistant", "content": told.text}, {"role": "user", "content": "and more"}]
        told, raw = box.chat(later), plain.chat(later)
        assert told.usage["prompt_tokens_details"]["hidden_tokens"] == hidden
        assert told.usage["prompt_tokens"] == raw.usage["prompt_tokens"]
        other = [{"role": "user", "content": "another"}]
        assert "hidden_tokens" not in box.chat(other).usage["prompt_tokens_details"]


def test_the_next_turn_goes_on_from_the_cache_through_the_note_and_what_was_hidden() -> None:
    rule = Rule("r", at=(SP4, SP1), check=lambda e, t, s: _both_points(e))
    sections: dict[str, Any] = {"rules": ["r"], "formats": ["qwen_xml"], "caches": ["resident"]}
    with Box(plugins=[plugin(rule)], **sections) as box:
        first = [{"role": "user", "content": "first " + json.dumps({"script": THOUGHTS})}]
        told = box.chat(first)
        assert told.text == "The answer."
        later = [
            *first,
            {"role": "assistant", "content": told.text, "reasoning_content": told.reasoning},
            {"role": "user", "content": "more"},
        ]
        again = box.chat(later)
        details = again.usage["prompt_tokens_details"]
        assert details["hidden_tokens"] >= len("\n\nBe brief.")
        raw = box.chat(later, headers={"X-Tandem": "raw"}, cache_prompt=False)
        assert again.usage["prompt_tokens"] - details["cached_tokens"] < len("more") + 60
        assert raw.status == 200


def _both_points(event: Any) -> Action | None:
    if isinstance(event, RequestEvent):
        return Action.tail_note("Be brief.", "note") if "first" in str(event.messages[-1]["content"]) else None
    return Action.close_reasoning("Enough.", "long") if event.inside and event.reasoning_tokens >= 9 else None


def test_a_raw_request_reads_nothing_that_rules_once_wrote() -> None:
    rule = Rule("r", at=(SP4, SP1), check=lambda e, t, s: _both_points(e))
    sections: dict[str, Any] = {"rules": ["r"], "formats": ["qwen_xml"], "caches": ["resident"]}
    first = [{"role": "user", "content": "first " + json.dumps({"script": THOUGHTS})}]
    with Box(plugins=[plugin(rule)], **sections) as box, Box(formats=["qwen_xml"]) as plain:
        told = box.chat(first)
        said = {"role": "assistant", "content": told.text, "reasoning_content": told.reasoning}
        for messages in (first, [*first, said, {"role": "user", "content": "more"}]):
            lowered, raw = box.chat(messages, headers={"X-Tandem": "raw"}), plain.chat(messages)
            assert (lowered.text, lowered.reasoning) == (raw.text, raw.reasoning)
            assert lowered.usage["prompt_tokens"] == raw.usage["prompt_tokens"]
            assert "hidden_tokens" not in lowered.usage["prompt_tokens_details"]
        assert "hidden_tokens" in box.chat(messages).usage["prompt_tokens_details"]


def test_what_the_client_did_not_send_never_makes_its_prompt_too_long() -> None:
    rule = Rule("r", at=SP4, check=note_when("first", "A note of many words. " * 5))
    sections: dict[str, Any] = {"rules": ["r"], "caches": ["resident"], "server": {"max_len": 240}}
    with Box(plugins=[plugin(rule)], **sections) as box:
        fits = [{"role": "user", "content": "first, and " + json.dumps({"script": ["Yes."]})}]
        told = box.chat(fits)
        assert told.usage["prompt_tokens_details"]["hidden_tokens"] > 100
        # later on the note is no longer read, rather than that the client's own words are refused
        later = [*fits, {"role": "assistant", "content": told.text}, {"role": "user", "content": "so? " * 35}]
        again = box.chat(later, max_tokens=5).assert_status(200)
        assert "hidden_tokens" not in again.usage["prompt_tokens_details"]
        # and one that has no room is not given, then or when the message comes back
        long = [{"role": "user", "content": "first " + "so? " * 40 + json.dumps({"script": ["Yes."]})}]
        for _ in range(2):
            short = box.chat(long).assert_status(200).assert_text("Yes.")
            assert "hidden_tokens" not in short.usage["prompt_tokens_details"]
        assert box.chat([{"role": "user", "content": "so? " * 80}]).status == 400


def test_a_request_that_is_given_up_is_answered_with_the_sentence_alone() -> None:
    with host(once(Action.give_up("[Not again.]", "retries(3)")), SP4) as box:
        for say in both(box):
            told = say("hello")
            assert (told.text, told.finish_reason) == ("[Not again.]", "stop")
            assert told.usage["completion_tokens"] == 0


def test_a_budget_of_no_thoughts_closes_the_block_in_the_prompt() -> None:
    with host(once(Action.think_budget(0, "off")), SP4) as box:
        told = box.chat(turns(["Never mind."]), chat_template_kwargs={"enable_thinking": True})
        assert (told.reasoning, told.text) == ("", "Never mind.")


def test_a_budget_closes_the_reasoning_hidden() -> None:
    with host(once(Action.think_budget(10, "short", "Now the answer.")), SP4) as box:
        for say in both(box):
            told = say(script=THOUGHTS)
            assert told.reasoning.strip() == "One. Two."
            assert told.text == "The answer."
        assert [entry["action"] for entry in box.events[:2]] == ["set_think_budget", "close_reasoning"]


def test_the_clients_own_budget_is_closed_hidden_too_where_rules_act_and_shown_where_they_do_not() -> None:
    with host(once(None), SP4) as box:
        told = box.chat(script=THOUGHTS, max_reasoning_tokens=10)
        assert told.reasoning.strip() == "One. Two."
        assert box.events[-1]["task"] == "client"
        raw = box.chat(script=THOUGHTS, max_reasoning_tokens=10, headers={"X-Tandem": "raw"})
        assert raw.reasoning.startswith("One. Two. ")
        assert len(raw.reasoning) > len(told.reasoning)


def test_sampling_is_set_unless_the_client_named_it() -> None:
    with host(once(Action.sample("loop", temperature=1.5)), SP4) as box:
        assert box.chat("hi").status == 200
        assert box.events[-1]["done"]
        box.chat("hi", temperature=0)
        assert not box.events[-1]["done"]


@pytest.mark.parametrize("document", [{"regex": "("}, {"grammar": "nonsense"}, {"unheard": 1}])
def test_a_document_that_can_not_be_used_is_not_the_clients_mistake(document: dict[str, Any]) -> None:
    with host(once(Action.constrain(document, "ask")), SP4) as box:
        for say in both(box):
            assert say(script=["Free."]).assert_status(200).text == "Free."


def test_a_rule_may_constrain_the_answer() -> None:
    with host(once(Action.constrain({"choice": ["yes", "no"]}, "ask")), SP4) as box:
        assert box.chat(script=["no way"]).text in ("yes", "no")


# -------------------------------------------------------------------------------------------------------- asking


def test_a_question_is_asked_in_place_and_leaves_no_trace() -> None:
    asked: list[list[float]] = []

    def check(event: FinishEvent, task: Any, sup: Any) -> None:
        asked.append(sup.ask("Is it done? A yes, B no.", ["A", "B"]))

    said = turns(["Done."], ["B"])
    with host(check, SP2) as box, Box(formats=["qwen_xml"]) as plain:
        for say, raw in zip(both(box), both(plain), strict=True):
            told, expected = say(said), raw(said)
            assert (told.text, told.usage) == (expected.text, expected.usage)
    assert asked[0][1] > 0.99
    assert sum(asked[0]) == pytest.approx(1)


# ------------------------------------------------------------------------------------------------------ n and all


def test_several_choices_are_looked_at_one_by_one_and_never_acted_on() -> None:
    with host(once(Action.give_up("[No.]", "x")), SP1) as box:
        told = box.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "n": 2}).json()
        assert all("[No.]" not in choice["message"]["content"] for choice in told["choices"])
        assert [(entry["action"], entry["done"]) for entry in box.events] == [("give_up", False)] * 2


# ------------------------------------------------------------------------------------------------------- masking


def test_a_secret_is_masked_in_the_answer_and_in_the_reasoning_and_calls_go_out_as_written() -> None:
    with host(once(Action.mask({"sk-abc123": "sk-[redacted]"}, "m")), SP4) as box, Box(formats=["qwen_xml"]) as plain:
        script = ["I see sk-a", "bc123, ", "and sk-abc1234.", "</think>\n\n", "Key: sk-abc", "123"]
        for say in both(box):
            told = say(script=script)
            assert told.reasoning.strip() == "I see sk-[redacted], and sk-abc1234."
            assert told.text == "Key: sk-[redacted]"
        said = turns(["It is sk-abc123 ", call(x="sk-abc123")])
        for say, raw in zip(both(box), both(plain), strict=True):
            told, expected = say(said, tools=[TOOL]), raw(said, tools=[TOOL])
            assert told.calls == expected.calls == [("run", {"x": "sk-abc123"})]
            assert told.text == expected.text.replace("sk-abc123", "sk-[redacted]")
        nothing = ["No key ", "here."]
        assert box.stream(script=nothing).deltas == plain.stream(script=nothing).deltas


def test_a_rule_in_shadow_looks_at_calls_that_streamed_and_at_blocks_that_are_none() -> None:
    seen: list[tuple[str | None, str]] = []

    def check(event: ToolCallEvent, task: Any, sup: Any) -> Action:
        seen.append((event.name, event.problem))
        return Action.regenerate_call("again", "bad")

    said = turns(["Text. ", call(x="1"), "<tool_call>nonsense</tool_call>"])
    with host(check, SP3, "shadow") as box, Box(formats=["qwen_xml"]) as plain:
        told, expected = box.stream(said, tools=[TOOL]), plain.stream(said, tools=[TOOL])
        assert (told.deltas, told.calls) == (expected.deltas, expected.calls)
        assert [(entry["action"], entry["done"]) for entry in box.events] == [("regenerate_call", False)] * 2
    assert seen == [("run", ""), (None, "unreadable")]


@pytest.mark.parametrize("mode", ["raw", "shadow"])
def test_a_request_in_which_nothing_is_done_reads_nothing_that_was_hidden_in_earlier_turns(mode: str) -> None:
    with host(lambda e, t, s: _both_points(e), (SP4, SP1)) as hidden, Box(formats=["qwen_xml"]) as plain:
        first = [{"role": "user", "content": "first " + json.dumps({"script": THOUGHTS})}]
        told = hidden.chat(first)
        later = [*first, {"role": "assistant", "content": told.text}, {"role": "user", "content": "more"}]
        raw, expected = hidden.chat(later, headers={"X-Tandem": mode}), plain.chat(later)
        assert "hidden_tokens" not in raw.usage["prompt_tokens_details"]
        assert raw.usage == expected.usage
        on = hidden.chat(later).usage["prompt_tokens_details"]
        assert on["hidden_tokens"] > len("\n\nBe brief.")


def test_a_session_knows_whether_a_request_of_it_runs() -> None:
    with host(once(None), SP1) as box:
        sessions = box.engine.conductor.sessions
        body = {"messages": [{"role": "user", "content": "hi"}], "session_id": "s1", "stream": True}
        with box.streaming("/v1/chat/completions", {**body, "messages": [_long()]}) as (_, data):
            next(data)
            assert [state.running for state in sessions.all()] == [1]
        box.chat("hi", session_id="s1")
        box.engine.drain()
        assert box.post("/v1/chat/completions", body).status_code == 503
        states = sessions.all()
        assert (sum(state.running for state in states), sum(state.turns for state in states)) == (0, 2)


def _long() -> dict[str, Any]:
    return {"role": "user", "content": json.dumps({"script": ["word ", {"sleep_ms": 20}] * 200})}


def test_a_rewrite_that_hangs_holds_up_no_other_stream() -> None:
    def hangs(messages: Any, task: Any) -> None:
        if "slow" in str(messages[-1]["content"]):
            time.sleep(0.5)

    rule = Rule("r", at=SP4, check=once(None), rewrite=hangs)
    with Box(plugins=[plugin(rule)], rules=["r"], conductor={"rule_budget_ms": 100}) as box:
        gaps: list[float] = []
        body = {"messages": [_long()], "stream": True}
        with box.streaming("/v1/chat/completions", body) as (_, data):
            next(data)
            slow = threading.Thread(target=box.chat, args=("slow",))
            slow.start()
            last = time.monotonic()
            while slow.is_alive():
                next(data)
                gaps.append(time.monotonic() - last)
                last = time.monotonic()
            slow.join()
        assert max(gaps) < 0.3, "the event loop stood still while a rule was waited for"


def test_what_is_forgotten_with_the_caches_is_read_as_it_was_sent() -> None:
    with host(note_when("first", "Be brief."), SP4) as box:
        first = [{"role": "user", "content": "first"}]
        told = box.chat(first)
        later = [*first, {"role": "assistant", "content": told.text}, {"role": "user", "content": "more"}]
        assert box.chat(later).usage["prompt_tokens_details"]["hidden_tokens"] > 0
        assert box.post("/v1/cache/clear").status_code == 200
        assert "hidden_tokens" not in box.chat(later).usage["prompt_tokens_details"]
