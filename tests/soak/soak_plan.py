"""What the clients of a soak do: a random plan over the scripted model that one seed repeats.

The scripted model writes what it is told, so every request comes with the answer that is right.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"

WORDS = [
    "river",
    "stone",
    "lantern",
    "gradually",
    "seventeen",
    "{brace}",
    "[list]",
    "back\\slash",
    "a&b",
    "100%",
    "tab",
    "it's",
    '"quoted"',
    "<tag>",
    "</p>",
    ":",
    "data:",
    "event:",
    "Zürich",
    "naïve",
    "Ωmega",
    "é",
    "ﬁn",
    "—",
    "…",
    "東京",
    "日本",
    "🚀",
    "👩\u200d🔬",
]
WORDS += ["new\nline", "\t", "\u2028", "\x85", "\x7f"]
SYSTEM = "You are a careful writer, and this is the instruction that every conversation begins with. " * 6
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "km": {"type": "integer"}},
    "required": ["name", "km"],
    "additionalProperties": False,
}
CALL = "<tool_call>\n<function={name}>\n<parameter=query>\n{query}\n</parameter>\n</function>\n</tool_call>"
PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
QUERIES = ("tea", "東京 🚀", "two words", 'a "quote"')
ENDLESS = 200_000
"""`max_tokens` of an answer that nobody waits for."""


@dataclass(frozen=True, slots=True)
class Said:
    """One answer, whichever API told it."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """Name, and the arguments as JSON with sorted keys."""
    finish: str = "stop"
    """`stop`, `length` or `tool_calls`."""


@dataclass(frozen=True, slots=True)
class Leave:
    """How a client goes away before its answer is whole."""

    stage: str
    """`body`: in the middle of sending; `wait`: at some time after it; `text`: when so many bytes of the answer are
    there."""
    manner: str
    """`close`, `reset` (SO_LINGER 0: whatever is on its way is thrown away) or `half` (only the sending side)."""
    seconds: float = 0.0
    nbytes: int = 1


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, and what has to come of it."""

    kind: str
    path: str
    body: Any
    """JSON, or the bytes as they are sent."""
    status: int = 200
    said: tuple[Said, ...] = ()
    """The right choices; empty where no answer is expected."""
    leave: Leave | None = None
    slow: bool = False
    """The client reads in small bites, with pauses."""
    method: str = "POST"
    content_type: str = "application/json"
    session: str = ""

    @property
    def generates(self) -> bool:
        """The engine is asked for an answer, or would be, if the client stayed."""
        return self.leave is not None or bool(self.said)

    @property
    def streamed(self) -> bool:
        return isinstance(self.body, dict) and self.body.get("stream") is True


Visit = list[Ask]
"""Requests that one client makes one after another."""


@dataclass
class Planner:
    """Draws visits."""

    chance: random.Random
    shares: dict[Callable[[Planner], Visit], int] = field(default_factory=dict)

    def visits(self, count: int) -> list[Visit]:
        """Visits of `count` requests altogether, each with a session name of its own."""
        makers, weights = list(self.shares or SHARES), list((self.shares or SHARES).values())
        visits: list[Visit] = []
        made = 0
        while made < count:
            (maker,) = self.chance.choices(makers, weights)
            visit = maker(self)[: count - made]
            visits.append([replace(ask, session=f"soak-{made + at}") for at, ask in enumerate(visit)])
            made += len(visit)
        return visits

    # ------------------------------------------------------------------------------------------------- ingredients

    def text(self, least: int = 1, most: int = 40) -> str:
        """Some words. The ends are letters: blanks there are a matter of the parsers, and have tests of their own."""
        words = self.chance.choices(WORDS, k=self.chance.randint(least, most))
        return f"{self.chance.randrange(10**6)} {' '.join(words)} end"

    def script(self, text: str) -> str:
        """A user message that makes the model write `text`, cut into blocks anywhere, characters too."""
        return json.dumps({"script": self.blocks(text)}, ensure_ascii=self.chance.random() < 0.5)

    def blocks(self, part: str) -> list[Any]:
        """The entries of a script that write `part`."""
        entries: list[Any] = []
        rest = part.encode()
        while rest:
            size = self.chance.choice((1, 3, 7, 20, 60))
            piece, rest = rest[:size], rest[size:]
            try:
                entries.append(piece.decode())
            except UnicodeDecodeError:
                entries.append({"hex": piece.hex()})
            if self.chance.random() < 0.03:
                entries.append({"sleep_ms": self.chance.randint(1, 15)})
        return entries

    def ask(self, kind: str, path: str, script: str, said: Seq[Said], **fields: Any) -> Ask:
        """A request at this API with a script for its last message, streamed or not."""
        body = _asking(path, script, fields)
        if path == CHAT and self.chance.random() < 0.4:
            body["messages"] = [{"role": "system", "content": SYSTEM}, *body["messages"]]
        if body.get("n", 1) == 1 and self.chance.random() < 0.5:
            body["stream"] = True
            if path in (CHAT, COMPLETIONS) and self.chance.random() < 0.5:
                body["stream_options"] = {"include_usage": True}
        if path in (CHAT, COMPLETIONS) and self.chance.random() < 0.1:
            body["cache_prompt"] = False
        return Ask(kind, path, body, said=tuple(said))


def _asking(path: str, text: str, fields: dict[str, Any]) -> dict[str, Any]:
    if path == COMPLETIONS:
        return {"prompt": text, **fields}
    if path == RESPONSES:
        return {"input": text, **_renamed(fields, max_tokens="max_output_tokens")}
    messages = {"messages": [{"role": "user", "content": text}]}
    if path == MESSAGES:
        return {"max_tokens": 5000, **messages, **_renamed(fields, stop="stop_sequences")}
    return {**messages, **fields}


def _renamed(fields: dict[str, Any], **names: str) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in fields.items()}


# ----------------------------------------------------------------------------------------------- kinds of visits


def plain(plan: Planner) -> Visit:
    text = plan.text()
    path = plan.chance.choice((CHAT, CHAT, COMPLETIONS, MESSAGES, RESPONSES))
    return [plan.ask("plain", path, plan.script(text), [Said(text)])]


def sampled(plan: Planner) -> Visit:
    """The script's token is so much likelier than any other that no noise gets past it."""
    text = plan.text()
    fields = {"temperature": round(plan.chance.uniform(0.1, 1.0), 2), "top_p": 0.9}
    path = plan.chance.choice((CHAT, COMPLETIONS, RESPONSES))
    return [plan.ask("sampled", path, plan.script(text), [Said(text)], **fields)]


def conversation(plan: Planner) -> Visit:
    """Turns of one chat: each prompt is the one before, its answer and another message."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    visit = []
    for _ in range(plan.chance.randint(2, 4)):
        text = plan.text()
        messages = [*messages, {"role": "user", "content": plan.script(text)}]
        body = {"messages": messages, "stream": plan.chance.random() < 0.5}
        visit.append(Ask("conversation", CHAT, body, said=(Said(text),)))
        messages = [*messages, {"role": "assistant", "content": text}]
    return visit


def several(plan: Planner) -> Visit:
    text, n = plan.text(), plan.chance.randint(2, 4)
    path = plan.chance.choice((CHAT, CHAT, COMPLETIONS))
    return [plan.ask("several", path, plan.script(text), [Said(text)] * n, n=n)]


def batch(plan: Planner) -> Visit:
    texts = [plan.text(1, 8) for _ in range(plan.chance.randint(2, 3))]
    body = {"prompt": [plan.script(text) for text in texts], "stream": plan.chance.random() < 0.5}
    return [Ask("batch", COMPLETIONS, body, said=tuple(map(Said, texts)))]


def tools(plan: Planner) -> Visit:
    text, name = plan.text(1, 8), plan.chance.choice(("look", "search"))
    # No two alike: a call exactly like the one before it is dropped.
    queries = plan.chance.sample(QUERIES, plan.chance.choice((1, 1, 2)))
    written = "\n".join(CALL.format(name=name, query=query) for query in queries)
    calls = tuple((name, json.dumps({"query": query}, ensure_ascii=False)) for query in queries)
    function = {"name": name, "description": "Finds something.", "parameters": PARAMETERS}
    path = plan.chance.choice((CHAT, CHAT, MESSAGES, RESPONSES))
    offered: dict[str, Any] = {"type": "function", "function": function}
    if path == RESPONSES:
        offered = {"type": "function", "strict": False, **function}
    elif path == MESSAGES:
        offered = {"name": name, "description": "Finds something.", "input_schema": PARAMETERS}
    said = Said(text, calls=calls, finish="tool_calls")
    return [plan.ask("tools", path, plan.script(text + written), [said], tools=[offered])]


def thinking(plan: Planner) -> Visit:
    thought, text = plan.text(), plan.text()
    path = plan.chance.choice((CHAT, CHAT, MESSAGES, RESPONSES))
    fields = {"thinking": {"type": "enabled", "budget_tokens": 4000}} if path == MESSAGES else {}
    # The template looks for the tag to know that the script begins with reasoning, so it stands in one piece.
    told = json.dumps({"script": [*plan.blocks(thought), "</think>\n\n", *plan.blocks(text)]})
    return [plan.ask("thinking", path, told, [Said(text, thought)], **fields)]


def stopped(plan: Planner) -> Visit:
    before, after = plan.text(), plan.text()
    stop = plan.chance.choice(("#STOP#", "東京駅", "\n\n\n"))
    path = plan.chance.choice((CHAT, COMPLETIONS, MESSAGES))
    return [plan.ask("stopped", path, plan.script(before + stop + after), [Said(before)], stop=["@never@", stop])]


def cut(plan: Planner) -> Visit:
    """An answer without an end, which its limit ends; one token of this model is a byte."""
    word = plan.chance.choice(("abc", "word "))
    limit = plan.chance.randint(1, 200)
    path = plan.chance.choice((CHAT, COMPLETIONS, MESSAGES, RESPONSES))
    text = (word * limit)[:limit]
    script = json.dumps({"script": [word], "end": False})
    return [plan.ask("cut", path, script, [Said(text, finish="length")], max_tokens=limit)]


def document(plan: Planner) -> Visit:
    text = json.dumps({"name": plan.chance.choice(("Rhine", "Aare", "Reuss")), "km": plan.chance.randrange(2000)})
    wanted = plan.chance.choice(
        (
            {"response_format": {"type": "json_object"}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "river", "schema": SCHEMA}}},
            {"structured_outputs": {"json": SCHEMA}},
            {"structured_outputs": {"choice": [text, "no"]}},
        )
    )
    return [plan.ask("document", CHAT, plan.script(text), [Said(text)], **wanted)]


def picture(plan: Planner) -> Visit:
    colour = f"#{plan.chance.randrange(1 << 24):06x}"
    text = json.dumps({"script": ["It is ", {"picture": 0}, "."]})
    shown = {"type": "image_url", "image_url": {"url": _picture(colour)}}
    content = [shown, {"type": "text", "text": text}]
    body = {"messages": [{"role": "user", "content": content}], "stream": plan.chance.random() < 0.5}
    return [Ask("picture", CHAT, body, said=(Said(f"It is 320x256, 80 rows, {colour}."),))]


def refused_picture(plan: Planner) -> Visit:
    wrong = plan.chance.choice(
        (
            "data:image/png;base64,aGVsbG8=",
            "data:text/plain;base64,aGVsbG8=",
            "http://example.com/a.png",
            "file:///etc/passwd",
            _picture("#000000")[:80],
        )
    )
    content = [{"type": "image_url", "image_url": {"url": wrong}}, {"type": "text", "text": "What is it?"}]
    return [Ask("refused picture", CHAT, {"messages": [{"role": "user", "content": content}]}, status=400)]


def wrong(plan: Planner) -> Visit:
    hello = [{"role": "user", "content": "Hello"}]
    doors = (CHAT, COMPLETIONS, MESSAGES, RESPONSES)
    return [
        plan.chance.choice(
            (
                Ask("wrong", plan.chance.choice(doors), b"{", 400),
                Ask("wrong", plan.chance.choice(doors), b"\xff\xfe", 400),
                Ask("wrong", plan.chance.choice(doors), b"[" * 100_000, 400),
                Ask("wrong", plan.chance.choice(doors), b"{}", 400, content_type="text/plain"),
                Ask("wrong", plan.chance.choice(doors), {}, 400),
                Ask("wrong", CHAT, {"messages": hello, "temperature": 9}, 400),
                Ask("wrong", CHAT, {"messages": [{"role": "robot", "content": "x"}]}, 400),
                Ask("wrong", CHAT, {"messages": hello, "tools": [{"type": "function"}]}, 400),
                Ask("wrong", CHAT, {"messages": hello, "n": 3, "stream": True}, 400),
                Ask("wrong", COMPLETIONS, {"prompt": "x" * 300_000}, 400),
                Ask("wrong", MESSAGES, {"messages": hello}, 400),
                Ask("wrong", RESPONSES, {"input": [{"type": "nothing"}]}, 400),
                Ask("wrong", "/v1/nothing", {}, 404),
                Ask("wrong", CHAT, b"", 405, method="GET"),
            )
        )
    ]


def leaving(plan: Planner) -> Visit:
    """A client that goes away: while it sends, while it waits or its prompt is read, while it reads."""
    chance = plan.chance
    path = chance.choice((CHAT, CHAT, COMPLETIONS, MESSAGES, RESPONSES))
    stage = chance.choice(("body", "wait", "wait", "text", "text"))
    manner = chance.choice(("close", "reset", "half"))
    size = chance.choice((0, 0, 30_000, 90_000)) if stage != "text" else 0
    # Numbers, so that no prompt begins like another, and each is read.
    filler = " ".join(str(chance.randrange(10**9)) for _ in range(size // 10))
    told = json.dumps({"note": filler, "script": ["Hm", {"sleep_ms": 3}, "word "], "end": False})
    body = _asking(path, told, {"max_tokens": ENDLESS, "stream": stage == "text" or chance.random() < 0.5})
    if chance.random() < 0.2 and path == CHAT and not body["stream"]:
        body["n"] = 3
    leave = Leave(stage, manner, chance.choice((0.0, 0.01, 0.05, 0.2)), chance.choice((1, 300, 3000)))
    return [Ask("leaving", path, body, leave=leave)]


def slow(plan: Planner) -> Visit:
    """A reader that the answer has to wait for."""
    text = " ".join(plan.text() for _ in range(6))
    (ask,) = [plan.ask("slow", plan.chance.choice((CHAT, MESSAGES, RESPONSES)), plan.script(text), [Said(text)])]
    return [replace(ask, body={**ask.body, "stream": True}, slow=True)]


def clear(plan: Planner) -> Visit:
    return [Ask("clear", "/v1/cache/clear", {})]


def poll(plan: Planner) -> Visit:
    path = plan.chance.choice(("/health", "/metrics", "/v1/models", "/v1/plugins", "/v1/cache/stats", "/openapi.json"))
    return [Ask("poll", path, b"", method="GET")]


SHARES: dict[Callable[[Planner], Visit], int] = {
    plain: 14,
    sampled: 4,
    conversation: 6,
    several: 5,
    batch: 3,
    tools: 8,
    thinking: 7,
    stopped: 6,
    cut: 6,
    document: 6,
    picture: 3,
    refused_picture: 3,
    wrong: 6,
    leaving: 14,
    slow: 1,
    clear: 1,
    poll: 5,
}
"""How often each kind of visit is drawn, in parts of all."""


def _picture(colour: str) -> str:
    from PIL import Image

    file = BytesIO()
    Image.new("RGB", (320, 256), colour).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
