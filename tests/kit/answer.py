"""What came back from a chat request, with assertions that say what they saw."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Answer:
    """The outcome of one chat request, streamed or not. The `assert_...` methods return the answer, to be chained."""

    status: int
    """The HTTP status."""
    headers: Mapping[str, str]
    """Names in any case."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """The JSON body of an answer that was not streamed, and of every error before the first byte of a stream."""
    chunks: tuple[Mapping[str, Any], ...] = ()
    """The stream's JSON chunks, in order."""
    done: bool = False
    """Whether the stream ended with `[DONE]`."""

    @property
    def deltas(self) -> list[str]:
        """The pieces of text as they arrived: every non-empty content delta; one piece without a stream."""
        if not self.chunks:
            return [self.text] if self.text else []
        return [text for choice in self._choices() if (text := choice.get("delta", {}).get("content"))]

    @property
    def text(self) -> str:
        """The whole answer."""
        if self.chunks:
            return "".join(self.deltas)
        choices = self.body.get("choices") or [{}]
        return choices[0].get("message", {}).get("content") or ""

    @property
    def reasoning(self) -> str:
        """What the model thought, as far as the client is told."""
        if self.chunks:
            return "".join(choice.get("delta", {}).get("reasoning_content") or "" for choice in self._choices())
        choices = self.body.get("choices") or [{}]
        return choices[0].get("message", {}).get("reasoning_content") or ""

    @property
    def calls(self) -> list[tuple[str, Any]]:
        """The tool calls: name, and arguments read as JSON (as text, where a call was cut off)."""
        if self.chunks:
            pieces = [piece for choice in self._choices() for piece in choice.get("delta", {}).get("tool_calls") or []]
        else:
            choices = self.body.get("choices") or [{}]
            written = choices[0].get("message", {}).get("tool_calls") or []
            pieces = [{**call, "index": index} for index, call in enumerate(written)]
        names: dict[int, str] = {}
        arguments: dict[int, str] = {}
        for piece in pieces:
            index, function = piece["index"], piece.get("function", {})
            names.setdefault(index, function.get("name") or "")
            arguments[index] = arguments.get(index, "") + (function.get("arguments") or "")
        return [(names[index], _read(arguments[index])) for index in sorted(names)]

    @property
    def finish_reason(self) -> str | None:
        choices = self._choices() if self.chunks else self.body.get("choices", [])
        return next((choice["finish_reason"] for choice in choices if choice.get("finish_reason")), None)

    @property
    def usage(self) -> Mapping[str, Any]:
        """The token counts; empty when the answer carries none."""
        return self._last("usage")

    @property
    def timings(self) -> Mapping[str, Any]:
        """What the server measured; empty when the answer carries none."""
        return self._last("timings")

    @property
    def error(self) -> Mapping[str, Any] | None:
        """The error object, of a refusal or inside the stream."""
        found = [chunk["error"] for chunk in self.chunks if "error" in chunk]
        return found[0] if found else self.body.get("error")

    def assert_status(self, status: int) -> Answer:
        if self.status != status:
            raise AssertionError(f"status {self.status}, not {status}{self._said()}")
        return self

    def assert_text(self, text: str) -> Answer:
        """The whole text is exactly this."""
        self.assert_status(200)
        if self.text != text:
            raise AssertionError(f"the answer's text differs\n  is:        {self.text!r}\n  should be: {text!r}")
        return self

    def assert_finish(self, reason: str) -> Answer:
        """The answer ended with this `finish_reason`."""
        self.assert_status(200)
        if self.finish_reason != reason:
            raise AssertionError(f"finish_reason is {self.finish_reason!r}, not {reason!r}{self._said()}")
        return self

    def _choices(self) -> list[Mapping[str, Any]]:
        return [choice for chunk in self.chunks for choice in chunk.get("choices") or [] if not choice.get("index")]

    def _last(self, key: str) -> Mapping[str, Any]:
        found = [chunk[key] for chunk in self.chunks if chunk.get(key)]
        return found[-1] if found else self.body.get(key) or {}

    def _said(self) -> str:
        return f"; the server said: {json.dumps(self.error, ensure_ascii=False)}" if self.error else ""


def _read(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
