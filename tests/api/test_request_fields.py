"""The field table: what each value becomes, and that a wrong one is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tandem.api.fields import CHAT, COMPLETIONS, Disposition, names
from tandem.api.readers import FieldError
from tandem.api.request import Defaults, choice_seed, read_chat, read_completion

DEFAULTS = Defaults(temperature=0.25, top_p=0.75, top_k=7, max_tokens=99)
USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
VOCAB = 261


def chat(**fields: Any) -> Any:
    return read_chat({"messages": [USER], **fields}, VOCAB, DEFAULTS)


def completion(**fields: Any) -> Any:
    return read_completion({"prompt": "Hi", **fields}, VOCAB, DEFAULTS)


def test_a_bare_request_takes_the_servers_defaults() -> None:
    ask = chat()
    assert (ask.sampling.temperature, ask.sampling.top_p, ask.sampling.top_k) == (0.25, 0.75, 7)
    assert (ask.max_tokens, ask.n, ask.stream, ask.include_usage, ask.stop) == (99, 1, False, None, ())
    assert ask.sampling.logprobs is None
    assert ask.cache


def test_null_is_the_same_as_leaving_a_field_out() -> None:
    fields = names(CHAT, Disposition.HONOURED) + names(CHAT, Disposition.REFUSED)
    nothing = {name: None for name in fields if name != "messages"}
    assert chat(**nothing) == chat()


def test_every_sampling_field_reaches_the_engine() -> None:
    given_fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "presence_penalty": -1,
        "frequency_penalty": 2,
        "no_repeat_ngram_size": 4,
        "seed": 11,
    }
    for ask in (chat(**given_fields, logit_bias={"65": 5, "66": 0}), completion(**given_fields, logit_bias={"65": 5})):
        for name, value in given_fields.items():
            assert getattr(ask.sampling, name) == value
        assert ask.sampling.logit_bias == {65: 5.0}


def test_max_completion_tokens_wins_over_the_older_name() -> None:
    assert chat(max_tokens=5).max_tokens == 5
    assert chat(max_tokens=5, max_completion_tokens=6).max_tokens == 6


def test_top_k_of_minus_one_is_off() -> None:
    assert chat(top_k=-1).sampling.top_k == 0


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [({}, None), ({"logprobs": False}, None), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 20}, 20)],
)
def test_chat_logprobs(fields: dict[str, Any], logprobs: int | None) -> None:
    assert chat(**fields).sampling.logprobs == logprobs


def test_one_stop_string_and_a_list_of_them() -> None:
    assert chat(stop="a").stop == ("a",)
    assert chat(stop=["a", "b"]).stop == ("a", "b")
    assert len(chat(stop=[str(i) for i in range(16)]).stop) == 16


CASES: list[tuple[str, dict[str, Any]]] = [
    ("temperature", {"temperature": -0.1}),
    ("temperature", {"temperature": 2.01}),
    ("temperature", {"temperature": "warm"}),
    ("temperature", {"temperature": True}),
    ("temperature", {"temperature": 10**400}),
    ("top_p", {"top_p": 0}),
    ("top_p", {"top_p": 1.5}),
    ("top_k", {"top_k": -2}),
    ("top_k", {"top_k": 1.5}),
    ("min_p", {"min_p": 2}),
    ("repetition_penalty", {"repetition_penalty": 0}),
    ("presence_penalty", {"presence_penalty": 3}),
    ("frequency_penalty", {"frequency_penalty": -2.5}),
    ("no_repeat_ngram_size", {"no_repeat_ngram_size": -1}),
    ("seed", {"seed": 1.5}),
    ("seed", {"seed": 2**63}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": True}),
    ("n", {"n": 0}),
    ("n", {"n": 17}),
    ("n", {"n": 2, "stream": True}),
    ("stream", {"stream": "yes"}),
    ("stream_options", {"stream_options": []}),
    ("stream_options.include_usage", {"stream_options": {"include_usage": 1}}),
    ("stop", {"stop": 5}),
    ("stop", {"stop": ""}),
    ("stop[1]", {"stop": ["a", ""]}),
    ("stop", {"stop": ["x"] * 17}),
    ("logit_bias", {"logit_bias": [1]}),
    ("logit_bias.261", {"logit_bias": {"261": 1}}),
    ("logit_bias.-1", {"logit_bias": {"-1": 1}}),
    ("logit_bias.²", {"logit_bias": {"²": 1}}),
    ("logit_bias.5", {"logit_bias": {"5": 101}}),
    ("cache_prompt", {"cache_prompt": 1}),
    ("model", {"model": 5}),
]
CHAT_CASES: list[tuple[str, dict[str, Any]]] = [
    ("max_completion_tokens", {"max_completion_tokens": 0}),
    ("logprobs", {"logprobs": 1}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
    ("top_logprobs", {"top_logprobs": 1}),
    ("tools", {"tools": {}}),
    ("tools[0]", {"tools": ["look"]}),
    ("tools[0].type", {"tools": [{"type": "retrieval"}]}),
    ("tools[0].function", {"tools": [{"type": "function"}]}),
    ("tools[1].function.name", {"tools": [TOOL, {"type": "function", "function": {}}]}),
    ("tools[0].function.parameters", {"tools": [{"type": "function", "function": {"name": "a", "parameters": 1}}]}),
    ("tool_choice", {"tool_choice": "maybe"}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice.type", {"tool_choice": {"type": "tool"}}),
    ("tool_choice", {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "jump"}}}),
    ("parallel_tool_calls", {"parallel_tool_calls": "no"}),
    ("reasoning_effort", {"reasoning_effort": "much"}),
    ("response_format.type", {"response_format": {"type": "yaml"}}),
    ("response_format.json_schema", {"response_format": {"type": "json_schema"}}),
    ("response_format.json_schema.name", {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}),
    (
        "response_format.json_schema.schema",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": []}}},
    ),
    ("structured_outputs", {"structured_outputs": {}}),
    ("structured_outputs", {"structured_outputs": {"regex": "a", "choice": ["b"]}}),
    ("structured_outputs.choice", {"structured_outputs": {"choice": []}}),
    ("structured_outputs.choice[1]", {"structured_outputs": {"choice": ["a", 2]}}),
    ("structured_outputs", {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}),
    ("reasoning_format", {"reasoning_format": "inline"}),
    ("reasoning_effort", {"reasoning_effort": "extreme"}),
    ("max_reasoning_tokens", {"max_reasoning_tokens": -1}),
    ("moderation", {"moderation": {}}),
    ("modalities", {"modalities": ["text", "audio"]}),
    ("chat_template_kwargs", {"chat_template_kwargs": "thinking"}),
    ("chat_template_kwargs.messages", {"chat_template_kwargs": {"messages": []}}),
    *[(name, {name: {}}) for name in names(CHAT, Disposition.REFUSED)],
]
COMPLETION_CASES: list[tuple[str, dict[str, Any]]] = [
    ("logprobs", {"logprobs": 6}),
    ("logprobs", {"logprobs": True}),
    ("best_of", {"best_of": 3, "n": 2}),
    ("echo", {"echo": True}),
    ("echo", {"echo": 0}),
    ("suffix", {"suffix": "end"}),
    ("prompt", {"prompt": ""}),
    ("prompt", {"prompt": []}),
    ("prompt", {"prompt": 5}),
    ("prompt[1]", {"prompt": ["a", ""]}),
    ("prompt[1]", {"prompt": ["a", 5]}),
    ("prompt[0]", {"prompt": [[]]}),
    ("prompt[1]", {"prompt": [1, 261]}),
    ("prompt[0]", {"prompt": [True]}),
    ("prompt[1][0]", {"prompt": [[1], [-1]]}),
]


@pytest.mark.parametrize(("param", "fields"), CASES + CHAT_CASES)
def test_a_wrong_chat_field_is_named(param: str, fields: dict[str, Any]) -> None:
    with pytest.raises(FieldError) as caught:
        chat(**fields)
    assert caught.value.param == param
    assert str(caught.value).startswith(param)


@pytest.mark.parametrize(("param", "fields"), CASES + COMPLETION_CASES)
def test_a_wrong_completion_field_is_named(param: str, fields: dict[str, Any]) -> None:
    with pytest.raises(FieldError) as caught:
        completion(**fields)
    assert caught.value.param == param
    assert str(caught.value).startswith(param)


def test_a_long_wrong_value_is_cut_short_in_the_message() -> None:
    with pytest.raises(FieldError) as caught:
        chat(temperature="x" * 10_000)
    assert len(str(caught.value)) < 120


def test_what_needs_no_effect_is_accepted() -> None:
    accepted = {name: {"any": "thing"} for name in names(CHAT, Disposition.ACCEPTED)}
    assert chat(**accepted) == chat()


def test_fields_of_other_servers_pass() -> None:
    assert chat(mirostat=2, guided_regex="a+", whatever={"a": [1]}) == chat()


def test_a_missing_prompt_is_named() -> None:
    for read, param in ((read_chat, "messages"), (read_completion, "prompt")):
        with pytest.raises(FieldError) as caught:
            read({}, VOCAB, DEFAULTS)
        assert caught.value.param == param


def test_a_prompt_may_be_text_ids_or_a_batch_of_either() -> None:
    assert completion(prompt="a").prompts == ("a",)
    assert completion(prompt=[1, 2]).prompts == ((1, 2),)
    assert completion(prompt=["a", "b"]).prompts == ("a", "b")
    assert completion(prompt=[[1], [2, 3]]).prompts == ((1,), (2, 3))


def test_tool_choice_none_keeps_the_tools_out_of_the_template() -> None:
    assert chat(tools=[TOOL]).template_tools == (TOOL,)
    assert chat(tools=[TOOL], tool_choice="none").template_tools is None
    assert chat(tools=[]).template_tools is None


def test_an_effort_word_reaches_the_template_unless_it_was_told_otherwise() -> None:
    assert chat(reasoning_effort="minimal").template_kwargs == {"reasoning_effort": "low"}
    assert chat(reasoning_effort="high").template_kwargs == {}
    assert chat(reasoning_effort="none").template_kwargs == {"enable_thinking": False}
    own = {"enable_thinking": True, "style": "x"}
    assert chat(reasoning_effort="none", chat_template_kwargs=own).template_kwargs == own


def test_every_choice_has_a_seed_of_its_own_and_the_first_keeps_the_requests() -> None:
    seeds = [choice_seed(42, index) for index in range(16)]
    assert seeds[0] == 42
    assert len(set(seeds)) == 16
    assert choice_seed(None, 3) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*CHAT, *COMPLETIONS]), JSON, max_size=4))
def test_any_json_is_read_or_refused_with_a_field_of_it(body: dict[str, Any]) -> None:
    for read, needed in ((read_chat, {"messages": [USER]}), (read_completion, {"prompt": "a"})):
        whole = json.loads(json.dumps({**needed, **body}))
        named = next(iter(whole))
        try:
            read(whole, VOCAB, DEFAULTS)
        except FieldError as error:
            named = error.param.replace("[", ".").split(".")[0]
        assert named in whole
