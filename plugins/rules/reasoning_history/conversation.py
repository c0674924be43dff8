"""What a conversation says already, as an index that is built in slices while the model reasons."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence as Seq
from typing import Any

from tandem.core.plugin import text_of
from tandem.plugins.rules._phrases import Phrases

SLICE = 4000
"""Characters that one step reads."""


class Conversation:
    """How often a phrase of `order` words was said before this reasoning: once for all the messages together, and once
    for each earlier reasoning that has it.

    A file may have been read twice, or be part of two messages: quoting it then is still quoting. But a thought that
    stands in three earlier reasonings was had three times.

    Of the messages the last `characters` characters are read, the newest message first, `SLICE` a step: a step takes
    about half a millisecond, so nobody waits.
    """

    def __init__(self, messages: Seq[Mapping[str, Any]], order: int, characters: int) -> None:
        self._said: set[int] = set()
        self._thought: dict[int, int] = {}
        self._steps = self._read(messages, order, characters)
        self.complete = False

    def step(self) -> None:
        """Read one slice more."""
        self.complete = self.complete or next(self._steps, None) is None

    def times(self, phrase: int) -> int:
        return (phrase in self._said) + self._thought.get(phrase, 0)

    def __contains__(self, phrase: int) -> bool:
        return phrase in self._said or phrase in self._thought

    def _read(self, messages: Seq[Mapping[str, Any]], order: int, left: int) -> Iterator[bool]:
        for message in reversed(messages):
            for text, is_thought in texts(message):
                phrases, found = Phrases(order), set[int]()
                text = text[-left:]
                left -= len(text)
                for start in range(0, len(text), SLICE):
                    found.update(phrases.feed(text[start : start + SLICE]))
                    if start + SLICE < len(text):
                        yield True
                found.update(phrases.end())
                if is_thought:
                    for phrase in found:
                        self._thought[phrase] = self._thought.get(phrase, 0) + 1
                else:
                    self._said |= found
                if text:
                    yield True
                if not left:
                    return


def texts(message: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """The texts of a message, each with whether it is reasoning."""
    content = text_of(message)
    if message.get("role") == "assistant":
        for name in ("reasoning_content", "reasoning"):
            if isinstance(message.get(name), str) and message[name]:
                yield message[name], True
                break
        thought, tag, answer = content.rpartition("</think>")
        if tag:
            yield thought, True
            content = answer
        for call in message.get("tool_calls") or ():
            function = call.get("function") if isinstance(call, Mapping) else None
            arguments = function.get("arguments") if isinstance(function, Mapping) else None
            if isinstance(arguments, Mapping):
                arguments = json.dumps(arguments, ensure_ascii=False, default=str)
            if isinstance(arguments, str):
                yield arguments, False
    yield content, False
