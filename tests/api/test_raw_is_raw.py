"""Raw is raw: where no rule may act, the client reads what the engine wrote, to the last byte.

One corpus of requests goes through three servers: one without rules, one where every rule would act and the client asks
for `X-Tandem: raw`, and one whose conductor has all of them in shadow.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

import pytest

from tandem.testing.box import Box


def tool(name: str, required: tuple[str, ...] = (), **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [
    tool("write_file", ("path", "content"), path="string", content="string", mode="integer"),
    tool("bash", ("command",), command="string"),
    tool("look", ("q",), q="string"),
]
TOKEN = "sk-proj-Qm4tZ8vX1nB7cL2kR9wD5hJ6"


def call(name: str, **values: str) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def past(name: str, arguments: Mapping[str, str] | str, result: str, id: str) -> list[dict[str, Any]]:
    """The messages of a call that was made."""
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    made = {"id": id, "type": "function", "function": {"name": name, "arguments": written}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": id, "content": result},
    ]


def split(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


@dataclass(frozen=True)
class Case:
    """What the model writes, and what else the request says."""

    name: str
    script: list[Any]
    fields: dict[str, Any] = field(default_factory=dict)
    end: bool = True
    behind: list[dict[str, Any]] = field(default_factory=list)
    """Messages behind the user's: pairs of a call and its result."""

    def body(self) -> dict[str, Any]:
        told: dict[str, Any] = {"said": "Do it.", "script": self.script, "end": self.end}
        if self.behind:
            told = {"said": "Do it.", "turns": [[]] * (len(self.behind) // 2) + [self.script]}
        messages = [{"role": "user", "content": json.dumps(told)}, *self.behind]
        return {"model": "scripted", "messages": messages, "max_tokens": 4000, **self.fields}


SCRIPTS: dict[str, list[Any]] = {
    "a word": ["Yes"],
    "nothing": [],
    "blanks": ["  ", "\n\n"],
    "prose in pieces": split("The quick brown fox jumps over the lazy dog, and then it rests. ", 5),
    "characters in halves": [{"hex": "f09f"}, {"hex": "9880"}, " e", {"hex": "cc81"}, {"hex": "e282"}, {"hex": "ac"}],
    "broken bytes": ["a", {"hex": "ff"}, {"hex": "c3"}, "b"],
    "an open end of bytes": ["a", {"hex": "f09f"}],
    "a thought and an answer": ["I think", " so\n", "</think>\n\n", "Yes", "."],
    "a thought alone": ["hm hm\n", "</think>\n\n"],
    "a thought that never ends": ["hm, ", "what now"],
    "a tag in pieces": ["hm\n</th", "ink", ">\n", "\nYes </thi", "nk> no"],
    "a stray tag": ["hm\n</think>\n\n", "Yes</think> and <think> no"],
    "a call": ["hm\n</think>\n\n", call("look", q="cats")],
    "a call in pieces": [
        "hm\n</think>\n\n",
        *split(call("write_file", path="a.json", content='{"a": 1}', mode="420"), 7),
    ],
    "two calls": ["hm\n</think>\n\nI look. ", call("look", q="a"), "\n", call("look", q="b")],
    "text behind a call": ["hm\n</think>\n\n", call("look", q="a"), "\nDone."],
    "a call in a thought": ["I could ", call("bash", command="ls"), " but no.\n</think>\n\nNo."],
    "a call of nothing that is offered": ["hm\n</think>\n\n", call("fly", to="Rome")],
    "a call without what it needs": ["hm\n</think>\n\n", call("write_file", path="a")],
    "a call that is cut": ["hm\n</think>\n\n", call("look", q="a")[:40]],
    "a call that is no call": ["hm\n</think>\n\n", "<tool_call>\nlook at this\n</tool_call>"],
    "a closing tag in a value": ["hm\n</think>\n\n", call("look", q="a </parameter> b\n<tool_call> c")],
    "a dangerous call": ["hm\n</think>\n\n", call("bash", command="rm -rf / --no-preserve-root")],
    "a secret": ["hm\n</think>\n\n", f"The key is {TOKEN}", "."],
    "json": ["hm\n</think>\n\n", '{"n": 1}'],
}
"""What the model writes; each is asked in several ways."""

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tools": {"tools": TOOLS},
    "stop": {"stop": ["ye", "Yes", "fox", "look"], "tools": TOOLS},
    "short": {"max_tokens": 23, "tools": TOOLS, "stream_options": {"include_usage": True}},
}

LINE = "the same thought comes again and again, "
ROW = "0,0,1,1,0,0,1,1,2,2,0,0,\n"
LISTED = [message for number in range(5) for message in past("bash", {"command": "ls"}, "a.txt", f"call_{number}")]
SHOWN = past("bash", {"command": "env"}, f"OPENAI_API_KEY={TOKEN}\n", "call_8")
STOPPED = past("write_file", '{"path": "m", "content": "' + ROW * 60, "[stopped]", "call_9")

CASES = [
    *(
        Case(f"{script}, {way}", SCRIPTS[script], fields)
        for script, (way, fields) in itertools.product(SCRIPTS, WAYS.items())
    ),
    Case("a loop in the thought", [LINE] * 40 + ["</think>\n\nYes."]),
    Case("a loop in the thought that meets the limit", [LINE] * 40 + ["</think>\n\nYes."], {"max_tokens": 1500}),
    Case("a loop in the answer", ["</think>\n\n", LINE], {"max_tokens": 1500}, end=False),
    Case("a loop in a call", ["</think>\n\n", call("write_file", path="m", content=ROW * 120)], {"tools": TOOLS}),
    Case("a budget", split("one two three four five six seven ", 4), {"max_reasoning_tokens": 12}, end=False),
    Case("the same call again", ["</think>\n\n", call("bash", command="ls")], {"tools": TOOLS}, behind=LISTED),
    Case("a stopped call was sent back", ["</think>\n\n", "I stop."], {"tools": TOOLS}, behind=STOPPED),
    Case("a secret that a tool showed", ["</think>\n\n", f"It is {TOKEN}."], {"tools": TOOLS}, behind=SHOWN),
    Case("a forced call", SCRIPTS["a call"], {"tools": TOOLS, "tool_choice": "required"}),
    Case("no call is wanted", SCRIPTS["a call"], {"tools": TOOLS, "tool_choice": "none"}),
    Case("a schema", SCRIPTS["json"], {"response_format": {"type": "json_object"}}),
    Case("tags for the client", SCRIPTS["a thought and an answer"], {"reasoning_format": "tags"}),
    Case("log-probabilities", SCRIPTS["a thought and an answer"], {"logprobs": True, "top_logprobs": 2}),
    Case("two choices", SCRIPTS["a call"], {"n": 2, "tools": TOOLS, "temperature": 0.7, "seed": 7}),
]

VARIES = [
    (re.compile(rb'"id":"(chatcmpl|call)[-_]\w+"'), rb'"id":"\1"'),
    (re.compile(rb'"created":\d+'), rb'"created":0'),
    (re.compile(rb'"(timings|metrics)":\{(?:[^{}]|\{[^{}]*\})*\}'), rb'"\1":{}'),
]
"""What is another for every answer: ids, the time, and what was measured."""


def unvaried(data: bytes) -> bytes:
    for pattern, shown in VARIES:
        data = pattern.sub(shown, data)
    return data


def all_rules() -> list[str]:
    return sorted({rule.name for rule in entry_points(group="tandem.rules")})


@pytest.fixture(scope="module")
def boxes() -> Iterator[dict[str, Box]]:
    acting = {name: {"mode": "on"} for name in all_rules()}
    with (
        Box(formats=["qwen_xml"]) as none,
        Box(formats=["qwen_xml"], rules=acting) as raw,
        Box(formats=["qwen_xml"], rules=acting, conductor={"mode": "shadow"}) as shadow,
    ):
        yield {"none": none, "raw": raw, "shadow": shadow}


def answered(boxes: dict[str, Box], case: Case, stream: bool) -> dict[str, bytes]:
    body = {**case.body(), "stream": stream}
    if not stream:
        body.pop("stream_options", None)
    found = {}
    for name, box in boxes.items():
        headers = {"X-Tandem": "raw"} if name == "raw" else {}
        response = box.post("/v1/chat/completions", body, headers)
        assert response.status_code == 200, response.text
        assert response.headers["x-tandem"] == ("shadow" if name == "shadow" else "raw")
        found[name] = unvaried(response.content)
    return found


@pytest.mark.parametrize(
    ("case", "stream"),
    [
        pytest.param(case, stream, id=f"{case.name}, {'streamed' if stream else 'whole'}")
        for case, stream in itertools.product(CASES, (False, True))
        if not (stream and "n" in case.fields)
    ],
)
def test_where_no_rule_may_act_every_byte_is_the_engines_own(boxes: dict[str, Box], case: Case, stream: bool) -> None:
    found = answered(boxes, case, stream)
    assert found["raw"] == found["none"]
    assert found["shadow"] == found["none"]


def test_the_rules_had_something_to_find(boxes: dict[str, Box]) -> None:
    for case in CASES[-14:]:
        answered(boxes, case, False)
    assert boxes["raw"].events == []
    found = [entry for entry in boxes["shadow"].events if entry["action"] not in ("pass", "notify")]
    assert not any(entry["done"] for entry in found)
    wanted = {"argloop", "loop_escape", "reasoning_history", "reasoning_loop", "same_call", "secret_mask"}
    assert wanted <= {entry["rule"] for entry in found}


def test_the_same_requests_are_changed_where_rules_act(boxes: dict[str, Box]) -> None:
    case = next(case for case in CASES if case.name == "a loop in the thought")
    acting = boxes["raw"].post("/v1/chat/completions", case.body())
    assert unvaried(acting.content) != answered(boxes, case, False)["none"]
