"""What a test tells the scripted model through a client: the answers of a whole agent session in one message."""

from __future__ import annotations

import json
from typing import Any


def call(name: str, **values: Any) -> str:
    """A tool call as the model writes it. Every value is text; the server gives it the type that its schema says."""
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def plan(*turns: Any, aside: list[Any] | None = None) -> str:
    """The message whose first answer is the first turn, and so on. `aside` answers a request without tools: a title."""
    told: dict[str, Any] = {"turns": [[turn] if isinstance(turn, str) else turn for turn in turns]}
    return json.dumps(told if aside is None else {**told, "aside": aside})


def script(*entries: Any, **more: Any) -> str:
    """The message that is answered with these entries; `end=False` repeats the last one until the limit."""
    return json.dumps({"script": list(entries), **more})


def endless(*entries: Any) -> dict[str, Any]:
    """A turn of a plan that repeats its last entry until the limit."""
    return {"script": list(entries), "end": False}


SLOW = [{"sleep_ms": 100}, "word "]
"""Ten words a second."""
