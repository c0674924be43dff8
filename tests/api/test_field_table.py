"""Every field of both request tables over HTTP: a right value, a wrong one, and what becomes of the answer.

The rows below name each field of the tables; a field that is added, removed or moved to another disposition fails
here until its row says so.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2
import jsonschema
import pytest
from hypothesis import given, strategies as st
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params

from tandem.api.app import build_app
from tandem.api.fields import CHAT, COMPLETIONS, TABLES, Disposition, Field, names
from tandem.api.readers import FieldError, Place
from tandem.core.engine.engine import Engine
from tandem.core.engine.options import SECTIONS
from tandem.core.engine.request import Generate
from tandem.core.kernel import assemble, load_manifest
from tandem.testing.box import Box
from tandem.testing.server import serving

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
VOCAB = 261


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


LOOK, LEAP = tool("look"), tool("leap")
OBJECT = {"type": "json_object"}
USER = {"role": "user", "content": "Hello"}


@dataclass(frozen=True)
class Row:
    """A field's values."""

    right: Any
    wrong: tuple[Any, ...]
    """Each is a 400. A pair of a path and a value says which place the error names; without a path, the field."""
    beside: Mapping[str, Any] = field(default_factory=dict)
    """Other fields that the right value needs in order to have an effect."""
    idle: bool = False
    """The right value is what happens anyway."""


THOUGHT = ("low", "minimal", "medium", "high", "xhigh", "max", "none", "off")
"""Effort words."""


def tokens(*, unlimited: bool = False) -> Row:
    """A field that holds a number of reasoning tokens."""
    return Row(7, (-2, *(() if unlimited else (-1,)), 1.5, True, "7"))


SHARED = {
    "model": Row("anything", (5, ["a"], True), idle=True),
    "stream": Row(True, ("yes", 1)),
    "stream_options": Row(
        {"include_usage": False},
        ([], "usage", ("stream_options.include_usage", {"include_usage": 1})),
        {"stream": True},
    ),
    "max_tokens": Row(3, (0, -1, 1.5, True, "3")),
    "stop": Row(["b"], (5, "", ["x"] * 17, ("stop[1]", ["a", ""]), ("stop[0]", [5]))),
    "temperature": Row(1.5, (-0.1, 2.1, "warm", True)),
    "top_p": Row(0.5, (0, 1.01, -1, "0.5")),
    "seed": Row(11, (1.5, "11", 2**63, -(2**63) - 1, True)),
    "presence_penalty": Row(1, (-2.1, 2.1, "1")),
    "frequency_penalty": Row(1, (-2.1, 2.1, "1")),
    "logit_bias": Row(
        {"66": 5},
        (
            [66],
            ("logit_bias.261", {"261": 1}),
            ("logit_bias.-1", {"-1": 1}),
            ("logit_bias.b", {"b": 1}),
            ("logit_bias.66", {"66": 100.5}),
            ("logit_bias.66", {"66": "5"}),
        ),
    ),
    "n": Row(2, (0, 17, 1.5, "2")),
    "user": Row("alice", ()),
    "top_k": Row(5, (-2, 1.5, "5")),
    "min_p": Row(0.1, (-0.1, 1.1, "0.1")),
    "repetition_penalty": Row(1.1, (0, -1, 10.5, "1.1")),
    "no_repeat_ngram_size": Row(3, (-1, 1.5, "3")),
    "cache_prompt": Row(False, (0, "no")),
    "draft_temperature": Row(0.5, ()),
}
ROWS: Mapping[str, Mapping[str, Row]] = {
    "chat": {
        **SHARED,
        "messages": Row(
            [{"role": "system", "content": "Be brief."}, USER],
            (
                [],
                "Hello",
                ("messages[0].role", [{"role": "robot", "content": "Hello"}]),
                [{"role": "system", "content": "alone"}],
                [{"role": "tool", "tool_call_id": "c", "content": "a result alone"}],
                ("messages[1].role", [USER, {"role": "system", "content": "late"}]),
                ("messages[1].role", [USER, {"role": "developer", "content": "late"}]),
            ),
        ),
        "max_completion_tokens": Row(3, (0, -1, 1.5, True, "3")),
        "logprobs": Row(True, (1, "yes")),
        "top_logprobs": Row(2, (0, 2, -1), {"logprobs": True}),  # without logprobs: true, which the wrong ones lack
        "tools": Row(
            [LOOK],
            (
                {},
                "look",
                ("tools[0]", ["look"]),
                ("tools[0].function", [{"type": "function"}]),
                ("tools[1].function.name", [LOOK, {"type": "function", "function": {}}]),
                ("tools[0].function.parameters", [tool("look", parameters=[])]),
                ("tools[0].type", [{"type": "retrieval"}]),
            ),
        ),
        "tool_choice": Row(
            "required",
            (
                "maybe",
                "required",  # without tools
                ("tool_choice.type", {"type": "tool"}),
                ("tool_choice.function.name", {"type": "function", "function": {}}),
                {"type": "function", "function": {"name": "look"}},  # not among the tools, for there are none
            ),
            {"tools": [LOOK]},
        ),
        "parallel_tool_calls": Row(False, ("no", 0), {"tools": [LOOK]}),
        "response_format": Row(
            OBJECT,
            (
                "json",
                ("response_format.type", {"type": "yaml"}),
                ("response_format.json_schema", {"type": "json_schema"}),
                ("response_format.json_schema.name", {"type": "json_schema", "json_schema": {"schema": {}}}),
            ),
        ),
        "structured_outputs": Row(
            {"choice": ["red", "green"]},
            (
                "red",
                {},
                {"regex": "a", "choice": ["b"]},
                {"grammar": "start: /a/"},
                ("structured_outputs.regex", {"regex": ""}),
                ("structured_outputs.choice", {"choice": []}),
                ("structured_outputs.json", {"json": "{}"}),
            ),
        ),
        "modalities": Row(["text"], (["text", "audio"], ["audio"], "text", []), idle=True),
        "chat_template_kwargs": Row(
            {"enable_thinking": False},
            (
                "thinking",
                [],
                ("chat_template_kwargs.messages", {"messages": []}),
                ("chat_template_kwargs.tools", {"tools": []}),
                ("chat_template_kwargs.enable_thinking", {"enable_thinking": "no"}),
                ("chat_template_kwargs.reasoning_effort", {"reasoning_effort": "much"}),
                ("chat_template_kwargs.thinking_budget", {"thinking_budget": -1}),
            ),
        ),
        "reasoning_format": Row("tags", ("inline", 1)),
        "reasoning_effort": Row("low", ("much", 1, True, "LOW")),
        "reasoning": Row(
            {"effort": "low"},
            (
                "low",
                [],
                ("reasoning.effort", {"effort": "much"}),
                ("reasoning.max_tokens", {"max_tokens": -1}),
                ("reasoning.enabled", {"enabled": "no"}),
            ),
        ),
        "thinking": Row(
            {"type": "enabled", "budget_tokens": 7},
            ("on", ("thinking.type", {"type": "on"}), ("thinking.budget_tokens", {"budget_tokens": -1})),
        ),
        "enable_thinking": Row(False, ("no", 0)),
        "max_reasoning_tokens": tokens(),
        "thinking_budget": tokens(),
        "thinking_token_budget": tokens(unlimited=True),
        "reasoning_budget": tokens(unlimited=True),
        "reasoning_budget_tokens": tokens(unlimited=True),
        "thinking_budget_tokens": tokens(unlimited=True),
        "metadata": Row({"a": "b"}, ()),
        "store": Row(False, ("no", 0)),
        "service_tier": Row("flex", ()),
        "prompt_cache_key": Row("k", ()),
        "prompt_cache_retention": Row("24h", ()),
        "prompt_cache_options": Row({"mode": "auto"}, ()),
        "safety_identifier": Row("s", ()),
        "prediction": Row({"type": "content", "content": "Hi"}, ()),
        "audio": Row(None, ({"voice": "alloy", "format": "wav"},)),
        "functions": Row(None, ([{"name": "look"}],)),
        "function_call": Row(None, ("auto", {"name": "look"})),
        "web_search_options": Row(None, ({},)),
        "verbosity": Row(None, ("low", "medium")),
        "moderation": Row(None, ({"model": "omni-moderation-latest"},)),
    },
    "completions": {
        **SHARED,
        "prompt": Row(
            [1, 2],
            ("", [], 5, ("prompt[1]", ["a", ""]), ("prompt[1]", [1, VOCAB]), ("prompt[0][0]", [[-1]]), [[1]] * 129),
        ),
        "logprobs": Row(2, (-1, 6, True, "2")),
        "best_of": Row(1, (2, 0, 17, "1"), idle=True),
        "echo": Row(False, (True, 0, "no"), idle=True),
        "suffix": Row(None, ("the end", "")),
    },
}
REFUSED = {
    "audio": "this server writes text",
    "functions": "use tools",
    "function_call": "use tool_choice",
    "web_search_options": "tools",
    "verbosity": "prompt",
    "moderation": "no moderation model",
    "suffix": "prompt",
}
"""The hint of each refused field."""


# ----------------------------------------------------------------------------------------------------- the tables


@pytest.mark.parametrize(
    ("table", "accepted", "refused"),
    [
        (
            CHAT,
            "user draft_temperature metadata service_tier prompt_cache_key prompt_cache_retention "
            "prompt_cache_options safety_identifier prediction",
            "audio functions function_call web_search_options verbosity moderation",
        ),
        (COMPLETIONS, "user draft_temperature", "suffix"),
    ],
    ids=TABLES,
)
def test_the_dispositions_are_these(table: Mapping[str, Field], accepted: str, refused: str) -> None:
    assert names(table, Disposition.ACCEPTED) == accepted.split()
    assert names(table, Disposition.REFUSED) == refused.split()


@pytest.mark.parametrize("kind", TABLES)
def test_every_field_has_its_row_here_and_every_row_its_field(kind: str) -> None:
    assert set(ROWS[kind]) == set(TABLES[kind])
    for name, row in ROWS[kind].items():
        found = TABLES[kind][name]
        assert found.doc, f"{name} has no sentence"
        assert bool(row.wrong) == (found.disposition is not Disposition.ACCEPTED), f"{name} lacks wrong values"
    assert {name for table in TABLES.values() for name in names(table, Disposition.REFUSED)} == set(REFUSED)


@pytest.mark.parametrize("kind", TABLES)
def test_every_field_that_openais_own_client_sends_is_in_the_table(kind: str) -> None:
    module: Any = {"chat": chat_params, "completions": completion_params}[kind]
    for params in (module.CompletionCreateParamsNonStreaming, module.CompletionCreateParamsStreaming):
        assert set(typing.get_type_hints(params)) - set(TABLES[kind]) == set()


# ------------------------------------------------------------------------------------------------------- over HTTP


class Asked:
    """A box, and what its engine was asked since the last look."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self._work: list[Generate] = []
        submit = box.engine.submit

        def noted(work: Generate, sink: Any) -> Any:
            self._work.append(work)
            return submit(work, sink)

        box.engine.submit = noted  # type: ignore[method-assign,assignment]

    def post(self, kind: str, body: Mapping[str, Any]) -> tuple[httpx2.Response, list[Any]]:
        """The response, and the engine's work in a form that compares."""
        response = self.box.post(PATHS[kind], body)
        work, self._work = self._work, []
        return response, [_plain(one) for one in work]


def _plain(work: Generate) -> dict[str, Any]:
    """The work without what is new in every request; what is a function there becomes whether it is."""
    return {
        "prompt": tuple(work.prompt),
        "max_tokens": work.max_tokens,
        "sampling": replace(work.sampling, logit_bias=dict(work.sampling.logit_bias)),
        "stop": work.stop,
        "thinking": work.thinking,
        "calls": work.calls and (work.calls.wanted, work.calls.limit),
        "constrained": work.constraint is not None,
        "shared": work.shared is not None,
        "cache": work.cache,
        "keep_text": work.keep_text,
    }


def _told(response: httpx2.Response) -> Any:
    """A response without its id, its time and its measurements."""
    assert response.status_code == 200, response.text
    if response.headers["content-type"].startswith("text/event-stream"):
        lines = response.text.splitlines()
        bodies = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    else:
        bodies = [response.json()]
    for body in bodies:
        for key in ("id", "created", "timings", "metrics"):
            body.pop(key, None)
    return response.headers["content-type"], bodies


@pytest.fixture(scope="module")
def asked() -> Iterator[Asked]:
    reply = "<think>\nWell.\n</think>\n\na b c"
    model = {"plugin": "scripted", "reply": reply}
    with Box({"formats": ["qwen_xml"]}, model=model, server={"default_max_tokens": 60}) as box:
        yield Asked(box)


def bare(kind: str, **fields: Any) -> dict[str, Any]:
    """A request with what it must have."""
    return {**({"messages": [USER]} if kind == "chat" else {"prompt": "Hello"}), **fields}


ALL = [(kind, name) for kind in TABLES for name in TABLES[kind]]


def of(*dispositions: Disposition) -> list[tuple[str, str]]:
    return [(kind, name) for kind, name in ALL if TABLES[kind][name].disposition in dispositions]


@pytest.mark.parametrize(("kind", "name"), of(Disposition.HONOURED))
def test_an_honoured_field_changes_the_work_or_the_answer(asked: Asked, kind: str, name: str) -> None:
    row = ROWS[kind][name]
    before, work_before = asked.post(kind, bare(kind, **row.beside))
    after, work = asked.post(kind, bare(kind, **{**row.beside, name: row.right}))
    same = (work, _told(after)) == (work_before, _told(before))
    assert same == row.idle


@pytest.mark.parametrize(("kind", "name"), of(Disposition.ACCEPTED))
def test_an_accepted_field_changes_nothing_whatever_its_value(asked: Asked, kind: str, name: str) -> None:
    before, work_before = asked.post(kind, bare(kind))
    for value in (ROWS[kind][name].right, {"any": "thing"}, [1], "", -1, True):
        after, work = asked.post(kind, bare(kind, **{name: value}))
        assert (work, _told(after)) == (work_before, _told(before))


WRONG = [(kind, name, value) for kind, name in ALL for value in ROWS[kind][name].wrong]


@pytest.mark.parametrize(("kind", "name", "value"), WRONG)
def test_a_wrong_value_is_a_400_that_names_the_place(asked: Asked, kind: str, name: str, value: Any) -> None:
    param, value = value if isinstance(value, tuple) else (name, value)
    response, work = asked.post(kind, bare(kind, **{name: value}))
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert error["message"].startswith(param)
    assert not work
    if TABLES[kind][name].disposition is Disposition.REFUSED:
        assert error["message"].startswith(f"{name} is not supported; ")
        assert REFUSED[name] in error["message"]


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_null_is_the_same_as_leaving_the_field_out(asked: Asked, kind: str, name: str) -> None:
    if name in ("messages", "prompt"):
        response, _ = asked.post(kind, {name: None})
        assert response.json()["error"]["message"].startswith(f"{name} is missing")
        return
    before, work_before = asked.post(kind, bare(kind))
    after, work = asked.post(kind, bare(kind, **{name: None}))
    assert (work, _told(after)) == (work_before, _told(before))


# ---------------------------------------------------------------------------------------- rules that fields share


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("top_logprobs", {"top_logprobs": 5}),
        ("top_logprobs", {"top_logprobs": 5, "logprobs": False}),
        ("top_logprobs", {"top_logprobs": 21, "logprobs": True}),
        ("n", {"n": 2, "stream": True}),
        ("tool_choice", {"tool_choice": "required", "tools": []}),
        ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "jump"}}, "tools": [LOOK, LEAP]}),
        ("structured_outputs", {"structured_outputs": {"regex": "a"}, "response_format": OBJECT}),
        # The first number counts, and a wrong one behind it is still wrong.
        ("thinking_budget", {"max_reasoning_tokens": 5, "thinking_budget": -1}),
        ("reasoning.effort", {"reasoning_effort": "low", "reasoning": {"effort": "much"}}),
    ],
)
def test_fields_that_do_not_go_together_are_named(asked: Asked, param: str, fields: dict[str, Any]) -> None:
    response, work = asked.post("chat", bare("chat", **fields))
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert not work


@pytest.mark.parametrize(
    "fields",
    [
        {"top_logprobs": 20, "logprobs": True},
        {"n": 16},
        {"n": 1, "stream": True},
        {"stop": [str(number) for number in range(16)]},
        {"stop": []},
        {"tool_choice": "auto"},
        {"tool_choice": "none"},
        {"tool_choice": {"type": "function", "function": {"name": "leap"}}, "tools": [LOOK, LEAP]},
        {"response_format": {"type": "text"}, "structured_outputs": {"regex": "a"}},
        {"tools": []},
        *({"reasoning_effort": word} for word in THOUGHT),
        *({"reasoning": {"effort": word}} for word in THOUGHT),
        *({"thinking": {"type": word}} for word in ("enabled", "disabled", "adaptive")),
        *({name: -1} for name in ("thinking_token_budget", "reasoning_budget", "reasoning_budget_tokens")),
        {"max_reasoning_tokens": 0},
        {"temperature": 2, "top_p": 1, "top_k": -1, "min_p": 1},
        {"whatever": {"other": "servers"}, "guided_regex": "a+", "mirostat": 2},
    ],
)
def test_what_stands_at_the_edge_of_a_rule_is_served(asked: Asked, fields: dict[str, Any]) -> None:
    assert asked.post("chat", bare("chat", **fields))[0].status_code == 200


@pytest.mark.parametrize(
    ("fields", "served"),
    [({"best_of": 2, "n": 2}, True), ({"best_of": 1, "n": 3}, True), ({"best_of": 3, "n": 2}, False)],
)
def test_best_of_is_one_or_n(asked: Asked, fields: dict[str, Any], served: bool) -> None:
    response, _ = asked.post("completions", bare("completions", **fields))
    assert response.status_code == (200 if served else 400)
    if not served:
        assert response.json()["error"]["param"] == "best_of"


def test_a_zero_in_logit_bias_is_dropped(asked: Asked) -> None:
    _, plain = asked.post("chat", bare("chat"))
    for kind in TABLES:
        _, [work] = asked.post(kind, bare(kind, logit_bias={"66": 0, "67": -100, "68": 0.0}))
        assert work["sampling"].logit_bias == {67: -100.0}
    assert asked.post("chat", bare("chat", logit_bias={"66": 0}))[1] == plain


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, None),
        ({"parallel_tool_calls": True}, None),
        ({"parallel_tool_calls": False}, 1),
        ({"tool_choice": "required"}, 1),
        ({"tool_choice": "required", "parallel_tool_calls": False}, 1),
        ({"tool_choice": "required", "parallel_tool_calls": True}, None),
        ({"tool_choice": {"type": "function", "function": {"name": "look"}}}, 1),
    ],
)
def test_a_forced_answer_is_one_call_unless_it_may_be_many(
    asked: Asked, fields: dict[str, Any], limit: int | None
) -> None:
    _, [work] = asked.post("chat", bare("chat", tools=[LOOK], **fields))
    assert work["calls"] == (True, limit)
    assert work["constrained"] == ("tool_choice" in fields), "only a forced answer is constrained"


def test_a_prompt_that_renders_to_no_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    platform = assemble(load_manifest("scripted", sections=SECTIONS))
    monkeypatch.setattr(platform.model, "template", "{% if false %}never{% endif %}")
    engine = Engine(platform)
    with serving(build_app(platform, engine)) as url:
        error = httpx2.post(url + PATHS["chat"], json=bare("chat"), trust_env=False).json()["error"]
    assert (error["param"], error["message"]) == ("messages", "the prompt renders to no token")


# ---------------------------------------------------------------------------------------------------- the schemas

WORDS = ["", "a", "auto", "text", "user", *THOUGHT]
KEYS = ["role", "content", "type", "name", "function", "65", "choice"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 25) | st.floats(-3, 3) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=8,
)
READABLE = of(Disposition.HONOURED)


@given(st.sampled_from(READABLE), JSON)
def test_a_schema_takes_all_that_its_reader_takes(which: tuple[str, str], value: Any) -> None:
    found = TABLES[which[0]][which[1]]
    assert found.read is not None
    try:
        found.read(value, Place(found.name, VOCAB))
    except FieldError:
        return
    if found.read.read.__name__ != "<lambda>":  # checked later, with others
        jsonschema.Draft202012Validator(found.schema).validate(value)


@pytest.mark.parametrize(("kind", "name"), READABLE)
def test_a_schema_takes_the_right_value_and_is_a_schema(kind: str, name: str) -> None:
    schema = TABLES[kind][name].schema
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(ROWS[kind][name].right)


BEYOND_A_SCHEMA = {
    # What depends on the model, on other fields, on the order of a list, or on the length of a word.
    "top_logprobs",
    "tool_choice",
    "messages",
    "structured_outputs",
    "logit_bias",
    "prompt",
    "best_of",
    "chat_template_kwargs",
}


@pytest.mark.parametrize(("kind", "name", "value"), [row for row in WRONG if row[1] not in BEYOND_A_SCHEMA])
def test_a_schema_refuses_what_the_reader_refuses(kind: str, name: str, value: Any) -> None:
    value = value[1] if isinstance(value, tuple) else value
    assert not jsonschema.Draft202012Validator(TABLES[kind][name].schema).is_valid(value)
