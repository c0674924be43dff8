"""One rule by itself: `Stand` asks it about events without a server, `request` makes the event of a conversation,
`Writing` is a call that is being written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Any

from tandem.core.conductor.history import calls_of_turn, past_calls
from tandem.core.plugin import Action, AskError, RequestEvent, Rule, Task, Tool, ToolCallEvent, WrittenCall


def request(
    messages: Seq[Mapping[str, Any]] | str = "hello", *, tools: Seq[Tool | str] = (), **fields: Any
) -> RequestEvent:
    """A request as a rule sees it. A text is one user message; a tool may be given by its name alone.

    The calls are read off the messages. All of them count as new, unless `new_calls` is given.
    """
    told = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    calls = tuple(past_calls(told))
    offered = tuple(Tool(tool) if isinstance(tool, str) else tool for tool in tools)
    known: dict[str, Any] = {
        "prompt_tokens": 100,
        "max_tokens": 4096,
        "client": "plain",
        "session": "s",
        "calls": calls,
        "turn_calls": calls_of_turn(told, calls),
        "new_calls": tuple(call for call in calls if call.result is not None),
    }
    return RequestEvent(messages=tuple(told), tools=offered, **{**known, **fields})


def call(
    name: str, arguments: Mapping[str, Any] | str, result: str | None = None, id: str = "c1"
) -> list[dict[str, Any]]:
    """The messages of one call: the assistant's, and the tool's with its result."""
    asked = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
    told: list[dict[str, Any]] = [{"role": "assistant", "content": "", "tool_calls": [asked]}]
    return told if result is None else [*told, {"role": "tool", "tool_call_id": id, "content": result}]


def written(
    request: RequestEvent, *calls: tuple[str, Mapping[str, Any] | str], index: int = 0, **fields: Any
) -> ToolCallEvent:
    """The event of one call, the one at `index`, of an answer with `calls`: pairs of a name and its arguments, an
    object or the text that the model wrote."""
    told = [(name, args if isinstance(args, str) else json.dumps(args, ensure_ascii=False)) for name, args in calls]
    name, text = told[index]
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    tool = next((tool for tool in request.tools if tool.name == name), None)
    known: dict[str, Any] = {"arguments": value if isinstance(value, dict) else None, "tool": tool}
    texts = tuple(WrittenCall(*one) for one in told)
    return ToolCallEvent(name=name, written=text, index=index, calls=texts, **{**known, **fields})


@dataclass
class MemorySession:
    """A session of one task."""

    key: str = "s"
    data: dict[str, Any] = field(default_factory=dict)


class Stand:
    """Where a rule stands: its task, and surroundings that a test can set.

    stand = Stand(rule, repeats=3)
    action = stand.check(BlockEvent(answer="..."))
    """

    def __init__(self, rule: Rule, /, *, mode: str = "act", event: RequestEvent | None = None, **params: Any) -> None:
        unknown = params.keys() - rule.params.keys()
        assert not unknown, f"{rule.name} has no parameter {', '.join(sorted(unknown))}"
        defaults = {name: schema["default"] for name, schema in rule.params.items() if "default" in schema}
        self.rule, self.mode = rule, mode
        self.params = {**defaults, **params}
        self.request = event or request()
        self.memo: dict[str, Any] = {}
        self.session = MemorySession()
        self.now = 1000.0
        self.room = True
        self.answers: list[Seq[float]] = []
        """What `ask` returns, one after the other; without any it raises AskError."""
        self.asked: list[str] = []
        """The questions that were put."""
        self.reader: Callable[[str], tuple[list[WrittenCall], str]] = lambda text: ([], text)

    @property
    def task(self) -> Task:
        return Task(self.rule.name, self.mode, self.params)

    def check(self, event: Any) -> Any:
        """What the rule says to this event. A `RequestEvent` becomes the request of what follows."""
        if isinstance(event, RequestEvent):
            self.request, self.memo = event, {}
        return self.rule.check(event, self.task, self)

    def next_request(self, event: RequestEvent) -> Any:
        """The session's next request: calls of earlier ones do not count as new."""
        seen = {call.id for call in self.request.calls if call.result is not None}
        return self.check(replace(event, new_calls=tuple(c for c in event.new_calls if c.id not in seen)))

    def tokens(self, text: str) -> int:
        return len(text)

    def read_calls(self, text: str) -> tuple[list[WrittenCall], str]:
        return self.reader(text)

    def ask(self, question: str, options: Seq[str]) -> list[float]:
        self.asked.append(question)
        if not self.answers:
            raise AskError("nobody answers here")
        return list(self.answers.pop(0))


def only(result: Any) -> Action:
    """The one action of a rule's result."""
    actions = [result] if isinstance(result, Action) else list(result or ())
    assert len(actions) == 1, f"{len(actions)} actions, not one"
    return actions[0]


@dataclass
class Writing:
    """A tool call that the model is writing (`OpenCall`): what it wrote so far, and as how many tokens."""

    text: str
    tokens: int
    name: str = "write"
    streamed: bool = False

    def tail(self, characters: int) -> str:
        return self.text[-characters:]
